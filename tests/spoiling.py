"""Faults of single ranks: code that one rank's process runs in place of a collective, without a hook in the product."""

from __future__ import annotations

import os
from pathlib import Path

_SITE = """
import builtins, ctypes, mmap, os, signal, sys, time
_real, _done = builtins.__import__, []
def _spoil(dist):
    whole = dist.all_reduce
    def all_reduce(tensor, *args, **more):
        do = lambda: whole(tensor, *args, **more)
        done = ({ranks!r} is None or int(os.environ.get("RANK", -1)) in {ranks!r}) and fault(do, tensor)
        return done or do()
    dist.all_reduce = all_reduce
def _import(name, *args, **more):
    module = _real(name, *args, **more)
    dist = sys.modules.get("torch.distributed")
    if not _done and hasattr(dist, "broadcast_object_list"):
        _done.append(_spoil(dist))
    return module
builtins.__import__ = _import
def fault(whole, tensor):
{body}
"""

WRONG = """
    whole()
    tensor[:3] += 1
    return True
"""
FREEZE, DIE = (f"\n    os.kill(os.getpid(), signal.{name})\n" for name in ("SIGSTOP", "SIGKILL"))
RAISE = """
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""
HOLD = """
    while True:
        ctypes.PyDLL(None).sleep(600)
"""
"""A call into C that keeps the interpreter."""
UNINTERRUPTIBLE = """
    # A vforked child that waits for somebody to open its pipe; until then the kernel shows us in state D.
    os.mkfifo("{folder}/fifo")
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, "{folder}/fifo", os.O_RDONLY, 0)])
"""
PRINT = """
    while True:
        os.write(2, b"for ever " * 1000)
"""
SHARED_MEMORY = """
    with open(f"/dev/shm/distcheck-test-{os.getpid()}", "wb+") as file:
        os.unlink(file.name)
        os.ftruncate(file.fileno(), {bytes})
        whole = mmap.mmap(file.fileno(), {bytes})
        for at in range(0, {bytes}, 4096):
            whole[at] = 1
"""
"""What NCCL and torch's data loaders do: a file is made as large as it shall be, and has no room when it is written."""
MEMORY = """
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)))
"""


def site(ranks: tuple[int, ...] | None, body: str, **values: object) -> str:
    """Return a sitecustomize.py with which these ranks, or all that find it, run `body` before each all_reduce.

    `body` is that of a function of `whole`, which does the all_reduce, and of `tensor`; where it returns True it stands
    for the all_reduce.
    """
    for name, value in values.items():
        body = body.replace(f"{{{name}}}", str(value))
    return _SITE.replace("{ranks!r}", repr(ranks)).replace("{body}", body)


def spoiled(folder: Path, ranks: tuple[int, ...], body: str, **values: object) -> dict[str, str]:
    """Write that file and return the variables with which it is found."""
    there = folder / "site"
    there.mkdir()
    (there / "sitecustomize.py").write_text(site(ranks, body, folder=folder, **values))
    path = os.pathsep.join([str(there), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {"PYTHONPATH": path}
