"""Lets `distcheck hang` read the stacks of this process later without root (`--arm`).

With kernel.yama.ptrace_scope 1, only the ancestors of a process may read it, and the processes that it names by
PR_SET_PTRACER. The kernel keeps the name with the process: it lasts through exec by the main thread, and a child does
not inherit it. Sources: Linux, Documentation/admin-guide/LSM/Yama.rst, and security/yama/yama_lsm.c, whose hooks are
for prctl, for attaching and for the end of a task; there is none for exec or fork.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from distcheck.probe.kernel_files import integer

Reach = Literal["rank", "process", "launcher"]
"""Whose stacks count: this process is the rank, may be the rank, or starts the ranks as children."""

_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h
_ANY = ctypes.c_ulong(-1)
_RELATIONAL, _NO_ATTACH = 1, 3
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_IN_SCRIPT = "distcheck.preflight(arm=True) in the script reaches each rank"


def _allow_any() -> None:
    """Let every process of this user attach to this one.

    Raises:
        OSError: the kernel refused it; without Yama it does not know the request.
    """
    zero = ctypes.c_ulong(0)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PTRACER, _ANY, zero, zero, zero) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def arm(name: str, reach: Reach, *, scope: Path = _SCOPE, allow: Callable[[], None] = _allow_any) -> str:
    """Let `distcheck hang` attach to this process if the kernel needs that; return in one line what that reaches.

    It costs no step: the kernel looks at it when a process attaches. `name` is what the line calls this process.
    """
    value = integer(scope)
    if not value:
        why = "this kernel has no Yama" if value is None else "kernel.yama.ptrace_scope is 0"
        return f"arm: nothing to set, {why}"
    if value != _RELATIONAL:
        who = "no process" if value == _NO_ATTACH else "only root"
        return f"arm: no effect, {who} may attach with kernel.yama.ptrace_scope {value}"
    if reach == "launcher":
        return f"arm: no effect, {name} starts the ranks as children, which do not inherit it; {_IN_SCRIPT}"
    try:
        allow()
    except OSError as error:
        return f"arm: no effect, PR_SET_PTRACER failed: {error.strerror}"
    known = f"arm: distcheck hang may attach to {name} without root"
    return known if reach == "rank" else f"{known}, but not to processes that it starts; {_IN_SCRIPT}"
