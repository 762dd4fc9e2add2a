"""Slurm's own messages: srun, sbatch and slurmstepd refuse, cannot start, or end a job.

Words: src/srun, src/slurmd/slurmstepd and src/common/slurm_errno.c of https://github.com/SchedMD/slurm.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_SRUN = "https://slurm.schedmd.com/srun.html"
_SBATCH = "https://slurm.schedmd.com/sbatch.html"
_ERRNO = "https://github.com/SchedMD/slurm/blob/master/src/common/slurm_errno.c"
_STEPD = "https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/slurmstepd_job.c"
_MUNGE = "https://github.com/dun/munge/wiki/Troubleshooting"
_PYXIS = "https://github.com/NVIDIA/pyxis"
_LIGHTNING = (
    "https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/plugins/environments/slurm.py"
)
_start = partial(told, about="start-up")
_killed = partial(told, about="process killed")
_UNREACHABLE = "launch-node-unreachable launch-failed"
_MEMORY = "host-memory-low host-oom-kills"
_NOT_A_REFUSAL = r"tasks? [\d,-]+:|timeout waiting|Job step aborted|Task launch|Unable|Node failure|Timed out waiting"

_REFUSAL = (
    r"invalid|unable|not (?:allowed|permitted|found|available|supported)|mutually exclusive|exceed|more processors|no such"
    r"|can(?:not|'t| not)|could(?:n't| not)|requested|unrecognized|ambiguous|must be|required|denied|specification|expired"
    r"|limit|busy|only allocated|asked for|more than|violates|breached|insufficient|malformed|conflict|no partition|drained"
    r"|missing|unknown|unsupported|incompatible|bad value|contains|illegal"
)
"""What srun says when it does not start the tasks, in contrast to tasks that end."""

TIME_LIMIT = _killed(
    r"DUE TO TIME LIMIT",
    source=_SBATCH,
    says="The job reached its time limit. Request more time, or resume from a checkpoint.",
)
TASK_FAILED = _killed(
    r"tasks? [\d,-]+: Exited with exit code (?!137)",
    source=_SBATCH,
    weight=CONSEQUENCE,
    about="application",
    says="A rank failed. The cause is in the lines of that rank before this report.",
)

SPELLINGS = (
    # srun cannot start the tasks.
    _start(r"Unable to create step for job", "launch-failed", source=_SRUN),
    _start(
        r"srun: error: (?:Unable to allocate resources|Invalid|Job \S+ .*(?:expired|invalid))",
        "launch-failed",
        source=_SRUN,
    ),
    _start(
        rf"srun: (?:error|fatal): (?!.*(?:{_NOT_A_REFUSAL}))(?=.*(?:{_REFUSAL}))",
        "launch-failed",
        weight=LIKELY,
        source=_SRUN,
    ),
    _start(
        rf"srun: (?:error|fatal): (?!.*(?:{_NOT_A_REFUSAL}|{_REFUSAL}))",
        "launch-failed",
        weight=CONSEQUENCE,
        source=_SRUN,
    ),
    _start(
        r"srun: error: Unable to (?:confirm|resolve|open|locate|find|parse|initialize|read|connect)",
        "launch-failed launch-node-unreachable",
        weight=LIKELY,
        source=_SRUN,
    ),
    _start(r"Check SLURM_JOB_ID environment variable", "launch-failed", source=_SRUN),
    _start(r"srun: (?:unrecognized|invalid) option", "launch-failed", source=_SRUN),
    _start(r"step creation (?:still )?(?:temporarily )?disabled", "launch-failed", weight=LIKELY, source=_SRUN),
    _start(r"srun: Requested partition configuration not available now", "launch-failed", weight=LIKELY, source=_ERRNO),
    _start(r"Unable to satisfy cpu bind request", "launch-failed", source=_SRUN),
    _start(r"CPU binding outside of job step allocation", "launch-failed", weight=LIKELY, source=_SRUN),
    _start(r"Unable to create job step", "launch-failed", source=_SRUN),
    _start(r"srun: error: .*launch failed(?: on node)?: (?!.*cpu bind)", _UNREACHABLE, weight=LIKELY, source=_SRUN),
    _start(r"Task launch for .*failed on node (?P<host>\S+): (?!.*cpu bind)", _UNREACHABLE, source=_SRUN),
    _start(r"Communication connection failure", _UNREACHABLE, source=_ERRNO),
    _start(  # slurmd of a node does not answer srun, or srun does not answer it
        r"(?:srun|sattach|slurmstepd|slurmd): error: (?:_\w+: )?(?:slurm_|Failed to (?:connect|send)|_?\w*send_and_recv|Unable to connect to).*(?:timed out|refused|No route|unreachable|connection failure|Zero Bytes)",
        _UNREACHABLE,
        weight=LIKELY,
        source=_ERRNO,
    ),
    _start(r"Unable to contact slurm controller", "launch-failed", source=_ERRNO),
    _start(
        r"execve\(\): (?:\S*/)?(?:python|torchrun|accelerate|deepspeed)\S*: No such file",
        "launch-probe-missing launch-failed",
        source=_STEPD,
    ),
    _start(
        r"execve\(\): (?!(?:\S*/)?(?:python|torchrun|accelerate|deepspeed)).*No such file",
        "launch-failed launch-probe-missing",
        source=_STEPD,
    ),
    _start(r"execve\(\): .*(?:Permission denied|Exec format error)", "launch-failed", source=_STEPD),
    _start(
        r"slurmstepd(?:-\S+)?: error: .*mpi/(?:pmix|pmi2|openmpi|cray)", "launch-failed", weight=LIKELY, source=_STEPD
    ),
    _start(
        r"slurmstepd(?:-\S+)?: error: .*(?:TaskProlog|task_p_pre_launch|spank)",
        "launch-failed",
        weight=LIKELY,
        source=_STEPD,
    ),
    _start(
        r"Could not open std(?:out|err|in) file .*: No such file",
        "storage-path-missing",
        weight=LIKELY,
        source=_STEPD,
    ),
    _start(
        r"Could not open std(?:out|err|in) file .*: (?:Permission|Read-only)",
        "storage-read-only storage-path-missing",
        weight=LIKELY,
        source=_STEPD,
    ),
    _start(r"slurmstepd(?:-\S+)?: error: pyxis: ", "launch-failed", source=_PYXIS),
    _start(r"Failed to invoke spank plugin stack", "launch-failed", weight=LIKELY, source=_PYXIS),
    _start(
        r"sbatch: (?:error|fatal): ",
        source=_SBATCH,
        says="Slurm refused the job: change the request, or choose a partition that can serve it.",
    ),
    _start(
        r"salloc: (?:error|fatal): (?!Node failure)",
        source=_SBATCH,
        says="Slurm refused the job: change the request, or choose a partition that can serve it.",
    ),
    _start(
        r"Batch job submission failed",
        source=_SBATCH,
        says="Slurm refused the job: change the request, or choose a partition that can serve it.",
    ),
    _start(
        r"\b(?:Rewound|Expired) credential\b", "host-clock-skew launch-node-unreachable", weight=LIKELY, source=_MUNGE
    ),
    *(
        _start(
            pattern, weight=LIKELY, source=_MUNGE, says="Slurm's authentication does not work here: is munged running?"
        )
        for pattern in (
            r"munge: Error: ",
            r"Munge encode failed",
            r"Munge decode failed: (?!Expired|Rewound)",
            r"auth/munge: .*(?:failed|error)",
            r"Failed to access \"\S*munge\.socket",
        )
    ),
    _start(
        r"has not produced any output \(state: (?:CANCELLED|TIMEOUT|PREEMPTED|NODE_FAIL)",
        about="process killed",
        weight=LIKELY,
        source="https://github.com/facebookincubator/submitit/blob/main/submitit/core/core.py",
        says="Slurm ended the job before it had a result: its time limit, a preemption, a node failure, or scancel.",
    ),
    _start(
        r"srun: Job step aborted",
        about="process killed",
        weight=CONSEQUENCE,
        source=_SRUN,
        says="Slurm ended the step because a task failed, or on request.",
    ),
    # The tasks and the job's GPUs or nodes do not fit.
    _start(
        r"`?(?:devices|num_nodes)=.* in Lightning, but the number of ", "slurm-ntasks-vs-devices", source=_LIGHTNING
    ),
    _start(
        r"You set `--ntasks=\d+` in your SLURM bash script, but this variable is not supported",
        "slurm-ntasks-vs-devices",
        weight=LIKELY,
        source=_LIGHTNING,
    ),
    # Slurm ends a job.
    _killed(r"exceeded (?:virtual )?(?:job |step )?memory limit", _MEMORY, source=_STEPD),
    _killed(r"tasks? [\d,-]+: Out Of Memory", _MEMORY, source=_STEPD),
    _killed(r"OUT_OF_MEMORY", _MEMORY, source=_SBATCH, weight=LIKELY, unless=r"CUDA|XLA|RESOURCE"),
    TIME_LIMIT,
    _killed(r"DUE TO PREEMPTION", source=_SBATCH, says="The scheduler preempted the job. Resume it from a checkpoint."),
    _killed(
        r"JobState=PREEMPTED", source=_SBATCH, says="The scheduler preempted the job. Resume it from a checkpoint."
    ),
    _killed(
        r"DUE TO JOB NOT ENDING WITH SIGNALS",
        source=_STEPD,
        says="Slurm could not kill the processes of a step, mostly as they wait for a file system or a GPU, and drained the node.",
    ),
    _killed(
        r"DUE TO JOB REQUEUE", source=_SBATCH, says="The scheduler put the job back in its queue, and starts it again."
    ),
    _killed(
        r"(?:srun|salloc): error: Node failure on",
        source=_SRUN,
        says="Slurm lost a node of the job; sinfo -R tells why. Exclude it, and look at it before its next use.",
    ),
    _killed(
        r"DUE TO (?:NODE FAILURE|A NODE|NODE )",
        source=_SBATCH,
        weight=LIKELY,
        says="Slurm lost a node of the job: sinfo -R lists it. This line has the name of a node that reports it.",
    ),
    # srun ends the other tasks of a step after one that failed
    _killed(
        r"STEP [\d.]+ ON \S+ CANCELLED AT \S+ \*\*\*",
        source=_SBATCH,
        weight=CONSEQUENCE,
        says="Slurm ended the step: a task of it failed, or somebody cancelled it.",
    ),
    _killed(
        r"\*\*\* (?!STEP ).*CANCELLED AT \S+ \*\*\*",
        source=_SBATCH,
        weight=SYMPTOM,
        says="The job was cancelled by a user or by the scheduler.",
    ),
    TASK_FAILED,
)
