"""Tells what other releases of torch and NCCL change for a job: ``distcheck explain --upgrade torch=2.13..2.15``.

Only what this job meets is told: a variable that it sets, the backend that it uses, a fault whose conditions it meets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.errors import UsageError
from distcheck.facts.gpu import Gpus
from distcheck.facts.node import TorchBuild
from distcheck.rules.environment.known_bad import NCCL as NCCL_FAULTS
from distcheck.rules.environment.known_bad import TORCH as TORCH_FAULTS
from distcheck.rules.job.kinds import ranks_with
from distcheck.rules.job.versions import nccl_of, selects_new, torch_of, version_of
from distcheck.rules.nccl.grammar import problem_of
from distcheck.rules.nccl.settings import release
from distcheck.rules.nccl.tables import tables
from distcheck.rules.wording import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from distcheck.facts.job import Job
    from distcheck.rules.nccl.tables import Variable
    from distcheck.selection.nccl_settings import Version

_SPEC = re.compile(r"(torch|nccl)=(\d+(?:\.\d+){1,2})\.\.(\d+(?:\.\d+){1,2})")
_SUPERCHIP = re.compile(r"G[BH]\d00")
_LISTS = "docs/variables/{}.txt"
_C10D = "torch/distributed/distributed_c10d.py of {}"
_WHEELS: dict[Version, tuple[Version, Version]] = {
    (2, 4): ((2, 20, 5), (12, 1)),
    (2, 5): ((2, 21, 5), (12, 4)),
    (2, 6): ((2, 21, 5), (12, 4)),
    (2, 7): ((2, 26, 2), (12, 6)),
    (2, 8): ((2, 27, 3), (12, 8)),
    (2, 9): ((2, 27, 5), (12, 8)),
    (2, 10): ((2, 27, 5), (12, 8)),
    (2, 11): ((2, 28, 9), (13, 0)),
    (2, 12): ((2, 29, 7), (13, 0)),
    (2, 13): ((2, 29, 7), (13, 0)),
    (2, 14): ((2, 30, 7), (13, 0)),
    (2, 15): ((2, 30, 7), (13, 2)),
}
"""NCCL and CUDA of the wheels on PyPI, by torch (METADATA, Requires-Dist)."""

_RAS = (
    ((2, 24), (2, 27, 3), "RAS can crash a job while a communicator is created", "1669"),
    ((2, 24), (2, 29, 2), "RAS can corrupt a job's memory when ranks are missing", "1762"),
    ((2, 29, 2), (2, 31), "RAS can crash a job while communicators are created", "2346"),
)
"""First release, first one without the fault, what happens, issue of NVIDIA/nccl.

The release notes of 2.27.3 name #1669 and #1718 as fixed, NVIDIA's comment in #1762 says 2.29.2; #1996 is a crash of
2.27.7. #2346 is open; its loop is unchanged in the last public source, 2.30.7 (src/ras/collectives.cc).
"""


class Difference(NamedTuple):
    """Something that a release does otherwise."""

    software: str
    since: Version
    happens: str
    source: str
    only: str = ""
    """A variable that the job must set."""
    unless: str = ""
    """A variable with which the job has decided already."""
    meets: Callable[[Job, Leap], bool] | None = None
    """Whether the job's other facts meet it; None: they do."""


def _other_class(job: Job, step: Leap) -> bool:
    """Return whether the class behind nccl is another one on some rank."""
    named = job.asked.backend_name or "nccl"
    values = {rank.environment.get("TORCH_DIST_USE_NCCL2") for rank in job.ranks} or {None}
    other = any(selects_new(step.before, value) != selects_new(step.after, value) for value in values)
    return other and "nccl" in {part.rpartition(":")[2] for part in named.split(",")}


def _with_superchips(job: Job, _: Leap) -> bool:
    """Return whether the nodes may have GPUs that NVLink joins to their CPU, or to other nodes': GH200, GB200."""
    models = [gpu.name for node in job.nodes if isinstance(node.gpus, Gpus) for gpu in node.gpus.devices]
    return not models or any(not isinstance(model, str) or _SUPERCHIP.search(model) for model in models)


def _with_ras(job: Job, _: Leap) -> bool:
    return any(rank.environment.get("NCCL_RAS_ENABLE") != "0" for rank in job.ranks)


def _odd_algorithm(job: Job, step: Leap) -> bool:
    given = {(name, rank.environment.get(name, "")) for rank in job.ranks for name in ("NCCL_ALGO", "NCCL_PROTO")}
    return any(problem_of(name, value, step.after) for name, value in given)


CHANGES = (
    Difference(
        "torch", (2, 15), "the backend nccl becomes a new implementation, ProcessGroupNCCL2; to keep the present one, "
        "export TORCH_DIST_USE_NCCL2=0 on every rank, or use init_process_group('nccl-legacy')",
        "https://github.com/pytorch/pytorch/pull/192281", meets=_other_class,
    ),
    Difference(
        "torch", (2, 15), "without device_id, init_process_group('nccl') takes the GPU LOCAL_RANK modulo their number; "
        "a script whose ranks use others fails with 'Duplicate GPU detected', so pass device_id",
        f"{_C10D.format('2.15.0')}, _nccl2_device", meets=_other_class,
    ),
    Difference(
        "nccl", (2, 23), "NCCL_CONF_FILE replaces ~/.nccl.conf, which is then not read",
        "NVIDIA/nccl, src/misc/param.cc of 2.23.4", only="NCCL_CONF_FILE",
    ),
    Difference(
        "nccl", (2, 24), "an unknown word in NCCL_ALGO or NCCL_PROTO makes the start fail with ncclInvalidUsage",
        "NVIDIA/nccl, src/graph/tuning.cc of 2.24.3", meets=_odd_algorithm,
    ),
    Difference(
        "nccl", (2, 24), "each node's ranks listen on port 28028 of the loopback interface for RAS; NCCL_RAS_ENABLE=0 "
        "turns that off", "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html",
        meets=_with_ras,
    ),
    Difference(
        "nccl", (2, 28), "NCCL_PXN_C2C is 1 by default, not 0: with GPUs that NVLink joins to their CPU, as in GH200, "
        "data may go over another GPU's adapter", "libnccl.so.2 of 2.27.7 and 2.28.9 (ncclLoadParam)",
        unless="NCCL_PXN_C2C", meets=_with_superchips,
    ),
    Difference(
        "nccl", (2, 31), "NCCL_LAUNCH_ORDER_IMPLICIT is decided by NCCL, not 0 by default",
        "libnccl.so.2 of 2.30.7 and 2.31.2 (ncclLoadParam)", unless="NCCL_LAUNCH_ORDER_IMPLICIT",
    ),
    Difference(
        "nccl", (2, 32), "NCCL_MNNVL_RAIL_PER_HOST is decided by NCCL, not 0 by default",
        "libnccl.so.2 of 2.31.2 and 2.32.3 (ncclLoadParam)", unless="NCCL_MNNVL_RAIL_PER_HOST",
    ),
)  # fmt: skip


class Leap(NamedTuple):
    """From one release of a software to a later one."""

    software: str
    before: Version
    after: Version

    def __str__(self) -> str:
        """Torch 2.13 to 2.15."""
        return f"{'NCCL' if self.software == 'nccl' else 'torch'} {release(self.before)} to {release(self.after)}"

    def crosses(self, since: Version) -> bool:
        """Return whether a release lies in the step; 2.15 stands for each 2.15.x."""
        return since[: len(self.before)] > self.before and since[: len(self.after)] <= self.after


def upgrade(spec: str, job: Job, whose: str) -> str:
    """Return what changes for a job, as text; `whose` names the job.

    Raises:
        UsageError: the specification is not SOFTWARE=FROM..TO, or goes back.
    """
    steps = list(_steps(spec))
    told = [line for step in steps for line in _changes(step, job)]
    head = f"{', '.join(map(str, steps))}, for {whose}:"
    notes = [f"note: {note}" for step in steps for note in _notes(step, job)]
    if not told:
        return "\n".join([f"{head} nothing that it sets or uses is known to change", *notes, ""])
    lines = [f"- {happens}\n    source: {source}" for happens, source in dict.fromkeys(told)]
    return "\n".join([head, "", *lines, *([""] if notes else []), *notes, ""])


def _notes(step: Leap, job: Job) -> Iterator[str]:
    """Yield what limits the answer: the job ran with another release, or the later one is not known here."""
    of = torch_of if step.software == "torch" else nccl_of
    ran = sorted({version for rank in job.ranks if (version := of(job, rank))})
    others = [version for version in ran if version_of(version)[: len(step.before)] != step.before]
    if others:
        yield f"the job ran with {_name(step)} {' and '.join(others)}, not {release(step.before)}"
    newest = max(variable.last for variable in (tables().nccl if step.software == "nccl" else tables().torch).values())
    if step.after[:2] > newest[:2]:
        yield f"{_name(step)} {release(step.after)} is not known here; what is told ends with {release(newest)}"


def _steps(spec: str) -> Iterator[Leap]:
    named_nccl = "nccl=" in spec
    for part in spec.split(","):
        found = _SPEC.fullmatch(part.strip())
        if found is None:
            raise UsageError(f"--upgrade {part!r}: write torch=FROM..TO or nccl=FROM..TO, such as torch=2.13..2.15")
        step = Leap(found[1], version_of(found[2]), version_of(found[3]))
        if step.before >= step.after:
            raise UsageError(f"--upgrade {part}: {found[3]} is no later release; write the present one first")
        yield step
        bring = [_WHEELS.get(version[:2]) for version in (step.before, step.after)]
        if step.software == "torch" and not named_nccl and bring[0] and bring[1] and bring[0][0] < bring[1][0]:
            yield Leap("nccl", bring[0][0], bring[1][0])


def _changes(step: Leap, job: Job) -> Iterator[tuple[str, str]]:
    """Yield what a step changes for the job, with the source."""
    uses_nccl = job.backend == "nccl"
    for change in CHANGES:
        if change.software != step.software or not step.crosses(change.since) or not uses_nccl:
            continue
        decided = bool(change.unless) and _set_by(job, change.unless)
        meets = change.meets is None or change.meets(job, step)
        if (not change.only or _set_by(job, change.only)) and not decided and meets:
            yield f"{_name(step)} {release(change.since)}: {change.happens}", change.source
    if step.software == "torch":
        yield from _wheels(step, job)
    yield from _variables(step, job)
    yield from _faults(step, job)


def _wheels(step: Leap, job: Job) -> Iterator[tuple[str, str]]:
    builds = [process.installed.torch for process in job.processes]
    if all(isinstance(build, TorchBuild) and build.cuda is None for build in builds):
        return  # builds for CPUs or for ROCm are not those of PyPI
    before, after = _WHEELS.get(step.before[:2]), _WHEELS.get(step.after[:2])
    if before and after and before[1] != after[1]:
        cuda = f"brings CUDA {release(after[1])}, not {release(before[1])}"
        yield (
            f"torch {release(step.after)}: its wheel on PyPI {cuda}; build extensions again, and check the driver",
            f"METADATA of the wheels of torch {release(step.before)} and {release(step.after)}",
        )


def _variables(step: Leap, job: Job) -> Iterator[tuple[str, str]]:
    """Yield variables that the job sets and that only one of the releases reads."""
    table: Mapping[str, Variable] = tables().nccl if step.software == "nccl" else tables().torch
    newest = max(variable.last for variable in table.values())

    def reads(variable: Variable, by: Version) -> bool:
        early = variable.first[: len(by)] > by[: len(variable.first)]
        return not early and (variable.last == newest or by[: len(variable.last)] <= variable.last[: len(by)])

    for name in sorted({name for rank in job.ranks for name in rank.environment} & table.keys()):
        before, after = reads(table[name], step.before), reads(table[name], step.after)
        if before != after:
            who = named(job, ranks_with(job, lambda rank, name=name: name in rank.environment))  # type: ignore[misc]
            where = table[name].successor if step.software == "nccl" else ""
            since = f" (since {release(table[name].first)})"
            words = f"reads {name}{since}, unlike {release(step.before)}" if after else f"does not read {name} any more"
            yield (
                f"{_name(step)} {release(step.after)} {words}; {who} set{'s' if who.startswith('rank ') else ''} it"
                + (f"; use {where}" if where and before else ""),
                _LISTS.format(step.software),
            )


def _faults(step: Leap, job: Job) -> Iterator[tuple[str, str]]:
    """Yield known faults that the job meets with only one of the releases."""
    known = NCCL_FAULTS if step.software == "nccl" else TORCH_FAULTS
    met = [
        (fault.first, fault.fixed, fault.happens, fault.source)
        for fault in known
        if ranks_with(job, lambda rank, fault=fault: fault.meets(job, rank))  # type: ignore[misc]
    ]
    if step.software == "nccl" and job.backend == "nccl" and _with_ras(job, step):
        met += [(first, fixed, what, f"https://github.com/NVIDIA/nccl/issues/{n}") for first, fixed, what, n in _RAS]
    for first, fixed, happens, source in met:
        had, has = (first <= version < fixed for version in (step.before, step.after))
        if had != has:
            words = "has a known fault" if has else "no longer has a known fault"
            yield f"{_name(step)} {release(step.after)} {words}: {happens}", source


def _name(step: Leap) -> str:
    return "NCCL" if step.software == "nccl" else "torch"


def _set_by(job: Job, name: str) -> bool:
    return any(name in rank.environment for rank in job.ranks)
