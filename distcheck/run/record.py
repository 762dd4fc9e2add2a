"""The facts collected so far; they form a job at any moment, complete or not."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from distcheck import __version__
from distcheck.facts.asked import Look
from distcheck.facts.base import Missing
from distcheck.facts.gpu import GpuLoads
from distcheck.facts.history import History
from distcheck.facts.infiniband import Counters, Infiniband, grown
from distcheck.facts.isolation import Isolation
from distcheck.facts.job import Collectives, Job, Wait, usual_world_size
from distcheck.facts.merge import combine, with_loads
from distcheck.facts.nccl import NcclLog
from distcheck.facts.network import Attempt, PeerTrial, Resolution, ReverseLookup
from distcheck.facts.node import NodeFacts
from distcheck.facts.rank import ProcessFacts, RankFacts, RankRun, Stage
from distcheck.facts.repeated import Repeated

if TYPE_CHECKING:
    from distcheck.rollcall.protocol import PeerDoor, Report
    from distcheck.rollcall.server import Server
    from distcheck.run.request import Request


class Record:
    """What one process knows: its own facts and, on the leader, those of the followers."""

    def __init__(self, request: Request) -> None:
        self.asked, self.start = request.asked, request.start
        self.uid = _name()
        """Names this process in its job."""
        self.run = _name()
        self.met = False
        self.looked: set[Look] = set()
        """Looks that are complete."""
        self.skipped: dict[str, str] = {}
        self.peers: tuple[PeerTrial, ...] = ()
        self.collectives: Collectives | Missing | None = None
        self.isolation: Isolation | Missing | None = None
        self.repeated: Repeated | None = None
        self.waits: tuple[Wait, ...] = ()
        self.history: History | Missing | None = None
        self.node: NodeFacts | None = None
        self.process: ProcessFacts | None = None
        self.ranks: tuple[RankFacts, ...] = ()
        self._reports: dict[str, Report] = {}
        self._master_addr = next((p.master_addr or "" for p in request.placements), "")

    def begin(self, stage: Stage, followers: Iterable[str] = ()) -> None:
        """Note that this process begins a stage, and with it these followers."""
        now = round(time.monotonic() - self.start, 3)
        for uid in (self.uid, *followers):
            if (known := self._of(uid)) and known.process:
                began = {"started": 0.0, **known.process.began_seconds, stage: now}
                self._change(uid, stage=stage, began_seconds=began)

    def note(self, **fields: Any) -> None:
        """Note how this process's roll call went, in fields of its facts."""
        self._change(self.uid, **fields)

    def note_resolution(self, found: Resolution | Missing) -> None:
        """Note how MASTER_ADDR resolved, and if it did not, which names are spelt like it."""
        self.note(master_resolution=found)
        if isinstance(found, Missing):
            from distcheck.probe.network import names_like  # imported only when needed

            self.note(near_names=names_like(self._master_addr))

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """How this process's attempts at the roll call's endpoints ended."""
        return self.process.attempts if self.process is not None else ()

    def report(self, peer_doors: tuple[PeerDoor, ...] = ()) -> Report:
        """Return this process's own facts as the roll call sends them."""
        if self.node is None or self.process is None:
            raise RuntimeError("no facts collected yet")
        from distcheck.rollcall.protocol import Report

        return Report(
            node=self.node,
            process=self.process,
            ranks=self.ranks,
            peer_doors=peer_doors,
            clock_seconds=time.time(),
        )

    def take_reports(self, reports: Iterable[Report]) -> None:
        """Add the facts of followers."""
        from distcheck.rollcall import brief

        self._reports.update({r.process.uid: r for r in reports})
        known = brief.filled(tuple(self._reports.values()), self.node)
        self._reports = dict(zip(self._reports, known, strict=True))

    def take_late_reports(self, reports: Iterable[Report]) -> None:
        """Add the facts of late followers; facts of known followers stay as they are."""
        if late := [r for r in reports if r.process.uid not in self._reports]:
            self.take_reports(late)

    @property
    def briefly_told(self) -> tuple[str, ...]:
        """The followers whose nodes' facts are not known: nobody else sees what they see."""
        return tuple(uid for uid, report in self._reports.items() if report.brief)

    def take_nodes(self, nodes: Mapping[str, NodeFacts]) -> None:
        """Add what followers see of their nodes, by uid."""
        for uid, node in nodes.items():
            if node.key == self._reports[uid].node.key:
                self._reports[uid] = msgspec.structs.replace(self._reports[uid], node=node, brief="")

    def forget_refusals(self) -> None:
        """Drop refused attempts at MASTER_PORT, which were made before rank 0 came."""
        for uid in (self.uid, *self._reports):
            if (known := self._of(uid)) and known.process:
                kept = (a for a in known.process.attempts if a.door != "master" or a.outcome != "refused")
                self._change(uid, attempts=tuple(kept))

    def take_runs(self, runs: Mapping[int, RankRun], uid: str) -> None:
        """Add how a process's ranks ended in the collectives."""
        if known := self._of(uid):
            ran = (msgspec.structs.replace(r, run=runs.get(r.placement.rank or 0, r.run)) for r in known.ranks)
            self._set(uid, ranks=tuple(ran))

    def take_diagnostics(self, runs: Mapping[int, RankRun], uid: str) -> None:
        """Add what NCCL's diagnostics said in later processes of the ranks to the logs of the measured ones."""
        there = (*self.ranks, *(rank for report in self._reports.values() for rank in report.ranks))
        added = {}
        for rank in there:
            before, later = rank.run, runs.get(rank.placement.rank or 0)
            if before and later and isinstance(before.nccl, NcclLog) and isinstance(later.nccl, NcclLog):
                log = msgspec.structs.replace(before.nccl, diagnostics=later.nccl.diagnostics)
                added[rank.placement.rank or 0] = msgspec.structs.replace(before, nccl=log)
        self.take_runs(added, uid)

    def take_loads(self, loads: GpuLoads | Missing | None, uid: str) -> None:
        """Add what a process read from its node's GPUs while the collectives ran."""
        known = self._of(uid)
        if known and known.node and loads is not None:
            self._set(uid, node=with_loads(known.node, loads))

    def take_counters(self, counters: Counters | Missing | None, uid: str) -> None:
        """Add how much the counters of a node's RDMA adapters grew until the collectives had ended."""
        node = known.node if (known := self._of(uid)) else None
        if node is not None and counters is not None and isinstance(node.infiniband, Infiniband):
            self._set(uid, node=msgspec.structs.replace(node, infiniband=grown(node.infiniband, counters)))

    def _of(self, uid: str) -> Record | Report | None:
        """Return what is known of a process, with its node and ranks; None if it has not reported."""
        return self if uid == self.uid else self._reports.get(uid)

    def _set(self, uid: str, **parts: Any) -> None:
        """Replace the node, the process or the ranks of a process that reported."""
        if uid == self.uid:
            vars(self).update(parts)
        else:
            self._reports[uid] = msgspec.structs.replace(self._reports[uid], **parts)

    @property
    def followers(self) -> tuple[str, ...]:
        """The followers that reported and were not lost."""
        return tuple(uid for uid, report in self._reports.items() if not report.process.lost)

    @property
    def world_size(self) -> int:
        """The world size of most ranks that are known, 1 if none has one."""
        followers = (rank for report in self._reports.values() for rank in report.ranks)
        return usual_world_size((*self.ranks, *followers)) or 1

    def ranks_of(self, uid: str) -> frozenset[int]:
        """Return the ranks that a process reports for."""
        known = self._of(uid)
        return (
            frozenset(r.placement.rank for r in known.ranks if r.placement.rank is not None) if known else frozenset()
        )

    def note_lost(self, uid: str, how: str) -> None:
        """Note that a follower is lost; its stage and an earlier reason stay."""
        if uid in self._reports and not self._reports[uid].process.lost:
            self._change(uid, lost=how)

    def note_silent(self, server: Server, uids: Iterable[str], what: str) -> None:
        """Note followers that did not answer, with `what` as the reason."""
        for uid in uids:
            self.note_lost(uid, "connection closed" if server.followers[uid].gone else what)

    def note_arrivals(self, arrived_at: Mapping[str, float], opened_at: float) -> None:
        """Note when each process arrived, counted from the first.

        The leader arrives when it starts to listen.
        """
        first = min(opened_at, *arrived_at.values()) if arrived_at else opened_at
        self._change(self.uid, arrived_seconds=opened_at - first)
        for uid, moment in arrived_at.items():  # a follower counts from its own start, and arrives as it begins to meet
            own = self._reports[uid].process.began_seconds if uid in self._reports else {}
            later = moment - self.start - own.get("meeting", 0.0)
            began = {stage: round(at + later, 3) for stage, at in own.items()}
            self._change(uid, arrived_seconds=moment - first, began_seconds=began)

    def note_reverse(self, reverse: Mapping[str, tuple[ReverseLookup, ...]]) -> None:
        """Note the processes' reverse look-ups."""
        for uid, found in reverse.items():
            self._change(uid, reverse=found)

    def note_addresses(self, seen: Mapping[str, str]) -> None:
        """Note at which address this process sees each follower, where the follower's node does not have it."""
        for uid, address in seen.items():
            node = self._reports[uid].node
            if not isinstance(node.interfaces, Missing) and all(i.address != address for i in node.interfaces):
                self._change(uid, seen_at=address)

    def note_done(self, stage: Stage, done_at: Mapping[str, float], silent: Collection[str] = ()) -> None:
        """Note for whom a stage waited: when each process was done with it (time.monotonic()), and who never was."""
        moments = dict(done_at) | dict.fromkeys(silent, time.monotonic())
        if len(moments) > 1:
            last = max(moments, key=moments.__getitem__)
            others = (at for uid, at in moments.items() if uid != last and uid not in silent)
            before = max(others, default=moments[last])
            seconds = round(max(0.0, moments[last] - before), 3)
            self.waits = (*self.waits, Wait(stage, last, seconds, silent=last in silent))

    def _change(self, uid: str, **fields: Any) -> None:
        """Replace fields of a process; one that has not reported has none."""
        known = self._of(uid)
        if known and known.process:
            self._set(uid, process=msgspec.structs.replace(known.process, **fields))

    def skip(self, looks: Iterable[Look], reason: str) -> None:
        """Note that looks are skipped, and why; the first reason stays."""
        for look in looks:
            if look in self.asked.looks:
                self.skipped.setdefault(look, reason)

    def job(self, looks: Iterable[Look] | None = None) -> Job:
        """Return the job as known now, limited to `looks`; None means all requested looks."""
        asked = self.asked if looks is None else msgspec.structs.replace(self.asked, looks=tuple(looks))
        known = [(self.node, self.process, self.ranks)] if self.node and self.process else []
        known += [(r.node, r.process, r.ranks) for r in self._reports.values()]
        ranks = sorted(
            (r for _, _, ranks in known for r in ranks),
            key=lambda r: (r.placement.rank is None, r.placement.rank or 0, r.process),
        )
        home = {process.uid: (node, process) for node, process, _ in known}
        # The process of a node's lowest rank reports for the node.
        pairs = {uid: home[uid] for uid in (*(r.process for r in ranks), *home)}
        nodes, processes = combine(pairs.values())
        order = {uid: place for place, uid in enumerate(home)}
        return Job(
            distcheck=__version__,
            run=self.run,
            asked=asked,
            seconds=round(time.monotonic() - self.start, 3),
            met=self.met,
            nodes=tuple(nodes.values()),
            processes=tuple(sorted(processes, key=lambda p: order[p.uid])),
            ranks=tuple(ranks),
            peers=self.peers,
            collectives=self.collectives,
            isolation=self.isolation,
            repeated=self.repeated,
            waits=self.waits,
            skipped=dict(self.skipped),
            history=self.history,
            at=now(),
            host=self.node.name if self.node else os.uname().nodename,
        )


def now() -> str:
    """Return the local time with its zone: 2026-11-28 20:31:43 +0000."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def _name() -> str:
    """Return a unique name; os.urandom avoids the 6 ms of imports of the secrets module."""
    return os.urandom(8).hex()
