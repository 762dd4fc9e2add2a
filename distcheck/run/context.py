"""The state that the steps of a run share: request, time left, facts, open resources."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from distcheck.collectives.plan import OPERATIONS, Plan, for_cpus, usual_sizes
from distcheck.facts.infiniband import Infiniband
from distcheck.facts.job import Job
from distcheck.launch.local.supervisor import LocalRanks
from distcheck.rollcall.doors import PeerListener
from distcheck.rollcall.handshake import Connection
from distcheck.rollcall.server import Server
from distcheck.run.progress import Progress
from distcheck.run.record import Record
from distcheck.run.request import Publish, Request, RunResult
from distcheck.run.watchdog import Watchdog

if TYPE_CHECKING:
    from distcheck.facts.base import Missing
    from distcheck.facts.infiniband import Counters
    from distcheck.facts.mesh import Mesh
    from distcheck.probe.child import Conversation
    from distcheck.probe.gpu_load import Watch
    from distcheck.rules.diagnose import Diagnosis

_REMIND_AFTER_SECONDS = 8.0
"""So that it is said within 10 s of the start on a slow machine, too."""
_GPU_BURST_SECONDS, _CPU_BURST_SECONDS = 0.2, 0.05
"""One burst of one operation at one size: on GPUs the ranks' unequal starts then add less than 0.1 %."""
_GPU_SIZE_SECONDS, _CPU_SIZE_SECONDS = 2.0, 0.6
"""Time in which bursts are repeated until the figure is steady."""
_CPU_GROUP_BYTES, _GPU_GROUP_BYTES = 1 << 20, 64 << 20
"""The size measured in the groups of a mesh, without --sizes."""
_CPU_GROUP_SECONDS, _GPU_GROUP_SECONDS = 0.3, 1.0
"""Time in which its bursts are repeated: several, because a group is slow only if its quickest one is."""
_COUNTER_SECONDS = 3.0
_HISTORY_RESERVE_SECONDS = 1.5
"""Kept back from --timeout: one second to kill a child that hangs, the rest for the goodbyes."""
_GPU_DEVICE_SECONDS, _CPU_DEVICE_SECONDS, _GATE_CPU_DEVICE_SECONDS = 0.1, 0.2, 0.02
"""The time for each figure of the device test."""


class Session:
    """The state of a run: record, endpoints and local ranks; `driver` always closes them."""

    def __init__(self, request: Request, publish: Publish, dog: Watchdog) -> None:
        self.request = request
        self.dog = dog
        self._publish = publish
        self.outcome: RunResult | None = None
        self.asked = request.asked
        self.deadline = request.start + request.asked.timeout_seconds
        self.record = Record(request)
        self.uid = self.record.uid
        self.local: LocalRanks | None = None
        self.storage: Conversation | None = None
        """The child that looks at the job's folders and files."""
        # Of the job's processes on a terminal, only one draws; those that people start by hand have one each.
        draws = any(place.rank == 0 or place.launcher == "by hand" for place in request.placements)
        self.progress = Progress(lambda: self.deadline, quiet=request.quiet, terminal=draws)
        self.server: Server | None = None
        self.signpost: Server | None = None
        """Sends processes of the job that connect to this node to the leader's address."""
        self.connection: Connection | None = None
        self.peer_listener: PeerListener | None = None
        self.interrupted: signal.Signals | None = None
        self.orphaned = False
        """Whether the torchelastic agent that started this process has ended."""
        self.join_deadline = self.deadline
        self.complete = False
        """Whether no other process will join the roll call."""
        self._last = self.deadline + 2.0
        self.file_limit: tuple[int, int] | None = None

    # -- limits ------------------------------------------------------------------------------------------------

    def remaining(self, reserve: float = 0.0) -> float:
        """Return the seconds left of --timeout, less a reserve for the remaining steps."""
        return max(0.0, self.deadline - time.monotonic() - reserve)

    def join_seconds(self) -> float:
        """Return the seconds left of --join-timeout, at most those of --timeout."""
        return min(max(0.0, self.join_deadline - time.monotonic()), self.remaining(3.0))

    def last_moment(self, seconds: float) -> float:
        """Return these seconds, or fewer if --timeout has expired and the run must end."""
        return min(seconds, max(0.1, self._last - time.monotonic()))

    def say(self, text: str) -> None:
        """Print a line that stays to stderr."""
        self.progress.say(text)

    @contextlib.contextmanager
    def reminding(self, text: Callable[[float], str]) -> Iterator[None]:
        """Print a line if the body takes long; `text` gets the seconds that it has taken.

        A live line shows it all the time.
        """
        if self.progress.live:
            yield
            return
        reminder = asyncio.get_running_loop().call_later(
            _REMIND_AFTER_SECONDS, lambda: self.say(text(_REMIND_AFTER_SECONDS))
        )
        try:
            yield
        finally:
            reminder.cancel()

    async def deliver(self, job: Job, diagnosis: Diagnosis, code: int) -> RunResult:
        """Publish the report, once, add the run to the history, and return its result."""
        self.progress.close()
        from distcheck.report.headline import headline  # followers load no rules

        line = headline(job, diagnosis)
        self.outcome = RunResult(job, self._publish(job, diagnosis, code), reported=True, headline=line)
        if self.request.history and not self.interrupted:
            from distcheck.run import history

            await history.add(self.request.history, job, diagnosis, self.remaining(_HISTORY_RESERVE_SECONDS))
        return self.outcome

    # -- measuring ----------------------------------------------------------------------------------------------

    def plan(self, backend: str) -> Plan:
        """Return what to measure on this backend."""
        sizes = self.asked.sizes_bytes or usual_sizes(backend)
        operations = self.asked.operations or OPERATIONS
        dtypes = self.asked.dtypes or ("float32",)
        on_cpu, limit = for_cpus(backend), self.request.time_limit_seconds
        burst, size_seconds, device_seconds = (
            (_CPU_BURST_SECONDS, _CPU_SIZE_SECONDS, _CPU_DEVICE_SECONDS)
            if on_cpu
            else (_GPU_BURST_SECONDS, _GPU_SIZE_SECONDS, _GPU_DEVICE_SECONDS)
        )
        gate_on_cpu = on_cpu and self.asked.command == "gate"
        # A gate checks health. Its speed needs to be precise only if the user compares it or asks for its calls. The
        # calls of a single rank move nothing, so that their time, which no two bursts agree on, says little.
        precise = (self.asked.min_busbw_GBps, self.asked.baseline, self.request.iterations, limit) != (None,) * 4
        precise = precise or bool(self.asked.site().busbw)
        rough = (gate_on_cpu or self.record.world_size == 1) and not precise
        if limit is not None:
            size_seconds = limit / (len(operations) * len(dtypes) * len(sizes))
            burst = min(burst, size_seconds / 2)  # at large sizes the warm-up takes about as long as a burst
        return Plan(
            backend=backend,
            backend_name=self.asked.backend_name,
            operations=operations,
            sizes_bytes=sizes,
            deadline_seconds=self.remaining(1.0),
            iterations=self.request.iterations,
            burst_seconds=burst,
            size_seconds=0.0 if rough else size_seconds,
            rough=rough,
            dtypes=dtypes,
            device_seconds=_GATE_CPU_DEVICE_SECONDS if gate_on_cpu else device_seconds,
            burn_seconds=self.asked.burn_seconds,
            training="training" in self.asked.looks,
            mesh=self.mesh(),
            group_bytes=max(self.asked.sizes_bytes, default=_CPU_GROUP_BYTES if on_cpu else _GPU_GROUP_BYTES),
            group_seconds=_CPU_GROUP_SECONDS if on_cpu else _GPU_GROUP_SECONDS,
        )

    def mesh(self) -> Mesh | None:
        """Return the mesh of --mesh with all sizes; None if it is not given or does not fit."""
        if self.asked.mesh is None:
            return None
        from distcheck.rules.job.mesh import mesh_of

        return mesh_of(self.record.job())

    def watching_gpus(self, backend: str) -> contextlib.AbstractAsyncContextManager[Watch]:
        """Watch this node's GPUs during collectives that use them.

        Only the process that reads the GPUs' health watches them.
        """
        from distcheck.probe import gpu_load

        gpus = self.record.node.gpus if self.record.node is not None and backend != "gloo" else None
        return gpu_load.watching(gpus, self.remaining(1.0))

    async def adapter_counters(self) -> Counters | Missing | None:
        """Read the RDMA adapters' counters after the collectives; None if there were none before."""
        adapters = self.record.node.infiniband if self.record.node is not None else None
        if not isinstance(adapters, Infiniband) or not any(
            port.counters for hca in adapters.hcas for port in hca.ports
        ):
            return None
        from distcheck.probe import infiniband

        return await infiniband.counters(min(_COUNTER_SECONDS, self.remaining(1.0)))

    def cuda_ordinals(self, backend: str) -> dict[int, int | None]:
        """Return each rank's CUDA ordinal: LOCAL_RANK, or 0 if the rank sees only its own GPUs."""
        ordinals: dict[int, int | None] = {}
        for rank in self.record.ranks:
            seen, local_rank = rank.visible_gpus, rank.placement.local_rank or 0
            own = isinstance(seen, tuple) and 0 < len(seen) <= local_rank
            if backend not in {"gloo", "mpi"} and rank.placement.rank is not None:
                ordinals[rank.placement.rank] = 0 if own else local_rank
        return ordinals

    async def keep_own_runs(self) -> None:
        """Record how this process's ranks ended in the collectives, or where they hang."""
        if self.local is None or self.record.process is None or self.record.process.stage != "collectives":
            return
        await self.local.look_closer()
        self.record.take_runs(self.local.report().runs, self.uid)
