"""Fixes in the words of the launch command that the gate stands in front of: its options, not variables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from distcheck.rules.wording import once
from distcheck.selection.launch_commands import OPTIONS

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.facts.launch_command import Stated
    from distcheck.rules.finding import Fix

_EXPORT = re.compile(r"export (?=MASTER_(?:ADDR|PORT)=)")
_ASSIGNED = re.compile(r"(MASTER_ADDR|MASTER_PORT)=(\S+)")
_NPROC = re.compile(r"distcheck gate --nproc (\d+)")
_GATE = re.compile(r"distcheck \S+ .*?--master-port (\d+)")


@once
def _stated(job: Job) -> Stated | None:
    own = (process.launch for process in job.processes if process.launch is not None)
    return next(own, job.launched.stated if job.launched else None)


def in_launch_words(job: Job, fix: Fix) -> Fix:
    """Return a fix whose commands that set the master, or fewer ranks, name COMMAND's own options."""
    stated = _stated(job)
    if stated is None or stated.by not in OPTIONS:
        return fix
    return msgspec.structs.replace(fix, commands=tuple(_said(stated, command) for command in fix.commands))


def _said(stated: Stated, command: str) -> str:
    where, names = "" if stated.nodes == 1 else ", on all nodes", OPTIONS[stated.by]
    fewer, port = _NPROC.fullmatch(command), _GATE.match(command)
    if fewer and names.nproc and stated.nproc.isdecimal() and int(fewer[1]) < int(stated.nproc):
        return f"# in COMMAND{where}: {names.nproc} {fewer[1]}"
    values = dict(_ASSIGNED.findall(command)) if _EXPORT.match(command) else {"MASTER_PORT": port[1]} if port else {}
    return f"# in COMMAND{where}: {names.set(stated, values)}" if values else command
