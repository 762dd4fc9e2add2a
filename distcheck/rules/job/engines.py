"""The inference engines of a job, one for each process that stands in front of one."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.job.launches import all_launches
from distcheck.rules.wording import merged, once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distcheck.facts.base import Missing
    from distcheck.facts.engine import Engine, FixedPort
    from distcheck.facts.job import Job
    from distcheck.facts.launch_command import Stated
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import ProcessFacts, RankFacts
    from distcheck.rules import Outcome
    from distcheck.rules.finding import Fault

_BLOCK, _LAST = 20, 65000
"""By how much the first of several neighbouring ports is moved, upwards if it stays below the second number."""


class StartedEngine(NamedTuple):
    """An engine that a process will start, with its node and its ranks."""

    process: ProcessFacts
    stated: Stated
    engine: Engine
    node: NodeFacts
    ranks: list[RankFacts]

    def moved(self, port: FixedPort, to: int | None = None) -> str:
        """Return what sets another port in its place; without `to` a free one, or one beyond its neighbours."""
        name, first = port.option, port.number - port.distance
        number = to or (not port.distance and port.free) or first + (_BLOCK if first < _LAST else -_BLOCK)
        where = f" on {quote(self.node.name)}" if self.stated.nodes > 1 else ""
        if not name.startswith("--"):
            return f"export {name}={number}"
        if name != "--dist-init-addr":
            return f"# in COMMAND{where}: {name} {number}"
        return (
            f"# in COMMAND{where and ', on all nodes'}: {name} {quote(self.stated.master_addr or '127.0.0.1')}:{number}"
        )


@once
def engines(job: Job) -> list[StartedEngine]:
    """Return the engines that the job's processes will start."""
    return [
        StartedEngine(each.process, each.stated, each.stated.engine, each.node, each.ranks)
        for each in all_launches(job)
        if each.stated.engine and each.ranks
    ]


def each_engine(job: Job, ask: Callable[[StartedEngine], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of each engine, once for those of which it says the same."""
    yield from merged(job, ((each.ranks, ask(each)) for each in engines(job)))
