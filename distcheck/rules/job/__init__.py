"""The job as its launcher describes it: what rules of every subject ask.

No family of rules is here. `settings` knows who set a variable, `remedies` what to type instead, `addresses` what
MASTER_ADDR and MASTER_PORT mean, `world` what the ranks add up to, `claims` who claims which rank, `agents` what
torchrun's agents were told, `homes` where ranks belong that were not heard, `astray` where MASTER_ADDR leads instead.
"""
