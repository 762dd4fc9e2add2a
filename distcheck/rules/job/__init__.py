"""The job as its launcher describes it: helpers for the rules of all families.

No rule is here. `settings`: who set a variable. `remedies`: commands that fix it. `addresses`: MASTER_ADDR and
MASTER_PORT. `world`: the world that the ranks form. `claims`: which process claims which rank. `agents`: torchrun's
agents. `homes`: the nodes of missing ranks. `wrong_master`: MASTER_ADDR values that do not lead to rank 0. `kinds`:
ranks that are alike. `nccl_remedies`: commands that change a setting of NCCL. `own_failures`: probes in which
distcheck itself failed. `same_ranks`: commands of distcheck that start the ranks of the run again.
"""
