"""What a stage of the run waits for, and why, as the live line shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from distcheck.facts.ranges import fold
from distcheck.run.progress import StageView, clock

if TYPE_CHECKING:
    from distcheck.collectives.plan import FirstBurst
    from distcheck.launch.local.supervisor import LocalRanks
    from distcheck.rollcall.follower import Follower
    from distcheck.rollcall.server import Server

_SHOWN = 3
"""Most nodes that are named."""
_MOST_RANKS = 64
"""Most missing ranks that are looked for."""


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as text: rank 3, or ranks 4-7,9."""
    each = tuple(ranks)
    return f"rank{'s' * (len(each) > 1)} {fold(each, 4)}"


def roll_call(server: Server, until: float) -> StageView:
    """Return which ranks did not join yet."""
    missing = server.missing(_MOST_RANKS)
    lost = {rank: master for rank, master in server.elsewhere.items() if rank in missing}
    why = "not connected yet"
    if lost:
        rank, master = min(lost.items())
        why = f"rank {rank} looks for {master}"
    return StageView(
        "roll call",
        done=server.present,
        of=server.world_size,
        unit="ranks",
        awaited=ranks_text(missing) if missing else "",
        why=why,
        until=until,
    )


def roll_call_reminder(server: Server, left: float) -> str:
    """Return a line about the ranks that did not join, `left` seconds before the end."""
    missing = server.missing(_MOST_RANKS)
    who = f"waiting for {ranks_text(missing)}" if missing else "all ranks joined"
    return f"{who}; the roll call closes in {max(0.0, left):.0f} s"


def followers(
    stage: str, each: Sequence[Follower], since: float, *, why: str, doing: str = "", until: float | None = None
) -> StageView:
    """Return which followers sent no message since a moment (time.monotonic())."""
    silent = [one for one in each if one.heard_at < since and not one.gone]
    return StageView(
        stage,
        doing,
        done=len(each) - len(silent),
        of=len(each),
        unit="processes",
        awaited=processes(silent),
        why=why,
        until=until,
    )


def processes(each: Sequence[Follower]) -> str:
    """Return processes as text: node2 (ranks 4-5), node3 (ranks 6-7) and 5 more."""
    named = [f"{one.report.node.name} ({ranks_text(one.ranks)})" for one in each[:_SHOWN]]
    more = f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else ""
    return ", ".join(named) + more


def measuring(local: LocalRanks, each: Sequence[Follower], since: float, figures: FigureCount) -> StageView:
    """Return how far the collectives are, and the ranks that the others wait for."""
    awaited, why = "", ""
    if not local.imported.done():
        awaited, why = "this node", "importing torch"
    elif not figures.done and (importing := [one for one in each if not one.ready.is_set()]):
        awaited, why = processes(importing), "importing torch"
    elif all(rank.over for rank in local.ranks):
        awaited, why = processes([one for one in each if one.heard_at < since and not one.gone]), "no results yet"
    elif (behind := [rank for rank in local.ranks if rank.joined is None]) and len(behind) < len(local.ranks):
        awaited, why = ranks_text(rank.placement.rank or 0 for rank in behind), "not in the process group"
    return StageView("collectives", figures.doing(), figures.done, figures.of, "figures", awaited, why)


class FigureCount:
    """How many figures rank 0 has, and what it does."""

    def __init__(self, of: int, now: Callable[[], float], changed: Callable[[], None]) -> None:
        self.done, self.of = 0, of
        self._text, self._now, self._began, self._changed = "", now, now(), changed

    def step(self, text: str, done: int) -> None:
        """Note rank 0's step, after `done` figures."""
        self._text, self.done = text, done
        self._changed()

    def burst(self, first: FirstBurst) -> None:
        """Add the speed of a size's first burst to rank 0's step."""
        self._text += f", {first.bytes / first.seconds / 1e9:.3g} GB/s in the first burst"
        self._changed()

    def doing(self) -> str:
        """Return rank 0's step and, once there are figures, the time that the others may take."""
        if not self.done or self.done >= self.of:
            return self._text
        left = (self._now() - self._began) / self.done * (self.of - self.done)
        return f"{self._text}, about {clock(left)} to go"
