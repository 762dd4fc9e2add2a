"""What the words of COMMAND run, read as Python and the launchers of ranks read them.

Sources: CPython, Python/initconfig.c; torch/distributed/run.py and launch.py; accelerate/commands/launch.py;
deepspeed/launcher/runner.py. What any other program runs is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

from distcheck.selection.wrappers import PYTHON, SHELLS, base_name

# Options of torchrun, torch.distributed.launch, accelerate and deepspeed.
_TORCH_FLAGS = frozenset({
    "standalone", "no-python", "run-path", "module", "m", "use-env", "virtual-local-rank", "help", "h",
})  # fmt: skip
FLAGS = _TORCH_FLAGS | {
    "multi-gpu", "cpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "quiet", "q", "debug", "same-network",
    "use-mps-device", "ipex", "use-xpu", "tpu", "tpu-use-cluster", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo",
    "enable-cpu-affinity", "dynamo-use-fullgraph", "dynamo-use-dynamic", "dynamo-use-regional-compilation",
    "downcast-bf16", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid", "elastic-training",
    "bind-cores-to-rank", "use-parallelism-config", "fsdp-activation-checkpointing-offload",
    "fp8-use-autocast-during-eval",
}  # fmt: skip
"""Those without a value; all others take the next word."""
_TORCH_VALUES = frozenset({
    "nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "local-addr", "rdzv-backend",
    "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts", "monitor-interval", "start-method", "event-log-handler",
    "role", "log-dir", "redirects", "tee", "local-ranks-filter", "logs-specs", "numa-binding", "signals-to-handle",
    "shutdown-timeout", "duplicate-stdout-filters", "duplicate-stderr-filters",
})  # fmt: skip
_VALUES = _TORCH_VALUES | {
    "config-file", "num-processes", "num-machines", "num-cpu-threads-per-process", "mixed-precision", "gpu-ids",
    "machine-rank", "main-process-ip", "main-process-port", "dynamo-backend", "dynamo-mode", "deepspeed-config-file",
    "zero-stage", "gradient-accumulation-steps", "gradient-clipping", "main-training-function",
    "hostfile", "H", "include", "i", "exclude", "e", "num-nodes", "num-gpus", "num-accelerators", "launcher",
    "launcher-args", "min-elastic-nodes", "max-elastic-nodes", "enable-each-rank-log", "autotuning", "bind-core-list",
    "ssh-port", "venv-script",
}  # fmt: skip
TORCH = _TORCH_FLAGS | _TORCH_VALUES
"""Those of torchrun."""
_BESIDE_TORCH = frozenset({
    "no-python", "module", "m", "help", "h", "node-rank", "master-addr", "master-port", "rdzv-backend", "rdzv-conf",
    "max-restarts", "monitor-interval", "role", "log-dir", "tee",
})  # fmt: skip
"""Those of torchrun that accelerate or deepspeed has too."""
NOT_TORCH = (FLAGS | _VALUES) - TORCH | _BESIDE_TORCH
_NUMBERS, _NUMBER = frozenset({"max-restarts", "monitor-interval", "shutdown-timeout"}), re.compile(r"[\d.]+")
_SHORT = {"t": "tee", "r": "redirects"}
_LONG_ENOUGH = 3
"""Letters from which an abbreviation is one."""

_PYTHON_OPTION = re.compile(r"-([^-cmWX]*)(?:([cmWX])(.*))?", re.DOTALL)
"""Flags, then an option whose value is the rest of the word, or else the next word."""
_LAUNCHERS: Mapping[str, tuple[str, ...]] = {
    "torchrun": (), "accelerate": ("launch",), "accelerate-launch": (), "deepspeed": (),
}  # fmt: skip
"""Programs that start ranks, and their words before the options."""
_LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})
SAME_FOLDER = frozenset({
    "env", "nohup", "nice", "ionice", "numactl", "taskset", "stdbuf", "setsid", "time", "timeout", "chrt", "prlimit",
    "tini", "dumb-init",
})  # fmt: skip
"""Programs that start another one in the same folder, unless told to change it."""
ON_NODES = frozenset({"srun", "mpirun", "mpiexec"})
"""Those that start it on the nodes of the job, likewise."""
_CHANGE_FOLDER = ("-C", "--chdir", "-D", "--wdir", "-wd", "--container", "--multi-prog")
_NO_FILES = ("/dev/", "/proc/")
"""Descriptors of this process, such as bash's <(...), are no files to others."""


class Option(NamedTuple):
    """An option of a launcher."""

    name: str
    """Its full name, written with dashes."""
    value: str
    """'' if it takes none."""
    words: Sequence[str]
    known: bool
    """Whether it is known how many words it takes."""


class LauncherWords(NamedTuple):
    """The words of a launcher."""

    options: Mapping[str, str]
    rest: tuple[str, ...]
    """The first word that is no option and no value, and all behind it."""
    certain: bool
    """Whether all options are known, so that none of their values can be taken for the script."""


class Runs(NamedTuple):
    """What a COMMAND runs; '' if that is unknown."""

    kind: Literal["", "script", "module"] = ""
    name: str = ""
    """The script's path or the module's name, as COMMAND names it."""
    python: tuple[str, ...] = ()
    """How the interpreter of a module is called: a Python with its options, or a launcher written in Python."""
    launcher: str = ""
    """The launcher that starts it, '' if Python alone does."""
    options: Mapping[str, str] = {}
    """Those of the launcher, as far as they are certain."""


def options_in(words: Sequence[str]) -> Iterator[Option]:
    """Yield a launcher's options, up to the first word that is none.

    The word behind an unknown option is its value, unless it is a Python file.
    """
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        word = words[at]
        name, equals, value = word.lstrip("-").partition("=")
        if word[1:2] != "-" and len(word) > len("-r"):  # the value is in the same word: -r3
            name, equals, value = word[1], "=", word[2:]
        name, following = _full(name), "".join(words[at + 1 : at + 2])
        known = name in FLAGS or name in _VALUES
        no_value = not known and (following.startswith("-") or following.endswith(".py"))
        takes = not equals and name not in FLAGS and not no_value
        yield Option(name, following if takes else value, words[at : at + 1 + takes], known or bool(equals))
        at += 1 + takes


def unsure(words: Sequence[str], own: AbstractSet[str], families: tuple[str, ...]) -> Option | None:
    """Return the first option that a launcher may refuse: it is none of its `own`, abbreviated, or no number.

    Those whose names begin as `families` are its own too. One without a name if no script or module follows; None if
    all is sure.
    """
    for option in options_in(words):
        written = option.words[0].lstrip("-").partition("=")[0].replace("_", "-")
        whole = option.name == written or option.words[0][1:2] != "-"
        number = option.name not in _NUMBERS or _NUMBER.fullmatch(option.value)
        if not (whole and number and option.name in own) and not written.startswith(families):
            return option
    return None if split(tuple(words)).rest else Option("", "", (), known=True)


def split(words: tuple[str, ...]) -> LauncherWords:
    """Return a launcher's options and what is behind them."""
    found = tuple(options_in(words))
    at = sum(len(option.words) for option in found)
    at += words[at : at + 1] == ("--",)
    return LauncherWords(
        {option.name: option.value for option in found}, words[at:], all(option.known for option in found)
    )


def _full(name: str) -> str:
    """Return an option's full name with dashes; argparse accepts any beginning that only one option has."""
    name = _SHORT.get(name, name).replace("_", "-")
    if name in FLAGS or name in _VALUES or len(name) < _LONG_ENOUGH:
        return name
    fits = [known for known in FLAGS | _VALUES if known.startswith(name)]
    return fits[0] if len(fits) == 1 else name


def runs(command: Sequence[str]) -> Runs:
    """Return what COMMAND runs."""
    words = tuple(command)
    program = base_name(words[0]) if words else ""
    if program in SAME_FOLDER | ON_NODES:
        at = next((n for n, word in enumerate(words) if _starts_python(base_name(word))), len(words))
        unknown = any(word.startswith(_CHANGE_FOLDER) or base_name(word) in SHELLS for word in words[:at])
        inner = Runs() if unknown else runs(words[at:])
        if program in ON_NODES:  # an option's value may look like Python: --job-name python
            launcher = inner.launcher or program
            return inner._replace(launcher=launcher) if inner.name.endswith(".py") else Runs(launcher=launcher)
        return inner if inner.kind == "script" else Runs()  # env may set another path of modules
    if PYTHON.fullmatch(program):
        return _of_python(words)
    before = _LAUNCHERS.get(program)
    if before is None or words[1 : 1 + len(before)] != before:
        return Runs()
    return _of_launcher(program, words[1 + len(before) :], words[:1])


def _starts_python(program: str) -> bool:
    return program in _LAUNCHERS or PYTHON.fullmatch(program) is not None


def _of_python(words: tuple[str, ...]) -> Runs:
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in {"-", "--"}:
        found = _PYTHON_OPTION.fullmatch(words[at])
        flags, letter, value = found.groups("") if found else ("", "", "")
        apart = (letter and not value) or words[at] == "--check-hash-based-pycs"
        behind = at + (2 if apart else 1)
        value = "".join(words[at + 1 : behind]) or value
        if letter == "c":
            return Runs()
        if letter == "m":
            python = (*words[:at], *([f"-{flags}"] if flags else []))
            launcher = value in _LAUNCHER_MODULES
            named = Runs("module", value, python) if value else Runs()
            return _of_launcher(value, words[behind:], python) if launcher else named
        at = behind
    return _script("".join(words[at + (words[at : at + 1] == ("--",)) :][:1]))


def _of_launcher(launcher: str, words: tuple[str, ...], python: tuple[str, ...]) -> Runs:
    found = split(words)
    target = found.rest[0] if found.rest else ""
    if not found.certain and not target.endswith(".py"):
        return Runs(launcher=launcher)
    if "no-python" in found.options:
        inner = runs(found.rest)
        what = inner if inner.kind or "/" not in target else _script(target)
    elif target and not {"module", "m"}.isdisjoint(found.options):
        what = Runs("module", target, python)
    else:
        what = _script(target)
    return what._replace(launcher=launcher, options=found.options)


def _script(path: str) -> Runs:
    return Runs() if path in {"", "-"} or path.startswith(_NO_FILES) else Runs("script", path)
