"""A job as bare as can be: the ranks meet over env://, sum their numbers, and each says what came out."""

import os

from distcheck.collectives.postponed import without_meta_kernels

with without_meta_kernels():  # which no collective needs; the tests start this job some dozen times
    import torch
    import torch.distributed as dist

dist.init_process_group("gloo")
number = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(number)
world = dist.get_world_size()
assert number.item() == world * (world + 1) / 2, number
print(f"rank {os.environ['RANK']} of {world} summed up {number.item():.0f}", flush=True)
dist.destroy_process_group()
