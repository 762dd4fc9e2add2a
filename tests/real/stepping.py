"""A job over Gloo that takes steps: ``stepping.py FOLDER [RANK]``; the rank sleeps in its fourth step.

The folder gets a file for each rank that has come so far.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def load_shard():
    time.sleep(3600)


def main():
    for name, other in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS")):
        os.environ.setdefault(name, os.environ.get(other, ""))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradients = torch.ones(4)
    for step in range(10**9):
        if step == 3:
            Path(sys.argv[1], f"ready.{rank}").touch()
            if sys.argv[2:] == [str(rank)]:
                load_shard()
        dist.all_reduce(gradients)
        time.sleep(0.01)


main()
