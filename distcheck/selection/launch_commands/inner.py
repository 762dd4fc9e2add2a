"""The launchers in a command: behind env, numactl, timeout, uv run, nsys and their like, in bash -c, or in a script."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple

from distcheck.selection.launch_commands.shell import commands
from distcheck.selection.launch_commands.stated import ReadFile, RefusedError
from distcheck.selection.wrappers import CONTAINERS, IN_FRONT, PYTHON, SCRIPTS, SHELLS, base_name

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_WITH_VALUE = frozenset({
    "--with", "--with-editable", "--from", "--extra", "--group", "--package", "-n", "--name", "-o", "--output", "-p",
    "--prefix", "-u", "--unit", "-C", "--pwd", "--project", "-g", "--user", "-t", "--trace",
    "-e", "--environment",
})  # fmt: skip
"""Options of wrappers whose value may be named like a launcher: uv run --with deepspeed deepspeed."""
_ENV = frozenset({"env", "sudo", "doas"})
"""They take variables before their command."""
_CONTAINER = "its container may see other GPUs, names and ports than this machine"
_DEEPEST = 4
"""How many scripts and shells may start one another."""


class Inner(NamedTuple):
    """A launcher in a command."""

    program: str
    """Its name, or that of the module that Python runs."""
    words: tuple[str, ...]
    """The words behind it."""
    environ: Mapping[str, str]
    """The variables that it gets."""
    folder: str = ""
    """Where it starts, relative to this process."""
    file: str = ""
    """The shell script that starts it."""
    doubt: str = ""
    """Why its words, or whether it runs, are unknown."""
    start: str = ""
    """What is started: the launcher, or the Python that runs it."""
    emptied: bool = False
    """Whether a shell's variable that is set nowhere was left out of its words."""


class Sought(NamedTuple):
    """The launchers to look for, and how."""

    programs: AbstractSet[str]
    read: ReadFile
    depth: int = 0


def inner(command: tuple[str, ...], environ: Mapping[str, str], by: Sought) -> Iterator[Inner]:
    """Yield the launchers of these programs that a command starts; raises RefusedError if its script does not exist."""
    program, words = base_name(command[0]) if command else "", command[1:]
    if program in by.programs:
        yield Inner(program, words, environ, start=command[0])
    elif PYTHON.fullmatch(program):
        yield from (found._replace(start=found.start or command[0]) for found in _module(words, environ, by))
    elif program in SHELLS or program.endswith(SCRIPTS):
        yield from _shell(command, environ, by)
    elif program in CONTAINERS:
        yield from (found._replace(doubt=_CONTAINER) for found in _behind(program, words, environ, by))
    elif program in IN_FRONT:
        yield from _behind(program, words, environ, by)


def _behind(program: str, words: tuple[str, ...], environ: Mapping[str, str], by: Sought) -> Iterator[Inner]:
    """Yield what stands behind a wrapper, whose own options are skipped.

    The command begins where a program is named that starts ranks, or may.
    """
    if program in _ENV:
        environ = {**environ, **_assigned(words)}
    elif program in {"singularity", "apptainer"}:
        given = [word for before, word in zip(("", *words), words, strict=False) if "--env" in {before, word[:5]}]
        environ = {**environ, **_assigned([pair for word in given for pair in word.removeprefix("--env=").split(",")])}
    for n, word in enumerate(words):
        name = base_name(word.rpartition(":")[2] if program == "hatch" else word)
        starts = name in by.programs | SHELLS | _ENV or PYTHON.fullmatch(name) or name.endswith(SCRIPTS)
        if starts and "://" not in word and not (n and words[n - 1] in _WITH_VALUE):
            found = next(inner((name, *words[n + 1 :]) if program == "hatch" else words[n:], environ, by), None)
            if found is not None:
                yield found
            if found is not None or name not in _ENV:
                return


def _module(words: tuple[str, ...], environ: Mapping[str, str], by: Sought) -> Iterator[Inner]:
    """Yield the launcher that Python's own words run: -m torch.distributed.run, or a script of its name."""
    for n, word in enumerate(words):
        if match := re.fullmatch(r"-[bBdEiIOPqRsSuv]*m(.*)", word):
            name, behind = match[1] or "".join(words[n + 1 : n + 2]), words[n + 1 + (not match[1]) :]
            if name in by.programs:
                yield Inner(name, behind, environ)
            elif name.partition(".")[0] in IN_FRONT:
                yield from _behind(name, behind, environ, by)
            return
        if not word.startswith("-") and not (n and words[n - 1] in {"-X", "-W"}):
            if base_name(word) in by.programs:
                yield Inner(base_name(word), words[n + 1 :], environ)
            return
        if word.startswith("-c"):
            return


def _assigned(words: Sequence[str]) -> dict[str, str]:
    """Return the variables that env sets for its command: those before its first word that is none and no option."""
    found: dict[str, str] = {}
    for word in words:
        if match := _ASSIGNMENT.fullmatch(word):
            found[match[1]] = match[2]
        elif found and not word.startswith("-"):
            break
    return found


def _shell(command: tuple[str, ...], environ: Mapping[str, str], by: Sought) -> Iterator[Inner]:
    """Yield the launchers that a shell starts, in its -c or its script."""
    if by.depth == _DEEPEST:
        return
    words = command[base_name(command[0]) in SHELLS :]
    line = next((n for n, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), len(words))
    plain = (n for n, word in enumerate(words) if word[:1] not in {"-", "+"})
    at = next((n for n in plain if not (n and re.fullmatch(r"[-+]\w*[oO]|--rcfile", words[n - 1]))), len(words))
    if line < at:
        text, file, arguments = "".join(words[line + 1 : line + 2]), "", words[line + 2 :]
    else:
        file, arguments = "".join(words[at : at + 1]), words[at:]
        try:
            text = _script(file, environ, by.read) if file else ""
        except FileNotFoundError as error:
            if by.depth:
                return
            raise RefusedError(f"{file} does not exist") from error
        except (OSError, ValueError):
            return
    for simple in commands(text, environ, arguments):
        below = by._replace(depth=by.depth + 1, read=inside(simple.folder, by.read))
        for found in inner(simple.words, simple.environ, below):
            folder = "/".join(filter(None, (simple.folder, found.folder)))
            emptied, doubt = found.emptied or simple.emptied, found.doubt or simple.doubt
            yield found._replace(folder=folder, file=found.file or file, doubt=doubt, emptied=emptied)


def _script(file: str, environ: Mapping[str, str], read: ReadFile) -> str:
    """Return the text of a shell's script, which may also be on PATH; raises OSError or ValueError."""
    for folder in [] if "/" in file else ["", *environ.get("PATH", "").split(":")]:
        with suppress(FileNotFoundError):
            return read(os.path.join(folder, file))  # noqa: PTH118 it may be any text
    return read(file)


def inside(folder: str, read: ReadFile) -> ReadFile:
    """Return what reads files relative to a folder."""
    return lambda path: read(os.path.join(folder, path))  # noqa: PTH118 it may be no path of this machine
