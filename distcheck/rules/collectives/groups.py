"""Rules about the groups of a mesh: whether they form, and whether one is slower than its sisters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.collectives.dimensions import inside, measured
from distcheck.collectives.plan import bus_factor
from distcheck.facts.groups import GroupFigure, with_groups
from distcheck.facts.isolation import Isolation
from distcheck.facts.job import Collectives, Job
from distcheck.facts.members import Members
from distcheck.facts.quantities import size
from distcheck.facts.ranges import numbered
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.endings import endings, evidence_of, who, why_ended
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.wording import found, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.mesh import Mesh

_HALF = 0.5
"""On GPUs a group below this share of its sisters is an error; sisters may lie at other distances."""
_MOST = 8
"""Slow groups in the evidence."""


class _Slow(NamedTuple):
    """A group that is slow in one operation."""

    figure: GroupFigure
    ranks: range
    places: dict[int, str]
    """The node of each of its ranks."""
    share: float
    """Its speed as a share of that of its sisters."""
    speed: float
    """GB/s of bus bandwidth."""

    @property
    def name(self) -> str:
        """The group with its ranks and nodes: the dp group of ranks 1,3 (node1 and node2)."""
        nodes = listed(tuple(dict.fromkeys(self.places.values())))
        return f"the {self.figure.dimension} group of {numbered(self.ranks)} ({nodes})"


@rule("collectives", scope="node", owner="unknown")
def collective_group_incomplete(job: Job) -> Iterator[Outcome]:
    """Some ranks did not come to form their group of the mesh.

    ``new_group`` and ``init_device_mesh`` return only when every rank of the group has called them. A rank that hangs
    before, or takes another branch of the program, keeps its whole group waiting until the timeout of 10 or 30 minutes:
    ``Timed out initializing process group in store based barrier``. The error names no rank.

    Found by the first rank that comes to a group: it waits 8 s for the others, and then asks the store who came. Ranks
    that were stopped or died are reported by their own rules.

    Fix: Check the processes of these ranks and their nodes first.

        distcheck isolate
        dmesg -T | tail -n 50

    See: https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group
    """
    ended = endings(job)
    absent = {rank for awaiting in ended["awaiting"] if awaiting.run for rank in awaiting.run.absent}
    explained = {r.placement.rank for how in ("stopped", "died", "not started", "failed") for r in ended[how]}
    unexplained = absent - explained
    ranks = [r for r in job.ranks if r.placement.rank in unexplained]
    if ranks:
        steps = grouped(ended["awaiting"], lambda r: (r.run.step if r.run else "").partition(":")[0])
        yield found(
            job,
            ranks,
            f"{who(job, ranks)} did not come to form {'its' if len(ranks) == 1 else 'their'} "
            f"{listed([dimension for dimension in steps if dimension])} group; the other ranks waited",
            confirmed=False,
            evidence=evidence_of(ranks),
        )


@rule("collectives", scope="link", owner="unknown")
def perf_group_slow(job: Job) -> Iterator[Outcome]:
    """Some groups of the mesh are far slower than others of the same shape.

    A step of the job takes as long as its slowest group. A collective over the whole world does not show which group
    that is.

    Found by measuring all groups of a dimension at the same time, and comparing those that have as many ranks on as
    many nodes with the same GPUs. A group is slow if its median is, and its quickest of at least six bursts too. With
    NCCL, less than half of the others' speed is an error. On CPUs the time for which its ranks waited for CPUs that
    others use does not count, and what is left of the median is compared with the others' quickest bursts; the time in
    which a CPU limit holds them counts. All groups between the same nodes must be slow there: they share cores and
    network. A gate then searches the nodes for the one at fault.

    Fix: Check the nodes that the slow groups have in common, and find the slow node or link.

        distcheck isolate
        distcheck net
    """
    ran = job.collectives
    if not isinstance(ran, Collectives) or ran.mesh is None:
        return
    slow = _slow(job, ran)
    if slow:
        worst = min(slow, key=lambda each: each.share)
        common = set.intersection(*(set(each.places.values()) for each in slow))
        where = sorted(common or {node for each in slow for node in each.places.values()})
        of = grouped(slow, lambda each: each.figure.dimension)
        counted = listed(
            [f"{len({g.ranks for g in its})} of {len(its[0].figure.seconds)} {name} groups" for name, its in of.items()]
        )
        shared = f"; each of them has ranks on {listed(where)}" if common and len(slow) > 1 else ""
        yield Fault(
            severity="error" if ran.backend == "nccl" and worst.share < _HALF else "warning",
            confirmed=False,
            ranks=tuple(sorted({rank for each in slow for rank, node in each.places.items() if node in where})),
            nodes=tuple(where),
            message=f"{counted} {'is' if len(slow) == 1 else 'are'} slow: {worst.name} reaches {worst.share:.0%} of "
            f"the speed of its sister groups in {worst.figure.op} of {size(worst.figure.bytes)}{shared}",
            evidence={
                f"{each.figure.op} in {each.name}": f"{each.speed:.3g} GB/s, {each.share:.0%} of its sisters"
                for each in sorted(slow, key=lambda each: each.share)[:_MOST]
            }
            | ({"isolation": job.isolation.sentence} if isinstance(job.isolation, Isolation) else {}),
        )
    yield from _unmeasured(job, ran, ran.mesh)


def slow_operations(job: Job) -> list[str]:
    """Return the operations in which a group of the mesh is slow, the slowest first."""
    ran = job.collectives
    slow = _slow(job, ran) if isinstance(ran, Collectives) and ran.mesh is not None else ()
    return [each.figure.op for each in sorted(slow, key=lambda each: each.share)]


def _slow(job: Job, ran: Collectives) -> list[_Slow]:
    """Return the groups that are slow in an operation, compared with groups of the same shape."""
    from distcheck.isolation.figures import shares  # only needed with a mesh
    from distcheck.isolation.state import settings_for

    members = Members(job)
    nodes = {rank: node for node, here in members.by_node.items() for ranks in here.values() for rank in ranks}
    settings = settings_for(ran.backend)
    most, work = settings.slow_share, settings.slow_work_share
    slow: list[_Slow] = []
    for figure, groups in with_groups(ran.mesh, ran.groups, len(nodes)):
        measured_bytes = figure.bytes * (bus_factor(figure.op, len(groups[0])) or 1.0)
        own = figure.own_seconds or figure.best_seconds
        known = [
            (ranks, measured_bytes / usual, measured_bytes / best, measured_bytes / its)
            for ranks, usual, best, its in zip(groups, figure.seconds, figure.best_seconds, own, strict=False)
            if figure.bytes and usual and best and its and nodes.keys() >= set(ranks)
        ]
        for sisters in grouped(known, lambda group: _shape(members, nodes, group[0])).values():
            ranks, usual, best, its = zip(*sisters, strict=True)
            if figure.own_seconds:
                judged = [(share, is_slow or share < work) for share, is_slow in shares(best, most, its)]
            else:
                both = zip(shares(usual, most), shares(best, most), strict=True)
                judged = [(max(a, b), a_slow and b_slow) for (a, a_slow), (b, b_slow) in both]
            at = [frozenset(nodes[rank] for rank in group) for group in ranks]
            good = {where for where, (_, is_slow) in zip(at, judged, strict=True) if not is_slow}
            for group, where, speed, (share, is_slow) in zip(ranks, at, usual, judged, strict=True):
                if is_slow and not (ran.backend == "gloo" and where in good):
                    slow.append(_Slow(figure, group, {rank: nodes[rank] for rank in group}, share, speed / 1e9))
    return slow


def _shape(members: Members, nodes: dict[int, str], ranks: range) -> tuple[object, ...]:
    """Return what makes groups comparable: how many ranks they have on each of how many nodes, and their GPUs."""
    on = grouped(ranks, nodes.__getitem__)
    return tuple(sorted(map(len, on.values()))), members.like(tuple(on))


def _unmeasured(job: Job, ran: Collectives, mesh: Mesh) -> Iterator[NotChecked]:
    """Yield the operations without a figure, where no finding about the collectives explains them."""
    figures = {(figure.dimension, figure.op): figure for figure in ran.groups}
    for (dimension, op), figure in figures.items():
        if figure.lacks:
            yield NotChecked(required=False, reason=f"{inside(op, dimension)} not measured: {figure.lacks}")
    if any(endings(job).values()):
        return
    complete = {part for part, figure in figures.items() if figure.seconds and None not in figure.seconds}
    gaps = [
        inside(op, dimension)
        for dimension, op in measured(mesh)
        if (dimension, op) not in complete and not ((there := figures.get((dimension, op))) and there.lacks)
    ]
    if gaps:
        yield NotChecked(reason=f"no figure for {listed(gaps)}{why_ended(job) or '; raise --timeout'}")
