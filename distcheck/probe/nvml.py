"""The one gateway to NVML: it is started, and one call at a time gives a value or NVML's words for why there is none.

NVML may block for ever on a wedged GPU, in a system call that no signal ends. So nothing calls it but programs that
run in a child, which is left behind at its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from distcheck import facts
from distcheck.facts import Missing

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Nvml = Any  # the module pynvml: its functions and their results are untyped

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
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found",
    GPU_IS_LOST: "a GPU is lost: it fell off the bus or cannot be reached",
    17: "the operating system blocked the request",
    18: "driver/library version mismatch: the kernel module and libnvidia-ml.so.1 are of different versions",
    999: "unknown error",
}


def start() -> Nvml | Missing:
    """Start NVML in this process, which may hang for it, and return its module."""
    try:
        import pynvml
    except ImportError as error:
        return Missing(reason=f"the Python module pynvml (package nvidia-ml-py) cannot be imported: {error}")
    started = ask(pynvml, pynvml.nvmlInit)
    return started if isinstance(started, Missing) else pynvml


def ask(nvml: Nvml, call: Callable[[], T]) -> T | Missing:
    """Make one NVML call; its error is the reason why the fact is missing."""
    try:
        return told(call())
    except nvml.NVMLError as error:
        return refusal(getattr(error, "value", 999), str(error))
    except (AttributeError, TypeError, ValueError) as error:
        return Missing(reason=f"this version of nvidia-ml-py does not know it: {error}")


def told(answer: T) -> T | Missing:
    """Return an answer; all 64 bits set is how NVML, and a broken counter, tells none."""
    if isinstance(answer, int) and answer == _EVERY_BIT:
        return Missing(reason=f"NVML told {answer}: every bit is set, so it is no value")
    return answer


def refusal(code: int, words: str) -> Missing:
    """Return the fact that NVML answered with an error; `words` are its own."""
    if code == NOT_SUPPORTED:
        return facts.NOT_SUPPORTED
    return Missing(reason=f"NVML error {code}: {_WORDS.get(code) or words}")


def error_code(reason: str) -> int | None:
    """Return the number in a reason that starts with ``NVML error N:``, None when NVML named none."""
    head, _, _ = reason.partition(":")
    number = head.removeprefix("NVML error ")
    return int(number) if number != head and number.isdecimal() else None
