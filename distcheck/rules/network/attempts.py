"""How processes tried to reach rank 0 and each other, and which ranks are affected."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.finding import Fault, Fix, Severity
from distcheck.rules.job.addresses import here_over_nodes, master_outcomes
from distcheck.rules.job.own_failures import own_failure
from distcheck.rules.job.wrong_master import resolving_elsewhere, wrong_master
from distcheck.rules.network.selected_interfaces import own_way, survey
from distcheck.rules.network.trials import Way, side_by_process
from distcheck.rules.wording import found, grouped, listed, named, once

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.network import Attempt, PeerTrial, Transfer
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import ProcessFacts, RankFacts

_MOST = 8
"""Paths shown in a finding's evidence."""
_ONE_WAY = ", but the other direction works"
_NEVER_BYTES = 1024
"""A path that loses large packets confirms less than this: not one full segment."""


def failing(job: Job, outcomes: set[str]) -> Iterator[tuple[list[RankFacts], list[Attempt]]]:
    """Yield the ranks whose every attempt at MASTER_PORT had these outcomes, and the attempts.

    Ranks with the same addresses and outcomes are one group. Nothing is returned where something else explains the
    failure: rank 0 could not bind the port; another process led the roll call and found rank 0 missing; the probe on
    rank 0's node could not be started; MASTER_ADDR is every node itself, or a host other than rank 0's. In a pod
    MASTER_ADDR may be a service address, so that is no explanation.
    """
    if outcomes.isdisjoint(master_outcomes(job)):
        return
    for attempts, uids in _tried_alike(job):
        if all(a.outcome in outcomes for a in attempts):
            yield ranks_of(job, uids), attempts


@once
def _tried_alike(job: Job) -> list[tuple[list[Attempt], set[str]]]:
    """Return each series of attempts at MASTER_PORT that nothing else explains, with the processes that made it."""
    explained = any(p.bind is not None and p.bind.outcome in {"in-use", "denied", "failed"} for p in job.processes)
    if explained or here_over_nodes(job) or (job.met and 0 in job.missing_ranks) or _not_started(job, 0):
        return []
    lost = wrong_master(job)
    if lost is not None and "KUBERNETES_SERVICE_HOST" not in lost.environment:
        return []
    masters = {r.process: (r.placement.master_addr, r.placement.master_port) for r in reversed(job.ranks)}
    rank_0 = next((masters[r.process] for r in job.ranks if r.placement.rank == 0), None)
    elsewhere = {r.process for r in resolving_elsewhere(job)}
    doubled = {node.key for nodes in survey(job).shared.values() for node in nodes}
    series = []
    for process in job.processes:
        if process.uid in elsewhere or process.node in doubled:
            continue  # reported by net-dns-differs and net-duplicate-ip
        if rank_0 is not None and masters.get(process.uid) != rank_0:
            continue  # another master: reported by env-master-addr-differs and env-master-port-differs
        if attempts := master_attempts(process):
            series.append((process.uid, attempts))
    alike = grouped(series, lambda item: tuple((a.address, a.port, a.outcome) for a in item[1]))
    return [(several[0][1], {uid for uid, _ in several}) for several in alike.values()]


def _not_started(job: Job, rank: int) -> bool:
    """Whether distcheck was to start a rank itself and its probe never reported, or failed itself."""
    nodes = job.launched.nodes if job.launched else ()
    return any(rank in node.ranks and (node.outcome != "reported" or own_failure(node)) for node in nodes)


def master_attempts(process: ProcessFacts) -> list[Attempt]:
    """Return a process's attempts at MASTER_ADDR:MASTER_PORT, one per address."""
    return [a for a in process.attempts if a.door == "master"]


def tried(attempts: list[Attempt]) -> dict[str, str]:
    """Return as evidence the last outcome at each address and the number of tries."""
    lines = {}
    for a in attempts:
        times = f"{a.tries} {'try' if a.tries == 1 else 'tries'}"
        lines[address_of(a)] = f"{a.outcome} after {times}" + (f": {a.detail}" if a.detail else "")
    return lines


def address_of(attempt: Attempt) -> str:
    """Return the endpoint of an attempt: 10.0.0.1:29500, [fd00::1]:29500."""
    return _endpoint(attempt.address, attempt.port)


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def ranks_of(job: Job, uids: Collection[str]) -> list[RankFacts]:
    """Return the ranks that these processes report for."""
    return [r for r in job.ranks if r.process in uids]


@once
def _ranks_by_side(job: Job) -> dict[str, list[RankFacts]]:
    side = side_by_process(job)
    return grouped(job.ranks, lambda r: side[r.process])


@once
def _names(job: Job) -> dict[str, str]:
    return {node.key: node.name for node in job.nodes}


class Ways(NamedTuple):
    """The trials between the sides of a job: its nodes, or on a single node its processes."""

    job: Job
    tried: Mapping[Way, Sequence[PeerTrial]]

    @property
    def _ranks(self) -> dict[str, list[RankFacts]]:
        return _ranks_by_side(self.job)

    def ranks(self, sides: Iterable[str]) -> list[RankFacts]:
        """Return the ranks of these sides."""
        return [r for side in sides for r in self._ranks.get(side, ())]

    def among(self, sides: Collection[str]) -> list[str]:
        """Return these sides in rank order."""
        return [side for side in self._ranks if side in sides]

    def name(self, sides: Sequence[str]) -> str:
        """Return the names of sides: nodes, or ranks on a single node."""
        if len(self.job.nodes) < 2:
            return named(self.job, self.ranks(sides)) or "a process that is gone"
        return listed([_names(self.job)[side] for side in sides])

    def finding(
        self,
        failed: Mapping[Way, str],
        verb: str,
        nature: str,
        fix: Fix | None = None,
        *,
        severity: Severity = "error",
        values: Mapping[str, Sequence[str]] | None = None,
    ) -> Fault:
        """Return the finding about failing paths, located at the nodes that all of them share.

        `failed` maps each path to its reason. The message is: node2 cannot {verb} node1 {nature}.
        """
        order = {side: n for n, side in enumerate(self._ranks)}  # trials are in the order in which they ended
        failed = dict(sorted(failed.items(), key=lambda item: [order.get(side, len(order)) for side in item[0]]))
        blame = _blame(failed, self.tried)
        blame = blame._replace(sides=tuple(sorted(blame.sides, key=lambda side: order.get(side, len(order)))))
        first, concerned = next(iter(failed)), {side for way in failed for side in way}
        others = [side for side in self._ranks if side in concerned and side not in blame.sides]
        rest = len({frozenset(way) for way in failed}) - 1 if not blame.sides else 0
        more = f"; same for {rest} more {'pair' if rest == 1 else 'pairs'} of nodes" if rest else ""
        some = islice(failed.items(), _MOST)
        shown = [f"{self.name([s])} to {self.name([t])}: {why}" for (s, t), why in some]
        return found(
            self.job,
            self.ranks(blame.sides or others),
            f"{self._problem(failed, blame, others, verb, nature)} ({failed[first]}){more}",
            fix,
            severity=severity,
            scope="system" if blame.everywhere else "link",
            owner="admin",
            evidence={f"way {n}": line for n, line in enumerate(shown, start=1)}
            | ({"more_ways": len(failed) - _MOST} if len(failed) > _MOST else {}),
            values=values,
        )

    def _problem(self, failed: Mapping[Way, str], blame: _Blame, others: list[str], verb: str, nature: str) -> str:
        """Return which sides do not reach which, in one direction or in both."""
        if blame.everywhere:
            return f"no node can {verb} any other {nature}"
        if blame.both and len(blame.sides) > 1:
            return f"{self.name(blame.sides)} cannot {verb} any other node in either direction {nature}"
        way = next(iter(failed))
        ends: tuple[Sequence[str], Sequence[str]] = blame.sides or way[:1], others if blame.sides else way[1:]
        if blame.both or (not blame.sides and way[::-1] in failed):
            return f"{self.name(ends[0])} and {self.name(ends[1])} cannot {verb} each other {nature}"
        back = way[::-1] in self.tried
        if blame.sides:
            back = any(other[0 if blame.incoming else 1] == blame.sides[0] for other in self.tried)
        source, target = ends[::-1] if blame.incoming else ends
        return f"{self.name(source)} cannot {verb} {self.name(target)} {nature}{_ONE_WAY if back else ''}"


class _Blame(NamedTuple):
    """The sides that explain the failing paths; empty when only pairs can be named."""

    sides: tuple[str, ...] = ()
    both: bool = False
    """Whether both directions fail."""
    incoming: bool = False
    """With one failing direction: whether it is the one to these sides."""
    everywhere: bool = False


def _blame(failed: Collection[Way], tried: Collection[Way]) -> _Blame:
    """Return the few sides to or from which every path fails while all other paths work."""
    everybody = tuple(dict.fromkeys(side for way in tried for side in way))
    if len(everybody) > 2 and all(way in failed for way in tried):
        return _Blame(everybody, both=True, everywhere=True)
    deaf, mute = (_cut_off(failed, tried, end) for end in (1, 0))
    for sides, both, incoming in ((deaf & mute, True, False), (deaf, False, True), (mute, False, False)):
        covered = not any(sides.isdisjoint(way) if both else way[incoming] not in sides for way in failed)
        if sides and 2 * len(sides) < len(everybody) and covered:
            return _Blame(tuple(s for s in everybody if s in sides), both=both, incoming=incoming)
    # One side is an end of every failing path, and these paths lead to several other sides.
    shared = set(everybody).intersection(*failed)
    if len(shared) == 1 and len({side for way in failed for side in way}) > 2:
        side = shared.pop()
        ends = {way.index(side) for way in failed}
        return _Blame((side,), both=len(ends) > 1, incoming=ends == {1})
    return _Blame()


def _cut_off(failed: Collection[Way], tried: Collection[Way], end: int) -> set[str]:
    """Return the sides with at least two paths to (end 1) or from (end 0) them, all failing."""
    ways = grouped(tried, lambda way: way[end])
    return {side for side, those in ways.items() if len(those) > 1 and all(way in failed for way in those)}


def reason(trial: PeerTrial) -> str:
    """Return how a trial ended and at which endpoint."""
    at = f"{trial.outcome} at {_endpoint(trial.address, trial.port)}"
    return f"{at}, {trial.detail}" if trial.detail and trial.detail != trial.outcome else at


def nothing_arrived(sent: Transfer) -> bool:
    """Whether no data of a transfer arrived; False where the kernel counts no segments."""
    return sent.stalled and sent.segments > 0 and sent.bytes < _NEVER_BYTES


def interface_name(job: Job, node: NodeFacts) -> str:
    """Return the name of the interface through which a node and rank 0 reach each other."""
    way = own_way(job, survey(job).reach, node)
    return way.name if way else "eth0"
