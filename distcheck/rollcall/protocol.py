"""The words of the roll call: typed, limited in size, never unpickled."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from distcheck.collectives.plan import Computed, Plan, Software, Timing
from distcheck.facts import (
    Count,
    GpuLoads,
    Missing,
    NodeFacts,
    Offset,
    PeerTrial,
    ProcessFacts,
    Rank,
    RankFacts,
    RankRun,
    ReverseLookup,
    Use,
)

Name = Annotated[str, Meta(max_length=256)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Found = Literal["master", "job", "node"]
"""How a guest found a door: its MASTER_ADDR means that host; it is a host of its job; it is its own node."""


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
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=4096)]
    world_size: Rank
    seconds_left: Seconds
    """What is left of the guest's --timeout; the host ends before the first guest must leave."""
    waited_seconds: Seconds = 0.0
    """How long it has knocked at doors so far."""
    found: Found = "master"
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
    of_node: bool = False
    """True where rank 0 was not met: those of one node meet to report together."""
    rank: Rank = 0
    """The host's first: another than 0 where it stands in for rank 0's process."""


class NotYet(Word, frozen=True):
    """The guest looks for another MASTER_ADDR:MASTER_PORT; it may be let in when the roll stays incomplete."""

    nonce: Name
    master: Name


class Elsewhere(Word, frozen=True):
    """This is a guest like you; it has met the host at this address."""

    nonce: Name
    address: Name


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
    clock_seconds: Offset | None = None
    """time.time() when it is sent, after the Welcome."""


class Roster(Word, frozen=True):
    """The doors that this guest tries, and the word to say there."""

    nonce: Name
    doors: tuple[PeerDoor, ...]
    seconds: Seconds
    """How long one door may take."""
    again: bool = False
    """Only send data once more to these doors, while most others are quiet."""


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

    runs: dict[Rank, RankRun]
    timings: tuple[tuple[Rank, Timing], ...]
    software: Software | None = None
    computed: dict[Rank, Computed] = {}
    gpus: GpuLoads | Missing | None = None
    """What the node's GPUs showed meanwhile, said by the process that has read their condition."""
    trial: Count = 0
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

    trial: Count
    port: Port


class Halt(Word, frozen=True):
    """End a trial now and report."""

    trial: Count


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
Answer = Challenge | Welcome | NotYet | Elsewhere | Refused
answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
guest_decoder: msgspec.msgpack.Decoder[FromGuest] = msgspec.msgpack.Decoder(FromGuest)
host_decoder: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)
