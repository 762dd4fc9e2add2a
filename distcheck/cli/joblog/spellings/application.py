"""Faults of the training script and of libraries that it uses; and what its other ranks then see."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_DDP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
_DISTRIBUTED = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py"
_WATCHDOG = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
_WRAPPER = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp"
_PYTHON = "https://docs.python.org/3/library/exceptions.html"
_BARRIER = "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier"
_app = partial(told, about="application")
_LATE = (
    "A rank did not reach or finish a collective in time. Usually another rank prepares data or saves a file for longer"
    " than the timeout, calls another collective, or failed first."
)

SPELLINGS = (
    _app(
        r"Expected to have finished reduction in the prior iteration",
        source=_DDP,
        says="Parameters of the model were not used in the loss: use find_unused_parameters=True, or remove them.",
    ),
    _app(
        r"Default process group has not been initialized",
        source=_DISTRIBUTED,
        says="The script uses a collective before init_process_group().",
    ),
    _app(
        r"trying to initialize the default process group twice",
        source=_DISTRIBUTED,
        says="The script calls init_process_group() twice.",
    ),
    _app(
        r"Detected mismatch between collectives on ranks",
        source=_WRAPPER,
        says="The ranks called different collectives, or the same with other shapes.",
        unless=r"sw-script",
    ),
    _app(r"DDP expects same model across all ranks", source=_DDP, says="The ranks built different models."),
    _app(
        r"appears not to match (?:sizes|strides) of the same param",
        source=_DDP,
        says="The ranks built different models.",
    ),
    _app(
        r"Expected to mark a variable ready only once",
        source=_DDP,
        says="A parameter of the model is used twice in one step of DistributedDataParallel.",
    ),
    _app(
        r"error: argument \S+: invalid",
        source="https://docs.python.org/3/library/argparse.html",
        says="The script was started with wrong arguments.",
    ),
    _app(
        r"error: the following arguments are required",
        source="https://docs.python.org/3/library/argparse.html",
        weight=LIKELY,
        says="The script was started without an argument that it requires.",
        unless=r"local[-_]rank",
    ),
    _app(
        r"error: unrecognized arguments: (?!.*--local[-_]rank)",
        source="https://docs.python.org/3/library/argparse.html",
        weight=LIKELY,
        says="The script was started with an argument that it does not know.",
    ),
    _app(
        r"No module named ",
        source=_PYTHON,
        weight=LIKELY,
        about="start-up",
        says="A Python module is missing in the job's environment.",
        unless=r"'?etcd",
    ),
    _app(
        r"ImportError: ",
        source=_PYTHON,
        weight=SYMPTOM,
        about="start-up",
        says="A Python module could not be loaded.",
        unless=r"undefined symbol: nccl",
    ),
    _app(r"FileNotFoundError: ", source=_PYTHON, weight=SYMPTOM, says="The script reads a file that does not exist."),
    _app(r"SyntaxError: ", source=_PYTHON, weight=LIKELY, says="The script is not valid Python for this interpreter."),
    _app(r"NotImplementedError", source=_PYTHON, weight=CONSEQUENCE, says="The script raised an error."),
    _app(
        r"AssertionError",
        source=_PYTHON,
        weight=CONSEQUENCE,
        says="An assertion of the script, or of a library, failed.",
    ),
    _app(
        r"(?:Type|Value|Key|Index|Attribute|Name|Runtime|ZeroDivision|Unicode\w*|OS|IO)Error\b: ?",
        source=_PYTHON,
        weight=CONSEQUENCE,
        says="The script raised an error.",
    ),
    _app(r"Watchdog caught collective operation timeout", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(r"got error: Socket Timeout", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(r"wait timeout after \d+ms", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(
        r"Timed out waiting \d+ms for (?:recv|send) operation",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/unbound_buffer.cc",
        weight=CONSEQUENCE,
        says=_LATE,
    ),
    _app(r"Some NCCL operations have failed or timed out", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(
        r"devices? used by this process (?:are|is) currently unknown",
        "gpu-barrier-guess",
        about="GPU",
        weight=HINT,
        source=_BARRIER,
    ),
    _app(r"Guessing device ID based on global rank", "gpu-barrier-guess", about="GPU", weight=HINT, source=_BARRIER),
)
