"""NCCL's settings by NCCL's own rules: which value counts, where it is from, and how NCCL parses it.

NVIDIA/nccl, src/misc/param.cc: a variable of the process, even an empty one, goes before the file that NCCL_CONF_FILE
names (since 2.23; it replaces ~/.nccl.conf), and that before /etc/nccl.conf; the first line with a name counts, and
nothing is trimmed. The home folder is HOME's since 2.30, before that the user database's. Numbers go through
strtoll(value, NULL, 0), which stops at the first character that does not fit and reports nothing. ROCm/rccl (same
file) reads ~/.rccl.conf, by the user database, and /etc/rccl.conf.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.nccl import NcclLog
from distcheck.facts.node import TorchBuild

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from distcheck.facts.job import Job
    from distcheck.facts.nccl import NcclFile
    from distcheck.facts.rank import RankFacts

Version = tuple[int, ...]
"""2, 23, 4."""

ENVIRONMENT = "the environment"
_LONGEST = 1023
_CONF_FILE_SINCE = (2, 23)
_HOME_SINCE = (2, 30)
_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_LARGEST = (1 << 63) - 1


class Setting(NamedTuple):
    """A value as NCCL finds it."""

    value: str
    origin: str = ENVIRONMENT
    """`ENVIRONMENT`, or the path of a file."""


@lru_cache(256)
def version(text: str) -> Version:
    """Return the numbers of a version, () if there are none: (2, 27, 3) of 2.27.3+cuda12.9."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", text)
    return tuple(int(n) for n in match.groups() if n is not None) if match else ()


def pair(line: str) -> tuple[str, str] | None:
    """Return the name and the value that NCCL reads from a line of its file; None if it skips it."""
    name, equals, value = line.partition("=")
    return (name[:_LONGEST], value[:_LONGEST]) if equals and not line.startswith("#") else None


def in_use(files: Iterable[NcclFile], nccl: Version, *, rccl: bool = False) -> list[NcclFile]:
    """Return the files that this version of the library reads, the first one with a name counts.

    An unknown version, (), counts as a recent one.
    """
    there = [file for file in files if file.library == ("rccl" if rccl else "nccl")]
    named = [file for file in there if file.origin == "NCCL_CONF_FILE" and (not nccl or nccl >= _CONF_FILE_SINCE)]
    if not named and any(file.origin == "NCCL_CONF_FILE" for file in there):
        there = [file for file in there if file.origin != "NCCL_CONF_FILE"]
    home = "HOME" if not rccl and (not nccl or nccl >= _HOME_SINCE) else "passwd"
    own = named or [file for file in there if home in file.origin.split("+")]
    return [*own, *(file for file in there if file.origin == "system")]


def settings(environment: Mapping[str, str], files: Iterable[NcclFile]) -> dict[str, Setting]:
    """Return each setting with its origin; `files` are those in use, in their order."""
    found = {name: Setting(value) for name, value in environment.items()}
    for file in files:
        for line in () if isinstance(file.lines, Missing) else file.lines:
            if read := pair(line):
                found.setdefault(read[0], Setting(read[1], file.path))
    return found


def of_rank(job: Job, rank: RankFacts) -> Mapping[str, str]:
    """Return a rank's variables and, below them, those of the configuration files that its NCCL reads."""
    files = job.process_of(rank).nccl_files
    return _values(files, *library(job, rank)) | rank.environment if files else rank.environment


def setting_of(job: Job, rank: RankFacts, name: str) -> Setting | None:
    """Return a setting as a rank's NCCL finds it, None if it is unset."""
    value = rank.environment.get(name)
    if value is not None:
        return Setting(value)
    files = job.process_of(rank).nccl_files
    return _of_files(files, *library(job, rank)).get(name) if files else None


def value_of(job: Job, rank: RankFacts, name: str) -> str:
    """Return the value of a setting as a rank's NCCL finds it, '' if it is unset."""
    setting = setting_of(job, rank, name)
    return setting.value if setting else ""


def number_of(job: Job, rank: RankFacts, name: str, default: int) -> int:
    """Return a setting as a rank's NCCL reads a number; an unset or empty one has its default."""
    value = value_of(job, rank, name)
    return strtoll(value)[0] if value else default


def library(job: Job, rank: RankFacts) -> tuple[Version, bool]:
    """Return the version of a rank's NCCL, the one that ran before the installed one, and whether it is RCCL."""
    installed = job.process_of(rank).installed
    log = rank.run.nccl if rank.run else None
    ran = log.version if isinstance(log, NcclLog) else ""
    return version(ran or installed.nccl), isinstance(installed.torch, TorchBuild) and bool(installed.torch.hip)


@lru_cache(256)
def _of_files(files: tuple[NcclFile, ...], nccl: Version, rccl: bool) -> dict[str, Setting]:  # noqa: FBT001
    return settings({}, in_use(files, nccl, rccl=rccl))


@lru_cache(256)
def _values(files: tuple[NcclFile, ...], nccl: Version, rccl: bool) -> dict[str, str]:  # noqa: FBT001
    return {name: setting.value for name, setting in _of_files(files, nccl, rccl).items()}


def strtoll(text: str) -> tuple[int, str]:
    """Return the number that C reads at the start of a text in base 0, 0 without one, and the rest."""
    match = _INTEGER.match(text)
    if match is None:
        return 0, text
    digits = match[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    number = min(int(digits, base), _LARGEST)
    return (-number if match[1] == "-" else number), text[match.end() :]
