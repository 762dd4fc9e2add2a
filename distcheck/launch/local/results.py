"""What local ranks measured and how they ended, as one report."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from distcheck.collectives.nccl_log.diagnostics import diagnostics
from distcheck.facts.nccl import NcclLog
from distcheck.launch.local.channel import Imported
from distcheck.launch.local.rank import LocalRank, ending
from distcheck.rollcall.protocol import RunReport


def report(
    ranks: Sequence[LocalRank],
    imported: Imported | None,
    error: str = "",
    program_end: int | None = None,
    said: str = "",
) -> RunReport:
    """Return the report of ranks.

    Args:
        ranks: the local ranks, with what they have sent so far.
        imported: how the import of torch ended; None if it did not.
        error: why no rank could start.
        said: what the ranks printed last.
        program_end: the fork server's exit code, if it ended before torch was imported.
    """
    took = imported.seconds if imported and not imported.error else None
    runs = {r.placement.rank or 0: replace(r.run(), import_seconds=took) for r in ranks}
    for rank, printed in _diagnostics(ranks, said).items():
        runs[rank] = replace(runs[rank], nccl=printed)
    if error and program_end is not None:
        died = {"step": "the import of torch", "outcome": "died", "detail": ending(program_end)}
        deaths = {r.placement.rank or 0: r.death for r in ranks}
        runs = {n: replace(run, death=deaths[n], **died) for n, run in runs.items()}
    elif error:
        runs = {n: replace(run, outcome="not started", detail=error) for n, run in runs.items()}
    return RunReport(
        runs=runs,
        timings=tuple((r.placement.rank or 0, t) for r in ranks for t in r.timings),
        groups=tuple((r.placement.rank or 0, t) for r in ranks for t in r.groups),
        software=next((r.software for r in ranks if r.software), None),
        computed={r.placement.rank or 0: r.computed for r in ranks if r.computed},
    )


def _diagnostics(ranks: Sequence[LocalRank], said: str) -> dict[int, NcclLog]:
    """Return the logs of ranks whose NCCL printed results of its own diagnostics, with these."""
    printed = diagnostics(said)
    logs = {}
    for rank in ranks:
        log, lines = rank.run().nccl, printed.get(rank.pid or 0)
        if lines and isinstance(log, NcclLog):
            logs[rank.placement.rank or 0] = replace(log, diagnostics=log.diagnostics or lines)
    return logs
