"""What a launch command says about the ranks that it will start: this node, the number of ranks, the meeting place.

`distcheck gate -- torchrun --nnodes 2 --node-rank 1 …` tests what torchrun would start. One module for each kind of
launcher has pure functions from a command's words, the environment and the files that they name to `Stated`, or to
`Untold` with the reason why not; `PROGRAMS` names them. `inner` takes off what people put in front of a launcher.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from distcheck.facts.launch_command import Stated
from distcheck.facts.storage import is_text
from distcheck.selection.command import NOT_TORCH, SAME_FOLDER, TORCH, options_in, unsure
from distcheck.selection.launch_commands.inner import Inner, Sought, inner, inside
from distcheck.selection.launch_commands.shell import UNKNOWN
from distcheck.selection.launch_commands.stated import Names, ReadFile, RefusedError, UnreadableError, Untold
from distcheck.selection.wrappers import PYTHON, SCRIPTS, SHELLS, base_name

Reader = Callable[[tuple[str, ...], Mapping[str, str], ReadFile], "Stated | Untold | None"]
"""Reads the words behind a program, with the environment that they get; None if they start no ranks.

Raises RefusedError or UnreadableError.
"""

Ask = Callable[[str, str, str, Sequence[str]], str]
"""Returns why a program's own parser refuses words; '' if it takes them, or does not answer.

Its arguments are the program, its module, the parser in that, and the words.
"""
PROGRAMS: Mapping[str, str] = {
    "torchrun": "torch.torchrun",
    "torch.distributed.run": "torch.torchrun",
    "torch.distributed.launch": "torch.launch",
    "vllm": "engines.vllm serve",
    "vllm.entrypoints.openai.api_server": "engines.vllm",
    "sglang": "engines.sglang serve",
    "sglang.launch_server": "engines.sglang",
    "llamafactory-cli": "finetuning.llamafactory",
    "lmf": "finetuning.llamafactory",
    "tune": "finetuning.torchtune run",
    "axolotl": "finetuning.axolotl train",
    "fabric": "lightning.fabric run",
    "litgpt": "lightning.litgpt",
    "accelerate": "accelerate.launch launch",
    "accelerate-launch": "accelerate.launch",
    "accelerate.commands.accelerate_cli": "accelerate.launch launch",
    "accelerate.commands.launch": "accelerate.launch",
    "colossalai": "like_torchrun.colossalai run",
    "composer": "like_torchrun.composer",
    "composer.cli.launcher": "like_torchrun.composer",
    "deepspeed": "deepspeed.deepspeed",
    "deepspeed.launcher.runner": "deepspeed.deepspeed",
    "horovodrun": "horovod.horovodrun",
    "mpiexec": "mpi.mpiexec",
    "mpiexec.hydra": "mpi.mpiexec",
    "mpirun": "mpi.mpirun",
    "torchx": "like_torchrun.torchx run",
}
"""By program, or by the module that Python runs: who reads its words, and behind which first word."""


_TORCHRUN = Names("--master-addr", "--master-port", "--node-rank", "--rdzv-endpoint", "--nproc-per-node")
OPTIONS: Mapping[str, Names] = {
    **dict.fromkeys(("torchrun", "torch.distributed.launch", "tune run"), _TORCHRUN),
    "accelerate launch": Names("--main_process_ip", "--main_process_port", "--machine_rank"),
    "deepspeed": Names("--master_addr", "--master_port", "--node_rank", nproc="--num_gpus"),
    "composer": Names("--master_addr", "--master_port", "--node_rank", nproc="--nproc"),
    "colossalai run": Names("--master_addr", "--master_port", "--node_rank", nproc="--nproc_per_node"),
    "vllm": Names("--master-addr", "--master-port", "--node-rank"),
    "vllm -dpl": Names(
        "--data-parallel-address", "--data-parallel-rpc-port", "--data-parallel-start-rank / --data-parallel-size-local"
    ),
    "vllm -dpn": Names("--data-parallel-address", "--data-parallel-rpc-port", "--data-parallel-rank"),
    "sglang": Names("", "", "--node-rank", "--dist-init-addr"),
    **dict.fromkeys(("mpirun -x", "mpiexec -x"), Names("-x MASTER_ADDR=", "-x MASTER_PORT=", "")),
    **dict.fromkeys(("mpirun -genv", "mpiexec -genv"), Names("-genv MASTER_ADDR", "-genv MASTER_PORT", "")),
    "fabric run": Names("--main-address", "--main-port", "--node-rank", nproc="--devices"),
}
"""By what `Stated.by` says: how its options are named."""
VARIABLES = Names("MASTER_ADDR=", "MASTER_PORT=", "NODE_RANK=")
"""The variables that the others read in their place."""


class _Parser(NamedTuple):
    """A launcher's own parser of its words."""

    module: str
    function: str
    own: AbstractSet[str]
    """The options that need no question."""
    nproc: str
    """The one for the number of ranks."""


_RUN = _Parser("torch.distributed.run", "parse_args", TORCH, "--nproc-per-node")
_ACCELERATE = _Parser("accelerate.commands.launch", "launch_command_parser().parse_args", NOT_TORCH, "--num_processes")
_PARSERS: Mapping[str, _Parser] = {
    **dict.fromkeys(("torchrun", "torch.distributed.run"), _RUN),
    "torch.distributed.launch": _RUN._replace(module="torch.distributed.launch"),
    **dict.fromkeys(("accelerate", "accelerate-launch", "accelerate.commands.launch"), _ACCELERATE),
    "deepspeed": _Parser("deepspeed.launcher.runner", "parse_args", NOT_TORCH, "--num_gpus"),
}
_OF_ACCELERATE = ("fsdp-", "deepspeed-", "megatron-lm-", "fp8-", "aws-", "parallelism-config-", "mpirun-", "offload-",
                  "zero3-", "tpu-")  # fmt: skip
_COUNTS = re.compile(r"np?|.*(?:proc|gpu|device|worker).*")
"""Names that people give to the number of ranks."""
_OF_A_PLACE = re.compile("n?node|master|rdzv")
_CLOSE = 0.75
"""How alike a mistyped name and the one that is meant are."""
_REMEDY = "--nproc, and on several nodes --rank and --world-size"
LARGEST_PORT = 65535
_USUAL_PORT = 29500


def stated(
    command: Sequence[str], environ: Mapping[str, str], read: ReadFile, ask: Ask | None = None
) -> Stated | Untold | None:
    """Return which ranks a command starts, why that cannot be told, or None if it is no launcher.

    Args:
        command: the words of the command.
        environ: the variables that it gets.
        read: returns the text of a file; raises OSError or UnicodeDecodeError.
        ask: asks a launcher whether it will refuse its words.
    """

    def asking(found: Inner) -> Ask | None:
        """Return how to ask a launcher of this process's PATH; not one of another environment or machine."""
        here = found.start == command[0] or base_name(command[0]) in SAME_FOLDER
        return ask if here and found.environ.get("PATH") == environ.get("PATH") else None

    try:
        launchers = [
            (found, told)
            for found in inner(tuple(command), environ, Sought(PROGRAMS.keys(), read))
            if (told := _told(found, read, asking(found), direct=found.start == command[0])) is not None
        ]
    except RefusedError as error:
        shell = base_name(command[0])
        return Stated(shell, refused=str(error)) if shell in SHELLS else None  # a wrapper may have another folder
    if len(launchers) > 1:
        names = " and ".join(found.program for found, _ in launchers[:3])
        return Untold(launchers[0][0].file or base_name(command[0]), f"it starts several launchers: {names}", _REMEDY)
    return launchers[0][1] if launchers else None


def why_unknown(command: Sequence[str]) -> str:
    """Return why a command in which `stated` finds no launcher does not tell its ranks: python x.py: …."""
    name = base_name(command[0])
    python, script = PYTHON.fullmatch(name), name in SHELLS or name.endswith(SCRIPTS)
    named = " ".join([name, *(word for word in command[1:2] if (python or script) and word[:1] != "-")])
    ray = "Ray places its ranks" if name == "ray" else ""
    return f"{named}: {ray or ('its script may start ranks itself' if python else 'no known launcher found in it')}"


def _told(found: Inner, read: ReadFile, ask: Ask | None, *, direct: bool) -> Stated | Untold | None:
    """Return what a launcher states, None if it starts no ranks; not `direct`: a wrapper may show it other files."""
    module, function, *first = PROGRAMS[found.program].replace(".", " ").split()
    if found.words[: len(first)] != tuple(first):
        return None
    reader: Reader = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    by, words = f"{found.program} in {found.file}" if found.file else found.program, found.words[len(first) :]
    if ask is not None and (refused := _refused(found, words, ask)):
        return _placed(refused, found, words)
    try:
        told = reader(words, found.environ, inside(found.folder, read))
    except RefusedError as error:
        told = Untold(by, f"its {error}")
        if not found.emptied and (direct or error.__cause__ is None):
            told = Stated(found.program, refused=str(error), remedy=error.instead)
    except UnreadableError as error:
        told = Untold(by, f"its {error}", error.remedy)
    doubt = found.doubt
    if not doubt and isinstance(told, Stated) and UNKNOWN.search(repr(told)):
        doubt = "only a shell can work out the variables that it gets"
    if told is not None and doubt:
        return Untold(by, doubt, _REMEDY)
    if not isinstance(told, Stated):
        return told
    if told.refused:
        return _placed(told, found, words)
    if told.master_port > LARGEST_PORT:
        names = OPTIONS.get(told.by, VARIABLES)
        given, instead = (names.set(told, {"MASTER_PORT": port}) for port in (told.master_port, _USUAL_PORT))
        return Stated(told.by, refused=f"{given}, expected a port from 1 to {LARGEST_PORT}", remedy=instead)
    return replace(
        told,
        file=told.file or found.file,
        script=told.script if direct and not found.folder and is_text(told.script) else "",
        engine=told.engine and replace(told.engine, program=found.start),
    )


def _refused(found: Inner, words: tuple[str, ...], ask: Ask) -> Stated | None:
    """Return what a launcher's own parser says of an option that it may not know; None if it takes it, or says nothing.

    It is asked only then, because it imports torch.
    """
    parser = _PARSERS.get(found.program)
    if parser is None or (option := unsure(words, parser.own, _OF_ACCELERATE)) is None:
        return None
    from difflib import get_close_matches  # only where something is wrong

    refused = ask(found.start, parser.module, parser.function, words)
    near = "".join(f"--{name}" for name in get_close_matches(option.name, parser.own, 1, _CLOSE))
    near = near if parser.own is TORCH else near.replace("-", "_").replace("__", "--")
    meant = near or (parser.nproc if _COUNTS.fullmatch(option.name) else "")
    written = "".join(option.words[:1]).partition("=")[0]
    remedy = f"{meant} {option.value}" if meant not in {"", written, written.replace("_", "-")} else ""
    return Stated(found.program, refused=refused, remedy=remedy) if refused else None


def _placed(told: Stated, found: Inner, words: Sequence[str]) -> Stated:
    """Return a torchrun that will not start with its place, if that is certain: the other nodes wait for it there.

    The number of its ranks is not: one stands for them.
    """
    if (parser := _PARSERS.get(found.program)) is None or parser.own is not TORCH:
        return told
    from distcheck.selection.launch_commands import torch  # as the readers are, when it is needed

    options = {option.name: option.value for option in options_in(words)}
    kept = {name: value for name, value in options.items() if name in TORCH and not _COUNTS.fullmatch(name)}
    if any(_OF_A_PLACE.match(name) for name in options.keys() - kept.keys()):
        return told
    with suppress(RefusedError):
        place = torch.of_options(kept, found.environ, told.by)
        if isinstance(place, Stated) and place.nodes > 1 and 0 < place.master_port <= LARGEST_PORT:
            return replace(place, nproc="1", refused=told.refused, remedy=told.remedy)
    return told
