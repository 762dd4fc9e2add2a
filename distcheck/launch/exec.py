"""Replaces distcheck by COMMAND, in the process state that distcheck was started with."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from distcheck.facts.errors import UsageError
from distcheck.facts.placement import Placement
from distcheck.launch import signals
from distcheck.selection.placement import exported


def original_environment() -> dict[bytes, bytes]:
    """Return the environment that this process was started with.

    Python may have changed its copy: in the C locale it sets LC_CTYPE (PEP 538).
    """
    try:
        raw = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environb)
    return dict(item.split(b"=", 1) for item in raw.split(b"\0") if b"=" in item)


def become(program: str, command: list[str], placement: Placement | None) -> NoReturn:
    """Replace this process by COMMAND; `placement` adds RANK, WORLD_SIZE and so on."""
    environment = original_environment()
    if placement is not None:
        environment |= {k.encode(): v.encode() for k, v in exported(placement).items()}
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None if it was closed
        stream.flush()
    signals.restore()
    try:
        os.execve(program, command, environment)  # noqa: S606 the user's command, without a shell
    except OSError as error:
        raise UsageError(
            f"COMMAND {command[0]} could not be started: {error.strerror}; a script needs the path of its interpreter "
            "in its first line, for example #!/bin/bash, and a program must be built for this machine"
        ) from error
