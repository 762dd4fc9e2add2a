"""Errors that no other table knows: the line that tells most, and what it concerns."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import ERROR, HINT, NOISE, told

_PYTHON = "https://docs.python.org/3/library/exceptions.html"
_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug"
_C10D = "https://github.com/pytorch/pytorch/tree/main/torch/csrc/distributed/c10d"
_MEASURES = "https://docs.pytorch.org/tutorials/beginner/basics/quickstart_tutorial.html"
_unknown = partial(told, weight=ERROR, fallback=True)
_LAUNCHING = (
    r"launcher/|hostfile|mpi_discovery|multi_gpu_launcher|commands/launch|init_process_group|init_distributed|rendezvous"
    r"|torchrun|_dist_backend|import_module|from torch\._C|in distributed_init|in init_dist\b|in init_distributed"
)
_TRACEBACK = r"Traceback \(most recent call last"
_RAISED = "Python raised an error that distcheck does not know."

MISTAKE = _unknown(
    r"(?<![\w.'])(?:Assertion|Attribute|Index|Key|Name|NotImplemented|Type|UnboundLocal|ZeroDivision)Error(?:: |$)",
    about="application",
    source=_PYTHON,
    says=_RAISED,
)
"""A mistake in a program: no network and no other rank raises these."""
_NUMBER = r"-?(?:\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|\d+(?=%)|nan|inf)%?"

SPELLINGS = (
    *(
        _unknown(pattern, weight=NOISE, about="application", source=_MEASURES, says="The script measures an error.")
        for pattern in (
            rf"\w[ _]error: ?{_NUMBER}\s*(?:$|[^\w\s.:]|[a-z_]+(?:[:=]| -?\d))",
            r"\b(?:test|train(?:ing)?|val(?:id|idation)?|eval(?:uation)?) error:\s*$",
        )
    ),
    _unknown(
        r"NCCL WARN .*(?:pci|cuda|\bhip\b|gpu|topo|xml|device ordinal)",
        about="GPU",
        source=_NCCL,
        says="NCCL failed at a GPU, or at its place in the machine.",
    ),
    _unknown(r"NCCL WARN ", about="network", source=_NCCL, says="NCCL failed."),
    _unknown(
        r"cannot open shared object file",
        about="start-up",
        source=_PYTHON,
        says="A library is missing, or its folder is not in LD_LIBRARY_PATH.",
    ),
    _unknown(
        r"version `[\w.]+' not found",
        about="start-up",
        source=_PYTHON,
        says="A library is older than the one that another was built with.",
    ),
    _unknown(
        r"undefined symbol: ", about="start-up", source=_PYTHON, says="Libraries of different versions are mixed."
    ),
    _unknown(
        r"CalledProcessError", about="start-up", source=_PYTHON, says="A command that the program started failed."
    ),
    _unknown(
        r": command not found", about="start-up", source=_PYTHON, says="A program is not installed, or not in PATH."
    ),
    _unknown(
        r"socket\.cpp:\d+\] .*(?:fail|error|timed out|unable)",
        about="network",
        source=_C10D,
        says="torch's store failed.",
    ),
    _unknown(
        r"\[E[\d :.]*ProcessGroup",
        weight=HINT,
        about="application",
        source=_C10D,
        says="torch reported an error of a process group.",
    ),
    _unknown(  # the words of programs, in contrast to those of Python
        r"^(?!.*(?-i:[a-z]Error\b|Exception|error: RuntimeError)).*(?<![\w.])(?-i:e)rror: (?!\w+ error)",
        about="start-up",
        source=_PYTHON,
        says="A program reported an error that distcheck does not know.",
    ),
    *(
        _unknown(words, about="GPU", source=_PYTHON, says="A call of CUDA or HIP failed.")
        for words in (
            r"CUDA error: ",
            r"CUDA driver error: ",
            r"HIP error: ",
            r"\bcudaError(?=[A-Z])(?!_t)",
            r"\bCUDA_ERROR_\w",
            r"\bhipError(?=[A-Z])(?!_t)",
        )
    ),
    _unknown(r"(?<!SO_)Error: (?!Rank)", about="start-up", source=_PYTHON, trace=_LAUNCHING, says=_RAISED),
    MISTAKE,
    _unknown(r"(?<!SO_)Error: ", about="application", source=_PYTHON, says=_RAISED),
    _unknown(r"\berrors\.(?!html)\w+(?:: |$)", about="application", source=_PYTHON, says=_RAISED),
    _unknown(r"\bexceptions\.(?!html)\w+(?:: |$)", about="application", source=_PYTHON, says=_RAISED),
    _unknown(r"\w+Failed: ", about="application", source=_PYTHON, trace=_TRACEBACK, says=_RAISED),
    _unknown(r"\w+Error:?$", about="application", source=_PYTHON, trace=_TRACEBACK, says=_RAISED),
    _unknown(r"\w+Exception:?$", about="application", source=_PYTHON, trace=_TRACEBACK, says=_RAISED),
    _unknown(r"\bEOFError", about="application", source=_PYTHON, says=_RAISED),
    _unknown(r"StopIteration", about="application", source=_PYTHON, trace=_TRACEBACK, says=_RAISED),
    _unknown(r"Exception: ", about="application", source=_PYTHON, says=_RAISED),
    _unknown(r"AssertionError", about="application", source=_PYTHON, says="An assertion failed."),
    *(
        _unknown(pattern, about="start-up", source=_PYTHON, says="A command of the start script failed.")
        for pattern in (
            r": cannot (?:create|open|access|stat|remove|touch|change|make|overwrite|move|execute|find|connect)\b",
            r"^\S*(?:sh|line \d+|\d+): \S+: Permission denied",
            r"sh: \d+: .*: not found",
            r"^FATAL:? ",
        )
    ),
    _unknown(
        r"\berror: ", about="start-up", source=_PYTHON, says="A program reported an error that distcheck does not know."
    ),
    _unknown(r"\.exc\.\w+(?:: |$)", about="application", source=_PYTHON, trace=_TRACEBACK, says=_RAISED),
    _unknown(r"SystemExit: [1-9]", about="application", source=_PYTHON, says="The program ended itself."),
    _unknown(
        r"terminate called ",
        about="application",
        source=_PYTHON,
        says="A C++ exception ended the process.",
        unless=r"watchdog caught collective|watchdog thread terminated",
    ),
)
