"""The rule about the results of NCCL's own diagnostics, where the job runs them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.job import Collectives
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.nccl_logs import logged
from distcheck.rules.finding import Fix, NotChecked
from distcheck.rules.wording import brief, found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job

_PARTIAL = re.compile(r"p2p: only (\d{1,9})/(\d{1,9}) GPU-to-GPU peer accesses passed verification")
_PAIR = re.compile(r"p2p: .*\bsrcRank=(\d{1,9}) .*\bdstRank=(\d{1,9}) ")
_NET = re.compile(r"net bw: (\S+) rank (\d{1,9}) \(.*\): ([\d.]+) Gbit/s, >30% off median ([\d.]+) Gbit/s")
"""Source: the constants of libnccl.so.2 2.32.3."""
_MOST_LINES = 8


@rule("collectives", severity="warning")
def nccl_diagnostics_report(job: Job) -> Iterator[Outcome]:
    """NCCL's own diagnostics report something to look at.

    NCCL 2.31 and later test the GPUs' peer-to-peer access when NCCL_RUN_DIAGNOSTICS=1 is set, later ones also the
    network's bandwidth, and compare the ranks with NCCL_RUN_RAS_DIAGNOSTICS=1. Their results are only printed and stop
    nothing: a failed one, such as ``NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification``, is
    easily missed among a job's output. A GPU pair that fails the check may hang or return wrong data later.

    Found by the lines of NCCL with ``NCCL DIAG [INFO]`` in the ranks' output. Failed peer-to-peer checks are a warning
    with the ranks that NCCL names, and so is a rank whose network is more than 30 % off the median; all other lines are
    only shown. ``distcheck gate`` sets both variables itself where NCCL is 2.31 or later and the collectives passed, in
    new rank processes that it ends at a limit.

    Fix: Check the GPU pairs that NCCL names; to run without these checks, unset the variables.

        nvidia-smi topo -p2p n
        nvidia-smi topo -m

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/diagnostics.html
    """
    ran = job.collectives
    if isinstance(ran, Collectives) and isinstance(ran.diagnosed, Missing):
        yield NotChecked(reason=f"NCCL's own diagnostics: {ran.diagnosed.reason}", required=False)
    reports = [t for t in logged(job) if t.log.diagnostics and t.log.ranks in {None, job.world_size}]
    ranks = {rank.placement.rank: rank for rank in job.ranks} if reports else {}
    for t in reports:
        lines = t.log.diagnostics
        pairs = [(int(pair[1]), int(pair[2])) for pair in map(_PAIR.match, lines) if pair]
        partial = next(filter(None, map(_PARTIAL.match, lines)), None)
        others = [line for line in lines if not (_PAIR.match(line) or _PARTIAL.match(line) or _NET.match(line))]
        shown = {f"line {n}": brief(line, 300) for n, line in enumerate(lines[:_MOST_LINES], 1)}
        if pairs or partial:
            named = [ranks[n] for n in sorted({n for pair in pairs for n in pair}) if n in ranks]
            count = f"; {partial[1]} of {partial[2]} accesses passed" if partial else ""
            yield found(
                job,
                named,
                f"NCCL's diagnostics could not verify peer-to-peer access between all GPUs{count}",
                confirmed=False,
                evidence=shown,
            )
        for slow in filter(None, map(_NET.match, lines)):
            yield found(
                job,
                [ranks[int(slow[2])]] if int(slow[2]) in ranks else [],
                f"NCCL's diagnostics measured {slow[3]} Gbit/s of {slow[1]} bandwidth; the median rank has {slow[4]}",
                Fix("Compare the rank's adapter with the others'.", ("distcheck gate", "ibstat")),
                confirmed=False,
                evidence=shown,
            )
        if others and not (pairs or partial):
            yield found(
                job,
                [],
                f"NCCL's diagnostics report on rank {t.rank.placement.rank}: {brief(others[0], 160)}",
                Fix("Read what NCCL reports; no action if it is intended."),
                severity="info",
                confirmed=False,
                evidence=shown,
            )
