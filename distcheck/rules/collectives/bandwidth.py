"""Rules about bandwidth: against --min-busbw, and against what is usual on the hardware."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from distcheck.collectives.plan import label
from distcheck.expectation.curve import SURE_SHARE
from distcheck.expectation.judge import Expectation, Standing, impossible, judge
from distcheck.expectation.of_job import algorithm, expectations, given, log_of
from distcheck.facts.job import Collectives, Job, Measurement
from distcheck.facts.quantities import size
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.endings import backend_of
from distcheck.rules.collectives.figures import busbw
from distcheck.rules.finding import Fault, Fix, NotChecked, Severity
from distcheck.rules.wording import brief, grouped, listed, once

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST = 300
_OTHERS = ("given", "baseline")
"""Sources that other rules judge by: perf-below-min-busbw and perf-below-baseline."""


class Judged(NamedTuple):
    """One operation at its largest size, its expectation, and how it compares."""

    row: Measurement
    expected: Expectation
    share: float | None
    """The share of the plateau that this size usually reaches; None if unknown."""
    standing: Standing

    @property
    def figure(self) -> float:
        """The measured bus bandwidth in GB/s; 0 where there is none."""
        return busbw(self.row) or 0.0

    @property
    def usual(self) -> float:
        """The lower end of the usual bus bandwidth at this size, in GB/s."""
        return (self.expected.low_GBps or 0.0) * (self.share or 1.0)


@rule("collectives")
def perf_threshold_impossible(job: Job) -> Iterator[Outcome]:
    """The bandwidth that --min-busbw requires is more than the hardware can reach.

    Thresholds are copied between clusters, and between operations: 8 H100 reach 480 GB/s in all_reduce, because their
    NVSwitches reduce data (NVLS), and never more than 405 in broadcast. Such a threshold fails every job on every node,
    and good nodes are taken for bad ones.

    Found by the number of active NVLinks, or the rates of the network adapters, and the most they carry without any
    loss. The job is then judged as if --min-busbw had not been given.

    Fix: Require what this operation can reach here, or measure the operation that the threshold was made for.

        distcheck bandwidth --op {op} --min-busbw {gbps}

    See: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    for op, judged in _judged(job).items():
        expected = judged.expected
        least = given(job, expected.op, expected.ranks)
        if least is None or expected.high_GBps is None or not impossible(least.GBps, expected):
            continue
        usual = "" if expected.value_GBps is None else f", usually {expected.value_GBps:.4g} GB/s"
        possible = f"{0.9 * expected.value_GBps:.0f}" if expected.value_GBps else f"{0.5 * expected.high_GBps:.3g}"
        yield Fault(
            brief(
                f"{least.source} requires {least.GBps:g} GB/s for {op}; between {expected.ranks} ranks this hardware "
                f"reaches at most {expected.high_GBps:.4g} GB/s{usual} ({expected.source})",
                _LONGEST,
            ),
            values={"op": (expected.op,), "gbps": (possible,)},
        )


@rule("collectives", scope="link", owner="unknown")
def perf_below_min_busbw(job: Job) -> Iterator[Outcome]:
    """The bus bandwidth is below --min-busbw.

    A job at half the speed costs twice the money and shows no error. Typical causes: NCCL fell back to sockets
    (``NET/Socket`` in its log) beside idle InfiniBand, GPUs communicate through shared memory instead of NVLink, one
    slow link or NIC holds up the ring, or the ranks share cores.

    Found by timing bursts of every operation. Each is judged at the largest measured size, where latency no longer
    counts. Bus bandwidth is bytes / mean time x 2(n-1)/n for all_reduce and x 1 for broadcast, in GB/s of 1e9 bytes, as
    nccl-tests counts it.

    Fix: ``NCCL_DEBUG=INFO`` shows the transport that NCCL uses; ``distcheck isolate`` finds a slow node or link.
    Choose a threshold that this hardware is known to reach, at sizes of 256 MiB and more on NVLink.
    See: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    for op, each in _judged(job).items():
        least = given(job, each.expected.op, each.expected.ranks)
        if least is None:
            continue
        if each.expected.ranks < 2:
            yield NotChecked(required=False, reason=f"a single rank has no bus bandwidth; {least.source} needs two")
            return
        reached = busbw(each.row)
        if each.expected.rung != "given":
            continue
        if reached is None or not isfinite(reached):
            yield NotChecked(reason=f"{op} of {size(each.row.bytes)}: no bus bandwidth to compare with {least.source}")
        elif reached < least.GBps:
            required = {"min_busbw_GBps": least.GBps, "share": round(reached / least.GBps, 3)}
            yield _finding(job, each, f"; {least.source} requires {least.GBps:g} GB/s", required)


@rule("collectives", scope="link", owner="unknown")
def perf_below_expectation(job: Job) -> Iterator[Outcome]:
    """The bus bandwidth is well below what is usual on this hardware.

    There is no error: the job only takes longer, by an unknown factor. Typical causes: NVLinks that are down, NCCL that
    uses PCIe, shared memory or sockets, an adapter that negotiated a lower rate, a slow node in the ring, a GPU that
    throttles.

    Found by comparing with what the active NVLinks or the network adapters make possible; the message names the source.
    Each operation is judged at the largest measured size.
    Where that size is below the plateau, the usual value at that size counts. Below 0.9 of it is a warning; below 0.8
    an error where the hardware leaves no doubt. ``--min-busbw`` replaces this comparison.

    Fix: see the findings about GPUs and links; ``NCCL_DEBUG=INFO`` shows the transport that NCCL uses;
    ``distcheck isolate`` finds a slow node or link.
    See: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    unjudged: list[tuple[str, str]] = []
    for op, each in _judged(job).items():
        if each.expected.rung in _OTHERS:
            continue
        if each.standing == "not judged":
            remedy = "use --min-busbw GBPS" if each.expected.ranks > 1 else "measure with two ranks or more"
            unjudged.append((op, f"{_why_not(each)}; {remedy} to judge it"))
        elif each.standing in {"low", "too low"}:
            log = log_of(job)
            # NCCL over sockets is the cause, and has its own finding.
            explained = log is not None and log.network == "Socket"
            sure = each.expected.certain and (each.share or 0.0) >= SURE_SHARE and not explained
            expected = each.expected
            plateau = f"; {each.share:.2g} of that at this size" if each.share not in {None, 1.0} else ""
            source = f"{expected.source}{plateau}"
            yield _finding(
                job,
                each,
                f", {each.figure / each.usual:.0%} of the usual {each.usual:.4g} GB/s: {source}",
                {
                    "expected_GBps": _rounded(expected.at(each.row.bytes)),
                    "judged by": expected.rung,
                    "from": source,
                    "bound_GBps": _rounded(expected.high_GBps),
                },
                severity="error" if each.standing == "too low" and sure else "warning",
            )
    for reason, group in grouped(unjudged, lambda item: item[1]).items():
        yield NotChecked(required=False, reason=f"{listed([op for op, _ in group])} not judged: {reason}")


@once
def expected(job: Job) -> dict[str, Expectation]:
    """Return the expectation for each operation measured over the whole world, by label."""
    return expectations(job)


@once
def _judged(job: Job) -> dict[str, Judged]:
    """Return each operation over the whole world, judged at its largest size, by its label."""
    found: dict[str, Judged] = {}
    if not isinstance(job.collectives, Collectives):
        return found
    world = [row for row in job.collectives.measurements if row.group == "world"]
    for name, rows in grouped(world, lambda row: label(row.op, row.dtype)).items():
        row, expectation = max(rows, key=lambda each: each.bytes), expected(job)[name]
        share = expectation.share(row.bytes)
        found[name] = Judged(row, expectation, share, judge(busbw(row), expectation, share))
    return found


def _why_not(each: Judged) -> str:
    if each.expected.value_GBps is None:
        return each.expected.source
    if each.share is None:
        return (
            f"latency dominates at {size(each.row.bytes)}, or no result was published; "
            f"usual for large messages: {each.expected.value_GBps:.4g} GB/s"
        )
    return "it was not measured"


def _used(job: Job, row: Measurement) -> dict[str, str]:
    """Return what NCCL's log names as algorithm, network and transports, if anything."""
    log = log_of(job)
    if log is None:
        return {}
    ways = sorted(log.transports, key=lambda way: -log.transports[way])
    parts = [algorithm(log, row.op, row.bytes) or "", log.network and f"network {log.network}", *ways[:3]]
    used = ", ".join(filter(None, parts))
    return {"NCCL used": used} if used else {}


def _finding(
    job: Job, each: Judged, compared: str, evidence: dict[str, Any], severity: Severity | None = None
) -> Fault:
    name = label(each.row.op, each.row.dtype)
    reached = f"{name} of {size(each.row.bytes)} reaches {each.figure:.3g} GB/s bus bandwidth"
    own = {"op": each.row.op, "bytes": each.row.bytes, "busbw_GBps": round(each.figure, 3)}
    how = "NCCL_DEBUG=INFO distcheck bandwidth -v" if backend_of(job) == "nccl" else "distcheck net"
    return Fault(
        brief(f"{reached} between {each.expected.ranks} ranks{compared}", _LONGEST),
        Fix("Check which transport is used, then find the slow node or link.", (how, "distcheck isolate")),
        {**own, **evidence, **_used(job, each.row)},
        severity,
        confirmed=False,
    )


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)
