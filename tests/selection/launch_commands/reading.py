"""Reads a launch command in tests: its line, the variables and the files that it finds."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from msgspec.structs import replace

from distcheck.facts.launch_command import Stated
from distcheck.selection.launch_commands import stated
from distcheck.selection.launch_commands.stated import Untold


def reading(
    line: str, environ: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None
) -> Stated | Untold | None:
    def read(path: str) -> str:
        if path not in (files or {}):
            raise FileNotFoundError(2, "No such file or directory", path)
        return (files or {})[path]

    found = stated(shlex.split(line), environ or {}, read)
    return replace(found, script="") if isinstance(found, Stated) else found


def script(line: str, **environ: str) -> str:
    """The script or configuration that a launcher reads."""

    def read(path: str) -> str:
        raise FileNotFoundError(2, "No such file or directory", path)

    found = stated(shlex.split(line), environ, read)
    assert isinstance(found, Stated)
    return found.script


def told(line: str, environ: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None) -> str:
    """What the report says, and the mesh."""
    found = reading(line, environ, files)
    if isinstance(found, Untold):
        return f"not told: {found.reason}" + (f"; give {found.remedy}" if found.remedy else "")
    if found is not None and found.refused:
        return f"refused: {found.refused}"
    return "no launcher" if found is None else f"{found}" + (f", mesh {found.mesh}" if found.mesh else "")


def why(line: str, environ: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None) -> str:
    """Why nothing is told: its …, or refused: …."""
    return told(line, environ, files).removeprefix("not told: ").partition("; give")[0]
