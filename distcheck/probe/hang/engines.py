"""Finds the workers of vLLM and SGLang, whose titles tell their places in the groups; no variable numbers them.

vLLM names a worker ``VLLM::Worker_DP0_PP1_TP3`` (``setup_proc_title_and_log_prefix`` of
https://github.com/vllm-project/vllm/blob/main/vllm/v1/executor/multiproc_executor.py), and one that has no groups yet
``VLLM::Worker``; an engine with one GPU works in ``VLLM::EngineCore`` itself. SGLang's are named
``sglang::scheduler_DP0_TP1`` (``run_scheduler_process`` of
https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/scheduler.py). The order of ranks is that of
DP, PP, PCP and TP. In SGLang DP is part of TP, or each DP is a world of its own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from functools import reduce
from math import prod

from distcheck.facts.hang import HangNode, RankProcess, RunningJob
from distcheck.probe.hang.processes import ProcessTable

_TITLE = re.compile(r"^(\w+)::(Worker|EngineCore|scheduler)((?:_[A-Z_]+\d+)*)$")
_PLACE = re.compile(r"_(MOE_DP|DP|PP|PCP|DCP|TP)(\d+)")
_AXES = ("DP", "PP", "PCP", "TP")
_Group = list[tuple[tuple[int, ...], int]]
"""Places in DP, PP, PCP and TP, with the processes."""


def jobs(table: ProcessTable, left_out: Collection[int]) -> list[RunningJob]:
    """Return the engines of this node, each with the processes that compute."""
    groups: dict[tuple[int, str, str], _Group] = defaultdict(list)
    for each in sorted(table.processes.values(), key=lambda p: (p.started, p.pid)):
        found = _TITLE.match(table.title(each.pid))
        if found is None or each.pid in left_out or not each.lives or not table.has_torch(each.pid):
            continue
        if found[2] != "EngineCore" or _works(table, each.pid):
            numbers = {axis: int(number) for axis, number in _PLACE.findall(found[3])}
            place = tuple(numbers.get(axis, 0) for axis in _AXES)
            groups[_above(table, each.pid), found[1], found[2]].append((place, each.pid))
    return [
        _job(f"{name.lower()} of process {above}{world}", name.lower(), part)
        for (above, name, kind), group in groups.items()
        for world, part in _worlds(group, apart=kind == "scheduler").items()
    ]


def _works(table: ProcessTable, pid: int) -> bool:
    """Return whether an engine's own process computes: it has a process group and no worker."""
    return not any(_TITLE.match(table.title(p.pid)) for p in table.below(pid)) and table.communicates(pid)


def _above(table: ProcessTable, pid: int) -> int:
    """Return the process that started an engine: the nearest above without such a title."""
    return next((above for above in table.above(pid) if "::" not in table.title(above)), 0)


def _worlds(group: _Group, *, apart: bool) -> dict[str, _Group]:
    """Return the worlds of a group; DP counts only where the other places are not enough to tell processes apart."""
    inner = [((0, *place[1:]), pid) for place, pid in group]
    if len(dict(inner)) == len(group):
        return {"": inner}
    if not apart:
        return {"": group}
    worlds: dict[str, _Group] = defaultdict(list)
    for (replica, *_), place in zip((place for place, _ in group), inner, strict=True):
        worlds[f", DP {replica}"].append(place)
    return worlds


def _job(name: str, engine: str, group: _Group) -> RunningJob:
    """Return an engine as a job; workers that have no groups yet are numbered by their start."""
    sizes = [max(numbers) + 1 for numbers in zip(*(place for place, _ in group), strict=True)]
    told = len(dict(group)) == len(group)
    numbers = [reduce(lambda n, axis: n * axis[1] + axis[0], zip(place, sizes, strict=True), 0) for place, _ in group]
    world = prod(sizes) if told else len(group)
    ranks = tuple(
        RankProcess(rank, "", pid, "", rank, "title" if told else "order")
        for (_, pid), rank in zip(group, numbers if told else range(len(group)), strict=True)
    )
    return RunningJob(name, world, local=world == len(group), launcher=engine, nodes=(HangNode(""),), ranks=ranks)
