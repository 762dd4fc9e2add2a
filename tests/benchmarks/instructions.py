"""Count the instructions that a piece of Python takes.

Unlike seconds they do not depend on what else the machine does, on its clock, or on what fits into its caches, so that
one run suffices. Source: https://man7.org/linux/man-pages/man2/perf_event_open.2.html
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _INSTRUCTIONS = 0, 1
_WITHOUT_KERNEL_AND_HYPERVISOR = 0b1100000
_CLOSE_ON_EXEC = 8
_FORM = "=IIQQQQQIIQ"
"""The first published form of struct perf_event_attr: kind, size, event, four more, flags, and three more."""


def counted(work: Callable[[], T]) -> tuple[int, T]:
    """Return the instructions that this thread takes for some work outside the kernel, and the work's result.

    Raises:
        OSError: this machine or this process may not count; many a virtual machine may not.
    """
    counter = _open()
    try:
        before = _read(counter)
        result = work()
        return _read(counter) - before, result
    finally:
        os.close(counter)


def _open() -> int:
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None:
        raise OSError(f"instructions are not counted on {platform.machine()}")
    size = struct.calcsize(_FORM)
    attributes = struct.pack(
        _FORM, _HARDWARE, size, _INSTRUCTIONS, 0, 0, 0, _WITHOUT_KERNEL_AND_HYPERVISOR, 0, 0, 0
    )  # fmt: skip
    libc = ctypes.CDLL(None, use_errno=True)
    this_thread, any_cpu, no_group = 0, -1, -1
    counter: int = libc.syscall(number, attributes, this_thread, any_cpu, no_group, ctypes.c_ulong(_CLOSE_ON_EXEC))
    if counter < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"instructions are not counted here: {os.strerror(error)}")
    return counter


def _read(counter: int) -> int:
    return int.from_bytes(os.read(counter, 8), "little")
