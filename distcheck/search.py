"""The search for a bad node, link or rank: the host has groups of nodes tested, round by round, until it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from distcheck import trials
from distcheck.collectives.plan import Plan, Timing, bus_factor
from distcheck.facts import Culprit, Gpus, GroupTest, Isolation, Job, NodeFacts, RankRun, Sides, Suspects
from distcheck.isolation import round as rounds
from distcheck.isolation.schedule import next_round, so_far, take
from distcheck.isolation.state import Settings, State, lose, start
from distcheck.isolation.verdict import Evidence, Verdict
from distcheck.rollcall import protocol
from distcheck.rollcall.protocol import Halt, RunReport, StoreAt, Trial

if TYPE_CHECKING:
    from distcheck.isolation.round import Group, Result, Round
    from distcheck.rollcall.server import Server
    from distcheck.session import Session

_RESERVE_SECONDS = 4.0
"""Of --timeout, in which the report is made."""
_FIRST_ON_CPUS_SECONDS, _FIRST_ON_GPUS_SECONDS = 12.0, 30.0
"""In which the first group of a round must have ended, forks and connections included; CUDA starts anew in each."""
_TIMES_THE_FIRST, _LEAST_SECONDS = 4.0, 8.0
"""A group that is still busy so many times as long again as the first one that passed took, and so long, hangs."""
_LONGEST_TRIAL_SECONDS = 60.0
_LEAST_ROUND_SECONDS = 4.0
"""With less than that left, no other round is begun."""
_TROUBLE_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_LAST_WORDS_SECONDS = 4.0
"""In which a process that was told to end a trial must have answered; it only waits for its ranks to be killed."""
_SLOW_ON_CPUS = 0.35
"""Of the others' median: Gloo's ranks use the CPUs for everything, and whatever else runs there shows."""
_CPU_BYTES, _GPU_BYTES = 1 << 20, 64 << 20
_CPU_BURST_SECONDS, _GPU_BURST_SECONDS = 0.1, 0.2


class _Members:
    """Which processes, and which of their ranks, a node has."""

    def __init__(self, job: Job) -> None:
        self.nodes: dict[str, NodeFacts] = {node.key: node for node in job.nodes}
        self.names = job.node_names
        self.by_node: dict[str, dict[str, tuple[int, ...]]] = {}
        lost = {process.uid for process in job.processes if process.lost}
        for rank in job.ranks:
            if rank.placement.rank is not None and rank.process not in lost:
                of_node = self.by_node.setdefault(self.names[job.node_of(rank).key], {})
                of_node[rank.process] = (*of_node.get(rank.process, ()), rank.placement.rank)
        self.local_ranks = {r.placement.rank: r.placement.local_rank or 0 for r in job.ranks}

    def parts(self, nodes: Sequence[str]) -> dict[str, dict[int, tuple[int, int]]]:
        """Return each process's ranks with their number in the group and its size."""
        ranks = [(uid, rank) for node in nodes for uid, here in self.by_node[node].items() for rank in here]
        parts: dict[str, dict[int, tuple[int, int]]] = {}
        for number, (uid, rank) in enumerate(ranks):
            parts.setdefault(uid, {})[rank] = (number, len(ranks))
        return parts

    def facing(self, nodes: Sequence[str]) -> dict[int, tuple[int, int]]:
        """Return the ranks of two nodes that have the same place, by local rank; empty where these differ."""
        if len(nodes) != 2:
            return {}
        one, other = ([rank for here in self.by_node[node].values() for rank in here] for node in nodes)
        places = [self.local_ranks[rank] for rank in one]
        if places != [self.local_ranks[rank] for rank in other] or not 1 < len(places) == len(set(places)):
            return {}
        return dict(zip(places, zip(one, other, strict=True), strict=True))

    def like(self, nodes: Sequence[str]) -> str:
        """Say what makes figures of groups comparable: ranks per node and models of GPU."""
        counts = sorted(sum(map(len, self.by_node[node].values())) for node in nodes)
        models = {
            gpu.name
            for facts in self.nodes.values()
            if self.names[facts.key] in nodes and isinstance(facts.gpus, Gpus)
            for gpu in facts.gpus.devices
            if isinstance(gpu.name, str)
        }
        return f"{counts} ranks on {sorted(models)}"


async def search(run: Session, server: Server | None, backend: str) -> Isolation:
    """Test groups of nodes until it is known who is bad, or the time is over."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    job = run.record.job()
    members = _Members(job)
    missing = {}
    if job.missing_ranks:
        missing = {f"ranks {', '.join(map(str, job.missing_ranks[:8]))}": "nobody spoke for them"}
    settings = Settings(slow_share=_SLOW_ON_CPUS) if backend == "gloo" else Settings()
    state = start(members.by_node, seed=job.world_size or 0, missing=missing, settings=settings)
    first = _FIRST_ON_CPUS_SECONDS if backend == "gloo" else _FIRST_ON_GPUS_SECONDS
    state = lose(state, await _without_torch(run, server, members))
    while True:
        step = next_round(state)
        took = round(loop.time() - began, 1)
        if isinstance(step, Verdict):
            return _facts(step, state.nodes, took)
        left = run.remaining(_RESERVE_SECONDS)
        if left < _LEAST_ROUND_SECONDS:
            return _ended_early(_facts(so_far(state), state.nodes, took))
        run.say(_announced(step, state))
        held = _Round(run, server, members, backend, step, min(first, left))
        state = lose(take(state, step, await held.hold()), held.lost)
        for trial in state.rounds[-1][1]:
            if trial.bad:
                run.say(f"round {step.number}: {', '.join(trial.nodes)}: {trial.outcome}")


async def _without_torch(run: Session, server: Server | None, members: _Members) -> dict[str, str]:
    """Wait until torch is imported everywhere, for half of the time at most; return the nodes where it is not."""
    waiting: dict[asyncio.Future[Any], str] = {}
    for node, here in members.by_node.items():
        for uid in here:
            if uid == run.uid and run.local is not None:
                waiting[asyncio.ensure_future(asyncio.shield(run.local.imported))] = node
            elif server is not None and uid != run.uid:
                waiting[asyncio.ensure_future(server.guests[uid].ready.wait())] = node
    seconds = run.remaining(_RESERVE_SECONDS) / 2
    _, late = await asyncio.wait(waiting, timeout=seconds) if waiting else (None, ())
    for task in late:
        task.cancel()
    return {waiting[task]: f"torch was not imported within {seconds:.0f} s" for task in late}


def _facts(verdict: Verdict, nodes: Sequence[str], seconds: float) -> Isolation:
    # What every node shows may be the job's own configuration; with one or two there is nobody to tell them by.
    everybody = {n for c in verdict.culprits if c.part != "link" for n in c.nodes} >= set(nodes)
    return Isolation(
        kind=verdict.kind,
        sentence=verdict.sentence,
        culprits=tuple(
            Culprit(
                c.part,
                c.nodes,
                c.local_ranks,
                c.fault,
                c.passed,
                c.tests,
                c.certain and not everybody,
                _tests(c.evidence),
                c.sentence,
            )
            for c in verdict.culprits
        ),
        boundaries=tuple(Sides(b.sides, b.cause) for b in verdict.boundaries),
        undecided=tuple(Suspects(s.nodes, _tests(s.evidence), s.sentence) for s in verdict.undecided),
        # Whoever is lost is known to be lost, and nothing else of it is known.
        untested=(*verdict.untested, *verdict.missing),
        widespread=verdict.widespread,
        rounds=verdict.rounds,
        seconds=seconds,
    )


def _ended_early(found: Isolation) -> Isolation:
    """Keep only whom it had convicted: of all others the next round would have told more."""
    named = [culprit.sentence for culprit in found.culprits]
    sentence = "; ".join(["the time for it was over", *named])
    return replace(found, kind="ended", sentence=sentence, boundaries=(), undecided=())


def _tests(evidence: Sequence[Evidence]) -> tuple[GroupTest, ...]:
    return tuple(
        GroupTest(e.round, e.nodes, e.purpose, e.outcome, e.ratio, tuple(f"{s.node}: {s.text}" for s in e.said[:4]))
        for e in evidence
    )


def _announced(step: Round, state: State) -> str:
    purposes = dict.fromkeys(group.purpose for group in step.groups)
    return f"round {step.number}: {' and '.join(purposes)}, {len(step.groups)} groups of {len(state.nodes)} nodes"


class _Round:
    """One round: all groups at the same time, each with the processes of its nodes."""

    def __init__(
        self, run: Session, server: Server | None, members: _Members, backend: str, step: Round, seconds: float
    ) -> None:
        self.run, self.server, self.members, self.backend, self.step = run, server, members, backend, step
        self.until = asyncio.get_running_loop().time() + seconds
        self.halted = asyncio.Event()
        """Ends what this process's own ranks do in the round."""
        self.lost: dict[str, str] = {}
        """Nodes of which a process did not answer, with the reason."""

    async def hold(self) -> list[Result]:
        """Have every group tested and return what came of each."""
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
        # Every group ends by `until` of its own accord, and says so within moments.
        _, late = await asyncio.wait(testing, timeout=self._left() + 2 * _LAST_WORDS_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return [task.result() for task in testing if task not in late]

    async def _test(self, number: int, group: Group) -> Result:
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
        silent = [uid for uid in members if uid not in reports]
        if silent:
            return self._without(number, group, silent)
        return self._result(number, group, parts, reports)

    def _without(self, number: int, group: Group, silent: Sequence[str]) -> Result:
        """Note who did not answer: whoever is lost did no bad work, nor did those who waited for it."""
        guests = [uid for uid in silent if uid != self.run.uid]
        if self.server is not None:
            self.run.record.note_silent(self.server, guests, "it did not answer during the search for a bad node")
            for uid in guests:
                node = next(node for node in group.nodes if uid in self.members.by_node[node])
                gone = self.server.guests[uid].gone
                self.lost[node] = "its connection was closed" if gone else "it did not answer"
        return rounds.Result(group=number, ended="untested")

    async def _first_of(self, waiting: Iterable[asyncio.Future[Any]]) -> tuple[set[Any], set[Any]]:
        """Wait until one is done, or the round's time is over, which may come to be earlier meanwhile."""
        while True:
            done, pending = await asyncio.wait(
                waiting, timeout=min(_LOOK_SECONDS, self._left()), return_when="FIRST_COMPLETED"
            )
            if done or self._left() <= 0:
                return done, pending

    def _left(self) -> float:
        return max(0.0, self.until - asyncio.get_running_loop().time())

    def _trial(self, group: Group, parts: Mapping[int, tuple[int, int]], store: tuple[str, int] | None) -> Trial:
        on_cpu = self.backend == "gloo"
        # GPUs have adapters of their own; Gloo has one interface for all ranks.
        rails = len(self.members.facing(group.nodes)) if self.backend == "nccl" else 0
        plan = Plan(
            backend=self.backend,  # type: ignore[arg-type]  # one of the backends of --backend
            operations=("all_reduce", "broadcast", "send_recv") if rails else ("all_reduce", "broadcast"),
            sizes_bytes=(_CPU_BYTES if on_cpu else _GPU_BYTES,),
            deadline_seconds=60.0,
            burst_seconds=_CPU_BURST_SECONDS if on_cpu else _GPU_BURST_SECONDS,
            stride=rails or 1,
            compute=group.purpose == "alone",
        )
        return Trial(self.step.number, plan, _LONGEST_TRIAL_SECONDS, dict(parts), store)

    def _address(self, uid: str) -> str:
        """Return where others reach a process; empty for this host, which every guest has reached."""
        if self.server is None or uid == self.run.uid:
            return ""
        address = protocol.plain_address(self.server.guests[uid].writer.get_extra_info("peername")[0])
        return "" if protocol.is_loopback(address) else address

    async def _member(self, uid: str, trial: Trial, opened: asyncio.Future[int] | None) -> tuple[str, RunReport | None]:
        """Have one process take part; None when it has gone."""

        def tell(port: int) -> None:
            if opened is not None and not opened.done():
                opened.set_result(port)

        if uid == self.run.uid:
            return uid, await trials.take_part(self.run, trial, "127.0.0.1", self.halted, tell)
        if self.server is None:
            return uid, None
        guest = self.server.guests[uid]
        guest.say(trial)
        while not guest.gone or not guest.words.empty():
            word = await guest.words.get()
            if isinstance(word, StoreAt) and word.trial == trial.number:
                tell(word.port)
            elif isinstance(word, RunReport) and word.trial == trial.number:
                return uid, word
            elif word is None:
                break
        return uid, None

    def _halt(self, uids: Iterable[str]) -> None:
        for uid in tuple(uids):
            if uid == self.run.uid:
                self.halted.set()
            elif self.server is not None:
                self.server.guests[uid].say(Halt(self.step.number))

    def _result(
        self,
        number: int,
        group: Group,
        parts: Mapping[str, Mapping[int, tuple[int, int]]],
        reports: Mapping[str, RunReport],
    ) -> Result:
        size = sum(map(len, parts.values()))
        runs: dict[int, RankRun] = {}
        for uid, report in reports.items():
            runs |= {rank: run for rank, run in report.runs.items() if rank in parts[uid]}
        node_of = {rank: node for node in group.nodes for here in self.members.by_node[node].values() for rank in here}
        computed = {rank: c for report in reports.values() for rank, c in report.computed.items() if rank in runs}
        wrong = {rank for rank, run in runs.items() if any(run.wrong.values())}
        wrong |= {rank for rank, c in computed.items() if c.wrong}
        said = tuple(
            rounds.Said(node_of[rank], self.members.local_ranks.get(rank), words)
            for rank, run in runs.items()
            if (words := _words(run, wrong=rank in wrong))
        )
        timings: dict[str, dict[int, Timing]] = {}
        for report in reports.values():
            for rank, timing in report.timings:
                timings.setdefault(timing.op, {})[rank] = timing
        whole = timings.get("all_reduce", {})
        seconds = _seconds(whole.values(), size)
        factor = bus_factor("all_reduce", size)
        moved = next(iter(whole.values())).bytes if seconds else 0
        return rounds.Result(
            group=number,
            ended=_ended(runs, wrong, size),
            seconds=seconds,
            busbw_GBps=moved / seconds / 1e9 * factor if seconds and factor else None,
            like=self.members.like(group.nodes),
            rails=_rails(self.members.facing(group.nodes), runs, timings.get("send_recv", {})),
            compute=tuple(
                rounds.Compute(
                    node_of[rank], self.members.local_ranks.get(rank, 0), c.matmul_seconds, c.copy_seconds, self.backend
                )
                for rank, c in computed.items()
            ),
            said=said,
        )


def _rails(
    facing: Mapping[int, tuple[int, int]], runs: Mapping[int, RankRun], timings: Mapping[int, Timing]
) -> tuple[rounds.Rail, ...]:
    """Return how the ranks of two nodes fared that face each other, by their local rank."""
    found: list[rounds.Rail] = []
    for local_rank, pair in facing.items() if timings else ():
        if any(runs[rank].wrong.get("send_recv") for rank in pair if rank in runs):
            found.append(rounds.Rail(local_rank, "wrong"))
        elif seconds := _seconds([timings[rank] for rank in pair if rank in timings], len(pair)):
            found.append(rounds.Rail(local_rank, "passed", timings[pair[0]].bytes / seconds / 1e9))
        else:
            found.append(rounds.Rail(local_rank, "untested"))
    return tuple(found)


def _seconds(timings: Collection[Timing], ranks: int) -> float | None:
    """Return the mean over the ranks, None where not all of them have a figure."""
    return fmean(median(t.bursts) for t in timings) if len(timings) == ranks > 0 else None


def _ended(runs: Mapping[int, RankRun], wrong: set[int], size: int) -> rounds.Ended:
    """Return how a group's test ended, the worst first; the others are not asked where there is no store to meet in."""
    outcomes = {run.outcome for run in runs.values()}
    if wrong:
        return "wrong"
    if outcomes == {"done"}:
        return "passed" if len(runs) == size else "failed"
    if outcomes & {"failed", "died", "not started"}:
        return "failed"
    return "hung"


def _words(run: RankRun, *, wrong: bool) -> str:
    """Return what became of a rank, for people; empty where all went well."""
    if wrong:
        return f"wrong numbers in {', '.join(op for op, count in run.wrong.items() if count) or 'a product of its own'}"
    if run.outcome == "done":
        return ""
    return f"{run.outcome} in {run.step}" + (f": {run.detail}" if run.detail else "")
