"""Whether collectives on GPUs work without the part of torch's import that is postponed on machines without GPUs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from distcheck.collectives import postponed
postponed._GPU_DRIVERS = ()
from distcheck.collectives import devices, worker
import torch, torch.distributed as dist
assert "torch._meta_registrations" not in sys.modules
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
numbers = torch.ones(1 << 20, device=device)
dist.all_reduce(numbers)
dist.broadcast(numbers, 0)
print(int(numbers.sum()) == 1 << 20, devices.test(device, 0, 0.05, 0.0, lambda text: None))
dist.destroy_process_group()
"""


def test_a_gpu_computes_and_communicates_without_the_meta_kernels(cards):
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True "), done.stdout
    assert "Missing" not in done.stdout
