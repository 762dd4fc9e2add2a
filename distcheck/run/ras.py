"""Asks NCCL's RAS about a collective that stalls: which ranks do not answer, and which launched fewer operations?

Every rank gets an address of its own for RAS (NCCL_RAS_ADDR), because NCCL binds its address with SO_REUSEPORT: with
the default, localhost:28028, a question could reach any NCCL process of the user on the node. The port is reserved by a
socket that is bound and never listens.

Source: NVIDIA/nccl, src/ras/client.cc and client_support.cc: CLIENT PROTOCOL, TIMEOUT, SET FORMAT and VERBOSE STATUS,
one per line; the first three are answered by one line, and after the status RAS closes the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from typing import TYPE_CHECKING

from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.probe.links import nccl_files
from distcheck.probe.ras import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from distcheck.collectives.plan import Plan, Task
    from distcheck.facts.nccl import Ras
    from distcheck.launch.local.rank import LocalRank
    from distcheck.launch.local.supervisor import LocalRanks
    from distcheck.run.context import Session
    from distcheck.run.stall import Pace, Patience

ASK_SECONDS = 3.0
"""For the whole question, all attempts included."""
_HELLO_SECONDS = 0.5
"""A RAS thread that runs answers a command at once; of a frozen process only the kernel accepts the connection."""
_COLLECT_SECONDS = 1
"""How long RAS itself waits for other processes."""
_SILENT_SECONDS = 3.0
"""Without progress for this long before --timeout expires, RAS is asked."""
_ANSWER_BYTES, _BYTES_PER_RANK = 1 << 20, 2048
"""The longest answer; in JSON a rank takes about 700 bytes."""
_LONGEST_ANSWER = 64 << 20
_SHOWN = 80
_SINCE, _JSON_SINCE = (2, 24), (2, 28, 7)
_ADDRESS, _ENABLE = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"


def own_address_refused(environ: Mapping[str, str]) -> str:
    """Return why the ranks get no RAS address from distcheck, '' if they may have one."""
    names = (_ADDRESS, _ENABLE)
    settings = nccl_files(environ, names=names) | {name: environ[name] for name in names if environ.get(name)}
    if settings.get(_ADDRESS):
        return f"{_ADDRESS}={settings[_ADDRESS][:_SHOWN]} is the job's own"
    enable = re.match(r"\s*[+-]?\d{1,18}", settings.get(_ENABLE, "1"))
    if settings.get(_ENABLE) and (enable is None or int(enable[0]) == 0):
        return f"{_ENABLE}={settings[_ENABLE][:_SHOWN]} turns it off"
    return ""


@contextlib.contextmanager
def addresses(backend: str, ranks: Iterable[int]) -> Iterator[dict[int, int]]:
    """Reserve a loopback port per rank; yield the ports by rank, none if they are of no use."""
    with contextlib.ExitStack() as open_sockets:
        ports: dict[int, int] = {}
        if backend == "nccl" and not own_address_refused(os.environ):
            with contextlib.suppress(OSError):  # no port, or too many files: then without RAS
                for rank in ranks:
                    reserved = open_sockets.enter_context(socket.socket())
                    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    reserved.bind(("127.0.0.1", 0))
                    ports[rank] = reserved.getsockname()[1]
        yield ports


def addressed(tasks: Sequence[Task], ports: Mapping[int, int]) -> list[Task]:
    """Return the tasks with each rank's RAS address."""
    return [
        replace(task, variables={**task.variables, _ADDRESS: f"127.0.0.1:{ports[task.rank]}"})
        if task.rank in ports
        else task
        for task in tasks
    ]


class RasQuestion:
    """Asks once for this run, when its collectives stall."""

    def __init__(self, run: Session, local: LocalRanks, ports: Mapping[int, int]) -> None:
        self._run, self._local, self._ports = run, local, ports
        self.answer: Ras | Missing | None = None

    async def at_a_hang(self, pace: Pace, plan: Plan, patience: Patience, trouble: Callable[[str], None]) -> None:
        """Call `trouble`, which ends the collectives, when progress stops, but ask first; see `Pace.watch`."""
        hung: list[str] = []
        await pace.watch(plan, hung.append, patience)
        if not hung:
            return
        if plan.backend == "nccl":
            await self.ask()
        trouble(hung[0])

    async def before_the_end(self, pace: Pace, reserve: float) -> None:
        """Ask shortly before --timeout expires if nothing has progressed for a while."""
        await asyncio.sleep(self._run.remaining(reserve + ASK_SECONDS + _COLLECT_SECONDS))
        if pace.silent_seconds() >= _SILENT_SECONDS:
            await self.ask()

    async def ask(self) -> None:
        """Ask the ranks of this process in turn until one answers, for `ASK_SECONDS` at most."""
        if self.answer is not None:
            return
        seconds = min(ASK_SECONDS, self._run.remaining(1.0))
        self.answer = Missing(reason=f"no answer within {seconds:.0f} s")
        if refused := own_address_refused(os.environ):
            self.answer = Missing(reason=f"not asked: {refused}")
            return
        able = [(r.placement.rank or 0, version_of(r)) for r in self._in_order()]
        has_ras = [(rank, version) for rank, version in able if version >= _SINCE and rank in self._ports]
        if not has_ras:
            self.answer = Missing(reason=f"not asked: {_why_none(max((version for _, version in able), default=None))}")
            return
        world_size = self._run.record.world_size
        with contextlib.suppress(asyncio.TimeoutError):
            self.answer = await asyncio.wait_for(self._first_answer(has_ras, world_size), seconds)

    def _in_order(self) -> list[LocalRank]:
        """Return the ranks that still run, those heard last first: a frozen one does not answer."""
        return sorted((r for r in self._local.ranks if not r.over), key=lambda r: -r.heard)

    async def _first_answer(self, ranks: list[tuple[int, tuple[int, ...]]], world_size: int) -> Ras | Missing:
        last = Missing(reason="no rank to ask")
        for rank, version in ranks:
            said = await ask_one(rank, self._ports[rank], world_size, as_json=version >= _JSON_SINCE)
            if not isinstance(said, Missing):
                return said
            last = said
        return last


def _why_none(version: tuple[int, ...] | None) -> str:
    """Return why no rank can be asked, by the newest NCCL of those that run; None if none runs."""
    if version is None:
        return "no rank of the leader's process runs any more"
    if not version:
        return "the version of NCCL is unknown"
    name = ".".join(map(str, version))
    return f"NCCL {name} has no RAS" if version < _SINCE else f"no port was free for the RAS of NCCL {name}"


def version_of(rank: LocalRank) -> tuple[int, ...]:
    """Return the version of the NCCL that a rank loaded, () if unknown."""
    name = rank.software.nccl if rank.software else ""
    return tuple(int(part) for part in re.findall(r"\d{1,6}", name)[:3])


async def ask_one(rank: int, port: int, world_size: int, *, as_json: bool) -> Ras | Missing:
    """Ask the RAS thread of one rank; whatever it answers, this raises nothing and keeps little."""
    try:
        limit = min(_ANSWER_BYTES + _BYTES_PER_RANK * world_size, _LONGEST_ANSWER)
        answer = await _status(port, limit, as_json=as_json)
    except (OSError, EOFError, ValueError, asyncio.TimeoutError) as error:
        why = str(error) or "it did not answer in time"
        return Missing(reason=f"rank {rank}'s RAS: {why}")
    said = parse(answer, rank, world_size)
    return Missing(reason=f"rank {rank}'s RAS: {said.reason}") if isinstance(said, Missing) else said


async def _status(port: int, limit: int, *, as_json: bool) -> bytes:
    """Return RAS's status.

    Raises:
        OSError: no connection, or it broke.
        ValueError: another protocol, or too long an answer.
        TimeoutError: no answer to a command.
    """
    reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), _HELLO_SECONDS)
    try:

        async def command(line: str, answer: bytes) -> None:
            writer.write(f"{line}\n".encode())
            said = await asyncio.wait_for(reader.readline(), _HELLO_SECONDS)
            if not said.upper().startswith(answer):
                raise ValueError(f"it answered {said[:40]!r} to {line}")

        await command("CLIENT PROTOCOL 2", b"SERVER PROTOCOL ")
        await command(f"TIMEOUT {_COLLECT_SECONDS}", b"OK")
        if as_json:
            await command("SET FORMAT json", b"OK")
        writer.write(b"VERBOSE STATUS\n")
        answer = bytearray()
        while part := await reader.read(1 << 16):
            answer += part
            if len(answer) > limit:
                raise ValueError(f"its answer has more than {limit} bytes")
        return bytes(answer)
    finally:
        writer.close()
