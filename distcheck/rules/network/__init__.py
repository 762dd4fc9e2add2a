"""Rules about the network: the way to rank 0, and the ways between the nodes.

Helpers, which hold no rules: `attempts` (how processes tried to reach each other), `ephemeral_ports`, `losses`,
`rates`, `interface_choices` and `interface_cases` (what NCCL and Gloo take, and what is wrong with it),
`selected_interfaces` (whether it fits together).
"""
