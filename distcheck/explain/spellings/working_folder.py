"""A working directory that is deleted, or missing on a node, in the words of shells, Python, MKL, Slurm and Open MPI.

Shells and Slurm's daemon report it and go on; the others end. All were seen with a directory that was deleted.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import LIKELY, told

_BASH = "https://git.savannah.gnu.org/cgit/bash.git/tree/builtins/common.c"
_DASH = "https://git.kernel.org/pub/scm/utils/dash/dash.git/tree/src/cd.c"
_GETCWD = "https://docs.python.org/3/library/os.html#os.getcwd"
_GIT = "https://github.com/git/git/blob/master/setup.c"
_MAKE = "https://git.savannah.gnu.org/cgit/make.git/tree/src/main.c"
_MKL = "https://github.com/InternLM/lmdeploy/issues/2258"
_OPEN_MPI = "https://github.com/open-mpi/ompi/tree/v4.1.x/orte"
_PYENV = "https://github.com/pyenv/pyenv/blob/master/libexec/pyenv"
_SRUN = "https://github.com/SchedMD/slurm/tree/master/src"
_STEPD = "https://github.com/SchedMD/slurm/tree/master/src/slurmd/slurmstepd"
_GONE = "storage-path-missing storage-hangs"
_SILENT = "storage-hangs storage-path-missing"
_OTHER_ERROR = r"(?!No such file|Permission denied|$)"
_start = partial(told, about="start-up")

GOES_ON = (
    _start(
        r"slurmstepd(?:-\S+)?: error: couldn't chdir to [`'](?P<folder>/[^']*)'",
        "storage-path-missing",
        source=_STEPD,
    ),
    _start(rf"getcwd(?:\(\))?: cannot access parent directories: {_OTHER_ERROR}", _SILENT, source=_BASH),
    _start(r"getcwd(?:\(\))?: cannot access parent directories", _GONE, source=_BASH),
    _start(r": error retrieving current directory", _GONE, source=_BASH),
    _start(rf"getcwd\(\) failed: {_OTHER_ERROR}", _SILENT, source=_DASH),
    _start(r"getcwd\(\) failed: ", _GONE, source=_DASH),
    _start(r"salloc: error: getcwd failed", _GONE, source=_SRUN),
    _start(r"make(?:\[\d+\])?: getcwd: No such file", _GONE, source=_MAKE),
    _start(r"fatal: Unable to read current working directory", _GONE, source=_GIT),
)
"""Written by what then goes on, so that the job may still fail for another reason, or not at all."""

SPELLINGS = (
    *GOES_ON,
    _start(r"(?:srun|sbatch): error: getcwd failed", _GONE, source=_SRUN),
    _start(r"\] Error: Unable to get the current working directory", _GONE, source=_OPEN_MPI),
    _start(r"attempting to get the cwd\.", _GONE, source=_OPEN_MPI),
    _start(r"pyenv: cannot change working directory to", _GONE, source=_PYENV),
    # MKL, which is a part of torch, asks for the working directory to find the library that it is in.
    _start(r"MKL FATAL ERROR: Cannot load \S*/libtorch_cpu\.so", _GONE, weight=LIKELY, source=_MKL),
    # os.getcwd() gives no path; below it only the line with ^ may follow.
    _start(
        r"FileNotFoundError: \[Errno 2\] No such file or directory$",
        _GONE,
        weight=LIKELY,
        source=_GETCWD,
        trace=r"(?:\bin abspath|os\.getcwdb?\(\))[^\n]*\n+(?:[^\n]*\^\^[^\n]*\n+)?[^\n]*FileNotFoundError: \[Errno 2\]",
    ),
)
