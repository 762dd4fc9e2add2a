"""What srun and slurmstepd say while they start the tasks of a step, beside the refusals in slurm.py.

Words: src/srun, src/api/step_launch.c, src/slurmd/slurmstepd and src/common/slurm_errno.c of
https://github.com/SchedMD/slurm, of releases 19 to 26.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_LAUNCH = "https://github.com/SchedMD/slurm/blob/master/src/api/step_launch.c"
_STEPD = "https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/mgr.c"
_IO = "https://github.com/SchedMD/slurm/blob/master/src/slurmd/slurmstepd/io.c"
_MPI = "https://github.com/SchedMD/slurm/blob/master/src/interfaces/mpi.c"
_OPTIONS = "https://github.com/SchedMD/slurm/blob/master/src/common/slurm_opt.c"
_ERRNO = "https://github.com/SchedMD/slurm/blob/master/src/common/slurm_errno.c"
_PROLOG = "https://slurm.schedmd.com/prolog_epilog.html"
_SHELL = "https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html"
_ENROOT = "https://github.com/NVIDIA/enroot/blob/master/doc/requirements.md"
_CHARLIECLOUD = "https://charliecloud.io/latest/ch-run.html"
_start = partial(told, about="start-up")
_UNREACHABLE = "launch-node-unreachable launch-failed"
_BACK = "launch-failed net-firewall-ephemeral launch-node-unreachable"
"""A node cannot connect to the ports at which srun listens."""
_STEPD_SAID = r"slurmstepd\S*: error: "
_SRUN_SAID = r"srun: (?:error|fatal): "

SPELLINGS = (
    # srun's requests contradict the job's, often as variables of an outer job are inherited
    _start(r"set by two different environment variables SLURM_", "launch-failed", source=_OPTIONS),
    _start(r"mutually exclusive\b.*SLURM_MEM_PER", "launch-failed", source=_OPTIONS),
    _start(r"SLURM_MEM_PER_\w+.* are mutually exclusive", "launch-failed", source=_OPTIONS),
    _start(rf"{_SRUN_SAID}(?:No command given|No PATH|Could not find executable)", "launch-failed", source=_OPTIONS),
    _start(r"can't run \d+ processes on \d+ nodes", "slurm-ntasks-vs-devices", weight=HINT, source=_OPTIONS),
    *(
        _start(pattern, "launch-failed", weight=LIKELY, source=_ERRNO)
        for pattern in (
            rf"{_SRUN_SAID}Attempt to run a job step with",
            r"step launch failed: ",
            r"Requested operation is presently disabled",
            r"Insufficient GRES available in allocation",
            r"Cannot request more threads per core than",
            r"Unable to layout tasks on given cpus",
            r"Slurmd could not (?:execve job|create a batch directory|set UID or GID)",
            r"Container runtime not configured or invalid",
            r"Spank plugin failure, (?:node|job) failed",
            r"Incompatible versions of client and server code",
            r"Job credential (?:revoked|replayed)",
            r"Task launch .*: Job credential expired",
            r"Unable to (?:create|allocate resources for) .*\bstep\b.*: ",
        )
    ),
    # MPI's and PMI's plugins
    *(
        _start(pattern, "launch-failed", source=_MPI)
        for pattern in (
            r"MPI: (?:Unable to load any plugin|Cannot create context for|SLURM_MPI_TYPE environmental)",
            r"unable to resolve MPI plugin offset",
            r"mpi/pmix\S*: .*can ?not load PMI",
            r"MPI plugin's pre-launch setup failed",
            r"Invalid MPI (?:type|plugin name)",
            r"specified plugin name for mpi/",
            r"Failed mpi_g_slurmstepd_prefork",
            r"Unable to configure MPI plugin",
        )
    ),
    *(
        _start(pattern, "launch-failed", weight=SYMPTOM, source=_MPI)
        for pattern in (
            r"PMK_KVS_Barrier (?:duplicate|reached|task count)",
            r"mpi/pmi2: (?:failed|value not|no value|invalid)",
            r"pmixp_\w+\.c:\d+: .*(?:failed|exceeded|rc=)",
            r"No PMIx server was reachable, but a PMI",
        )
    ),
    # srun cannot reach a node, or the node is not ready
    _start(rf"{_SRUN_SAID}.*Unable to resolve \"(?P<host>[^\"]+)\"", _UNREACHABLE, source=_LAUNCH),
    *(
        _start(pattern, _UNREACHABLE, weight=LIKELY, source=source)
        for pattern, source in (
            (r"ime(?:d ?)?out waiting for (?:job step to complete|task launch)", _LAUNCH),
            (r"Aborting, (?:io error and missing step|step missing and io error|can not test connection)", _LAUNCH),
            (r"aborting, io error with slurmstepd on node", _LAUNCH),
            (rf"{_SRUN_SAID}.*(?:Socket timed out on send/recv|Connection timed out (?:establish|writ|read))", _ERRNO),
            (rf"{_SRUN_SAID}.*(?:Protocol authentication error|Security violation)", _ERRNO),
            (rf"{_SRUN_SAID}.*\bare still not ready", _LAUNCH),
            (rf"{_SRUN_SAID}.*\bproblem with launch on node", _LAUNCH),
            (r"Prolog hung on node", _PROLOG),
            (r"some nodes failed (?:the )?prolog", _PROLOG),
            (r"Job prolog failed", _PROLOG),
            (r"\bPrologSlurmctld (?:failed|job \d+ prolog exit)", _PROLOG),
            (r"launch failed requeued held", _PROLOG),
            (r"Required node not available \(down, drained or reserved\)", _ERRNO),
            (r"Can't find an address, check slurm\.conf", _ERRNO),
        )
    ),
    _start(
        rf"{_SRUN_SAID}.*Zero Bytes were transmitted or received",
        _UNREACHABLE,
        weight=SYMPTOM,
        source=_ERRNO,
        unless=r"munge|undefined symbol",
    ),
    # slurmstepd cannot start the task, or reach srun
    *(
        _start(rf"{_STEPD_SAID}{words}", _BACK, source=_IO)
        for words in (
            r"connect io: ",
            r".*IO setup failed: ",
            r".*Failed to connect to srun",
            r"Couldn't sent slurm_io_init_msg",
        )
    ),
    _start(rf"{_STEPD_SAID}execve\(\S*\): (?:\S+: )?bad interpreter", "launch-failed", source=_STEPD),
    _start(
        rf"{_STEPD_SAID}.*Could not open std\w+ file .*(?:Recursive path creation failed|Not a directory)",
        "storage-path-missing storage-read-only",
        source=_IO,
    ),
    _start(
        rf"{_STEPD_SAID}.*TMPDIR \[\S*\](?: is not|: (?:No such|Perm|Read-only|No space))",
        "host-disk-full storage-path-missing",
        weight=LIKELY,
        source=_STEPD,
    ),
    *(
        _start(rf"{_STEPD_SAID}{words}", "launch-failed", weight=LIKELY, source=_STEPD)
        for words in (
            r".*Failed to invoke task plugins",
            r".*Plugin stack initialization failed",
            r".*namespace_g_(?:join|stepd_create)",
            r".*cannot join namespace",
            r".*runtime setup failed",
            r".*Unable to (?:attach to interconnect|drop privileges|become)",
            r".*_become_user failed",
            r".*(?:--task-prolog|TaskProlog) failed",
            r".*Failed to (?:look up username|load current user environment|validate step|set SELinux)",
            r"(?:uid \d+ not found|Could not find group with|Could not look up user)",
            r".*(?:sched_setaffinity|task_g_set_affinity|task_affinity)",
            r".*batch script setup failed",
            r".*_fork_all_tasks",
            r".*pam_(?:open_session|setup)",
            r".*(?:No executable program specified|Invalid MPMD configuration|Program for task rank \d+ not)",
            r".*Domain socket directory",
        )
    ),
    _start(  # what else slurmstepd reports says mostly that something around the tasks went wrong
        rf"{_STEPD_SAID}(?!\*\*\*|.*(?:oom|memory|NVML|Failed to send MESSAGE|Setting TMPDIR))",
        "launch-failed",
        weight=HINT,
        source=_STEPD,
    ),
    _start(
        r"\b(?:exec|execvp|spawn):? (?:\S*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed): no such file",
        "launch-probe-missing launch-failed",
        source=_SHELL,
    ),
    _start(
        r"/python[\d.]*: No module named (?:deepspeed|horovod|torch\.distributed|accelerate)",
        "launch-probe-missing sw-packages-differ sw-torch-missing",
        weight=LIKELY,
        source=_SHELL,
    ),
    _start(
        r"specification for '(?:deepspeed|horovod|accelerate)\.",
        "launch-probe-missing sw-packages-differ",
        weight=LIKELY,
        source=_SHELL,
    ),
    _start(
        r"init_fs_encoding: failed to get the Python codec",
        "launch-probe-missing launch-failed",
        weight=SYMPTOM,
        source=_SHELL,
    ),
    # a container or a program that cannot be started on the node
    _start(r"failed to create user namespace", "launch-failed", source=_ENROOT),
    _start(r"\bunshare: .*(?:not permitted|failed|denied)", "launch-failed", weight=LIKELY, source=_ENROOT),
    _start(r"\bch-run\[\d+\]: error: ", "launch-failed launch-probe-missing", weight=LIKELY, source=_CHARLIECLOUD),
    _start(r"\b(?:srun|sbatch|slurmstepd): error while loading shared", "launch-failed", source=_SHELL),
    # a task that was not found, or may not run: the code of the shell, of env and of srun
    *(
        _start(
            rf"\b{words}\W{{0,8}}(?:is |of |was )?127\b",
            "launch-probe-missing launch-failed",
            weight=CONSEQUENCE,
            source=_SHELL,
        )
        for words in ("exit code", "exit status", "exitcode", "return code", "returncode", "with code", "exit_code")
    ),
    *(
        _start(
            rf"\b{words}\W{{0,8}}(?:is |of |was )?126\b",
            "launch-failed launch-probe-missing",
            weight=CONSEQUENCE,
            source=_SHELL,
        )
        for words in ("exit code", "exit status", "exitcode", "return code", "returncode", "with code", "exit_code")
    ),
)
