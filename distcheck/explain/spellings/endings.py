"""Endings of processes: signals and exit codes, in the words of agents, launchers, shells and schedulers.

A process that a signal ended is -N for Python and torchrun, 128 + N for shells and containers, and a name for others.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_ELASTIC = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py"
_KUBERNETES = "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/"
_SIGNAL = "https://man7.org/linux/man-pages/man7/signal.7.html"
_RAY = "https://docs.ray.io/en/latest/ray-core/fault-tolerance.html"
_killed = partial(told, about="process killed")
_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py"
_app = partial(told, about="application")
_SIGKILL = "A process was ended by SIGKILL. Most often the host or its cgroup ran out of memory: look for OOM kills in the kernel log."
_SIGHUP = "The terminal was closed (SIGHUP). Start the job with tmux, setsid or a scheduler."
_SIGINT = "The job was interrupted (Ctrl-C)."
_SIGTERM = "The job was ended from outside (SIGTERM): by its scheduler, or by a user."
_SIGSEGV = (
    "A process crashed with SIGSEGV. Run it with python -X faulthandler, and compare the versions of its libraries."
)
_SIGILL = "A program was built for a newer processor than this node's."
_HEAP = (
    "A process broke its own memory and ended. Run it with python -X faulthandler; look for libraries that do not fit."
)
_EVICTED = "Kubernetes evicted the pod: it used more of a resource than allowed, or its node ran out of it."
_MALLOC = "https://sourceware.org/glibc/manual/latest/html_node/Heap-Consistency-Checking.html"
_BATCH = "https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-termination-reasons"
_WALLTIME = "The job reached its time limit. Request more time, or resume from a checkpoint."
_PREEMPTED = "The scheduler preempted the job. Resume it from a checkpoint."
_CONSEQUENCE = "A rank failed. The cause is in the lines of that rank before this report."

SAYS = {
    "SIGHUP": _SIGHUP, "SIGILL": _SIGILL, "SIGINT": _SIGINT, "SIGKILL": _SIGKILL, "SIGSEGV": _SIGSEGV, "SIGTERM": _SIGTERM,
}  # fmt: skip
"""What the end of a process by a signal means, for the table of exit codes."""

ROOT_CAUSE = _app(
    r"Root Cause(?: \(first observed failure\))?:",
    weight=HINT,
    source=_ELASTIC,
    says="torchrun's agent saw this rank fail first. Its output has the cause; torchrun --log-dir LOGS --tee 3 keeps it.",
    near=r"Root Cause[^\0]{0,900}?(?:host\s+: (?P<node>\S+)[^\0]{0,400}?)?rank\s*: (?P<rank>\d{1,9})"
    r" \(local_rank: (?P<local>\d{1,9})\)",
)
"""Names the rank and node that failed first, but not why."""

FAILED = _app(r"failed \(exitcode: -?\d{1,5}\) local_rank", weight=CONSEQUENCE, source=_ELASTIC, says=_CONSEQUENCE)
"""Ends an attempt: torchrun's agent saw a rank fail."""

SPELLINGS = (
    ROOT_CAUSE,
    FAILED,
    # SIGKILL.
    _killed(r"line \d+: +\d+ Killed\b", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"(?:^|: )Killed$", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"tasks? [\d,-]+: Killed", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"exitcode\s*: ?\(?-9\b", source=_ELASTIC, weight=LIKELY, says=_SIGKILL),
    _killed(r"exit code:? ?-9\b", source=_ELASTIC, weight=LIKELY, says=_SIGKILL),
    _killed(r"return ?code(?: =|:) ?-9\b", source=_ELASTIC, weight=LIKELY, says=_SIGKILL),
    _killed(r"exitcode[:= ]+137\b", source=_KUBERNETES, weight=LIKELY, says=_SIGKILL),
    _killed(r"exit code[:= ]+137\b", source=_KUBERNETES, weight=LIKELY, says=_SIGKILL),
    _killed(
        r"exit(?:ed)? with (?:exit |status |return )?(?:code|status):? 137\b",
        source=_KUBERNETES,
        weight=LIKELY,
        says=_SIGKILL,
    ),
    _killed(r"non-zero (?:exit )?(?:code|status):? 137\b", source=_KUBERNETES, weight=LIKELY, says=_SIGKILL),
    _killed(r"exit(?:ed)? status 137\b", source=_KUBERNETES, weight=LIKELY, says=_SIGKILL),
    _killed(r"return ?code(?: =|:) ?137\b", source=_KUBERNETES, weight=LIKELY, says=_SIGKILL),
    _killed(r"exited on signal 9\b", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"is killed by signal: Killed", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"signal: Killed", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"\(signal 9\)", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"Signal 9 \(SIGKILL\)", source=_ELASTIC, weight=LIKELY, says=_SIGKILL),
    _killed(r"\bWTERMSIG 9\b", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"\b(?:is|was|were|been|being) preempted\b", source=_BATCH, weight=LIKELY, says=_PREEMPTED),
    _killed(r"Signals\.SIGKILL", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(
        r"(?:terminated|killed|died) (?:with|by) (?:signal )?SIGKILL", source=_SIGNAL, weight=LIKELY, says=_SIGKILL
    ),
    # SIGHUP, SIGINT and SIGTERM come from outside.
    _killed(r"got signal ?: ?1\b", source=_ELASTIC, says=_SIGHUP),
    _killed(r"got sigval ?: ?1\b", source=_ELASTIC, says=_SIGHUP),
    _killed(r"Received (?:Signals\.SIGHUP|1) death signal", source=_ELASTIC, says=_SIGHUP),
    _killed(r"closing signal (?:Signals\.)?SIGHUP", source=_ELASTIC, weight=LIKELY, says=_SIGHUP),
    _killed(r"Signal 1 \(SIGHUP\)", source=_ELASTIC, weight=LIKELY, says=_SIGHUP),
    _killed(r"exited on signal 1 ", source=_SIGNAL, weight=LIKELY, says=_SIGHUP),
    _killed(r"got signal ?: ?2\b", source=_ELASTIC, weight=LIKELY, says=_SIGINT),
    _killed(r"closing signal (?:Signals\.)?SIGINT", source=_ELASTIC, weight=SYMPTOM, says=_SIGINT),
    _killed(r"KeyboardInterrupt", source=_SIGNAL, weight=SYMPTOM, says=_SIGINT),
    _killed(r"got signal ?: ?15\b", source=_ELASTIC, weight=SYMPTOM, says=_SIGTERM),
    _killed(r"Received (?:Signals\.SIGTERM|15) death signal", source=_ELASTIC, weight=SYMPTOM, says=_SIGTERM),
    _killed(r"line \d+: +\d+ Terminated\b", source=_SIGNAL, weight=SYMPTOM, says=_SIGTERM),
    _killed(r"(?:^|: )Terminated$", source=_SIGNAL, weight=SYMPTOM, says=_SIGTERM),
    _killed(r"\b(?:received|caught|got) (?:signal )?SIGTERM\b", source=_SIGNAL, weight=CONSEQUENCE, says=_SIGTERM),
    _killed(r"\bpreempted by\b", source=_BATCH, weight=LIKELY, says=_PREEMPTED),
    _killed(
        r"\b(?:spot|instance) .{0,20}interruption (?:notice|warning)", source=_BATCH, weight=LIKELY, says=_PREEMPTED
    ),
    _killed(r"\bEvicted\b(?! \d)", source=_KUBERNETES, weight=LIKELY, says=_EVICTED),
    _killed(
        r"The node was low on resource: (?!memory|ephemeral-storage|nodefs|imagefs|inodes)",
        source=_KUBERNETES,
        says=_EVICTED,
    ),
    _killed(
        r"ephemeral local storage usage exceeds",
        source=_KUBERNETES,
        says="The pod wrote more to its local storage than allowed. Raise ephemeral-storage, or write to a volume.",
    ),
    _killed(r"TERM_RUNLIMIT", source=_BATCH, says=_WALLTIME),
    _killed(r"PBS: job killed: walltime", source=_BATCH, says=_WALLTIME),
    _killed(r"was active longer than specified deadline", source=_KUBERNETES, says=_WALLTIME),
    _killed(r"in response to imminent node shutdown", source=_KUBERNETES, says=_EVICTED),
    # Crashes.
    _app(r"exitcode\s*: ?\(?-11\b", source=_ELASTIC, weight=SYMPTOM, says=_SIGSEGV),
    _app(r"exit code:? ?-11\b", source=_ELASTIC, weight=SYMPTOM, says=_SIGSEGV),
    _app(r"return ?code(?: =|:) ?-11\b", source=_SIGNAL, weight=SYMPTOM, says=_SIGSEGV),
    _app(r"Signal 11 \(SIGSEGV\)", source=_ELASTIC, weight=SYMPTOM, says=_SIGSEGV),
    _app(r"Signals\.SIGSEGV", source=_SIGNAL, weight=SYMPTOM, says=_SIGSEGV),
    _app(r"terminated with signal SIGSEGV", source=_SIGNAL, weight=SYMPTOM, says=_SIGSEGV),
    _app(r"Segmentation fault", source=_SIGNAL, weight=SYMPTOM, says=_SIGSEGV),
    *(
        _app(pattern, source=_SIGNAL, weight=SYMPTOM, says=_SIGSEGV)
        for pattern in (
            r"\*\*\* SIGSEGV received",
            r"Segfault encountered",
            r"SIGSEGV: segmentation",
            r"Signal: Segmentation fault",
        )
    ),
    *(
        _app(pattern, source=_MALLOC, weight=SYMPTOM, says=_HEAP)
        for pattern in (
            r"double free or corruption",
            r"free\(\): (?:invalid|corrupted|double)",
            r"malloc\(\): ",
            r"corrupted (?:double-linked list|size vs\. prev_size|unsorted chunks)",
            r"munmap_chunk\(\): invalid pointer",
            r"stack smashing detected",
        )
    ),
    _app(r"Illegal instruction", source=_SIGNAL, weight=LIKELY, says=_SIGILL),
    _app(r"Signal 4 \(SIGILL\)", source=_ELASTIC, weight=SYMPTOM, says=_SIGILL),
    _killed(
        r"DataLoader worker .*exited unexpectedly",
        source="https://github.com/pytorch/pytorch/blob/main/torch/utils/data/dataloader.py",
        weight=SYMPTOM,
        says="A data loader's worker ended. Look for OOM kills, and repeat with num_workers=0 to see its error.",
    ),
    # What the others report.
    _app(r"closing signal (?:Signals\.)?SIGTERM", source=_ELASTIC, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _app(r"exitcode\s*: ?\(?-15\b", source=_ELASTIC, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _killed(r"exit code:? ?-15\b", source=_ELASTIC, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _killed(r"Signal 15 \(SIGTERM\)", source=_ELASTIC, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _app(
        r"(?:distributed\.(?:launch|run)|torchrun|accelerate|deepspeed)\b.*returned non-zero exit status",
        source=_ELASTIC,
        weight=CONSEQUENCE,
        says=_CONSEQUENCE,
    ),
    _app(r"exits with return code = [1-9]", source=_DEEPSPEED, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _app(r"ChildFailedError", source=_ELASTIC, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _killed(r"The actor died unexpectedly", source=_RAY, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _killed(r"worker died or was killed", source=_RAY, weight=CONSEQUENCE, says=_CONSEQUENCE),
)
