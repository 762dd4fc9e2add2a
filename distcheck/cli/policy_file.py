"""Finds and reads the site's policy: which files, what they set and where, and what is wrong with them.

A run never fails for its policy: if a file cannot be read or is not valid, none of it is used, and the run only
observes. `distcheck policy --check` says everything that is wrong.
"""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from distcheck.cli.declared import options_of
from distcheck.cli.options import OPTIONS
from distcheck.cli.policy_check import Key, PolicyProblem, lines_of, problems_of, worded
from distcheck.facts import policy
from distcheck.facts.policy import Checker, Policy, Section
from distcheck.facts.touch import touch
from distcheck.probe.host import name_of_node

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LARGEST_BYTES = 1 << 20
_discarded: dict[Path | None, str] = {}
_waited: list[float] = []


class Source(NamedTuple):
    """A section, and where it stands."""

    section: Section
    raw: Mapping[str, Any]
    """As it is written."""
    file: Path
    lines: Mapping[Key, int]
    key: Key
    """Of the section in its file."""

    def line(self, key: Key) -> int:
        """Return the line of a key of the section, or of the nearest one around it."""
        return nearest(self.lines, (*self.key, *key))


class Read(NamedTuple):
    """The files of a policy."""

    files: tuple[Path, ...]
    digest: str
    sources: tuple[Source, ...]
    problems: tuple[PolicyProblem, ...]


def in_force(given: Path | None) -> Policy | None:
    """Return the policy of this process: of the file or folder that was given, else of /etc/distcheck; None if none."""
    found = _in_force(given)
    if found is not None and given in _discarded:
        return msgspec.structs.replace(found, problem=_discarded[given], sections=())
    return found


def waited_seconds() -> float:
    """Return how long reading the policy took, of which a run's time limit does not know."""
    return sum(_waited)


def discard(given: Path | None, why: str) -> None:
    """Use this policy no more: what it sets cannot be used in this run."""
    _discarded[given] = why


@cache
def _in_force(given: Path | None) -> Policy | None:
    start = time.monotonic()
    found = read(given, rules=False)
    _waited.append(time.monotonic() - start)
    if found is None:
        return None
    partition = os.environ.get("SLURM_JOB_PARTITION", "")
    sections = tuple(s.section for s in found.sources if not s.section.partitions or partition in s.section.partitions)
    more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
    return Policy(
        files=tuple(map(str, found.files)),
        digest=found.digest,
        node=name_of_node(os.environ),
        day=dt.date.today().isoformat(),  # noqa: DTZ011 the site's own day
        problem=f"{found.problems[0]}{more}" if found.problems else "",
        sections=() if found.problems else sections,
    )


def read(given: Path | None, *, rules: bool) -> Read | None:
    """Return what the files of a policy set; None if there is none and none was given.

    Args:
        given: a file, or a folder with policy.toml and policy.d; None: /etc/distcheck.
        rules: also check the names of rules, for which all rules are imported (half a second).
    """
    if given is None and not policy.installed():
        return None
    try:
        files = _files(given or Path(policy.SITE))
    except OSError as error:
        return _unread([given or Path(policy.SITE)], error)
    if not files:
        missing = FileNotFoundError(errno.ENOENT, "it has no policy.toml and no policy.d/*.toml")
        return None if given is None else _unread([given], missing)
    digest, sources, problems = hashlib.sha256(), list[Source](), list[PolicyProblem]()
    for file in files:
        try:
            content = _content(file)
        except OSError as error:
            problems.append(_unread([file], error).problems[0])
            continue
        digest.update(b"%d\n" % len(content) + content)
        own, wrong = _parsed(file, content, rules=rules)
        sources += own
        problems += wrong
    return Read(tuple(files), digest.hexdigest(), tuple(sources), tuple(problems))


def _unread(files: Sequence[Path], error: OSError) -> Read:
    problem = PolicyProblem(str(files[0]), 0, (), "", f"cannot be read: {error.strerror or error}")
    return Read(tuple(files), "", (), (problem,))


def _files(place: Path) -> list[Path]:
    """Return the files of a policy, in order."""
    return [Path(os.fsdecode(path)) for path in touch(place, "--policy", lambda: _inside(place))]


def _inside(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    there, more = os.listdir(place), place / "policy.d"  # noqa: PTH208 unlike glob() it says what it may not read
    names = sorted(os.listdir(more)) if more.name in there else []  # noqa: PTH208
    first = [place / "policy.toml"] if "policy.toml" in there else []
    return first + [more / name for name in names if name.endswith(".toml")]


def _content(file: Path) -> bytes:
    """Return what a regular file holds: a pipe could keep a run waiting.

    Raises:
        OSError: it cannot be read, or is too large.
    """

    def content() -> bytes:
        if not stat.S_ISREG(file.stat().st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with file.open("rb") as opened:
            return opened.read(_LARGEST_BYTES + 1)

    found = touch(file, "--policy", content)
    if len(found) > _LARGEST_BYTES:
        raise OSError(errno.EFBIG, "it is larger than 1 MiB")
    return bytes(found)


def _parsed(file: Path, content: bytes, *, rules: bool) -> tuple[list[Source], list[PolicyProblem]]:
    """Return the sections of a file, and what is wrong with it."""
    try:
        text = content.decode()
        raw = _plain(tomllib.loads(text))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        return [], [PolicyProblem(str(file), 0, (), "", f"is no valid TOML: {error}")]
    lines = lines_of(text)
    wrong = [
        PolicyProblem(str(file), nearest(lines, key), key, value, remedy)
        for key, value, remedy in problems_of(raw, rules=rules)
    ]
    if wrong:
        return [], wrong
    parts: dict[Key, Any] = {("where", n): part for n, part in enumerate(raw.pop("where", ()))}
    whole = {(): raw, **parts}
    return [Source(msgspec.convert(part, Section), part, file, lines, key) for key, part in whole.items()], []


def _plain(value: Any) -> Any:
    """Return TOML's values with dates as text."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.isoformat() if isinstance(value, dt.date | dt.time) else value


def nearest(lines: Mapping[Key, int], key: Key) -> int:
    """Return the line of a key, or of the nearest table around it; 0 if that is unknown."""
    return next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), 0)


def defaults(given: Path | None, command: Checker) -> dict[str, Any]:
    """Return the options that the policy sets for a command, by field."""
    used = in_force(given)
    if used is None or used.problem:
        return {}
    site, declared = used.on(), options_of(OPTIONS[command])
    own = site.command.get(command)
    found = {name.replace("-", "_"): v for name, v in (site.options | (own.options if own else {})).items()}
    return {name: worded(value, declared[name].kind) for name, value in found.items() if name in declared}
