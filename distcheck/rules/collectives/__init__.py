"""Rules about the collectives: how they ended, their bandwidth, and what NCCL used.

Modules without rules: `deaths` and `endings` (which rank is the cause), `figures`, `nccl_logs`.
"""
