"""Programs that are missing and scripts that are broken, as shells, container runtimes and Python word it.

bash translates its messages (po/*.po of its source); dash, zsh, busybox, cmd.exe and PowerShell have words of their own.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import LIKELY, SYMPTOM, Spelling, told

_SHELL = "https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html"
_BASH = "https://git.savannah.gnu.org/cgit/bash.git/tree/po"
_DASH = "https://git.kernel.org/pub/scm/utils/dash/dash.git/tree/src/exec.c"
_WINDOWS = "https://learn.microsoft.com/windows-server/administration/windows-commands/path"
_RUNC = "https://github.com/opencontainers/runc/blob/main/libcontainer/init_linux.go"
_HINTS = "https://launchpad.net/command-not-found"
_ENV = "https://www.gnu.org/software/coreutils/manual/html_node/env-invocation.html"
_LOADER = "https://man7.org/linux/man-pages/man8/ld.so.8.html"
_LMOD = "https://lmod.readthedocs.io/en/latest/"
_CONDA = "https://docs.conda.io/projects/conda/en/stable/user-guide/troubleshooting.html"
_SYSTEMD = "https://www.freedesktop.org/software/systemd/man/latest/systemctl.html"
_SSHD = "https://man.openbsd.org/sshd"
_start = partial(told, about="start-up")

_NATIVE = r"(?:srun|sbatch|scontrol|mpirun|mpiexec|orterun|prterun|mpiexec\.hydra|hydra_pmi_proxy|orted|prted|pdsh|ssh|kubectl)"
"""Launchers that are programs of their own."""
_SCRIPTS = r"(?:torchrun|accelerate|deepspeed|horovodrun|colossalai|composer|ray)"
"""Launchers that are installed with a package of Python: absent where its environment is."""
_PYTHON = r"(?:python[\d.]*)"
_NO_LAUNCHER = "launch-failed launch-probe-missing"
_NO_PYTHON = "launch-probe-missing launch-failed"
_MPI_OPTION = r"-{1,2}(?:np?|ppn|host|hostfile|machinefile|mca|map-by|bind-to|oversubscribe|allow-run-as-root)"
_CONTINUATION = (
    "An option stands where a command belongs: the backslash at the end of the line above is missing or has a space"
    " behind it, or the variable that should name the launcher is empty."
)
_BROKEN_SCRIPT = "The start script is not valid for the shell that runs it: sh is not bash, or a quote is missing."
_NO_SSHD = "The container's ssh server does not start: it needs root, /run/sshd and host keys (ssh-keygen -A)."

_NOT_FOUND = (
    "command not found",
    "未找到命令",
    "找不到命令",
    "指令找不到",
    "コマンドが見つかりません",
    "명령어를 찾을 수 없음",
    r"kommando nicht gefunden",
    r"befehl nicht gefunden",
    r"commande introuvable",
    r"orden no encontrada",
    r"comando não encontrado",
    r"команда не найдена",
    r"comando non trovato",
    r"nie znaleziono polecenia",
    r"komut yok",
)
"""bash 5, and older translations of it."""


def _missing(before: str, after: str, source: str) -> tuple[Spelling, ...]:
    """Return the spellings of a message that names a missing program: for both kinds of launchers, and Python."""
    return (
        _start(rf"{before}{_NATIVE}{after}", _NO_LAUNCHER, source=source),
        _start(rf"{before}{_SCRIPTS}{after}", _NO_PYTHON, source=source),
        _start(rf"{before}{_PYTHON}{after}", _NO_PYTHON, weight=LIKELY, source=source),
    )


SPELLINGS = (
    *(
        spelling
        for words in _NOT_FOUND
        for spelling in _missing(r"(?<![\w.-])", rf"['\"\u2019]?[\s\xa0]*[:\uff1a]\s*{words}", _BASH)
    ),
    *_missing(r"(?:sh|\d|bin/env): (?:\S*/)?", r": not found", _DASH),
    _start(rf"\b{_NATIVE}: not found", _NO_LAUNCHER, source=_DASH),
    _start(rf"\b{_SCRIPTS}: not found", _NO_PYTHON, source=_DASH),
    *_missing(r"command not found: (?:\S*/)?", r"(?![\w.-])", _SHELL),
    *_missing(r"Unknown command:? ['\"]?", r"(?![\w.-])", _SHELL),
    *_missing(r"(?:^|\s)Command ['\"]", r"['\"] not found\b", _HINTS),
    *_missing(r"No command ['\"]", r"['\"] found", _HINTS),
    *_missing(r"\bThe program ['\"]", r"['\"] (?:is currently not installed|can be found in)", _HINTS),
    *_missing(r"\bwhich: no ", r" in \(", _HINTS),
    *_missing(r"No such file or directory: ['\"](?:\S*/s?bin/)?", r"['\"]", _SHELL),  # not a folder of this name
    *_missing(r"/s?bin/", r": No such file or directory", _SHELL),
    _start(rf"/{_NATIVE}: No such file or directory", _NO_LAUNCHER, source=_SHELL),
    *_missing(
        r"\b(?:env|nohup|timeout|nice|sudo|xargs|stdbuf|setsid|time): [\u2018'\"]?", r"[\u2019'\"]?: No such file", _ENV
    ),
    *_missing(r"failed to (?:run command|execute) [\u2018'\"`]?(?:\S*/)?", r"[\u2019'\"]?: No such file", _ENV),
    *_missing(r"\bexecvp: (?:\S*/)?", r": No such file", _ENV),
    *_missing(r"exec: \\?[\"'`](?:\S*/)?", r"\\?[\"'`]: (?:executable file not found|stat|permission denied)", _RUNC),
    *_missing(r"[\"'`](?:\S*/)?", r"\\?[\"'`]:? (?:executable file )?not found in \$PATH", _RUNC),
    *_missing(r"executable file [\"'`](?:\S*/)?", r"[\"'`] not found", _RUNC),
    *_missing(r"['\u2018]", r"['\u2019] is not recognized as an internal or external command", _WINDOWS),
    *_missing(r"The term '", r"' is not recognized as ", _WINDOWS),
    *_missing(r"['\u2018]", r"['\u2019] 不是内部或外部命令", _WINDOWS),
    _start(
        r"executable file not found in \$PATH",
        weight=LIKELY,
        source=_RUNC,
        says="The container's image has no such program, or its PATH lacks the folder.",
    ),
    _start(
        r"bash: .*/python[\d.]*: No such file or directory", "launch-probe-missing command-file-missing", source=_SHELL
    ),
    _start(
        r"bash: .*\bcd: /\S+: No such file or directory",
        "storage-path-missing launch-probe-missing",
        weight=LIKELY,
        source=_SHELL,
    ),
    _start(
        r"error while loading shared libraries: (?:libopen|libmpi|liborte|libprrte|libpmix|libhwloc|libevent)",
        "launch-failed mpi-env-not-forwarded",
        source=_LOADER,
    ),
    _start(
        r"error while loading shared libraries: (?!libcuda|libnvidia|libnccl|libhip|librccl)",
        weight=LIKELY,
        source=_LOADER,
        says="A library is missing on the node, or its folder is not in LD_LIBRARY_PATH there.",
    ),
    # An option that the shell takes for a command.
    *(
        spelling
        for words in _NOT_FOUND
        for spelling in (
            _start(
                rf"(?:^|[:\uff1a]\s*){_MPI_OPTION}\s*[:\uff1a]\s*{words}", "launch-failed", weight=LIKELY, source=_BASH
            ),
            _start(
                rf"(?:^|[:\uff1a]\s*)(?!{_MPI_OPTION}\s*[:\uff1a])--?[a-z]\S*?\s*[:\uff1a]\s*{words}",
                weight=SYMPTOM,
                source=_BASH,
                says=_CONTINUATION,
            ),
        )
    ),
    # Scripts that may not run, or that their shell does not understand.
    _start(r"(?:sh|line \d+|\d+): \S+\.(?:sh|py|slurm|sbatch): Permission denied", "launch-failed", source=_SHELL),
    *(
        _start(pattern, weight=LIKELY, source=source, says=_BROKEN_SCRIPT)
        for pattern, source in (
            (r"syntax error near unexpected token", _SHELL),
            (r"syntax error: unexpected end of file", _SHELL),
            (r"unexpected EOF while looking for matching", _SHELL),
            (r"\d+: (?:\S+: )?Bad substitution", _DASH),
            (r"Syntax error: (?:\S+ unexpected|Unterminated|Bad )", _DASH),
            (r"Illegal option -o pipefail", _DASH),
            (r"\d: source: not found", _DASH),
            (r": \[\[: not found", _DASH),
            (r": integer expression expected", _SHELL),
            (r": ambiguous redirect", _SHELL),
        )
    ),
    _start(
        r"cannot execute(?: binary file|: required file not found)",
        weight=LIKELY,
        source=_SHELL,
        says="The program is built for another processor, or its interpreter is missing on this node.",
    ),
    # Modules and environments.
    _start(
        r"The following module\(s\) (?:are unknown|cannot be loaded)",
        weight=LIKELY,
        source=_LMOD,
        says="The cluster has no such environment module: module spider NAME lists those it has.",
    ),
    _start(
        r"ERROR:\d+: Unable to locate a modulefile for",
        weight=LIKELY,
        source=_LMOD,
        says="The cluster has no such environment module: module avail lists those it has.",
    ),
    *(
        _start(pattern, weight=LIKELY, source=_CONDA, says="The conda environment cannot be activated on this node.")
        for pattern in (
            r"EnvironmentNameNotFound",
            r"EnvironmentLocationNotFound",
            r"shell has not been properly configured to use 'conda activate'",
            r"Could not find conda environment",
            r"Run 'conda init' before 'conda activate'",
        )
    ),
    # The ssh server of a container: it is not installed, has no keys, or does not start.
    *(
        _start(pattern, "launch-node-unreachable launch-failed", weight=LIKELY, source=source)
        for pattern, source in (
            (r"\bsshd: not found", _SSHD),
            (r"\bsshd: command not found", _SSHD),
            (r"\bsshd['\"]?: No such file or directory", _SSHD),
            (r"sshd: no hostkeys available", _SSHD),
            (r"\bexec: \\?\"(?:\S*/)?sshd\\?\": executable file not found", _SSHD),
            (r"sshd re-exec requires execution with an absolute path", _SSHD),
            (r"Privilege separation user sshd does not exist", _SSHD),
            (r"/sshd_config(?:\.d/\S+)?: line \d+: Bad configuration", _SSHD),
            (r"/sshd_config: terminating, \d+ bad configuration", _SSHD),
            (r"\bsshd?: unrecognized service", _SYSTEMD),
            (r"Unit sshd?\.service (?:not found|could not be found|has failed)", _SYSTEMD),
            (r"Failed to (?:re)?start sshd?\.service", _SYSTEMD),
        )
    ),
    *(
        _start(pattern, weight=LIKELY, source=_SSHD, says=_NO_SSHD)
        for pattern in (
            r"'?(?:/var)?/run/sshd'?: Permission denied",
            r"Missing privilege separation directory",
            r"Could not load host key: /etc/ssh",
        )
    ),
)
