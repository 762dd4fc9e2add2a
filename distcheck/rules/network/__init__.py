"""Rules about the network: the path to rank 0, and the paths between the nodes.

Modules without rules: `attempts` (how processes tried to reach each other), `ephemeral_ports`, `losses`, `rates`,
`port_owners` (the program that holds MASTER_PORT), `interface_choices` and `interface_cases` (which interfaces NCCL and
Gloo use, and what is wrong with them), `selected_interfaces` (whether the nodes' choices fit together), `translation`
(nodes behind address translation), `explained_trials` (which failing trials the interfaces and the routes explain),
`machines` (which nodes NCCL takes for one host), `path_uses` (which paths the libraries of the job use).
"""
