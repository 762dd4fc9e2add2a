"""The words of the roll call and how they cross a socket: framed, typed, limited in size, never unpickled."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
import zlib
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from distcheck.collectives.plan import Computed, Plan, Software, Timing
from distcheck.facts import (
    GpuLoads,
    Missing,
    NodeFacts,
    PeerTrial,
    Placement,
    ProcessFacts,
    RankFacts,
    RankRun,
    ReverseLookup,
    Use,
)

if TYPE_CHECKING:
    from distcheck.rollcall.seal import Seal

MAGIC = b"DCK1"
HEADER = struct.Struct("!4sI")
_EVERY_MAGIC = b"DCK"
HELLO_LIMIT_BYTES = 64 * 1024
ANSWER_LIMIT_BYTES = 4096
FRAME_LIMIT_BYTES = 16 * 1024 * 1024
"""The report of a node with 8 ranks and 8 GPUs has about 15 kB."""
SEGMENT_BYTES = 536
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # Who has lost its power or its cable closes nothing: after 14 s without an answer the kernel does.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 14_000),
)
"""Maximum TCP segment: a path that loses large packets must not lose the facts that tell of it."""

Name = Annotated[str, Meta(max_length=256)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
SIDE_DOORS = 4
_CONNECT_TRIES, _CONNECT_PAUSE_SECONDS = 4, 0.5
_T = TypeVar("_T")


class ProtocolError(Exception):
    """The other side does not speak our protocol; the message says what it said instead."""


class Word(msgspec.Struct, frozen=True, tag_field="word"):
    """Common ground of everything said at the roll call."""


class Hello(Word, frozen=True):
    """A guest at the door."""

    nonce: Name
    version: Name
    job: Name
    master: Name
    """MASTER_ADDR:MASTER_PORT as the guest has them."""
    uid: Name
    ranks: Annotated[tuple[int, ...], Meta(max_length=4096)]
    world_size: int
    seconds_left: Seconds
    """What is left of the guest's --timeout; the host ends before the first guest must leave."""
    line_end: Name = "\r\n\r\n"
    """Makes servers of line protocols, HTTP above all, answer at once and so show what they are."""


class Challenge(Word, frozen=True):
    """The host knows a DISTCHECK_TOKEN and asks whether the guest does; every frame from here on is sealed."""

    nonce: Name
    fresh: Name
    """The host's own nonce."""


class Proof(Word, frozen=True):
    """I do: the seal of this frame shows it."""


class Welcome(Word, frozen=True):
    """The host lets the guest in and proves with the nonce that it read the Hello."""

    nonce: Name
    run: Name
    uid: Name


class NotYet(Word, frozen=True):
    """The guest looks for another MASTER_ADDR:MASTER_PORT; it may be let in when the roll stays incomplete."""

    nonce: Name
    master: Name


class Refused(Word, frozen=True):
    """Another job, or the roll call is closed."""

    nonce: Name
    reason: Name


class PeerDoor(msgspec.Struct, frozen=True):
    """Where one process listens for its peers."""

    uid: Name
    address: Name
    port: Port
    uses: tuple[Use, ...] = ("master",)
    datagram_port: Port | None = None


class Report(Word, frozen=True):
    """The facts of one process, its node and its ranks."""

    node: NodeFacts
    process: ProcessFacts
    ranks: tuple[RankFacts, ...]
    peer_doors: Annotated[tuple[PeerDoor, ...], Meta(max_length=8)] = ()
    """Where it listens for its peers."""
    clock_seconds: float | None = None
    """time.time() when it is sent, after the Welcome."""


class Roster(Word, frozen=True):
    """The doors that this guest tries, and the word to say there."""

    nonce: Name
    doors: tuple[PeerDoor, ...]
    seconds: Seconds
    """How long one door may take."""


class PeerReport(Word, frozen=True):
    """Which doors opened, and how long the addresses of others took to look up."""

    trials: tuple[PeerTrial, ...]
    reverse: Annotated[tuple[ReverseLookup, ...], Meta(max_length=64)] = ()


class Start(Word, frozen=True):
    """Run the collectives."""

    plan: Plan
    seconds: Seconds
    world_size: int
    store: tuple[Name, Port] | None
    """Where rank 0's store listens; an empty host stands for the one that the guest has reached. None: rank 0 could not
    begin; only say whether you could."""


class Ready(Word, frozen=True):
    """Torch is imported here, or never will be."""


class Trouble(Word, frozen=True):
    """A rank of this process cannot finish; the others would wait for it in vain."""

    reason: str


class Abort(Word, frozen=True):
    """End the collectives now and report."""

    reason: str


class RunReport(Word, frozen=True):
    """What became of this process's ranks in the collectives."""

    runs: dict[int, RankRun]
    timings: tuple[tuple[int, Timing], ...]
    software: Software | None = None
    computed: dict[int, Computed] = {}
    gpus: GpuLoads | Missing | None = None
    """What the node's GPUs showed meanwhile, said by the process that has read their condition."""
    trial: int = 0
    """Which trial it was; 0 is the run of all ranks."""


class Trial(Word, frozen=True):
    """Run the collectives once more, in fresh processes and in a part of the world."""

    number: int
    plan: Plan
    seconds: Seconds
    parts: dict[int, tuple[int, int]]
    """Of each rank: its number in the part, and how many ranks the part has."""
    store: tuple[Name, Port] | None = None
    """Where the part's store listens (an empty host stands for the one that the guest has reached); None: open it."""


class StoreAt(Word, frozen=True):
    """The store of a trial is open."""

    trial: int
    port: Port


class Halt(Word, frozen=True):
    """End a trial now and report."""

    trial: int


class LastCall(Word, frozen=True):
    """The verdict is next: say whether you are still there to take it."""


class Here(Word, frozen=True):
    """I am."""


class Bye(Word, frozen=True):
    """The report is written: leave with this exit code, as everybody does."""

    exit_code: int


FromGuest = Report | PeerReport | Ready | Trouble | RunReport | StoreAt | Here
FromHost = Roster | Start | Abort | Trial | Halt | LastCall | Bye

hello_decoder = msgspec.msgpack.Decoder(Hello)
proof_decoder = msgspec.msgpack.Decoder(Proof)
Answer = Challenge | Welcome | NotYet | Refused
answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
guest_decoder: msgspec.msgpack.Decoder[FromGuest] = msgspec.msgpack.Decoder(FromGuest)
host_decoder: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)


def encode(word: Word, seal: Seal | None = None) -> bytes:
    """Return the frame of a word: magic, length, MessagePack, and where there is a token its seal."""
    body = msgspec.msgpack.encode(word)
    frame = HEADER.pack(MAGIC, len(body)) + body
    return frame if seal is None else seal.close(frame)


async def read(
    reader: asyncio.StreamReader,
    decoder: msgspec.msgpack.Decoder[_T],
    limit: int = FRAME_LIMIT_BYTES,
    *,
    seal: Seal | None = None,
    expect: Callable[[int], None] | None = None,
) -> _T:
    """Read one frame.

    Args:
        reader: what comes from the other side.
        decoder: for the words that it may say now.
        limit: the largest body that is taken.
        seal: the other side's, where there is a token.
        expect: told the size of the body before it is read; a ProtocolError of it ends the reading.

    Raises:
        ProtocolError: the bytes are no frame, the frame is larger than `limit`, holds what the decoder refuses, or its
            seal does not fit.
        EOFError: the other side has closed.
        OSError: the connection broke.
    """
    body = await read_body(reader, limit, expect)
    return decode(body if seal is None else seal.open(body), decoder)


async def read_body(reader: asyncio.StreamReader, limit: int, expect: Callable[[int], None] | None = None) -> bytes:
    """Read one frame as `read` does, and return its body as it came."""
    try:
        header = await reader.readexactly(HEADER.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise ProtocolError(banner(error.partial)) from None
        raise EOFError from None
    magic, length = HEADER.unpack(header)
    if magic != MAGIC:
        if magic.startswith(_EVERY_MAGIC):
            raise ProtocolError(f"distcheck of another version, whose frames begin with {banner(magic)}, not DCK1")
        with contextlib.suppress(asyncio.TimeoutError, OSError):
            header += await asyncio.wait_for(reader.read(200), 0.2)
        raise ProtocolError(banner(header))
    if length > limit:
        raise ProtocolError(f"a frame of {length} bytes where at most {limit} are taken")
    if expect is not None:
        expect(length)
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise EOFError from None


def decode(body: bytes, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    """Return the word of a frame's body.

    Raises:
        ProtocolError: the decoder refuses it.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame that this version does not read: {error}") from None


async def within(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Return what `work` returns, or raise asyncio.TimeoutError when it takes longer.

    Unlike asyncio.wait_for it loses no exception when it is itself cancelled while `work` ends; the loop would print
    one that is lost.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise asyncio.TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()


def banner(raw: bytes) -> str:
    """Return another program's first words so that they can be printed: one line, no control characters."""
    text = raw[:120].decode("latin-1")
    return "".join(c if c.isprintable() else " " for c in text).strip() or f"{len(raw)} unprintable bytes"


def prepare(sock: socket.socket) -> None:
    """Keep the segments small and the answers quick, and notice a host that is gone without a word.

    Sockets that cannot are used as they are.
    """
    for level, option, value in _OPTIONS:
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)


async def connect(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a numeric address in small segments.

    Raises:
        OSError: as the kernel says it.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        prepare(sock)
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
        return await asyncio.open_connection(sock=sock)
    except BaseException:
        sock.close()
        raise


async def connect_again(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as `connect` does, beginning anew every half second, a few times, while there is no answer.

    On a path that loses packets the kernel alone tries too rarely, and that is no shut door.
    """
    tries: list[asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = []
    kept = None
    try:
        while True:
            if len(tries) < _CONNECT_TRIES:
                tries.append(asyncio.create_task(connect(address, port)))
            patience = _CONNECT_PAUSE_SECONDS if len(tries) < _CONNECT_TRIES else None
            done, _ = await asyncio.wait(tries, timeout=patience, return_when="FIRST_COMPLETED")
            if done:
                kept = next((t for t in done if t.exception() is None), next(iter(done)))
                return kept.result()
    finally:
        for task in tries:
            if task is not kept:
                task.add_done_callback(_close_connection)
                task.cancel()


def _close_connection(task: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[1].close()


def words_of(error: OSError) -> str:
    """Return the system's own words for an error; asyncio's repeat the address instead."""
    return f"{os.strerror(error.errno)} (errno {error.errno})" if error.errno else str(error)


def plain_address(address: str) -> str:
    """Return the IPv4 address inside an IPv6-mapped one, any other address as it is."""
    return address.removeprefix("::ffff:")


def is_loopback(address: str) -> bool:
    """Whether an address reaches its own host only."""
    return address.startswith("127.") or address == "::1"


def job_key(environ: Mapping[str, str], placement: Placement) -> str:
    """Name the job that a process belongs to: the scheduler's job and step, torchrun's run, or by hand the user.

    MASTER_ADDR and MASTER_PORT are not part of it: a job whose ranks disagree about them must still be able to meet.
    A DISTCHECK_TOKEN tells two jobs of one user apart that were started by hand on one host.
    """
    token = environ.get("DISTCHECK_TOKEN")
    if token:
        from distcheck.rollcall import seal

        return f"token {seal.name_of(token)}"
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMIX_NAMESPACE"):
        if environ.get(name) and placement.launcher not in {"by hand", "distcheck"}:
            return f"{name}={environ[name]}"
    if environ.get("TORCHELASTIC_RUN_ID"):
        return f"torchrun {environ['TORCHELASTIC_RUN_ID']} uid {os.getuid()}"
    return f"uid {os.getuid()}"


def job_secret(environ: Mapping[str, str]) -> bytes | None:
    """Return what only the processes of this job know, None where there is no DISTCHECK_TOKEN."""
    token = environ.get("DISTCHECK_TOKEN")
    if not token:
        return None
    from distcheck.rollcall import seal

    return seal.secret_of(token)


def side_ports(job: str) -> tuple[int, ...]:
    """Return the ports of the side doors: below the ephemeral range, the same on every rank of a job."""
    first = 21000 + zlib.crc32(job.encode()) % 2500 * SIDE_DOORS
    return tuple(range(first, first + SIDE_DOORS))


def public_key(job: str) -> str:
    """Return the job's name as it crosses the network: nobody who listens learns a user or job id."""
    return hashlib.sha256(job.encode()).hexdigest()[:32]
