"""Parses NCCL's debug log of versions 2.8 to 2.30 into an `NcclLog`; it never fails.

The formats are those of the INFO and WARN calls in NCCL's source (NVIDIA/nccl, tags v2.8.4-1 to v2.30.7-1); `lines`
names the source of each. Every line begins with ``host:pid:tid [GPU] NCCL INFO``. A line with WARN has the file and the
line number before that, and since 2.26 the time before the host. Lines of several processes or threads may be torn or
mixed: a line that does not match its whole format is ignored.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from distcheck.collectives.nccl_log import lines  # noqa: F401 registers the formats
from distcheck.collectives.nccl_log.diagnostics import diagnostics
from distcheck.collectives.nccl_log.reading import LONGEST, MOST, LogReading, take
from distcheck.facts.nccl import NcclLog

_PREFIX = re.compile(r"(?P<host>[^\s:]+):(?P<pid>\d+):\d+ \[-?\d+\] (?:[^\[\]]{0,200}? )?NCCL (?P<level>INFO|WARN) ?")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_LONGEST_LINE = 2000
"""NCCL itself cuts lines at 1024 characters."""
_WARNINGS = 8


def parse(text: str, pid: int | None = None) -> NcclLog:
    """Return the facts in a log, of one process if `pid` is given; empty for other text.

    A last line without its newline is still being written and is ignored.
    """
    reading = LogReading()
    for line in text[: text.rfind("\n") + 1].split("\n"):
        if len(line) > _LONGEST_LINE:
            continue
        if version := _VERSION.search(line):
            reading.first("version", version[1])
        prefixes = list(_PREFIX.finditer(line))
        if len(prefixes) != 1 or (pid is not None and int(prefixes[0]["pid"]) != pid):
            continue
        words = line[prefixes[0].end() :].strip()
        if prefixes[0]["level"] == "WARN":
            reading.append("warnings", words[:LONGEST])
        else:
            take(reading, words)
    printed = diagnostics(text)
    ours = printed.values() if pid is None else [printed.get(pid, ())]
    return replace(_summary(reading), diagnostics=tuple(line for lines_of in ours for line in lines_of))


def _summary(reading: LogReading) -> NcclLog:
    lists = {name: tuple(found) for name, found in reading.lists.items()}
    devices = {"IB": lists.pop("ib devices", ()), "Socket": lists.pop("socket devices", ())}
    network = reading.told.get("network", "")
    between = [via for via in reading.counts if via.startswith("NET/")]
    fields: dict[str, Any] = {**reading.told, **reading.maps, **lists}
    return NcclLog(
        **fields | {"warnings": lists.get("warnings", ())[:_WARNINGS]},
        devices=devices["Socket" if network == "Socket" else "IB"],
        transports=dict(reading.counts.most_common(MOST)),
        peers={how: tuple(sorted(ranks)[:MOST]) for how, ranks in reading.peers.items()},
        gdr=any("/GDRDMA" in via for via in between) if between else None,
    )
