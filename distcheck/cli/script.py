"""What the words of COMMAND say about what it needs on the node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_RUN_SCRIPTS = ("python", "torchrun", "accelerate", "deepspeed")
"""Programs that read a Python file of this node. A container's runtime would read one of its own files."""


def script_of(command: Sequence[str]) -> str:
    """Return the first Python file that COMMAND runs on this node, '' if it names none."""
    if not Path(command[0]).name.startswith(_RUN_SCRIPTS):
        return ""
    return next((word for word in command[1:] if word.endswith(".py") and not word.startswith("-")), "")


def rendezvous_backend_of(command: Sequence[str]) -> str:
    """Return the value of --rdzv-backend in COMMAND, '' without one."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        option, given, value = word.partition("=")
        if option.replace("_", "-") == "--rdzv-backend":
            return value if given else following
    return ""
