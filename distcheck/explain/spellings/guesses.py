"""Lines that have only the form of a failure: excerpts of tracebacks and stacks, and lines that say that something failed.

They lead only where nothing is known, so that an excerpt without its error line still has a class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache, partial

from distcheck.explain.spelling import CONSEQUENCE, ERROR, GUESS, NOISE, About, told

_LOGGING = "https://docs.python.org/3/library/logging.html#logging-levels"
_PYTHON = "https://docs.python.org/3/library/traceback.html"
_C10D = "https://github.com/pytorch/pytorch/tree/main/torch/csrc/distributed/c10d"
_WATCHDOG = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py"
_guess = partial(told, weight=GUESS, fallback=True)
_TRACEBACK = r"Traceback \(most recent call last"
_STARTING = (
    r"launcher/|commands/launch|init_process_group|init_distributed|distributed_init|init_dist\b|rendezvous|torchrun"
    r"|accelerator_connector|accelerate/state|_setup_devices|_initialize_distributed|initialize_model_parallel"
    r"|horovod/runner|distributed/(?:run|launch)\.py|distributed/elastic/|ray/scripts|ray/_private/(?:services|node)"
)
"""Code that runs while a job starts."""
_NETWORK = re.compile(
    r"\bconnect|socket|network|unreachable|rdma|infiniband|\bibv_|\bhost\b|\bport\b|\baddress\b|\bpeer", re.IGNORECASE
)
_GPU = re.compile(r"\bcuda|\bgpus?\b|nvml|nvidia|\bhip\b|rocm|nvlink|\bxid\b|\bdriver", re.IGNORECASE)
_CUT = "Python raised an error. Its last line, which names it, is missing, or distcheck does not know it."
_REPORTED = "A program reported a failure that distcheck does not know."
_STACK = "The frames of a C++ stack; the error itself is not in the log."
_LATE = (
    "A rank did not reach or finish a collective in time. Usually another rank prepares data or saves a file for longer"
    " than the timeout, calls another collective, or failed first."
)

_RAISING: tuple[tuple[About, str, str], ...] = (("start-up", _STARTING, ""), ("application", "", _STARTING))
_CLASSES: tuple[About, ...] = ("network", "GPU", "start-up")


def _concerns(about: About, values: Mapping[str, str]) -> bool:
    """Return whether the words of a line are about this."""
    return _class_of(f"{values.get('before', '')}|{values.get('after', '')}") == about


@lru_cache(maxsize=64)
def _class_of(line: str) -> About:
    return "network" if _NETWORK.search(line) else "GPU" if _GPU.search(line) else "start-up"


STARTING = told(
    r"(?<!SO_)Error: (?!Rank)",
    about="start-up",
    weight=ERROR,
    fallback=True,
    source=_PYTHON,
    trace=r"accelerator_connector|accelerate/state|_setup_devices|_initialize_distributed|initialize_model_parallel"
    r"|horovod/runner|ray/scripts|ray/_private/(?:services|node)",
    says="Python raised an error that distcheck does not know.",
)
"""An error of code that runs while a job starts; it comes before the errors that no table knows."""

TRAINING = tuple(
    told(
        rf"{before}loss['\"]?[:=]? ?-?\d+\.\d",
        about="application",
        weight=NOISE,
        fallback=True,
        source="https://huggingface.co/docs/transformers/main/en/main_classes/callback",
        says="The script trains.",
    )
    for before in (" ", "'", "_")
)
"""A step of training: the ranks have met."""

SPELLINGS = (
    # Parts of stacks.
    told(
        r"WorkNCCL::checkTimeout\(",
        about="application",
        weight=CONSEQUENCE,
        fallback=True,
        source=_WATCHDOG,
        says=_LATE,
    ),
    _guess(r"ProcessGroupNCCL::(?:\w+::)?\w+\(", about="application", source=_WATCHDOG, says=_STACK),
    *(_guess(rf"c10d::{name}", about="network", source=_C10D, says=_STACK) for name in ("TCPStore", "detail::Socket")),
    _guess(r"gloo::transport::", about="network", source=_C10D, says=_STACK),
    _guess(r"c10::cuda::", about="GPU", source=_C10D, says=_STACK),
    _guess(_TRACEBACK, about="start-up", source=_PYTHON, near=_STARTING, says=_CUT),
    _guess(_TRACEBACK, about="application", source=_PYTHON, unless=_STARTING, says=_CUT),
    *(
        _guess(rf"\braise \w+(?:\.\w+)*{words}", about=about, source=_PYTHON, says=_CUT, near=near, unless=unless)
        for words in (r"Error\b", r"Exception\b")
        for about, near, unless in _RAISING
    ),
    # Launchers that go on with less than was asked for.
    _guess(
        r"will proceed with training with local resources only",
        about="start-up",
        source=_DEEPSPEED,
        says="DeepSpeed found no hostfile, and starts on this node only. Give it with --hostfile.",
    ),
    # Lines that say that something failed.
    *(
        _guess(
            rf"^(?P<before>.*){words}(?P<after>.*)",
            about=about,
            source=_LOGGING,
            says=_REPORTED,
            only=partial(_concerns, about),
        )
        for words in (
            r"(?<![\w./-])(?=(?-i:ERROR))error\b",
            r"(?<![\w./-])(?=(?-i:FATAL))fatal\b",
            r"\bfailed\b",
            r"\bfailure\b",
            r"\bunable to\b",
            r"\bcannot\b",
            r"\bcould not\b",
        )
        for about in _CLASSES
    ),
    *TRAINING,
)
