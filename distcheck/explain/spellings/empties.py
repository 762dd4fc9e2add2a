"""Values that are empty on the command line of a launcher, mostly because a variable of the script is not set.

argparse's words: Lib/argparse.py (expected %s argument(s), invalid %(type)s value). torchrun, torch.distributed.launch,
DeepSpeed, Accelerate, Horovod and most trainers read their options with it. bash and dash have words for an unset one.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import LIKELY, SYMPTOM, told

_ARGPARSE = "https://github.com/python/cpython/blob/main/Lib/argparse.py"
_RUNNER = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py"
_API = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/launcher/api.py"
_BASH = "https://www.gnu.org/software/bash/manual/html_node/The-Set-Builtin.html"
_PORT = "https://github.com/python/cpython/blob/main/Lib/urllib/parse.py"
_start = partial(told, about="start-up")
_OPTION = (
    r"(?:node[-_]rank|machine[-_]rank|world[-_]size|rank|master[-_](?:addr|port)|main[-_]process[-_](?:ip|port)"
    r"|rdzv[-_]endpoint|dist[-_]url|init[-_]method)"
)
"""Options that say which rank a process has, and where the others are; an empty count of nodes or GPUs has no rule."""
_SET_BY_LAUNCHERS = (
    r"(?-i:(?:NODE_|MACHINE_|GROUP_|LOCAL_|GLOBAL_)?RANK|(?:LOCAL_)?WORLD_SIZE|MASTER_(?:ADDR|PORT)|NNODES|NUM_NODES"
    r"|OMPI_COMM_WORLD_\w+)"
)
_EMPTY = "env-empty-string env-rank-unset"

SPELLINGS = (
    _start(
        rf"error: argument (?:-\w+/|--[\w-]+/)*--{_OPTION}(?:/\S+)?: expected (?:one|1) argument",
        _EMPTY,
        source=_ARGPARSE,
    ),
    _start(
        rf"error: argument (?:-\w+/|--[\w-]+/)*--{_OPTION}(?:/\S+)?: invalid \w+ value: ''", _EMPTY, source=_ARGPARSE
    ),
    _start(
        rf"error: argument (?:-\w+/|--[\w-]+/)*--{_OPTION}(?:/\S+)?: invalid int value: '[^']",
        "env-not-integer env-empty-string",
        source=_ARGPARSE,
    ),
    # DeepSpeed asks the first node for its address, and passes what it got.
    _start(r"Using IP address of +for node", "env-empty-string", source=_RUNNER),
    _start(r"--master_addr= --", "env-empty-string", weight=LIKELY, source=_RUNNER),
    _start(r"rdzv_endpoint\s*: :\d*\s*$", "env-empty-string", weight=SYMPTOM, source=_API),
    _start(r"Port could not be cast to integer value as ''", "env-empty-string env-master-port-range", source=_PORT),
    # set -u, and ${NAME:?}
    *(
        spelling
        for words in (r"unbound variable", r"parameter null or not set", r"parameter not set")
        for spelling in (
            _start(
                rf"\b(?-i:SLURM_(?:PROCID|LOCALID|NODEID|NTASKS|TASK_PID)): {words}",
                "slurm-no-srun env-rank-unset",
                source=_BASH,
            ),
            _start(rf"\b{_SET_BY_LAUNCHERS}: {words}", "env-rank-unset", weight=LIKELY, source=_BASH),
        )
    ),
)
