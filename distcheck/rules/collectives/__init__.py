"""Rules about the collectives: how they ended, how fast they were, and what NCCL says it used.

Helpers, which hold no rules: `deaths` and `endings` (who is the cause), `figures`, `nccl_logs`.
"""
