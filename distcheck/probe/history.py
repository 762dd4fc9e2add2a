"""Read and extend the history of nodes in a shared folder (``--history``).

The folder may be on a network file system that does not answer, so another process, which can be killed at its
deadline, reads and writes it. `history_file` has the format of a node's file.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from distcheck.facts import history
from distcheck.facts.base import Missing
from distcheck.facts.history import Failure, History, NodeTotal, PastFigure, PastRun, RecentRuns, Totals
from distcheck.probe.child import Question, ask
from distcheck.probe.history_file import LARGEST_BYTES, SUFFIX, Lines, name_of, read_file
from distcheck.probe.history_file import append as append_to

T = TypeVar("T")

_RECENT_BYTES = 1 << 16
"""What a run reads of a node's file: more than a hundred lines."""
_THREADS = 32
"""Files that are read or written at the same time: a file on a network takes milliseconds."""
_VALUES = 30
"""The newest values of a figure are its history."""
_FIGURES = 200
"""Figures of a node whose values are read, the latest first."""
_DAY_SECONDS = 86400


class _Given(msgspec.Struct):
    """What the child is to read or write, as the parent writes it to the child's standard input."""

    folder: str
    seconds: float
    """The child answers within this time unless the file system hangs."""
    nodes: tuple[str, ...] = ()
    lines: dict[str, str] = {}


async def read(folder: str, nodes: Sequence[str], seconds: float) -> History | Missing:
    """Return what earlier runs found on these nodes, within `seconds` and one more."""
    return await _ask("read", _Given(folder, seconds * 0.8, nodes=tuple(nodes)), History)


async def append(folder: str, lines: Mapping[str, str], seconds: float) -> str:
    """Append a line to each node's file; return why that failed, '' if it did not."""
    failed = await _ask("append", _Given(folder, seconds * 0.8, lines=dict(lines)), list[str])
    if isinstance(failed, Missing):
        return failed.reason
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"{failed[0]}{more}" if failed else ""


async def totals(folder: str, seconds: float) -> Totals | Missing:
    """Return how often each node of the history failed, within `seconds` and one more."""
    return await _ask("totals", _Given(folder, seconds * 0.8), Totals)


async def _ask(verb: str, given: _Given, kind: type[T]) -> T | Missing:
    question = Question(__name__, f"the history {given.folder}", "its file system hangs", (verb,), "answer")
    try:
        text = msgspec.json.encode(given)
    except UnicodeEncodeError:
        return Missing(reason=f"the history {given.folder!a}: its name, or that of a node, is not UTF-8")
    return await ask(question, kind, given.seconds / 0.8, given=text)


def _why_no_folder(folder: Path) -> str:
    """Return why a folder cannot be a history, '' if it can."""
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            return f"{folder} is not a folder"
    except OSError as error:
        missing = f"; create it with: mkdir -p {folder}" if isinstance(error, FileNotFoundError) else ""
        return f"{folder}: {error.strerror}{missing}"
    return "" if os.access(folder, os.R_OK | os.X_OK) else f"{folder} is not readable"


def collect(folder: Path, nodes: Iterable[str], seconds: float, now: float) -> History | Missing:
    """Return the history of nodes as a job needs it."""
    if why := _why_no_folder(folder):
        return Missing(reason=why)
    until = time.monotonic() + seconds

    def look(node: str) -> tuple[str, Lines]:
        if time.monotonic() > until:
            return node, Lines([], why_not=f"{name_of(node)}: no time was left")
        return node, read_file(folder / name_of(node), _RECENT_BYTES)

    with ThreadPoolExecutor(_THREADS) as pool:
        found = dict(pool.map(look, nodes))
    return History(
        folder=str(folder),
        recent=tuple(recent for node, read in found.items() for recent in _recent(node, read.runs, now)),
        figures=tuple(figure for node, read in found.items() for figure in _figures(node, read.runs)),
        newer=sum(read.newer for read in found.values()),
        unread=tuple(read.why_not for read in found.values() if read.why_not),
    )


def _recent(node: str, runs: Iterable[PastRun], now: float) -> Iterator[RecentRuns]:
    """Yield the last runs of each command on a node, if one of them failed there."""
    by_command: defaultdict[str, list[PastRun]] = defaultdict(list)
    for run in runs:
        if run.node == node and now - run.time < history.RECENT_DAYS * _DAY_SECONDS:
            by_command[run.command].append(run)
    for command, all_of_them in by_command.items():
        last = all_of_them[-history.RECENT :]
        if failures := tuple(_failure(run) for run in last if run.failures):
            yield RecentRuns(node, command, len(last), failures)


def _failure(run: PastRun) -> Failure:
    return Failure(run.time, run.failures)


def _figures(node: str, runs: Sequence[PastRun]) -> Iterator[PastFigure]:
    """Yield the figures of a node that have enough values to be compared."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    versions: dict[str, str] = {}
    for run in reversed(runs):
        if run.node == node:
            for name, value in run.figures.items():
                values[name].append(value)
                versions.setdefault(name, run.versions)
    enough = [name for name, them in values.items() if len(them) >= history.FEWEST_EARLIER + history.LATEST - 1]
    for name in enough[:_FIGURES]:
        yield PastFigure(node, name, tuple(values[name][:_VALUES][::-1]), versions[name])


def total(folder: Path, seconds: float) -> Totals | Missing:
    """Return the totals of every node in a folder, those that failed most often first."""
    if why := _why_no_folder(folder):
        return Missing(reason=why)
    until = time.monotonic() + seconds
    paths = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))

    def look(path: Path) -> tuple[NodeTotal | None, Lines]:
        if time.monotonic() > until:
            return None, Lines([], why_not=f"{path.name}: no time was left")
        read = read_file(path, 2 * LARGEST_BYTES)
        return (_total(read.runs) if read.runs else None), read._replace(runs=read.runs[:1])

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(look, paths))
    nodes = [node for node, _ in found if node is not None]
    return Totals(
        nodes=tuple(sorted(nodes, key=lambda n: (-n.failed, -n.failed / n.runs, n.node))),
        lines=sum(node.runs for node in nodes),
        unreadable=sum(read.unreadable for _, read in found),
        newer=sum(read.newer for _, read in found),
        unread=tuple(read.why_not for _, read in found if read.why_not),
    )


def _total(runs: Sequence[PastRun]) -> NodeTotal:
    failed = [run for run in runs if run.failures]
    rules, spared = Counter[str](), Counter[str]()
    for run in failed:
        rules.update(run.failures)
        spared.update(run.spared)
    return NodeTotal(
        node=runs[-1].node,
        runs=len(runs),
        failed=len(failed),
        first=runs[0].time,
        last=runs[-1].time,
        last_failure=_failure(failed[-1]) if failed else None,
        rules=dict(rules.most_common()),
        spared=dict(spared.most_common()),
    )


def write(folder: Path, lines: Mapping[str, str], seconds: float) -> list[str]:
    """Append a line to each node's file and return the errors."""
    if why := _why_no_folder(folder):
        return [why]
    until = time.monotonic() + seconds

    def add(node: str) -> str:
        path = folder / name_of(node)
        if time.monotonic() > until:
            return f"{path.name}: no time was left"
        try:
            append_to(path, lines[node])
        except OSError as error:
            return f"{path}: {error.strerror or error}"
        return ""

    with ThreadPoolExecutor(_THREADS) as pool:
        return [error for error in pool.map(add, lines) if error]


def answer(verb: str) -> History | Totals | list[str] | Missing:
    """Read, count or append what standard input says."""
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=_Given)
    folder = Path(given.folder)
    if verb == "append":
        return write(folder, given.lines, given.seconds)
    return collect(folder, given.nodes, given.seconds, time.time()) if verb == "read" else total(folder, given.seconds)
