"""Reads who wrote a line of a log, and when: launchers and loggers put both in front of it."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import PurePath
from typing import NamedTuple


class Place(NamedTuple):
    """Who wrote a line; None where it does not say."""

    rank: int | None = None
    node: str | None = None
    local_rank: int | None = None
    """Its number on its node: torchrun names processes and their folders by it. On several nodes it is no rank."""
    of_task: bool = False
    """Whether the rank is the number of a launcher's task, which is no rank where each task starts torchrun."""


NOWHERE = Place()
When = tuple[int, int, float]
"""Month, day and seconds of the day. glog (torch) writes no year."""

ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""ECMA-48 control sequences and operating system commands (colours, titles)."""

_NAME = r"[A-Za-z][\w.-]*"
_NO_NODE = (
    r"(?i:lib\S*|(?:debug|python|pip|gpu|cpu|cuda|device|rank|stage|phase|step|epoch|iter|layer|test|core|ipv)[\d.]*)"
)
"""Words with a number that programs put before a colon; a node's name has a number, too."""
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[rank\s?(?P<rank>\d+)\]:?\s*",  # torch
        r"\[(?:default|worker|trainer|[a-z_]*role)(?P<local>\d+)(?:\|\d+)?\]:?\s*",  # torchrun --tee
        r"\[[\w@.-]*,(?P<task>\d+)\]<std(?:out|err|diag)>:\s?",  # mpirun --tag-output
        rf"\[\d+,mpirank:(?P<rank>\d+),(?P<node>{_NAME})\](?:<std(?:out|err)>)?:\s?",  # SageMaker
        r"(?:\w{3} \w{3} [\d: ]{15,16})?\[(?P<rank>\d+)\]<std(?:out|err)>:\s?",  # horovodrun with Gloo
        r"\w+ \[rank=(?P<rank>\d+)\] \|\| ",  # Determined
        r"(?:ERROR|CRITICAL) (?=\d\d-\d\d )",  # vLLM
        r"std(?:out|err) [FP] ",  # the files of a pod's containers, after the time
        rf"\[pod/(?P<node>{_NAME})/[\w.-]+\]\s*",  # kubectl logs --prefix
        r"\((?:[\w:]+ ){0,2}pid=\d+(?:, ip=\[?(?P<node>[\da-fA-F.:]+)\]?)?\)\s*",  # Ray
        r"\((?P<node>head|worker\d+), rank=\d+, pid=\d+(?:, ip=[\d.]+)?\)\s*",  # SkyPilot; its rank is the node's
        rf"(?P<node>{_NAME})\s+\|\s",  # docker compose
        r"(?P<task>\d{1,6}): ",  # srun --label
        r"\[(?P<rank>\d{1,6})\]:\s?",  # torchrun --log-line-prefix-template '[${rank}]:'
        rf"(?!{_NO_NODE}:|\S+\.\w{{1,3}}:)(?P<node>(?=[a-zA-Z_.-]*\d){_NAME}):(?P<rank>\d{{1,6}}): ",  # '${hostname}…'
        r"(?P<node>\d{1,3}(?:\.\d{1,3}){3}): ",  # pdsh, by address
        rf"(?!{_NO_NODE}: )(?P<node>(?=[a-zA-Z_.-]*\d){_NAME}\w)\.*: (?!error)",  # pdsh, clush, DeepSpeed
        rf"(?P<node>{_NAME}):\d+:\d+ (?=\[\d+\] )",  # NCCL: host:pid:thread
        rf"\[(?P<node>(?=[a-zA-Z_.-]*\d){_NAME}):\d{{5,7}}\] ",  # Open MPI: host and process
    )
)
_MACROS = {
    "${role_name}": r"[\w.-]*",
    "${local_rank}": r"(?P<local>\d+)",
    "${rank}": r"(?P<rank>\d+)",
    "${hostname}": rf"(?P<node>{_NAME})",
}
"""Source: torch/distributed/run.py (--log-line-prefix-template); hostname since torch 2.14."""
_LOGGER = re.compile(
    r"(?:\s+|[|\u2502-]\s|(?:ERROR|CRITICAL)\b(?::(?:\w+:)?)?|\{[\w.]+:\d+\}|\[[\w.]+:\d+\]"
    r"|[\w.]+:[\w<>]+:\d+\s|(?:\d+ )?[\w.]+:\d+\]|(?:[\w.-]+ )?\w+\[\d+\]:)*"
)
"""What loggers put between the time and a message: the level, the line of code, the process."""
_OWN_RANK_INSIDE = re.compile(r"\bRank (\d+)\]|\[[Rr]ank(\d+)\]")
_RANK_INSIDE = re.compile(
    rf"{_OWN_RANK_INSIDE.pattern}|\brank\s?[=:]\s?(\d+)\b|\b[Rr]ank (\d+)\b(?! of| failed to pass)"
)
_NODE_INSIDE = re.compile(
    rf"\b({_NAME}):\d+:\d+ \[\d+\] |\bhost\s*:\s+({_NAME})|srun: error: ({_NAME}): task|\bON ({_NAME}) CANCELLED"
    rf"|\bslurmstepd-({_NAME}): error|on node ({_NAME}) exited on signal|: Node failure on ({_NAME}(?:\[[\d,-]+\])?)"
)
_TASK = re.compile(r"srun: error: [\w.-]+: tasks? (\d+)")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_TIMES = (
    re.compile(r"(?<!\d)\d{4}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"),
    re.compile(
        r"\b[IWEF](?P<month>\d\d?)(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)"
    ),  # glog; torch leaves out the month's zero in some versions
    re.compile(r"(?<!\d)(?P<month>\d\d)-(?P<day>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"),  # vLLM
    re.compile(
        r"(?<![\d/])(?P<month>\d\d)/(?P<day>\d\d)(?:/\d{4})? (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d(?:[.,]\d+)?)"
    ),  # transformers, mmengine, detectron2
    re.compile(r"\b(?P<name>[A-Z][a-z]{2}) +(?P<day>\d\d?) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"),  # syslog, dmesg -T
)
_NODE_FILE, _NODE_FOLDER = (
    re.compile(rf"(?:[a-z][\w.-]*[-_.])?(?:{words})[\w.-]*\d[\w.-]*", re.IGNORECASE)
    for words in ("node|host|worker|master|pod|compute", "node|host|worker|master|pod|compute|gpu")
)
"""A folder gpu3 is a node's; a file gpu3.log is often that of a GPU."""
_RANK_NAME = re.compile(r"(?:^|[._-])(?:global_)?rank[._-]?(\d+)(?:\D|$)", re.IGNORECASE)
_AS_BACKUP = re.compile(r"\.(?:gz|xz|bz2|zst)$")


def plain(text: str) -> str:
    """Return text without escape sequences, and with a space for every other control character."""
    text = ESCAPES.sub("", text)
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def place(line: str, known: Place = NOWHERE) -> Place:
    """Return the rank and node that a line names, or those known of its file."""
    named, _ = _split(line)
    node, of_task = named.get("node"), False
    rank, task, local = (int(named[name]) if name in named else None for name in ("rank", "task", "local"))
    local = known.local_rank if local is None else local
    if rank is None and local is None and task is not None:
        rank, of_task = task, True
    inside_line = _RANK_INSIDE if local is None else _OWN_RANK_INSIDE
    if rank is None and (inside := inside_line.search(line) or _TASK.search(line)):
        rank, of_task = int(next(group for group in inside.groups() if group is not None)), inside.re is _TASK
    if node is None and (host := _NODE_INSIDE.search(line)):
        node = next(group for group in host.groups() if group is not None)
    return Place(known.rank if rank is None else rank, node or known.node, local, of_task)


def message(line: str) -> str:
    """Return a line without what launchers and loggers put before it."""
    return _LOGGER.sub("", _split(line)[1], count=1)


@cache
def _templated() -> tuple[re.Pattern[str], ...]:
    """Return the prefix of each line where a variable of torchrun has a template for it."""
    names = ("PET_LOG_LINE_PREFIX_TEMPLATE", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
    template = next(filter(None, map(os.environ.get, names)), "").strip()
    parts = re.split(rf"({'|'.join(map(re.escape, _MACROS))})", template)
    again = [part in parts[:n] for n, part in enumerate(parts)]
    wanted = "".join(
        r"\S*?" if part in _MACROS and twice else _MACROS.get(part, re.escape(part))
        for part, twice in zip(parts, again, strict=True)
    )
    return (re.compile(wanted),) if template else ()


def _split(line: str) -> tuple[dict[str, str], str]:
    """Return what the prefixes of a line name, and the rest of the line."""
    named: dict[str, str] = {}
    rest, prefixes = line.lstrip(), (*_templated(), *_PREFIXES, *_TIMES)
    while rest:
        undated = rest.lstrip("[ ")
        found = next(filter(None, (p.match(undated if p in _TIMES else rest) for p in prefixes)), None)
        if found is None:
            break
        named |= {name: value for name, value in found.groupdict().items() if value}
        rest = found.string[found.end() :].lstrip(" ]Z")
    return named, rest


def when(line: str) -> When | None:
    """Return the first time in a line, in the line's own time zone: the outermost logger writes it on every line."""
    matches = [found for pattern in _TIMES if (found := pattern.search(line))]
    for found in sorted(matches, key=lambda match: match.start()):
        parts = found.groupdict()
        name = (parts.get("name") or "").lower()
        if name and name not in _MONTHS:
            continue
        month = _MONTHS.index(name) + 1 if name else int(parts["month"])
        seconds = int(parts["h"]) * 3600 + int(parts["m"]) * 60 + float(parts["s"].replace(",", "."))
        return month, int(parts["day"]), seconds
    return None


def of_path(path: PurePath) -> Place:
    """Return who the path of a file names: rank_3.log, node2/attempt_0/3/stderr.log (torchrun: local rank 3).

    Source: torch/distributed/elastic/multiprocessing/api.py (the folder of a process is its local rank).
    """
    rank, local = None, None
    stem = _AS_BACKUP.sub("", path.name)
    if path.parent.name.isdigit() and path.parent.parent.name.startswith("attempt_"):
        local = int(path.parent.name)
    elif found := _RANK_NAME.search(stem):
        rank = int(found[1])
    names = [part for part in path.parts[:-1] if _NODE_FOLDER.fullmatch(part)]
    name = re.sub(r"\.(?:log|out|err|txt)$", "", stem)
    names += [name] if _NODE_FILE.fullmatch(name) else []
    return Place(rank, names[-1] if names else None, local)
