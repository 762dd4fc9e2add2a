"""Rules about GPUs: which one each rank gets, and in what state it is.

Helpers, which hold no rules: `nodes` (which nodes are looked at, how a GPU is named), `readings` (the condition of each
GPU), `loads` (the same under load), `nvml_errors`, `cuda_view`, `visibility`, `ordinals`, `sharing`, `shortfall`,
`mig_use`, `assigned` (which rank takes which GPU, and where that is).
"""
