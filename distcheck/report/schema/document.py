"""The whole report as data: the contract of ``--format json``."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from distcheck.facts.policy import Mode
from distcheck.facts.rank import Stage
from distcheck.report.gpus import IdleGpu, RankGpu
from distcheck.report.schema.comparison import Comparison
from distcheck.report.schema.figures import Bandwidth, DeviceRow, GroupRow, Model
from distcheck.report.schema.hang import HangAnswer
from distcheck.report.schema.mesh import GroupPlace, MeshRow
from distcheck.report.schema.part import Part
from distcheck.report.schema.training import TrainingRow
from distcheck.rules.finding import Fix, NamedGpu, Owner, Scope, Severity, VerdictName

Status = Literal["ok", "warning", "error", "unknown", "missing"]
STATUSES: tuple[Status, ...] = ("ok", "warning", "error", "unknown", "missing")


class World(Part, frozen=True):
    """What was checked."""

    ranks: int
    """The world size if a rank names one, else the number of ranks that reported."""
    nodes: int
    launcher: str
    backend: str
    """"auto" if not decided."""
    torch: str | None
    nccl: str | None


class Found(Part, frozen=True):
    """One finding."""

    rule: str
    aliases: tuple[str, ...]
    severity: Severity
    scope: Scope
    owner: Owner
    confirmed: bool
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    message: str
    evidence: dict[str, Any]
    fix: Fix
    docs: str
    observed: bool = False
    """Whether the site's policy, or --mode, lets it decide nothing."""
    gpus: tuple[NamedGpu, ...] = ()
    """Those that it is about, if it is about GPUs as such."""


class Unlooked(Part, frozen=True):
    """What a rule could not check, and why."""

    rule: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    reason: str


class RankRow(Part, frozen=True, gc=False):
    """One rank, present or missing; unknown fields are None."""

    rank: int | None
    node: str | None
    local_rank: int | None
    gpu: RankGpu | None
    master: str
    """Result of its process at MASTER_ADDR:MASTER_PORT, as one word; "-" if not tried."""
    stage: Stage | None
    status: Status
    mesh: dict[str, GroupPlace] | None = None
    """Its group in each dimension of --mesh; None without one that fits."""


class PathStep(Part, frozen=True):
    """One stage of the run on the leader's clock."""

    stage: str
    """A stage as in `ranks`; launch: the start of the probes and the way home of their facts."""
    seconds: float
    ranks: tuple[int, ...]
    """The ranks of the process that the stage waited for; empty if all were done together."""
    nodes: tuple[str, ...]
    why: str


class Exclude(Part, frozen=True):
    """The nodes that a scheduler should exclude."""

    hostlist: str
    nodes: tuple[str, ...]


class Would(Part, frozen=True):
    """What the verdict would be if nothing were only observed."""

    verdict: VerdictName
    exit_code: int
    nodes: tuple[str, ...]
    """Those that would be on the exclude list, and are not."""


class PolicyRow(Part, frozen=True):
    """The policy by which the job was judged."""

    files: tuple[str, ...]
    digest: str
    """SHA-256 of their contents."""
    mode: Mode
    """For this command, where nothing is set for a rule."""
    problem: str
    """Why the files were not used; empty if they were."""


class Document(Part, frozen=True):
    """The whole report."""

    schema: Literal[1]
    distcheck: str
    command: str
    verdict: VerdictName
    exit_code: int
    headline: str
    """The report in one line of at most 200 characters: outcome, first cause, place, rule, what to do."""
    seconds: float
    world: World
    findings: tuple[Found, ...]
    not_checked: tuple[Unlooked, ...]
    ranks: tuple[RankRow, ...]
    missing_ranks: tuple[int, ...]
    bandwidth: tuple[Bandwidth, ...]
    exclude: Exclude
    models: tuple[Model, ...]
    gpus: tuple[IdleGpu, ...] = ()
    """Of nodes without ranks, as in a shell without RANK; those of ranks are in `ranks`."""
    devices: tuple[DeviceRow, ...] = ()
    mesh: MeshRow | None = None
    """None without a --mesh that fits."""
    groups: tuple[GroupRow, ...] = ()
    training: tuple[TrainingRow, ...] = ()
    """Empty without --step."""
    critical_path: tuple[PathStep, ...] = ()
    """The stages in order; their seconds add up to `seconds`."""
    comparison: Comparison | None = None
    """None without `report --baseline`."""
    hang: HangAnswer | None = None
    """None but for `distcheck hang`."""
    at: str = ""
    """When the run ended, with the time zone."""
    host: str = ""
    """Where the report was made."""
    command_line: str = ""
    """Secrets redacted."""
    policy: PolicyRow | None = None
    would: Would | None = None
    """None if it has the same exit code."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    return msgspec.json.schema(Document)
