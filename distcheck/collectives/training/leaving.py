"""What a process group leaves behind in its process after `destroy_process_group`: threads, sockets, children."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from distcheck.collectives.store import await_all, part_of
from distcheck.facts.base import Missing
from distcheck.facts.training import Leftovers

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_SELF = Path("/proc/self")
_PATIENCE_SECONDS, _LOOK_SECONDS = 2.0, 0.02
"""Threads and sockets end within milliseconds."""


def test(backend: str, ranks: int, store: Store) -> Leftovers | Missing:
    """Create a second group of all ranks, use it, destroy it, and return what is left of it in this process."""
    if backend != "gloo":
        return Missing(reason=f"torch {torch.__version__}: what a destroyed group leaves is looked at with Gloo only")
    if torch.__version__ < "2.8":
        # Its destructor joins a thread while it holds the interpreter lock.
        return Missing(reason=f"torch {torch.__version__} sometimes deadlocks when it destroys a group of Gloo")
    store = part_of(store, "leaving")
    before = _here()
    group = dist.new_group()
    dist.all_reduce(torch.zeros(1), group=group)
    await_all(store, "used", ranks)
    dist.destroy_process_group(group)
    del group
    until = time.monotonic() + _PATIENCE_SECONDS
    while (left := _here() - before) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    await_all(store, "left", ranks)
    of = {kind: tuple(sorted(name for (k, name), n in left.items() if k == kind for _ in range(n))) for kind in _KINDS}
    return Leftovers(threads=of["thread"], sockets=len(of["socket"]), children=of["child"])


_KINDS = ("thread", "socket", "child")


def _here() -> Counter[tuple[str, str]]:
    """Return this process's threads and children by their names, and its sockets."""
    found: Counter[tuple[str, str]] = Counter()
    for task in (_SELF / "task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            found["thread", (task / "comm").read_text("utf-8", "replace").strip()] += 1
            for child in (task / "children").read_text().split():
                found["child", Path("/proc", child, "comm").read_text("utf-8", "replace").strip()] += 1
    for descriptor in (_SELF / "fd").iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()).startswith("socket:"):
                found["socket", ""] += 1
    return found
