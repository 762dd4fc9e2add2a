"""The only gateway to NVML: it starts NVML, and each call returns a value or NVML's error.

NVML may block forever on a wedged GPU, in a system call that no signal ends. So only programs that run in a child call
it; the child is left behind at its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from distcheck.facts import gpu as facts
from distcheck.facts.base import Missing

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Nvml = Any  # the module pynvml: its functions and their results are untyped

LIBRARY = "libnvidia-ml.so.1"
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
VERSION_MISMATCH = 25
_EVERY_BIT = (1 << 64) - 1
_WORDS = {
    NO_PERMISSION: "no permission to use the NVIDIA driver",
    DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded",
    LIBRARY_NOT_FOUND: "NVIDIA's driver library is not installed: libnvidia-ml.so.1 was not found",
    GPU_IS_LOST: "a GPU is lost: it fell off the bus or is unreachable",
    17: "the operating system blocked the request",
    18: "driver/library version mismatch: the kernel module and libnvidia-ml.so.1 have different versions",
    999: "unknown error",
}
_OTHER_WORDS = {FUNCTION_NOT_FOUND, VERSION_MISMATCH, None}
"""Errors after which another call for the same value may work; None: nvidia-ml-py does not know the call."""


def start() -> Nvml | Missing:
    """Start NVML in this process, which may hang, and return its module."""
    try:
        import pynvml
    except ImportError as error:
        return Missing(reason=f"cannot import the Python module pynvml (package nvidia-ml-py): {error}")
    started = ask(pynvml, pynvml.nvmlInit)
    if isinstance(started, Missing):
        return _unloadable() if error_code(started.reason) == LIBRARY_NOT_FOUND else started
    return pynvml


def _unloadable() -> Missing:
    """Return why the library cannot be loaded, which nvidia-ml-py does not tell: it is absent, or it is damaged."""
    import ctypes

    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        if "No such file" not in str(error) or not str(error).startswith(LIBRARY):
            return Missing(reason=f"NVML error {LIBRARY_NOT_FOUND}: NVIDIA's driver library cannot be loaded: {error}")
    return refusal(LIBRARY_NOT_FOUND, "")


def ask(nvml: Nvml, call: Callable[[], T]) -> T | Missing:
    """Make one NVML call; its error becomes the reason of a `Missing`."""
    try:
        return valid(call())
    except nvml.NVMLError as error:
        return refusal(getattr(error, "value", 999), str(error))
    except (AttributeError, TypeError, ValueError) as error:
        return Missing(reason=f"this version of nvidia-ml-py does not support it: {error}")


def asked(nvml: Nvml, name: str, *args: object) -> Any:
    """Call one of NVML's functions by name; an old nvidia-ml-py may not have it."""
    return ask(nvml, lambda: getattr(nvml, name)(*args))


def valid(answer: T) -> T | Missing:
    """Return an answer, `Missing` if all 64 bits are set, as NVML and broken counters do."""
    if isinstance(answer, int) and answer == _EVERY_BIT:
        return Missing(reason=f"NVML returned {answer}: every bit is set, so it is no value")
    return answer


def refusal(code: int, words: str) -> Missing:
    """Return `Missing` for an NVML error; `words` is NVML's own text."""
    if code == NOT_SUPPORTED:
        return facts.NOT_SUPPORTED
    return Missing(reason=f"NVML error {code}: {_WORDS.get(code) or words}")


def error_code(reason: str) -> int | None:
    """Return the number in a reason that begins with ``NVML error N:``, None without one."""
    head, _, _ = reason.partition(":")
    number = head.removeprefix("NVML error ")
    return int(number) if number != head and number.isdecimal() else None


def known(value: Any, use: Callable[[Any], T]) -> T | Missing:
    """Apply `use` to a value; a missing value stays missing."""
    return value if isinstance(value, Missing) else use(value)


def either(*calls: Callable[[], Any]) -> Any:
    """Return the first answer of calls for the same value, else why there is none.

    That a call does not exist is only the reason if no other is known.
    """
    refused = []
    for call in calls:
        answer = call()
        if not isinstance(answer, Missing):
            return answer
        refused.append(answer)
    return next((answer for answer in refused if error_code(answer.reason) not in _OTHER_WORDS), refused[0])


def whole(value: float | Missing) -> int | Missing:
    """Return a value as a whole number; a missing value stays missing."""
    return value if isinstance(value, Missing) else int(value)
