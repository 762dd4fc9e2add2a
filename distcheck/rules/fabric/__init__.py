"""Rules about the RDMA fabric: InfiniBand, RoCE and EFA adapters as sysfs shows them, compared across nodes.

Modules without rules: `lines` (the ports of all nodes, and which of them NCCL uses), `gid_choices` (the GIDs that it
uses on RoCE ports).
"""
