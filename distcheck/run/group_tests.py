"""One round of group tests: the leader has the processes of each group run the collectives again, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distcheck.collectives.plan import Plan, for_cpus
from distcheck.isolation import round as rounds
from distcheck.rollcall import connection
from distcheck.rollcall.protocol import Halt, RunReport, StartTrial, StoreAt
from distcheck.run import trials
from distcheck.run.results import result_of

if TYPE_CHECKING:
    from distcheck.facts.members import Members
    from distcheck.isolation.round import NodeGroup, Result, Round
    from distcheck.rollcall.server import Server
    from distcheck.run.context import Session

OPERATIONS = ("all_reduce", "broadcast")
_TIMES_THE_FIRST, _LEAST_SECONDS = 4.0, 8.0
"""A group hangs if it takes this many times as long again as the first one that passed, and at least this long."""
_LONGEST_TRIAL_SECONDS = 60.0
_TROUBLE_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_LAST_WORDS_SECONDS = 4.0
"""Limit for a process to answer a Halt; it only has to kill its ranks."""
_CPU_BYTES, _GPU_BYTES = 1 << 20, 64 << 20
_CPU_BURST_SECONDS, _GPU_BURST_SECONDS = 0.1, 0.2


class GroupTests:
    """One round: all groups are tested at the same time, each by the processes of its nodes."""

    def __init__(
        self,
        run: Session,
        server: Server | None,
        members: Members,
        backend: str,
        step: Round,
        seconds: float,
        *,
        operations: tuple[str, ...] = OPERATIONS,
        plan: Plan | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.run, self.server, self.members, self.backend, self.step = run, server, members, backend, step
        self.operations = operations
        """What shows a bad node; the speed of the first one is judged."""
        self.plan = plan
        """What to run instead."""
        self.variables = dict(variables or {})
        """Environment variables to set in the rank processes."""
        self.until = asyncio.get_running_loop().time() + seconds
        self.halted = asyncio.Event()
        """Set to end this process's own ranks in the round."""
        self.lost: dict[str, str] = {}
        """Nodes with a process that did not answer, with the reason."""
        self.reports: dict[str, RunReport] = {}
        """The last report of each process."""

    async def hold(self) -> list[Result]:
        """Test every group and return the results."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        testing = [asyncio.ensure_future(self._test(number, group)) for number, group in enumerate(self.step.groups)]
        ended: set[asyncio.Task[Result]] = set()
        while len(ended) < len(testing) and not any(task.result().ended == "passed" for task in ended):
            done, _ = await asyncio.wait(
                set(testing) - ended, timeout=max(0.0, self.until - loop.time()), return_when="FIRST_COMPLETED"
            )
            ended |= done
            if not done:
                break
        else:
            self.until = loop.time() + max(_TIMES_THE_FIRST * (loop.time() - began), _LEAST_SECONDS)
        # Every group ends by itself at `until` and reports soon after.
        _, late = await asyncio.wait(testing, timeout=self._left() + 2 * _LAST_WORDS_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return [task.result() for task in testing if task not in late]

    async def _test(self, number: int, group: NodeGroup) -> Result:
        parts = self.members.parts(group.nodes)
        opener, *others = parts
        reports: dict[str, RunReport] = {}
        opened = asyncio.get_running_loop().create_future()
        members = {opener: asyncio.ensure_future(self._member(opener, self._trial(group, parts[opener], None), opened))}
        await self._first_of({opened, members[opener]})
        if opened.done() and others:
            store = (self._address(opener), opened.result())
            members |= {
                uid: asyncio.ensure_future(self._member(uid, self._trial(group, parts[uid], store), None))
                for uid in others
            }
        pending = set(members.values())
        while pending:
            done, pending = await self._first_of(pending)
            reports |= {r[0]: r[1] for task in done if (r := task.result())[1] is not None}
            broken = any(run.outcome != "done" for report in reports.values() for run in report.runs.values())
            if not done or broken:
                break
        if pending:
            await asyncio.wait(pending, timeout=_TROUBLE_SECONDS if self._left() > 0 else 0)
            self._halt(uid for uid, task in members.items() if not task.done())
            await asyncio.wait(pending, timeout=_LAST_WORDS_SECONDS)
        for task in members.values():
            if task.done():
                uid, report = task.result()
                reports |= {uid: report} if report is not None else {}
            task.cancel()
        self.reports |= reports
        silent = [uid for uid in members if uid not in reports]
        if silent:
            return self._without(number, group, silent)
        measured = self.plan.operations if self.plan else self.operations
        return result_of(number, group, self.members, reports, self.backend, measured[0])

    def _without(self, number: int, group: NodeGroup, silent: Sequence[str]) -> Result:
        """Record the processes that did not answer; their group counts as untested.

        A lost process did no bad work, and neither did those that waited for it.
        """
        followers = [uid for uid in silent if uid != self.run.uid]
        if self.server is not None:
            self.run.record.note_silent(self.server, followers, "no answer during the search for a bad node")
            for uid in followers:
                node = next(node for node in group.nodes if uid in self.members.by_node[node])
                gone = self.server.followers[uid].gone
                self.lost[node] = "connection closed" if gone else "no answer"
        return rounds.Result(group=number, ended="untested")

    async def _first_of(self, waiting: Iterable[asyncio.Future[Any]]) -> tuple[set[Any], set[Any]]:
        """Wait until one is done or the round's time is up, which may be shortened meanwhile."""
        while True:
            done, pending = await asyncio.wait(
                waiting, timeout=min(_LOOK_SECONDS, self._left()), return_when="FIRST_COMPLETED"
            )
            if done or self._left() <= 0:
                return done, pending

    def _left(self) -> float:
        return max(0.0, self.until - asyncio.get_running_loop().time())

    def _trial(
        self, group: NodeGroup, parts: Mapping[int, tuple[int, int]], store: tuple[str, int] | None
    ) -> StartTrial:
        on_cpu = for_cpus(self.backend)
        # GPUs have their own adapters; Gloo uses one interface for all ranks.
        rails = len(self.members.facing(group.nodes)) if self.backend == "nccl" else 0
        plan = self.plan or Plan(
            backend=self.backend,
            backend_name=self.run.asked.backend_name,
            operations=(*self.operations, "send_recv") if rails else self.operations,
            sizes_bytes=(_CPU_BYTES if on_cpu else _GPU_BYTES,),
            deadline_seconds=60.0,
            burst_seconds=_CPU_BURST_SECONDS if on_cpu else _GPU_BURST_SECONDS,
            stride=rails or 1,
            compute=group.purpose == "alone",
        )
        return StartTrial(self.step.number, plan, _LONGEST_TRIAL_SECONDS, dict(parts), store, self.variables)

    def _address(self, uid: str) -> str:
        """Return where others reach a process; empty for the leader's own host."""
        if self.server is None or uid == self.run.uid:
            return ""
        address = self.server.followers[uid].address
        return "" if connection.is_loopback(address) else address

    async def _member(
        self, uid: str, trial: StartTrial, opened: asyncio.Future[int] | None
    ) -> tuple[str, RunReport | None]:
        """Have one process take part; return its report, None if the process is gone."""

        def tell(port: int) -> None:
            if opened is not None and not opened.done():
                opened.set_result(port)

        if uid == self.run.uid:
            return uid, await trials.take_part(self.run, trial, "127.0.0.1", self.halted, tell)
        if self.server is None:
            return uid, None
        follower = self.server.followers[uid]
        follower.say(trial)
        while (word := await follower.hear()) is not None:
            if isinstance(word, StoreAt) and word.trial == trial.number:
                tell(word.port)
            elif isinstance(word, RunReport) and word.trial == trial.number:
                return uid, word
        return uid, None

    def _halt(self, uids: Iterable[str]) -> None:
        for uid in tuple(uids):
            if uid == self.run.uid:
                self.halted.set()
            elif self.server is not None:
                self.server.followers[uid].say(Halt(self.step.number))
