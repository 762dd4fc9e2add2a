"""The report as data: the contract of ``--format json``."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from distcheck.facts.rank import Stage
from distcheck.report.gpus import RankGpu
from distcheck.rules.finding import Fix, Owner, Scope, Severity, VerdictName

Status = Literal["ok", "warning", "error", "unknown", "missing"]
STATUSES: tuple[Status, ...] = ("ok", "warning", "error", "unknown", "missing")

NO_EXPECTATION = "there is no expectation for parts of the world"


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the document's parts: immutable, and strict when parsed."""


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


class Unlooked(Part, frozen=True):
    """What a rule could not check, and why."""

    rule: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    reason: str


class GroupPlace(Part, frozen=True, gc=False):
    """A rank's group in one dimension of --mesh."""

    group: int
    """Its number; groups are numbered by their first rank."""
    rank: int
    """The rank's number in it, which is its coordinate in this dimension."""


class RankRow(Part, frozen=True):
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


class Seconds(Part, frozen=True):
    """Time per operation, over the ranks and per rank; None if a rank has no figure."""

    mean: float | None
    min: float | None
    max: float | None
    by_rank: tuple[float | None, ...]


class Expected(Part, frozen=True):
    """The expected bus bandwidth and its source."""

    value: float | None
    source: str = msgspec.field(name="from")


class Bandwidth(Part, frozen=True):
    """One operation at one size."""

    op: str
    bytes: int
    dtype: str
    ranks: int
    group: str
    algbw_GBps: float | None  # noqa: N815 the unit's own spelling
    busbw_GBps: float | None  # noqa: N815
    seconds: Seconds
    wrong: int | None
    """Wrong elements over all ranks; None if not checked."""
    expected_GBps: Expected  # noqa: N815
    share_of_expected: float | None
    iterations: int = 0
    """Calls in each burst."""
    bursts: int = 1
    uncertainty: float | None = None
    """Relative uncertainty of the mean (95 % confidence); None with too few bursts."""
    ended: Literal["steady", "time", "asked"] = "asked"
    """Why the bursts ended: steady figure, no time left, or one burst requested."""


class GroupRow(Part, frozen=True):
    """One operation in the groups of one dimension of the mesh; None where there is no figure."""

    dimension: str
    op: str
    bytes: int
    """The payload of one group."""
    dtype: str
    groups: int
    ranks: int
    """Of one group."""
    alone_busbw_GBps: float | None  # noqa: N815 the unit's own spelling
    """The first group while all other ranks wait; None also if it is the only group."""
    busbw_GBps: tuple[float | None, ...]  # noqa: N815
    """Each group while all of them work, by the groups' first ranks."""
    share_of_alone: float | None
    """What the first group keeps of its speed while the others work too."""
    slowest: tuple[int, ...]
    """The ranks of the slowest group; empty for a single group."""
    wrong: int | None
    """Wrong elements over all ranks; None if not checked."""
    lacks: str = ""
    """Why it was not measured."""


class Model(Part, frozen=True):
    """The fitted line t = latency + bytes / rate over the sizes of one operation."""

    op: str
    dtype: str
    ranks: int
    latency_seconds: float
    algbw_GBps: float  # noqa: N815 the unit's own spelling
    """What large sizes approach."""
    busbw_GBps: float | None  # noqa: N815
    half_bytes: float
    """The size that reaches half of it."""
    error: float
    """Relative distance of a measured time from the line, median over the sizes."""


class DeviceBurn(Part, frozen=True):
    """The repeated products of `--burn`."""

    seconds: float
    first_TFLOPS: float | None  # noqa: N815 the unit's own spelling
    """The rate at the beginning; None with too few figures."""
    last_TFLOPS: float | None  # noqa: N815
    """The rate at the end."""


class DeviceRow(Part, frozen=True):
    """What one rank's GPU or CPU reached by itself."""

    rank: int | None
    node: str
    device: str
    """The GPU's model, or cpu."""
    dtype: str
    """The type of the products' matrices."""
    matmul_TFLOPS: float  # noqa: N815
    memory_GBps: float  # noqa: N815
    """Copies within the device's memory, read and written bytes."""
    h2d_GBps: float | None  # noqa: N815
    """Copies from the host; None on CPUs."""
    d2h_GBps: float | None  # noqa: N815
    products: int
    """Products whose checksum was compared with the first one's."""
    different: int
    """How many of them had another one."""
    burn: DeviceBurn | None


class Range(Part, frozen=True):
    """The least and the largest of several numbers."""

    min: int
    max: int


class DimensionRow(Part, frozen=True):
    """The groups of one dimension of --mesh."""

    name: str
    size: int
    """Ranks of each group."""
    groups: int
    example: tuple[int, ...]
    """The ranks of the first group, in the order of their group rank."""
    nodes: Range
    """On how many nodes a group lies."""
    domains: Range | None
    """On how many NVLink domains a group lies; None if no nodes are known to share one."""


class MeshRow(Part, frozen=True):
    """The mesh of --mesh, for this number of ranks."""

    mesh: str
    """Sizes, outermost dimension first: pp=2,dp=4,tp=8."""
    experts: str
    """The experts' own mesh over the same ranks; empty without one."""
    dimensions: tuple[DimensionRow, ...]
    """Empty if not every rank joined."""


class Exclude(Part, frozen=True):
    """The nodes that a scheduler should exclude."""

    hostlist: str
    nodes: tuple[str, ...]


class FindingChange(Part, frozen=True):
    """A finding of one of two runs, or of both."""

    rule: str
    severity: Severity
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    message: str


class FigureChange(Part, frozen=True):
    """One operation at one size, in the earlier run and in this one."""

    op: str
    dtype: str
    bytes: int
    group: str
    before_seconds: float
    now_seconds: float
    share: float
    """Of the earlier bandwidth: 1 is unchanged."""
    noise: float
    """The largest apparent drop, as a share, that the uncertainty of both figures can cause."""
    change: Literal["lower", "same", "higher"]
    """lower and higher: by more than noise."""


class FactChange(Part, frozen=True):
    """Hardware, software, network, place or variable that differs; several values have their ranks."""

    name: str
    before: str
    now: str


class Comparison(Part, frozen=True):
    """What differs between an earlier run (`report --baseline`) and this one."""

    file: str
    verdict: VerdictName
    """The earlier run's, judged today."""
    exit_code: int
    new: tuple[FindingChange, ...]
    gone: tuple[FindingChange, ...]
    unchanged: tuple[FindingChange, ...]
    not_comparable: tuple[str, ...]
    """Why the figures are not compared; empty if they are, or if there are none."""
    figures: tuple[FigureChange, ...]
    facts: tuple[FactChange, ...]


class Document(Part, frozen=True):
    """The whole report."""

    schema: Literal[1]
    distcheck: str
    command: str
    verdict: VerdictName
    exit_code: int
    seconds: float
    world: World
    findings: tuple[Found, ...]
    not_checked: tuple[Unlooked, ...]
    ranks: tuple[RankRow, ...]
    missing_ranks: tuple[int, ...]
    bandwidth: tuple[Bandwidth, ...]
    exclude: Exclude
    models: tuple[Model, ...]
    devices: tuple[DeviceRow, ...] = ()
    mesh: MeshRow | None = None
    """None without a --mesh that fits."""
    groups: tuple[GroupRow, ...] = ()
    comparison: Comparison | None = None
    """None without `report --baseline`."""


class LastFailure(Part, frozen=True):
    """The last run that found a node confirmed bad."""

    time: str
    """In ISO 8601, UTC."""
    rules: tuple[str, ...]


class NodeHistory(Part, frozen=True):
    """How often runs found a node confirmed bad."""

    node: str
    runs: int
    failed: int
    first: str
    """When the first run in the history ended."""
    last: str
    last_failure: LastFailure | None
    rules: dict[str, int]
    """In how many runs each rule found the node confirmed bad."""


class HistoryDocument(Part, frozen=True):
    """What `distcheck report --history` prints with ``--format json``."""

    schema: Literal[1]
    distcheck: str
    history: str
    """The directory."""
    nodes: tuple[NodeHistory, ...]
    """Those that failed most often first."""
    lines: int
    unreadable: int
    """Lines that are torn, or are not lines of a history."""
    newer: int
    """Lines of a newer schema, which this version does not read."""
    unread: tuple[str, ...]
    """Files that were not read, each with the reason."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    return msgspec.json.schema(Document)
