"""Three Gloo ranks of which rank 2 sleeps, skips a collective or dies; each writes what the Flight Recorder has.

Arguments: a folder per fault, named after it. Ranks are forked after torch is imported once.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

RANKS = 3


def rank(number: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), RANKS)
    limit = dt.timedelta(seconds=20)
    dist.init_process_group("gloo", store=store, rank=number, world_size=RANKS, timeout=limit)
    dist.all_reduce(torch.ones(4))
    fault = folder.name if number == RANKS - 1 else ""
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    called: list[object] = []  # keeps the call until the end: its destruction would wait for it
    if fault == "skips":
        called.append(dist.broadcast(torch.ones(2), 0, async_op=True))
    elif fault != "sleeps":
        called.append(dist.all_reduce(torch.ones(8), async_op=True))
    time.sleep(0.5)
    (folder / f"trace_{number}").write_bytes(c10d._dump_fr_trace(includeStackTraces=False))  # symbolizing takes seconds
    (folder / f"trace_{number}.json").write_bytes(c10d._dump_fr_trace_json())
    os._exit(0)


for path in map(Path, sys.argv[1:]):
    children = []
    for number in range(RANKS):
        if pid := os.fork():
            children.append(pid)
        else:
            try:
                rank(number, path)
            except BaseException:  # noqa: BLE001  # a child never returns
                traceback.print_exc()
                os._exit(1)
    for pid in children:
        os.waitpid(pid, 0)
