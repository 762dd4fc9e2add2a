"""Which rank holds up a running job: `places` reads stacks, `states` what each rank does, `judging` gives the answer.

`program` and `machine` are the rules: what they report is in the job's own program, or in a node or a device.
"""
