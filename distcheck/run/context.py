"""A run that meets others or starts ranks: collect, meet, measure, and agree on one verdict with everybody met."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from distcheck.collectives.plan import OPERATIONS, Plan, usual_sizes
from distcheck.facts import CudaView, Gpus, Job, Missing, NetworkFacts, Pci
from distcheck.launch.local.supervisor import LocalRanks
from distcheck.probe import environment, gpu, host, links, pci
from distcheck.probe.state import SHM, space, temporary
from distcheck.rollcall import client
from distcheck.rollcall.client import Connection
from distcheck.rollcall.doors import PeerListener
from distcheck.rollcall.server import Server
from distcheck.rules.diagnose import Diagnosis
from distcheck.run.entry import (
    NEVER_MET,
    NOBODY_TO_MEET,
    WITH_OTHERS,
    Outcome,
    Publish,
    Request,
    judge,
    process_facts,
    rank_facts,
)
from distcheck.run.join import arrive
from distcheck.run.progress import Watcher
from distcheck.run.record import Record
from distcheck.run.watchdog import Watchdog
from distcheck.selection.placement import rank_environment

if TYPE_CHECKING:
    from distcheck.probe.gpu_load import Watch

_DRIVER_SECONDS = 10.0
_OWN_NAME_SECONDS = 2.0
_INTERRUPT_SECONDS = 5.0
"""How long the ending may take after a signal before the watchdog ends it."""
_CLOSE_SECONDS = 2.5
_GPU_BURST_SECONDS, _CPU_BURST_SECONDS = 0.2, 0.05
"""Of one operation at one size: on GPUs the ranks' unequal starts weigh less than 0.1 % then."""
_GPU_SIZE_SECONDS, _CPU_SIZE_SECONDS = 2.0, 0.6
"""In which bursts are repeated until the figure is steady."""
_GATE_BURST_SECONDS = 0.1
"""The one burst of a gate on CPUs, which wants to know whether it is well, not how fast to the last percent."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOBODY_ELSE = signal.SIGUSR2
"""Tells a probe that was started from outside that whoever has not come to the roll call will not."""


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
        self.watcher = Watcher(quiet=request.quiet)
        self.server: Server | None = None
        self.signpost: Server | None = None
        """Tells others of the job, who ask at this node, where the host is."""
        self.connection: Connection | None = None
        self.peer_listener: PeerListener | None = None
        self.interrupted: signal.Signals | None = None
        self.join_deadline = self.deadline
        self.complete = False
        """Whether it is known that nobody else will come to the roll call."""
        self._last = self.deadline + 2.0
        self.file_limit: tuple[int, int] | None = None

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
        self.watcher.close()
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

        def nobody_else(_signum: int, _frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # the run is over
                loop.call_soon_threadsafe(self._note_complete)

        before = {signum: signal.getsignal(signum) for signum in _SIGNALS}
        for signum, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(signum, interrupt)
        if self.request.on_collected is not None:  # started from outside, where it is known who cannot come
            signal.signal(NOBODY_ELSE, nobody_else)
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

    def _note_complete(self) -> None:
        self.complete = True
        if self.server is not None:
            self.server.close_roll()

    async def _run(self) -> Outcome:
        from distcheck.run import follower, leader

        await self._start_ranks()
        await self._collect()
        if not self.request.meets:
            self.record.met = self.request.speaks_for_all
            if self.record.met:
                return await leader.lead(self)
            self.record.skip(WITH_OTHERS, NOBODY_TO_MEET)
            return await self.end_alone()
        role = await arrive(self)
        if role == "host":
            return await leader.lead(self)
        if role == "guest":
            return await follower.follow(self)
        self.record.skip(WITH_OTHERS, NEVER_MET)
        return await self.end_alone()

    async def _start_ranks(self) -> None:
        if self.request.starts_ranks:
            measures = self.asked.measures
            self.local = LocalRanks(self.request.placements, torch=measures, inherit=not self.asked.started_here)
            await self.local.start()
            self.dog.group = self.local.group

    async def _collect(self) -> None:
        """Collect this node's, this process's and its ranks' facts."""
        environ = self.request.environ
        looks_at_gpus = "gpu" in self.asked.looks
        # Which of NCCL's and Gloo's interfaces matters depends on it.
        accelerator = gpu.accelerator() if looks_at_gpus or "peers" in self.asked.looks else "none"
        gpus = None
        shown: list[CudaView | Missing] | list[None] = [None] * len(self.request.placements)
        hanging: Pci | Missing | None = None
        if looks_at_gpus and accelerator == "nvidia":
            driver, places = self._ask_drivers(), pci.places(min(_DRIVER_SECONDS, self.remaining(5.0)))
            (gpus, shown), hanging = await asyncio.gather(driver, places)
            accelerator = gpu.accelerator(answer=gpus)
        node = self.record.node = host.collect(
            environ, accelerator=accelerator, gpus=gpus, pci=hanging, network=await self._network_facts()
        )
        if self.asked.measures:
            node = self.record.node = msgspec.structs.replace(
                node, shm=space(SHM), tmp=space(folder := temporary(environ)), tmp_folder=folder
            )
        self.record.process = process_facts(self.uid, node, environ, self.request.placements)
        seen = await self._seen_by_ranks()
        self.record.ranks = tuple(
            rank_facts(self.uid, node, placement, variables, view)
            for placement, variables, view in zip(self.request.placements, seen, shown, strict=True)
        )
        if self.request.on_collected is not None:
            self.request.on_collected(self.record.report())

    async def _ask_drivers(self) -> tuple[Gpus | Missing, list[CudaView | Missing] | list[None]]:
        """Ask NVML what this node has and, at the same time, CUDA what it gives to each rank."""
        seconds = min(_DRIVER_SECONDS, self.remaining(5.0))
        ranks, environ = self.request.placements, self.request.environ
        # The process of local rank 0 reads the GPUs' condition for all of its node.
        local = ranks[0].local_rank or 0
        nvml = gpu.gpus(seconds, others=ranks[0].local_world_size or 0 if local and len(ranks) == 1 else 0)
        if self.asked.backend not in {"auto", "nccl"}:
            return await nvml, [None] * len(ranks)
        from distcheck.probe import cuda

        environments = [rank_environment(environ, p) if self.asked.started_here else environ for p in ranks]
        return await asyncio.gather(nvml, cuda.views(environments, seconds))

    async def _network_facts(self) -> NetworkFacts | None:
        if "peers" not in self.asked.looks:
            return None
        files = links.open_files()  # before our own is raised
        limit = min(_OWN_NAME_SECONDS, self.remaining(3.0))
        own_name = await client.resolve(socket.gethostname(), limit)
        environ, path = self.request.environ, self.asked.rendezvous_file
        return await client.in_thread(lambda: links.collect(environ, own_name, open_files=files, rendezvous=path))

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
        sizes = self.asked.sizes_bytes or usual_sizes(backend)
        operations = self.asked.operations or OPERATIONS
        dtypes = self.asked.dtypes or ("float32",)
        on_cpu = backend == "gloo"
        burst, size_seconds = (
            (_CPU_BURST_SECONDS, _CPU_SIZE_SECONDS) if on_cpu else (_GPU_BURST_SECONDS, _GPU_SIZE_SECONDS)
        )
        if self.request.time_limit_seconds is not None:
            size_seconds = self.request.time_limit_seconds / (len(operations) * len(dtypes) * len(sizes))
            burst = min(burst, size_seconds / 2)  # warming up takes about as long as a burst at large sizes
        elif self.asked.command == "gate" and on_cpu:
            burst, size_seconds = _GATE_BURST_SECONDS, 0.0
        return Plan(
            backend=backend,  # type: ignore[arg-type]  # one of the backends of --backend
            operations=operations,
            sizes_bytes=sizes,
            deadline_seconds=self.remaining(1.0),
            iterations=self.request.iterations,
            burst_seconds=burst,
            size_seconds=size_seconds,
            dtypes=dtypes,
            rotate_root=self.asked.rotate_root,
        )

    def watching_gpus(self, backend: str) -> contextlib.AbstractAsyncContextManager[Watch]:
        """Watch this node's GPUs while collectives run, if they use GPUs and it is for this process to do."""
        from distcheck.probe import gpu_load

        gpus = self.record.node.gpus if self.record.node is not None and backend != "gloo" else None
        return gpu_load.watching(gpus, self.remaining(1.0))

    def cuda_ordinals(self, backend: str) -> dict[int, int | None]:
        """Return the CUDA ordinal that each rank takes: LOCAL_RANK, or 0 where it sees GPUs of its own only."""
        ordinals: dict[int, int | None] = {}
        for rank in self.record.ranks:
            seen, local_rank = rank.visible_gpus, rank.placement.local_rank or 0
            own = isinstance(seen, tuple) and 0 < len(seen) <= local_rank
            if backend == "nccl" and rank.placement.rank is not None:
                ordinals[rank.placement.rank] = 0 if own else local_rank
        return ordinals

    # -- endings -----------------------------------------------------------------------------------------------

    async def _cut_short(self, reason: str) -> Outcome:
        """End now with all that is known; what was measured before stays valid."""
        from distcheck.run import leader

        if self._outcome is not None:  # the report is out; only the goodbyes were cut short
            return self._outcome
        await self.keep_own_runs()
        if self.record.met and self.connection is None:
            leader.keep_measured(self, reason)
            self.record.skip(set(self.asked.looks) - self.record.looked, reason)
        else:
            if self.connection is not None and not self.interrupted:
                seconds = f"{self.asked.timeout_seconds:g}"
                self.record.note(host_lost=f"it gave no verdict within the {seconds} s of --timeout")
            self.record.skip(self.asked.looks, reason)
        return await self.end_alone()

    async def keep_own_runs(self) -> None:
        """Note what became of this process's ranks in the collectives, where they are in them, and where they are."""
        if self.local is None or self.record.process is None or self.record.process.stage != "collectives":
            return
        await self.local.look_closer()
        self.record.take_runs(self.local.report().runs, self.uid)

    async def end_alone(self) -> Outcome:
        """Publish what this process knows; tell whoever listens that it is over."""
        from distcheck.run import leader

        if self.connection is not None:
            self.record.met = False
        elif self.server is not None:
            self.record.take_late_reports(g.report for g in self.server.guests.values())
        job = self.record.job()
        diagnosis = judge(job)
        code = 128 + self.interrupted if self.interrupted else diagnosis.verdict.exit_code
        outcome = self.deliver(job, diagnosis, code)
        if self.server is not None:
            await leader.dismiss(self, outcome.exit_code)
        return outcome

    async def _close(self) -> None:
        """Close every door and end every process of ours; nobody is waited for longer than a moment."""
        self.watcher.close()
        closing = (
            self.local.close() if self.local else None,
            self.server.close() if self.server else None,
            self.signpost.close() if self.signpost else None,
            self.peer_listener.close() if self.peer_listener else None,
        )
        tasks = [asyncio.ensure_future(c) for c in closing if c is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        if self.connection is not None:
            self.connection.writer.close()
        if self.file_limit is not None:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, self.file_limit)


def _without_strangers(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Pass over what others do to our sockets, such as more connections than files may be open; show the rest."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)
