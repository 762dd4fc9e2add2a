"""Look at what COMMAND will need on this node: its files, and the packages of its Python."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from io import FileIO

from msgspec.structs import replace

from distcheck.facts.storage import MAPS_LAUNCHER, READS_RANK, STARTS_OTHERS, CommandFile, Packages, is_text
from distcheck.probe.working_directory import working_directory

_WHOLE_BYTES = 8 << 20
"""Larger files are compared by samples: reading them on many nodes at once would load a file server."""
_SAMPLE_BYTES = 1 << 20
_ABSENT = {2, 20}
"""ENOENT and ENOTDIR."""
_DEBUG_SERVER = re.compile(rb"^[^#\n]*\bstart_debug_server\(\s*(?:(?:port\s*=\s*)?(\d{1,5}))?", re.MULTILINE)
_DEBUG_PORT = 25999
"""torch/distributed/debug/__init__.py of 2.15."""
_MOST_PACKAGES = 2000
_MOST_NAMES = 1000
_MODULE_SECONDS = 4.0
_FIND_MODULE = """
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
name = sys.argv[1]
first, *parts = name.split(".")
found = find_spec(first)
for part in parts + ["__main__"]:
    folders = found and found.submodule_search_locations
    if folders is None and part == "__main__":
        break
    package, found = found, folders and PathFinder.find_spec(found.name + "." + part, list(folders))
    if not found:
        if package and package.origin and "__path__" in open(package.origin, encoding="utf-8").read():
            sys.exit(1)
        break
print("found" if found else "absent")
print(found.origin if found and found.has_location else "")
"""
"""Prints whether `python -m NAME` finds a module, and its file. Imports no package: those that change where their
parts are (__path__) stay undecided."""


def files_of(words: Sequence[str], script: str, here: str) -> Iterator[CommandFile]:
    """Return the files that COMMAND's words may name, not looked at yet.

    The first word is the program; relative paths are relative to `here`.
    """
    for number, word in enumerate(dict.fromkeys(words)):
        if number == 0 and word:
            yield CommandFile(word, "program", "", "silent")
        elif number and (word.startswith("/") or here):
            path = os.path.join(here, word)  # noqa: PTH118 it may be any text
            yield CommandFile(word, "script" if word == script else "argument", path, "silent")


def look_at(file: CommandFile) -> tuple[CommandFile, ...]:
    """Return a file with what is there, and after a program the interpreter that its first line names."""
    if not file.path:  # a program, which the shell looks up on PATH
        found = shutil.which(file.word)
        return look_at(replace(file, path=found)) if found else (replace(file, state="absent"),)
    try:
        mode = os.stat(file.path).st_mode  # noqa: PTH116 it may be any text
        if not stat.S_ISREG(mode):  # opening a FIFO would block, opening a device may change it
            return (replace(file, state="folder" if stat.S_ISDIR(mode) else "other"),)
        with open(file.path, "rb", buffering=0) as opened:  # noqa: PTH123 as above
            return _read(file, opened)
    except OSError as error:
        if error.errno in _ABSENT:
            return (replace(file, state="absent", near=_near(file.path) if file.role == "script" else ""),)
        return (replace(file, state="unreadable", error=error.strerror or ""),)


def _read(file: CommandFile, opened: FileIO) -> tuple[CommandFile, ...]:
    size = os.fstat(opened.fileno()).st_size
    first = b""
    digest = hashlib.sha256()
    sampled = size > _WHOLE_BYTES
    middle = (size - _SAMPLE_BYTES) // 2
    for start in (0, middle, size - _SAMPLE_BYTES) if sampled else (0,):
        opened.seek(start)
        part = _exactly(opened, _SAMPLE_BYTES if sampled else _WHOLE_BYTES)
        first = first or part[:512]
        digest.update(part)
        if file.role == "program" and b"\0" not in first and not first.startswith((b"#!", b"\x7fELF")):
            return (replace(file, state="unreadable", error="its first line names no interpreter"),)
        if file.role in {"script", "module"} and not sampled:
            words = dict.fromkeys((*STARTS_OTHERS, *MAPS_LAUNCHER, *READS_RANK))
            server = _DEBUG_SERVER.search(part)
            port = int(server[1] or _DEBUG_PORT) if server else None
            file = replace(file, mentions=tuple(word for word in words if word.encode() in part), debug_port=port)
    found = replace(file, state="file", size_bytes=size, sha256=digest.hexdigest())
    return (found, *(_interpreter(first) if file.role == "program" else ()))


def _near(path: str) -> str:
    from difflib import get_close_matches  # only where a file is missing

    folder, name = os.path.split(path)
    with suppress(OSError):
        names = [each for each in os.listdir(folder)[:_MOST_NAMES] if is_text(each)]  # noqa: PTH208 only the names
        return "".join(get_close_matches(name, names, 1))
    return ""


def look_for_module(words: Sequence[str], *, safe_path: bool = False) -> tuple[CommandFile, ...]:
    """Return the module that the last word names, as its interpreter finds it; empty if that is undecided.

    The words before it are the interpreter with its options, or a launcher whose first line names it. `safe_path`:
    it does not look in the working directory (PYTHONSAFEPATH).
    """
    *python, name = words
    said = answer_of(python, *(["-P"] if safe_path else []), "-c", _FIND_MODULE, name)
    state, path = (*said.splitlines()[-2:], "", "")[:2]
    if state == "found":
        seen = CommandFile(name, "module", path, "file")
        return look_at(seen) if path else (seen,)
    return (CommandFile(name, "module", "", "absent"),) if state == "absent" else ()


def answer_of(python: Sequence[str], *arguments: str, seconds: float = _MODULE_SECONDS) -> str:
    """Return what a Python prints, '' if it does not answer; a launcher's own Python is that of its first line."""
    program = shutil.which(python[0])
    if program is None:
        return ""
    if len(python) == 1 and not os.path.basename(program).startswith(("python", "pypy")):  # noqa: PTH119 any text
        with suppress(OSError), open(program, "rb") as opened:  # noqa: PTH123 as above
            python = _first_line(opened.readline(512))
        if not python or "python" not in python[0]:
            return ""
    try:
        answer = subprocess.run(
            [*python, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=True,
            env={key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode("utf-8", "replace")


def _exactly(opened: FileIO, size: int) -> bytes:
    parts = []
    while size and (part := opened.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _interpreter(first: bytes) -> tuple[CommandFile, ...]:
    """Return the interpreter that a script's first line names, directly or through env."""
    words = _first_line(first)
    return look_at(CommandFile(words[0], "interpreter", "", "silent")) if words else ()


def _first_line(first: bytes) -> list[str]:
    """Return the interpreter that a script's first line names, with its options; env's are left out."""
    line = first.partition(b"\n")[0].decode("utf-8", "replace")
    words = line[2:].split() if line.startswith("#!") else []
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words


def packages(folders: Sequence[str] | None = None) -> Packages:
    """Return the installed distributions, by the names of their metadata folders on the path of modules.

    Source: the core metadata's folders NAME-VERSION.dist-info and .egg-info (packaging.python.org, recording installed
    projects).
    """
    found: set[str] = set()
    for folder in dict.fromkeys(_module_folders() if folders is None else folders):
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for name in names:
            parts = name.rpartition(".")[0].split("-")
            if len(parts) > 1:
                found.add(f"{parts[0].lower().replace('_', '-')}=={parts[1]}")
    names = sorted(found)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    return Packages(digest, tuple(names[:_MOST_PACKAGES]))


def _module_folders() -> list[str]:
    """Return the path of modules without the working directory, which `python -m` adds."""
    here = next(iter(sys.path), "")
    return sys.path[1:] if here in {"", working_directory()} else sys.path


def etcd() -> bool:
    """Return whether the module etcd, which torchrun's etcd rendezvous imports, is installed."""
    return find_spec("etcd") is not None
