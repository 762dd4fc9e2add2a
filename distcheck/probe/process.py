"""Collect who a process is, who started it and what state the kernel shows it in."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

_LONGEST = 300


def command_of(pid: int) -> tuple[str, ...]:
    """Return a process's command line, empty when it is gone or hidden; long ones are cut."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode("utf-8", "replace")[:_LONGEST] for part in raw.split(b"\0")[:-1])[:40]


def parent_of(pid: int) -> int:
    """Return the parent's pid, 0 when the process is gone or hidden."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def state_of(pid: int) -> str:
    """Return the kernel's state letter of a process (R, S, D, T, t, Z, …), '' when it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def ancestors(pid: int | None = None) -> tuple[str, ...]:
    """Return the command lines of the processes that started this one, nearest first."""
    found: list[str] = []
    pid = parent_of(pid or os.getpid())
    while pid > 0 and len(found) < 16:
        found.append(" ".join(command_of(pid)) or _comm(pid))
        pid = parent_of(pid)
    return tuple(found)


def user_name() -> str:
    """Return this user's name, or its number where no name is known."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command name, which may itself hold blanks and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"
