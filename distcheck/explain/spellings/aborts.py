"""SIGABRT: a process that called abort(), in the words of agents, launchers, shells, schedulers and crash handlers.

None of them tells why. What does (an assertion, glibc's heap check, a C++ exception, NCCL's watchdog) is in other tables.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, told
from distcheck.explain.spellings.exits import ended

_SIGNAL = "https://man7.org/linux/man-pages/man7/signal.7.html"
_ELASTIC = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py"
_SRUN = "https://slurm.schedmd.com/srun.html"
_MPI = "https://docs.open-mpi.org/en/v5.0.x/launching-apps/index.html"
_FAULTHANDLER = "https://docs.python.org/3/library/faulthandler.html"
_ABSL = "https://github.com/abseil/abseil-cpp/blob/master/absl/debugging/failure_signal_handler.cc"
_ABORT = (
    "A process called abort() (SIGABRT), and no line of the log says why. Its own output may: torchrun --log-dir LOGS"
    " --tee 3 keeps it. python -X faulthandler prints the stack of the call."
)
_told = partial(told, about="application", weight=CONSEQUENCE)

ABORT_STACK = _told(
    r"Fatal Python error: Aborted",
    source=_FAULTHANDLER,
    says="A process called abort() (SIGABRT). The frames below this line show where in the script.",
)
"""Stands above the Python stack of the call."""

SPELLINGS = (
    ABORT_STACK,
    *(
        _told(pattern, source=source, says=_ABORT)
        for pattern, source in (
            (r"exitcode\s*: ?\(?-6\b", _ELASTIC),
            (r"exit code:? ?-6\b", _ELASTIC),
            (r"Signal 6 \(SIGABRT\)", _ELASTIC),
            (r"Signals\.SIGABRT", _SIGNAL),
            (r"tasks? [\d,-]+: Aborted\b", _SRUN),
            (r"exited on signal 6\b", _MPI),
            (r"\] Signal: Aborted \(6\)", _MPI),
            (r"line \d+: +\d+ Aborted\b", _SIGNAL),
            (r"Aborted \(core dumped\)", _SIGNAL),
            (r"^Aborted\.?$", _SIGNAL),
            (r"\*\*\* SIGABRT received", _ABSL),
        )
    ),
    *ended(r"-6|134", r"6|SIGABRT|ABRT", about="application", weight=CONSEQUENCE, says=_ABORT),
)
