"""Exit codes as launchers, shells, containers and schedulers print them: the family of messages of each code.

A process that a signal ended is -N for Python and torchrun, and 128 + N for shells and containers.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, About, Spelling, told
from distcheck.explain.spellings.endings import SAYS

_SIGNAL = "https://man7.org/linux/man-pages/man7/signal.7.html"
_LIGHTNING = "https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/strategies/launchers/subprocess_script.py"
_SHELL = "https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html"
_SAGEMAKER = "https://github.com/aws/sagemaker-training-toolkit/blob/master/src/sagemaker_training/errors.py"
_AZURE = "https://learn.microsoft.com/azure/machine-learning/how-to-troubleshoot-environments"
_SYSTEMD = "https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html"
_LOKY = "https://github.com/joblib/loky/blob/master/loky/process_executor.py"
_RAY = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html"
_LSF = "https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-termination-reasons"
_SRUN = "https://slurm.schedmd.com/srun.html"
_VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/v1/engine/exceptions.py"
_MPI = "https://docs.open-mpi.org/en/v5.0.x/launching-apps/index.html"
_LIMIT = "The job reached a limit of its queue. Request more, or choose another queue."
_WORDS = (
    "exit code", "exitcode", "exit_code", "exit status", "exit value", "return code", "returncode", "return_code", "with code",
    "with status", "with return value", "ExitCode",
)  # fmt: skip
_FAILED = "A rank failed. The cause is in the lines of that rank before this report."
_SHM = "host-shm-too-small"
_FLOAT = "A process divided an integer by zero in C or C++ (SIGFPE). Run it with python -X faulthandler."


def ended(
    codes: str, names: str, *, about: About, weight: int, rules: str = "", says: str = ""
) -> tuple[Spelling, ...]:
    """Return the spellings of one ending: by its codes, and by the name and number of its signal."""
    ending = partial(told, rules=rules, about=about, weight=weight, says=says)
    return (
        *(ending(rf"\b{words}\W{{0,8}}(?:is |of |was |= ?)?(?<![\d-])(?:{codes})\b(?!\.\d)", source=_SHELL) for words in _WORDS),
        *(
            ending(rf"\b{words}\W{{0,3}}(?:{names})\b", source=_SIGNAL)
            for words in ("terminated (?:by|with|due to)(?: a)? signal", "killed (?:by|with|due to)(?: a)? signal", "died (?:by|with|from|due to)(?: a)? signal",
                          "exited (?:by|with|on|due to)(?: a)? signal", "received signal", "caught signal", "crashed with signal")
        ),
    )  # fmt: skip


SPELLINGS = (
    *ended(r"-9|137", r"9|SIGKILL|KILL", about="process killed", weight=LIKELY, says=SAYS["SIGKILL"]),
    *ended(r"-7|135", r"7|SIGBUS|BUS", about="start-up", weight=LIKELY, rules=_SHM),
    *ended(r"-11|139", r"11|SIGSEGV|SEGV", about="application", weight=SYMPTOM, says=SAYS["SIGSEGV"]),
    *ended(r"-4|132", r"4|SIGILL|ILL", about="application", weight=SYMPTOM, says=SAYS["SIGILL"]),
    *ended(r"-8|136", r"8|SIGFPE|FPE", about="application", weight=SYMPTOM, says=_FLOAT),
    *ended(r"-15|143", r"15|SIGTERM|TERM", about="process killed", weight=CONSEQUENCE, says=SAYS["SIGTERM"]),
    *ended(r"130", r"2|SIGINT|INT", about="process killed", weight=CONSEQUENCE, says=SAYS["SIGINT"]),
    *ended(r"129", r"1|SIGHUP|HUP", about="process killed", weight=SYMPTOM, says=SAYS["SIGHUP"]),
    # shells that report a job
    told(r"\[\d+\] +[+-]? *\d+ killed\s", about="process killed", weight=LIKELY, source=_SHELL, says=SAYS["SIGKILL"]),
    told(r"^\[\d+\][+-]?\s+Killed\s", about="process killed", weight=LIKELY, source=_SHELL, says=SAYS["SIGKILL"]),
    told(r"\bzsh: killed\s", about="process killed", weight=LIKELY, source=_SHELL, says=SAYS["SIGKILL"]),
    told(
        r"\bzsh: (?:segmentation fault|bus error)",
        about="application",
        weight=SYMPTOM,
        source=_SHELL,
        says=SAYS["SIGSEGV"],
    ),
    told(
        r"^Killed\s*(?:python|torchrun|$)", about="process killed", weight=LIKELY, source=_SHELL, says=SAYS["SIGKILL"]
    ),
    *(
        told(pattern, about="process killed", weight=weight, source=source, says=says)
        for pattern, weight, source, says in (
            (r"code=killed, status=9/KILL", LIKELY, _SYSTEMD, SAYS["SIGKILL"]),
            (r"code=killed, status=15/TERM", SYMPTOM, _SYSTEMD, SAYS["SIGTERM"]),
            (r"worker process managed by the executor was unexpectedly", LIKELY, _LOKY, SAYS["SIGKILL"]),
            (r"BrokenProcessPool", SYMPTOM, _LOKY, SAYS["SIGKILL"]),
            (r"process in the process pool was terminated abruptly", SYMPTOM, _LOKY, SAYS["SIGKILL"]),
            (r"actor is dead because its worker process has died", CONSEQUENCE, _RAY, _FAILED),
            (r"Worker unexpectedly exits with a connection error", CONSEQUENCE, _RAY, _FAILED),
            (r"\bTERM_(?:OWNER|ADMIN|EXTERNAL_SIGNAL|FORCE_OWNER|FORCE_ADMIN)\b", LIKELY, _LSF, SAYS["SIGTERM"]),
            (r"\bTERM_(?:CPULIMIT|PROCESSLIMIT|SWAP|THREADLIMIT|DEADLINE)\b", LIKELY, _LSF, _LIMIT),
            (r"Terminated by SIGTERM", SYMPTOM, _SYSTEMD, SAYS["SIGTERM"]),
            (r"srun: Terminating (?:job step |StepId=)", CONSEQUENCE, _SRUN, _FAILED),
        )
    ),
    told(r"code=dumped, status=11/SEGV", about="application", weight=SYMPTOM, source=_SYSTEMD, says=SAYS["SIGSEGV"]),
    *(
        told(pattern, about="application", weight=CONSEQUENCE, source=source, says=_FAILED)
        for pattern, source in (
            (r"ExecuteUserScriptError", _SAGEMAKER),
            (r"AlgorithmError: ", _SAGEMAKER),
            (r"UserScriptException", _AZURE),
            (r"User process '\S+' exited with status code", _AZURE),
            (r"User program failed with", _AZURE),
            (r"EngineCore encountered an issue", _VLLM),
            (r"MPI_ERRORS_ARE_FATAL", _MPI),
            (r"has exited due to process rank \d+", _MPI),
            (r"\]: write_line error; fd=", _MPI),
            (r"CANCELLED AT \S+ DUE TO TASK FAILURE", _SHELL),
            (r"Script execution failed with return code", _SHELL),
        )
    ),
    told(
        r"Forcefully terminating all other processes",
        about="application",
        weight=CONSEQUENCE,
        source=_LIGHTNING,
        says=_FAILED,
    ),
)
