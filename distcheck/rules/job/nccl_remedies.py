"""Commands that remove or change a setting of NCCL where it was found: in the environment or in a file."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from distcheck.selection.nccl_settings import ENVIRONMENT, Setting, setting_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts
    from distcheck.rules.finding import Owner


def undo(name: str, setting: Setting) -> str:
    """Return the command that removes a setting."""
    if setting.origin == ENVIRONMENT:
        return f"unset {shlex.quote(name)}"
    return _edit(setting.origin, f"/^{name}=/d")


def removal(job: Job, rank: RankFacts, name: str) -> str:
    """Return the command that removes a setting where this rank's NCCL finds it."""
    return undo(name, setting_of(job, rank, name) or Setting(""))


def removals(job: Job, ranks: Sequence[RankFacts], *names: str) -> tuple[str, ...]:
    """Return the commands that remove settings where the NCCL of these ranks finds them, each once."""
    return tuple(dict.fromkeys(removal(job, rank, name) for name in names for rank in ranks))


def owner(job: Job, ranks: Sequence[RankFacts], *names: str) -> Owner:
    """Return who can remove settings: the admin, if all are in files of the system."""
    found = (setting_of(job, rank, name) or Setting("") for name in names for rank in ranks)
    return "admin" if all(setting.origin.startswith("/etc/") for setting in found) else "user"


def redo(name: str, setting: Setting, value: str, old: str = "") -> str:
    """Return the command that gives a setting another value, or with `old` its right name."""
    if setting.origin == ENVIRONMENT:
        return (f"unset {shlex.quote(old)}; " if old else "") + f"export {name}={shlex.quote(value)}"
    return replace(setting.origin, f"^{old or name}=.*", f"{name}={value}")


def replace(path: str, pattern: str, line: str) -> str:
    """Return the command that replaces what matches a pattern in the lines of a file."""
    text = re.sub(r"[\\&|]", lambda found: f"\\{found[0]}", line)  # which sed would interpret
    return _edit(path, f"s|{pattern}|{text}|")


def _edit(path: str, change: str) -> str:
    return f"{'sudo ' if path.startswith('/etc/') else ''}sed -i {shlex.quote(change)} {shlex.quote(path)}"
