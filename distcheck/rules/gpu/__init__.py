"""Rules about GPUs: which GPU each rank gets, and its condition.

Helpers, which hold no rules: `nodes` (which nodes the rules look at, how a GPU is named), `readings` (the condition of
each GPU), `loads` (the condition under load), `nvml_errors`, `cuda_view`, `visibility`, `ordinals`, `sharing`,
`shortfall`, `mig_use`, `assigned` (which rank takes which GPU, and where that GPU is).
"""
