"""Faults of single ranks: code that one rank's process runs in place of a collective, without a hook in the product."""

from __future__ import annotations

import os
import sysconfig
from functools import reduce
from pathlib import Path

SITE = f"{sysconfig.get_paths()['purelib']}/sitecustomize.py"
"""Where Python finds it on a node that has a file system of its own."""
_SITE = """
import builtins, ctypes, mmap, os, signal, sys, time
_real, _done = builtins.__import__, []
def _spoil(dist):
    owner, name = (dist.PrefixStore, "wait") if {leaving!r} else (dist, {call!r})
    whole = getattr(owner, name)
    def spoiled(first, *args, **more):
        do = lambda: whole(first, *args, **more)
        mine = {ranks!r} is None or int(os.environ.get("RANK", -1)) in {ranks!r}
        done = mine and ({leaving!r} is False or args[0] == ["all"]) and fault(do, first)
        return done or do()
    setattr(owner, name, spoiled)
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

_HOOK = """
import builtins, ctypes, os, sys, time
_real, _done = builtins.__import__, []
def _import(name, *args, **more):
    module = _real(name, *args, **more)
    there = sys.modules.get({module!r})
    if not _done and hasattr(there, {attribute!r}):
        _done.append(there)
        _spoil(there)
    return module
builtins.__import__ = _import
def _spoil(there):
{body}
"""

BROKEN = """
import sys
class Broken:
    def find_spec(self, name, *_):
        if name == "distcheck.run.entry":
            raise RuntimeError("no such thing")
sys.meta_path.insert(0, Broken())
"""
"""A sitecustomize.py with which a probe fails in distcheck's own code before it joins."""

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


def site(
    ranks: tuple[int, ...] | None, body: str, *, leaving: bool = False, call: str = "all_reduce", **values: object
) -> str:
    """Return a sitecustomize.py with which these ranks, or all that find it, run `body` before each call of this kind.

    With `leaving` they run it once, when they have told everything and wait for the others to have done so.

    `body` is that of a function of `whole`, which does the call, and of `tensor`, its first argument; where it returns
    True it stands for the call.
    """
    for name, value in values.items():
        body = body.replace(f"{{{name}}}", str(value))
    chosen = {"{ranks!r}": repr(ranks), "{leaving!r}": repr(leaving), "{call!r}": repr(call), "{body}": body}
    return reduce(lambda text, name: text.replace(name, chosen[name]), chosen, _SITE)


def hooked(module: str, attribute: str, body: str) -> str:
    """Return a sitecustomize.py that runs `body` once this module, `there`, has this attribute."""
    chosen = {"{module!r}": repr(module), "{attribute!r}": repr(attribute), "{body}": body}
    return reduce(lambda text, name: text.replace(name, chosen[name]), chosen, _HOOK)


def spoiled(
    folder: Path, ranks: tuple[int, ...], body: str, *, leaving: bool = False, **values: object
) -> dict[str, str]:
    """Write that file and return the variables with which it is found."""
    return planted(folder, site(ranks, body, leaving=leaving, folder=folder, **values))


def planted(folder: Path, text: str, name: str = "sitecustomize.py") -> dict[str, str]:
    """Write a module and return the variables with which Python finds it before all others."""
    module = folder / "site" / name
    module.parent.mkdir(parents=True)
    module.write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
