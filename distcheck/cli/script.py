"""What the words of COMMAND say about what it needs on the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import legible_text
from distcheck.facts.storage import is_text
from distcheck.probe.environment import redacted
from distcheck.selection.command import ON_NODES, runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LONGEST, _MOST_WORDS = 1024, 64
_OUTPUTS = ("out", "log", "save")


def script_of(command: Sequence[str]) -> str:
    """Return the file that COMMAND's Python runs on this node, '' if it names none that facts can hold."""
    found = runs(command)
    return found.name if found.kind == "script" and is_text(found.name) else ""


def module_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return the interpreter, with its options, of the module that COMMAND runs, then the module; empty without one."""
    found = runs(command)
    words = (*found.python, found.name) if found.kind == "module" else ()
    return words if all(map(is_text, words)) else ()


def processes_of(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return how many processes COMMAND starts on a node: a number, gpu, auto; '' if its words do not tell."""
    found = runs(command)
    if found.launcher.startswith("torch") and found.kind:
        return legible_text(found.options.get("nproc-per-node") or environ.get("PET_NPROC_PER_NODE") or "1")
    return "1" if found.kind and found.launcher in {"", *ON_NODES} else ""


def paths_in(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words after COMMAND's program that may be paths, also as values of options.

    Options whose name contains out, log or save usually name what the job writes, so their values are left out.
    """
    paths: dict[str, None] = {}
    option, module = "", module_of(command)[-1:]
    for word in redacted(command[1:]):
        name, given, value = word.partition("=") if word.startswith("-") else (option, "=", word)
        option = name if not given else ""
        is_path = ("/" in value or "." in value) and "://" not in value and len(value) < _LONGEST and is_text(value)
        if is_path and (value,) != module and not any(part in name.lower() for part in _OUTPUTS):
            paths[value] = None
    return tuple(paths)[:_MOST_WORDS]


def rendezvous_backend_of(command: Sequence[str]) -> str:
    """Return the value of --rdzv-backend in COMMAND, '' without one."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        option, given, value = word.partition("=")
        if option.replace("_", "-") == "--rdzv-backend":
            return legible_text(value if given else following)
    return ""
