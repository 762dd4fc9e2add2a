"""Supervises local ranks: starts, tasks, watches and ends them, without leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distcheck.collectives.plan import FirstBurst, Step, StoreOpen, Task, Timing
from distcheck.facts.errors import unstarted
from distcheck.facts.placement import Placement
from distcheck.facts.quantities import duration
from distcheck.launch.local import channel, program, results, shm_cleanup, stacks
from distcheck.launch.local.channel import Again, Exited, Imported, Spec
from distcheck.launch.local.output import Tail
from distcheck.launch.local.rank import LocalRank, ending
from distcheck.probe import memory
from distcheck.probe.ending import end_group
from distcheck.probe.process import state_of
from distcheck.rollcall import connection
from distcheck.rollcall.protocol import RunReport

_WATCH_SECONDS = 0.25
_LAST_WORDS_SECONDS = 0.05
_SPEC_SECONDS = 5.0
"""Time for the fork server to take what it is to fork; it waits for that."""
_LEAVE_SECONDS = 1.0
"""Time for ranks that have delivered everything to leave their process group by themselves."""
_SHELLS_SIGNAL = 128
"""A shell's exit code is this plus the signal that killed its command."""


class LocalRanks:
    """The ranks that this process started on this machine."""

    def __init__(self, placements: Sequence[Placement], *, inherit: bool, training: bool = False) -> None:
        self.ranks = [LocalRank(p) for p in placements]
        self.imported: asyncio.Future[Imported] = asyncio.get_running_loop().create_future()
        self.store: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.first_figure: float | None = None
        self.on_step: Callable[[str, int], None] = lambda _text, _done: None
        """Called with the first rank's next step and its number of figures."""
        self.on_first_burst: Callable[[FirstBurst], None] = lambda _burst: None
        """Called with the first burst of a size."""
        self._inherit, self._training = inherit, training
        self._round = 0
        self._control: socket.socket | None = None
        """Our end of the channel to the fork server, to send it descriptors."""
        self._changed = asyncio.Event()
        self._readers: list[asyncio.Task[None]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._words = Tail()
        self._began = time.monotonic()
        self._began_by_the_clock = time.time()
        self._segments: set[Path] = set()
        """Named shared memory of killed ranks."""
        self._memory = memory.marks()
        self._program_end: int | None = None
        """The fork server's exit code, if it ended before torch was imported."""

    async def start(self) -> None:
        """Start the fork server."""
        try:
            server = program.taken() or program.start()
            self._process, self._control = server.process, server.control
            self._words.listen(server.output)
            self._control.settimeout(_SPEC_SECONDS)
            await self._hear(None, self._control.dup())
            with contextlib.suppress(ConnectionError):  # it has died; what is heard of it says how
                await self._fork(Spec(tuple(self.placements), training=self._training, inherit=self._inherit))
        except OSError as error:  # too many files or processes, or no memory
            if not self.imported.done():
                self.imported.set_result(Imported(0.0, unstarted(error)))
            self._ended_as(f"could not be started: {error}")

    async def again(self) -> None:
        """Start another round: every rank gets a new process, and the last round's is killed.

        It costs only a fork, because the fork server has imported torch.
        """
        self._segments |= self._shared()
        for rank in self.ranks:
            if rank.writer is not None:
                rank.writer.close()
        self._round += 1
        self.ranks = [LocalRank(p) for p in self.placements]
        self.store = asyncio.get_running_loop().create_future()
        try:
            await self._fork(Again(self._round))
        except OSError as error:
            self._ended_as(f"could not start another round: {error}")

    async def _fork(self, wish: Spec | Again) -> None:
        """Have the fork server fork the ranks, and read their messages; raises OSError if it is gone, or files lack."""
        if self._control is None:
            raise ConnectionError("there is no fork server")
        pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            pairs += (socket.socketpair() for _ in self.ranks)
            channel.ask(self._control, wish, [other.fileno() for _, other in pairs])
        except OSError:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, other in pairs:
                other.close()
        for rank, (ours, _) in zip(self.ranks, pairs, strict=True):
            await self._hear(rank, ours)

    async def _hear(self, rank: LocalRank | None, ours: socket.socket) -> None:
        """Read the messages of a rank, or of the fork server if `rank` is None."""
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        if rank is not None:
            rank.writer = writer
        self._readers.append(asyncio.create_task(self._listen(rank, reader, writer)))

    def _shared(self) -> set[Path]:
        return shm_cleanup.shared_by(r.pid for r in self.ranks if r.pid is not None and r.exit_code is None)

    @property
    def group(self) -> int | None:
        """The process group of the ranks, None without one."""
        return self._process.pid if self._process else None

    @property
    def placements(self) -> list[Placement]:
        """The ranks' placements."""
        return [r.placement for r in self.ranks]

    async def wait_imported(self, seconds: float, aborted: asyncio.Event) -> str:
        """Wait until torch is imported; return '' then, else why it is not."""
        ended = asyncio.ensure_future(aborted.wait())
        waiting: set[asyncio.Future[Any]] = {asyncio.shield(self.imported), ended}
        await asyncio.wait(waiting, timeout=seconds, return_when="FIRST_COMPLETED")
        ended.cancel()
        if self.imported.done():
            return self.imported.result().error
        if aborted.is_set():
            return "the run was ended while torch was being imported"
        stack = await stacks.stack_of(self.group, self._words) if self.group else ()
        where = f": the import is in {stack[0]}" if stack else ""
        return f"torch was not imported within {duration(time.monotonic() - self._began)}{where}"

    async def open_store(self, tasks: Sequence[Task], seconds: float, aborted: asyncio.Event) -> int | None:
        """Give the first rank its task; return its store's port, None if it opened none.

        The first rank is rank 0, unless this process stands in for rank 0's.
        """
        first, task = min(zip(self.ranks, tasks, strict=True), key=lambda pair: pair[1].rank)
        first.give(task)
        until = time.monotonic() + seconds
        while not (self.store.done() or first.trouble() or aborted.is_set()) and time.monotonic() < until:
            await self._watch()
        return self.store.result() if self.store.done() else None

    def report(self, error: str = "") -> RunReport:
        """Return what the ranks measured and how they ended; `error` says why none could start."""
        imported = self.imported.result() if self.imported.done() else None
        return results.report(self.ranks, imported, error, self._program_end, self._words.text())

    async def measure(
        self,
        tasks: Sequence[Task],
        *,
        seconds: float,
        aborted: asyncio.Event,
        on_trouble: Callable[[str], None],
    ) -> None:
        """Give every rank its task and watch until all end, `aborted` is set, or time is up."""
        for rank, task in zip(self.ranks, tasks, strict=True):
            rank.give(task)
        until = time.monotonic() + seconds
        reported = False
        while not all(r.over for r in self.ranks) and not aborted.is_set() and time.monotonic() < until:
            await self._watch()
            trouble = next((f"rank {r.placement.rank}: {r.trouble()}" for r in self.ranks if r.trouble()), "")
            if trouble and not reported:
                reported = True
                on_trouble(trouble)
        # A rank's last message may still be in transit when its neighbour's end is known.
        await asyncio.sleep(_LAST_WORDS_SECONDS)

    async def look_closer(self) -> None:
        """Find out where unfinished ranks are, from the kernel and from the first ranks."""
        await stacks.look_closer(self.ranks, self._words)

    async def _watch(self) -> None:
        """Wait briefly for messages and check the ranks' process states."""
        self._changed.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await connection.within(self._changed.wait(), _WATCH_SECONDS)
        now = time.monotonic()
        for rank in self.ranks:
            stopped = rank.pid is not None and state_of(rank.pid) in {"T", "t"}
            rank.stopped_since = (rank.stopped_since or now) if stopped else None

    async def _listen(self, rank: LocalRank | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                message = await channel.read(reader)
                if rank is None:
                    self._take(message)
                else:
                    self._take_from(rank, message)
                self._changed.set()
        except EOFError:
            if rank is None:
                await self._program_ended()
        finally:
            writer.close()

    def _take(self, message: channel.Message) -> None:
        """Record a message of the fork server."""
        match message:
            case Imported():
                if not self.imported.done():
                    self.imported.set_result(message)
            case Exited() if message.round == self._round and message.index < len(self.ranks):
                self.ranks[message.index].exit_code = message.code
                if message.code < 0 or message.code > _SHELLS_SIGNAL:
                    self.ranks[message.index].death = memory.death(self._memory, self.log_tail())

    def _take_from(self, rank: LocalRank, message: channel.Message) -> None:
        if isinstance(message, StoreOpen):
            if not self.store.done() and rank in self.ranks:
                self.store.set_result(message.port)
            return
        if isinstance(message, FirstBurst | Timing):
            self.first_figure = self.first_figure or time.monotonic()
        rank.hear(message)
        if rank is self.ranks[0] and isinstance(message, FirstBurst):
            self.on_first_burst(message)
        if rank is self.ranks[0] and isinstance(message, Step):
            self.on_step(message.text, len(rank.timings) + len(rank.groups))

    async def _program_ended(self) -> None:
        """Record the end of the fork server, after which there are no more ranks."""
        code = await program.exit_code(self._process)
        # The ranks' last messages may still be in transit.
        await asyncio.sleep(_LAST_WORDS_SECONDS)
        if code is not None and not self.imported.done():
            self._program_end = code
        if code is not None and code < 0:
            death = memory.death(self._memory, self.log_tail())
            for rank in self.ranks:
                rank.death = rank.death or (None if rank.over else death)
        self._ended_as("ended" if code is None else ending(code))

    def _ended_as(self, how: str) -> None:
        """Record how the fork server ended; ranks that still ran ended with it."""
        if not self.imported.done():
            tail = self.log_tail()
            error = f"torch cannot be imported: the fork server {how}{tail and f': {tail}'}"
            self.imported.set_result(Imported(0.0, error))
        for rank in self.ranks:
            if not rank.over:
                rank.orphaned = f"ended with the process that forked it, which {how}"
        self._changed.set()

    async def _let_leave(self) -> None:
        """Wait briefly for finished ranks to leave: NCCL then removes its shared memory."""
        until = time.monotonic() + _LEAVE_SECONDS
        while all(r.finished for r in self.ranks) and any(r.exit_code is None for r in self.ranks):
            left = until - time.monotonic()
            if left <= 0:
                break
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await connection.within(self._changed.wait(), left)

    def log_tail(self) -> str:
        """Return the last lines that the ranks wrote to their standard error."""
        return self._words.last()

    async def close(self) -> None:
        """Kill the remaining ranks and wait briefly until they are gone."""
        process = self._process
        if process is not None:
            await self._let_leave()
            self._segments |= self._shared()
            await end_group(process)
            shm_cleanup.remove(self._segments, self._began_by_the_clock)
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        if self._control is not None:
            self._control.close()
        self._words.close()
