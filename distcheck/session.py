"""A run that meets others or starts ranks: collect, meet, measure, and agree on one verdict with everybody met."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
import time
from types import FrameType
from typing import Any

import msgspec

from distcheck.collectives.plan import CPU_SIZES_BYTES, GPU_SIZES_BYTES, OPERATIONS, Plan
from distcheck.diagnose import Diagnosis
from distcheck.facts import Job, Missing, Resolution
from distcheck.launch.local import LocalRanks
from distcheck.placement import rank_environment
from distcheck.preflight import NOBODY_TO_MEET, Outcome, Publish, Request, judge, process_facts, rank_facts
from distcheck.probe import environment, gpu, host, network
from distcheck.record import Record
from distcheck.rollcall import client, protocol
from distcheck.rollcall.client import Attendance, Connection
from distcheck.rollcall.peers import PeerListener
from distcheck.rollcall.protocol import Hello
from distcheck.rollcall.server import Server
from distcheck.watchdog import Watchdog

_NVML_SECONDS = 10.0
_AWAITED_AFTER_SECONDS = 10.0
_INTERRUPT_SECONDS = 5.0
"""How long the ending may take after a signal before the watchdog ends it."""
_CLOSE_SECONDS = 1.5
_FILES_BESIDE_GUESTS = 512
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Session:
    """The state of a run: the record, the open doors and the local ranks, all closed however the run ends."""

    def __init__(self, request: Request, publish: Publish, dog: Watchdog) -> None:
        self.request = request
        self.dog = dog
        self._publish = publish
        self._outcome: Outcome | None = None
        self.asked = request.asked
        self.deadline = request.start + request.asked.timeout_seconds
        self.record = Record(request)
        self.uid = self.record.uid
        self.local: LocalRanks | None = None
        self.server: Server | None = None
        self.connection: Connection | None = None
        self.peer_listener: PeerListener | None = None
        self.interrupted: signal.Signals | None = None
        self.join_deadline = self.deadline
        self._last = self.deadline + 2.0
        self._file_limit: tuple[int, int] | None = None

    # -- limits ------------------------------------------------------------------------------------------------

    def remaining(self, reserve: float = 0.0) -> float:
        """Return the seconds left of --timeout, less a reserve for what must still follow."""
        return max(0.0, self.deadline - time.monotonic() - reserve)

    def join_seconds(self) -> float:
        """Return the seconds left of --join-timeout, within those of --timeout."""
        return min(max(0.0, self.join_deadline - time.monotonic()), self.remaining(3.0))

    def last_moment(self, seconds: float) -> float:
        """Return these seconds, or fewer where --timeout is over already and the run must end."""
        return min(seconds, max(0.1, self._last - time.monotonic()))

    def say(self, text: str) -> None:
        """Tell the user on stderr what is going on."""
        if not self.request.quiet:
            print(f"distcheck: {text}", file=sys.stderr, flush=True)  # noqa: T201 progress belongs to stderr

    # -- the run -----------------------------------------------------------------------------------------------

    def run_to_end(self) -> Outcome:
        """Run to the end, whatever happens; the outcome holds all that was collected until then."""
        outcome = asyncio.run(self._bounded())
        return outcome._replace(exit_code=128 + self.interrupted) if self.interrupted else outcome

    def deliver(self, job: Job, diagnosis: Diagnosis, code: int) -> Outcome:
        """Publish the report, once, and return how the run ended."""
        self._outcome = Outcome(job, diagnosis, self._publish(job, diagnosis, code), reported=True)
        return self._outcome

    async def _bounded(self) -> Outcome:
        main = asyncio.ensure_future(self._run())
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_without_strangers)

        def interrupt(signum: int, _frame: FrameType | None) -> None:
            # A handler of Python's own, not of the loop's: it runs even where the loop is blocked in a write.
            self.interrupted = self.interrupted or signal.Signals(signum)
            self.dog.hasten(_INTERRUPT_SECONDS, 128 + self.interrupted)
            loop.call_soon_threadsafe(main.cancel)

        before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        for signum, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(signum, interrupt)
        try:
            await asyncio.wait({main}, timeout=self.remaining() + 0.5)
            if main.done() and not main.cancelled():
                return main.result()
            words = self.interrupted.name if self.interrupted else f"--timeout of {self.asked.timeout_seconds:g} s"
            main.cancel()
            await asyncio.wait({main}, timeout=0.5)
            if main.done() and not main.cancelled():
                return main.result()
            return await self._cut_short(f"the run was ended by {words}")
        finally:
            await self._close()
            for signum, handler in before.items():
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    async def _run(self) -> Outcome:
        from distcheck import follow, lead

        await self._start_ranks()
        await self._collect()
        if not self.request.meets:
            self.record.met = self.request.speaks_for_all
            if self.record.met:
                return await lead.lead(self)
            self.record.skip(("peers", "collectives"), NOBODY_TO_MEET)
            return await self.end_alone()
        role = await self._find_role()
        if role == "host":
            return await lead.lead(self)
        if role == "guest":
            return await follow.follow(self)
        self.record.skip(("peers", "collectives"), "this process never met rank 0")
        return await self.end_alone()

    async def _start_ranks(self) -> None:
        if self.request.starts_ranks:
            measures = "collectives" in self.asked.looks
            self.local = LocalRanks(self.request.placements, torch=measures, inherit=not self.asked.started_here)
            await self.local.start()
            self.dog.group = self.local.group

    async def _collect(self) -> None:
        """Collect this node's, this process's and its ranks' facts."""
        environ = self.request.environ
        looks_at_gpus = "gpu" in self.asked.looks
        accelerator = gpu.accelerator() if looks_at_gpus else "none"
        gpus = None
        if looks_at_gpus and accelerator == "nvidia":
            gpus = await gpu.gpus(min(_NVML_SECONDS, self.remaining(5.0)))
            accelerator = gpu.accelerator(answer=gpus)
        node = self.record.node = host.collect(environ, accelerator=accelerator, gpus=gpus)
        self.record.process = process_facts(self.uid, node)
        seen = await self._seen_by_ranks()
        self.record.ranks = tuple(
            rank_facts(self.uid, node, placement, variables)
            for placement, variables in zip(self.request.placements, seen, strict=True)
        )

    async def _seen_by_ranks(self) -> list[dict[str, str]]:
        """Return the variables of each rank: told by its own process, or read here when we are the rank."""
        if not self.asked.started_here or self.local is None:
            return [environment.collect(self.request.environ) for _ in self.request.placements]
        born = await self.local.wait_born(min(10.0, self.remaining(5.0)))
        return [
            b.environment if b else environment.collect(rank_environment(self.request.environ, p))
            for b, p in zip(born, self.request.placements, strict=True)
        ]

    # -- measuring ----------------------------------------------------------------------------------------------

    def plan(self, backend: str) -> Plan:
        """Return what to measure on this backend."""
        sizes = self.asked.sizes_bytes or (CPU_SIZES_BYTES if backend == "gloo" else GPU_SIZES_BYTES)
        operations = self.asked.operations or OPERATIONS
        plan = Plan(
            backend=backend,  # type: ignore[arg-type]  # one of the backends of --backend
            operations=operations,
            sizes_bytes=sizes,
            deadline_seconds=self.remaining(1.0),
            iterations=self.request.iterations,
        )
        if self.request.time_limit_seconds is None:
            return plan
        # Warming up takes about as long as the burst at large sizes, hence the half.
        share = self.request.time_limit_seconds / (2 * len(operations) * len(sizes))
        return msgspec.structs.replace(plan, burst_seconds=min(share, 10.0))

    def cuda_ordinals(self, backend: str) -> dict[int, int | None]:
        """Return the CUDA ordinal that each rank takes: LOCAL_RANK, or 0 where it sees one GPU only."""
        ordinals: dict[int, int | None] = {}
        for rank in self.record.ranks:
            seen = rank.visible_gpus
            one = isinstance(seen, tuple) and len(seen) == 1
            if backend == "nccl" and rank.placement.rank is not None:
                ordinals[rank.placement.rank] = 0 if one else rank.placement.local_rank or 0
        return ordinals

    # -- meeting -----------------------------------------------------------------------------------------------

    @property
    def job_name(self) -> str:
        """The name by which processes of one job know each other."""
        return protocol.job_key(self.request.environ, self.request.placements[0])

    def hello(self) -> Hello:
        """Return what this process says at a door."""
        place = self.request.placements[0]
        return Hello(
            nonce="",
            version=self.record.node.distcheck if self.record.node else "",
            job=protocol.public_key(self.job_name),
            master=f"{place.master_addr}:{place.master_port}",
            uid=self.uid,
            ranks=tuple(sorted(self.request.own_ranks)),
            world_size=place.world_size or 0,
            seconds_left=self.remaining(),
        )

    async def _find_role(self) -> str:
        """Become host (rank 0's process, or whoever stands in for it), guest, or stay alone."""
        place = self.request.placements[0]
        self.record.note(stage="meeting")
        self.join_deadline = time.monotonic() + self.asked.join_timeout_seconds
        resolution = await client.resolve(
            place.master_addr or "", min(self.request.connect_seconds + 2, self.remaining(3))
        )
        self.record.note(resolution=resolution)
        addresses = resolution.addresses if isinstance(resolution, Resolution) else ()
        self._ways = client.doors(addresses, place.master_port or 0, self.job_name, agent=self._agent)
        if 0 in self.request.own_ranks:
            return await self._open_as_rank_0(place.master_port or 0)
        if not addresses:
            return "alone"
        return await self._attend_as_guest(addresses)

    @property
    def _agent(self) -> bool:
        """Whether torchrun's agent says that it listens on MASTER_PORT."""
        return self.request.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and not self.asked.started_here

    async def _open_as_rank_0(self, port: int) -> str:
        sock, bound = network.bind(port, agent=self._agent)
        self.record.note(bind=bound)
        lone = self.request.speaks_for_all
        # A second rank 0 finds the first one where it wanted to listen.
        if bound.outcome == "in-use" and not lone and await self._knock_once(self._ways):
            return "guest"
        server = self.server = self._new_server()
        if not lone:
            # Somebody may stand in for rank 0 already. Until that is known nobody is let in at MASTER_PORT.
            taken = await server.open_side_door()
            first = protocol.side_ports(self.job_name)[0]
            others = tuple(d for d in self._ways if d.side and d.port != taken)
            if taken != first and await self._knock_once(others):
                await server.close()
                self.server = None
                if sock is not None:
                    sock.close()
                return "guest"
        if sock is not None:
            await server.open(sock)
        self.record.note(role="host")
        tried = await self._try_own_door()
        self.record.note(attempts=tried.attempts)
        return "host"

    async def _try_own_door(self) -> Attendance:
        """Try MASTER_ADDR:MASTER_PORT from here, as the other ranks of this node will."""
        ways = tuple(d for d in self._ways if not d.side)
        if not ways:
            return Attendance(None, ())
        tried = await client.attend(
            ways,
            self.hello(),
            seconds=self.request.connect_seconds,
            connect_seconds=self.request.connect_seconds,
            once=True,
        )
        if tried.connection is not None:
            tried.connection.writer.close()
        return tried

    async def _knock_once(self, ways: tuple[client.Door, ...]) -> bool:
        """Knock where another process may hold the roll call already, and attend it if one does."""
        if not ways:
            return False
        attendance = await client.attend(
            ways,
            self.hello(),
            seconds=self.request.connect_seconds,
            connect_seconds=self.request.connect_seconds,
            once=True,
        )
        self.record.note(attempts=attendance.attempts)
        if attendance.connection is not None and attendance.connection.welcome.uid != self.uid:
            self._met(attendance.connection)
            return True
        return False

    def _new_server(self) -> Server:
        place = self.request.placements[0]
        files = self._raise_file_limit(place.world_size or 0)
        server = Server(
            run=self.record.run,
            uid=self.uid,
            job=self.job_name,
            master=f"{place.master_addr}:{place.master_port}",
            ranks=self.request.own_ranks,
            world_size=place.world_size or 0,
        )
        server.most_at_the_door = max(64, files // 4)
        return server

    def _raise_file_limit(self, guests: int) -> int:
        """Allow this process the open files that a host of so many guests may need; return how many it has."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 1 << 20 if hard == resource.RLIM_INFINITY else hard
        wanted = min(most, 4 * guests + _FILES_BESIDE_GUESTS)
        if soft in {resource.RLIM_INFINITY, hard} or soft >= wanted:
            return most if soft == resource.RLIM_INFINITY else soft
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            self._file_limit = self._file_limit or (soft, hard)
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    async def _attend_as_guest(self, addresses: tuple[str, ...]) -> str:
        """Attend within --join-timeout; half-way, stand in for a rank 0 that does not come to its own host."""
        patience = self.join_seconds()
        ours = not set(addresses).isdisjoint(self._own_addresses())
        halves = (patience / 2, patience / 2) if ours else (patience,)
        for number, seconds in enumerate(halves):
            if number == 1 and await self._stand_in():
                return "host"
            attendance = await self._attend(seconds)
            self.record.note(attempts=attendance.attempts)
            if attendance.connection is not None:
                self._met(attendance.connection)
                return "guest"
        return "alone"

    async def _attend(self, seconds: float) -> Attendance:
        """Attend, and say after 10 s who is awaited."""
        place = self.request.placements[0]

        async def remind() -> None:
            await asyncio.sleep(_AWAITED_AFTER_SECONDS)
            self.say(
                f"rank {place.rank} still tries to reach rank 0 at {place.master_addr}:{place.master_port}; "
                f"the roll call closes in {max(0.0, seconds - _AWAITED_AFTER_SECONDS):.0f} s"
            )

        reminder = asyncio.ensure_future(remind())
        try:
            return await client.attend(
                self._ways, self.hello(), seconds=seconds, connect_seconds=self.request.connect_seconds
            )
        finally:
            reminder.cancel()

    def _own_addresses(self) -> set[str]:
        interfaces = self.record.node.interfaces if self.record.node else ()
        return set() if isinstance(interfaces, Missing) else {i.address for i in interfaces}

    async def _stand_in(self) -> bool:
        """Hold the roll call in rank 0's stead, on a side door, so that one report says who is missing."""
        server = self._new_server()
        if await server.open_side_door() != protocol.side_ports(self.job_name)[0]:
            await server.close()
            return False
        self.server = server
        self.record.note(role="host")
        return True

    def _met(self, connection: Connection) -> None:
        self.connection = connection
        self.record.run = connection.welcome.run
        self.record.met = True
        self.record.note(role="guest")

    # -- endings -----------------------------------------------------------------------------------------------

    async def _cut_short(self, reason: str) -> Outcome:
        """End now with all that is known; what was measured before stays valid."""
        from distcheck import lead

        if self._outcome is not None:  # the report is out; only the goodbyes were cut short
            return self._outcome
        if self.record.met and self.connection is None:
            lead.keep_measured(self, reason)
            self.record.skip(set(self.asked.looks) - self.record.looked, reason)
        else:
            self.record.skip(self.asked.looks, reason)
        return await self.end_alone()

    async def end_alone(self) -> Outcome:
        """Publish what this process knows; tell whoever listens that it is over."""
        from distcheck import lead

        if self.connection is not None:
            self.record.met = False
        elif self.server is not None:
            self.record.take_late_reports(g.report for g in self.server.guests.values())
        job = self.record.job()
        diagnosis = judge(job)
        code = 128 + self.interrupted if self.interrupted else diagnosis.verdict.exit_code
        outcome = self.deliver(job, diagnosis, code)
        if self.server is not None:
            await lead.dismiss(self, outcome.exit_code)
        return outcome

    async def _close(self) -> None:
        """Close every door and end every process of ours; nobody is waited for longer than a moment."""
        closing = (
            self.local.close() if self.local else None,
            self.server.close() if self.server else None,
            self.peer_listener.close() if self.peer_listener else None,
        )
        tasks = [asyncio.ensure_future(c) for c in closing if c is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        if self.connection is not None:
            self.connection.writer.close()
        if self._file_limit is not None:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, self._file_limit)


def _without_strangers(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Pass over what others do to our sockets, such as more connections than files may be open; show the rest."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)
