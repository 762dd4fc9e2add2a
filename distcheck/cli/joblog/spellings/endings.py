"""Endings of processes: signals, the OOM killer, schedulers, and the reports of those who saw them."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_SLURM = "https://slurm.schedmd.com/sbatch.html#OPT_time"
_CGROUP = "https://slurm.schedmd.com/cgroup.conf.html"
_KERNEL = "https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer"
_ELASTIC = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py"
_KUBERNETES = "https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/"
_SIGNAL = "https://man7.org/linux/man-pages/man7/signal.7.html"
_RAY = "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html"
_killed = partial(told, about="process killed")
_SIGKILL = "A process was ended by SIGKILL. Most often the host or its cgroup ran out of memory: look for OOM kills in the kernel log."
_MEMORY = "host-memory-low host-oom-kills"
_CONSEQUENCE = "A rank failed. The cause is in the lines of that rank before this report."

ROOT_CAUSE = _killed(
    r"first observed failure",
    weight=HINT,
    source=_ELASTIC,
    says="torchrun's agent saw this rank fail first.",
    near=r"first observed failure\):[^\0]{0,300}?host\s+: (?P<node>\S+)[^\0]{0,200}?rank\s+: (?P<rank>\d+)",
)
"""Names the rank and node that failed first, but not why."""

SPELLINGS = (
    ROOT_CAUSE,
    _killed(
        r"DUE TO TIME LIMIT",
        source=_SLURM,
        says="The job reached its time limit. Request more time, or resume from a checkpoint.",
    ),
    _killed(r"DUE TO PREEMPTION", source=_SLURM, says="The scheduler preempted the job. Resume it from a checkpoint."),
    _killed(
        r"DUE TO NODE FAILURE",
        source=_SLURM,
        says="Slurm lost a node of the job. Exclude it, and look at it before its next use.",
    ),
    _killed(
        r"CANCELLED AT \S+ \*\*\*",
        source=_SLURM,
        weight=SYMPTOM,
        says="The job was cancelled by a user or by the scheduler.",
    ),
    _killed(r"oom[-_ ]kill(?:er|ed)? event", _MEMORY, source=_CGROUP),
    _killed(r"oom-kill:constraint", _MEMORY, source=_KERNEL),
    _killed(r"Out of memory: Killed process", _MEMORY, source=_KERNEL),
    _killed(r"Memory cgroup out of memory", _MEMORY, source=_KERNEL),
    _killed(r"Exceeded job memory limit", _MEMORY, source=_CGROUP),
    _killed(r"OOMKilled", _MEMORY, source=_KUBERNETES),
    _killed(r"OUT_OF_MEMORY", _MEMORY, source=_SLURM, weight=LIKELY, unless=r"CUDA|XLA|RESOURCE"),
    _killed(r"tasks? [\d,-]+: Out Of Memory", _MEMORY, source=_CGROUP),
    _killed(r"node running low on memory", _MEMORY, source=_RAY),
    _killed(r"line \d+: +\d+ Killed\b", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"(?:^|: )Killed$", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"exitcode\s*: -9\b", source=_ELASTIC, weight=LIKELY, says=_SIGKILL),
    _killed(r"exited on signal 9\b", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"signal: Killed", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"Signal 9 \(SIGKILL\)", source=_ELASTIC, weight=LIKELY, says=_SIGKILL),
    _killed(
        r"got signal: 1\b",
        source=_ELASTIC,
        says="The terminal was closed (SIGHUP). Start the job with nohup, tmux or a scheduler.",
    ),
    _killed(
        r"Received (?:Signals\.SIGHUP|1) death signal",
        source=_ELASTIC,
        says="The terminal was closed (SIGHUP). Start the job with nohup, tmux or a scheduler.",
    ),
    _killed(r"got signal: 2\b", source=_ELASTIC, weight=LIKELY, says="The job was interrupted (Ctrl-C)."),
    _killed(
        r"got signal: 15\b",
        source=_ELASTIC,
        weight=SYMPTOM,
        says="The job was ended from outside (SIGTERM): by its scheduler, or by a user.",
    ),
    _killed(r"KeyboardInterrupt", source=_SIGNAL, weight=SYMPTOM, says="The job was interrupted (Ctrl-C)."),
    _killed(
        r"exitcode\s*: -11\b",
        source=_ELASTIC,
        weight=SYMPTOM,
        about="application",
        says="A rank crashed with SIGSEGV. Run it with python -X faulthandler, and compare the versions of its libraries.",
    ),
    _killed(
        r"Segmentation fault",
        source=_SIGNAL,
        weight=SYMPTOM,
        about="application",
        says="A process crashed with SIGSEGV. Run it with python -X faulthandler, and compare the versions of its libraries.",
    ),
    _killed(r"closing signal SIG", source=_ELASTIC, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _killed(r"ChildFailedError", source=_ELASTIC, weight=CONSEQUENCE, about="application", says=_CONSEQUENCE),
    _killed(r"exitcode\s*: -15\b", source=_ELASTIC, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _killed(r"exitcode\s*: -6\b", source=_ELASTIC, weight=CONSEQUENCE, about="application", says=_CONSEQUENCE),
    _killed(r"return code = -9\b", source=_ELASTIC, weight=LIKELY, says=_SIGKILL),
    _killed(r"Signals\.SIGKILL", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"terminated with signal SIGKILL", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(r"Exit Code:\s+137\b", source=_KUBERNETES, weight=LIKELY, says=_SIGKILL),
    _killed(r"exit code:? 137\b", source=_KUBERNETES, weight=LIKELY, says=_SIGKILL),
    _killed(r"tasks? [\d,-]+: Killed", source=_SIGNAL, weight=LIKELY, says=_SIGKILL),
    _killed(
        r"\bEvicted\b",
        source=_KUBERNETES,
        says="Kubernetes evicted the pod: it used more of a resource than allowed, or its node ran out of it.",
    ),
    _killed(
        r"ephemeral local storage usage exceeds",
        source=_KUBERNETES,
        says="The pod wrote more to its local storage than allowed. Raise ephemeral-storage, or write to a volume.",
    ),
    _killed(
        r"Received (?:Signals\.SIGTERM|15) death signal",
        source=_ELASTIC,
        weight=SYMPTOM,
        says="The job was ended from outside (SIGTERM): by its scheduler, or by a user.",
    ),
    _killed(r"JobState=PREEMPTED", source=_SLURM, says="The scheduler preempted the job. Resume it from a checkpoint."),
    _killed(
        r"return code = -11\b",
        source=_SIGNAL,
        weight=SYMPTOM,
        about="application",
        says="A process crashed with SIGSEGV.",
    ),
    _killed(
        r"tasks? [\d,-]+: Exited with exit code",
        source=_SLURM,
        weight=CONSEQUENCE,
        about="application",
        says=_CONSEQUENCE,
    ),
    _killed(
        r"DataLoader worker .*exited unexpectedly",
        source="https://github.com/pytorch/pytorch/blob/main/torch/utils/data/dataloader.py",
        weight=SYMPTOM,
        says="A data loader's worker ended. Look for OOM kills, and repeat with num_workers=0 to see its error.",
    ),
    _killed(r"The actor died unexpectedly", source=_RAY, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _killed(r"worker died or was killed", source=_RAY, weight=CONSEQUENCE, says=_CONSEQUENCE),
    _killed(r"MPI_ABORT was invoked", source=_SIGNAL, weight=CONSEQUENCE, about="application", says=_CONSEQUENCE),
    _killed(
        r"returned a non-zero exit code", source=_SIGNAL, weight=CONSEQUENCE, about="application", says=_CONSEQUENCE
    ),
)
