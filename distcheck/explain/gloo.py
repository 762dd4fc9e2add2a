"""Tells from the lines of Gloo's ranks which rank the others waited for, or lost."""

from __future__ import annotations

from collections.abc import Sequence

from distcheck.explain.hang import Hang, named
from distcheck.explain.sighting import Sighting
from distcheck.explain.waits import Waits
from distcheck.rules.wording import are


def barrier(seen: Sequence[Sighting]) -> Hang | None:
    """Return the ranks that torch's monitored_barrier() reports as late; None if no line names one."""
    lines = (s for s in seen if "barrier" in s.tags)
    line = max(lines, key=lambda s: s.values["late"].count(","), default=None)  # rather the one that names all
    if line is None:
        return None
    ranks = tuple(map(int, line.values["late"].split(",")))
    they = "it" if len(ranks) == 1 else "they"
    seconds = f"{int(line.values['late_ms']) / 1000:g} s"
    says = f"{named(ranks)} {are(ranks)} behind: {they} did not reach monitored_barrier() within {seconds}"
    return Hang(kind="behind", says=f"{says}; these are numbers in the barrier's process group", ranks=ranks)


def unheard(watch: Waits) -> Hang | None:
    """Return the ranks that report nothing, where more others waited for them or lost them; None otherwise.

    A launcher ends the ranks that have not reported yet, so a few that report prove nothing about many that do not.
    """
    reporting = watch.late | watch.lost
    world = watch.world or max(watch.wrote, default=-1) + 1
    silent = set(range(world)) - reporting
    if not 0 < len(silent) < len(reporting):
        return None
    parts = []
    if watch.late:
        parts.append(f"{named(watch.late)} {'waits' if len(watch.late) == 1 else 'wait'} in a collective of Gloo")
    if lost := watch.lost - watch.late:
        parts.append(f"{named(lost)} lost the connection to another rank")
    why = "not in this collective, dead, stuck elsewhere, or ended before the report"
    if not watch.late:
        why = "it ended first" if len(silent) == 1 else "they ended first, or before they could report"
    parts.append(f"{named(silent)} {'reports' if len(silent) == 1 else 'report'} no error: {why}")
    return Hang(kind="missing", says="; ".join(parts), ranks=tuple(sorted(silent)))
