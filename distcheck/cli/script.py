"""What the words of COMMAND say about what it needs on the node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distcheck.facts.base import legible_text
from distcheck.facts.storage import is_text
from distcheck.probe.environment import redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

_RUN_SCRIPTS = ("python", "torchrun", "accelerate", "deepspeed")
"""Programs that read a Python file of this node. A container's runtime would read one of its own files."""

_LONGEST, _MOST_WORDS = 1024, 64
_OUTPUTS = ("out", "log", "save")


def script_of(command: Sequence[str]) -> str:
    """Return the first Python file that COMMAND runs on this node, '' if it names none that facts can hold."""
    if not Path(command[0]).name.startswith(_RUN_SCRIPTS):
        return ""
    script = next((word for word in command[1:] if word.endswith(".py") and not word.startswith("-")), "")
    return script if is_text(script) else ""


def paths_in(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words after COMMAND's program that may be paths, also as values of options.

    Options whose name contains out, log or save usually name what the job writes, so their values are left out.
    """
    paths: dict[str, None] = {}
    option = ""
    for word in redacted(command[1:]):
        name, given, value = word.partition("=") if word.startswith("-") else (option, "=", word)
        option = name if not given else ""
        is_path = ("/" in value or "." in value) and "://" not in value and len(value) < _LONGEST and is_text(value)
        if is_path and not any(part in name.lower() for part in _OUTPUTS):
            paths[value] = None
    return tuple(paths)[:_MOST_WORDS]


def rendezvous_backend_of(command: Sequence[str]) -> str:
    """Return the value of --rdzv-backend in COMMAND, '' without one."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        option, given, value = word.partition("=")
        if option.replace("_", "-") == "--rdzv-backend":
            return legible_text(value if given else following)
    return ""
