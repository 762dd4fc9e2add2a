"""The messages of the roll call: typed, limited in size, never unpickled."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from distcheck.collectives.plan import Computed, GroupTiming, Plan, Software, Timing
from distcheck.facts.base import Count, Missing, Offset, Rank
from distcheck.facts.gpu import GpuLoads
from distcheck.facts.infiniband import Counters
from distcheck.facts.network import PeerTrial, ReverseLookup, Use
from distcheck.facts.node import NodeFacts
from distcheck.facts.rank import ProcessFacts, RankFacts, RankRun

LONGEST_NAME = 256
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Found = Literal["master", "job", "node"]
"""How a follower found an endpoint: by its MASTER_ADDR, as a host of its job, or on its own node."""


class Word(msgspec.Struct, frozen=True, tag_field="word"):
    """Base of all messages of the roll call."""


class Hello(Word, frozen=True):
    """A follower's first message."""

    nonce: Name
    job: Name
    master: Name
    """The follower's MASTER_ADDR:MASTER_PORT."""
    uid: Name
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=4096)]
    world_size: Rank
    seconds_left: Seconds
    """What is left of the follower's --timeout; the leader ends before the first follower must leave."""
    waited_seconds: Seconds = 0.0
    """How long it has been trying endpoints."""
    found: Found = "master"
    line_end: Name = "\r\n\r\n"
    """Makes servers of line protocols, above all HTTP, answer at once and so identify themselves."""


class Challenge(Word, frozen=True):
    """The leader asks for a proof of the DISTCHECK_TOKEN; every later frame is sealed."""

    nonce: Name
    fresh: Name
    """The leader's own nonce."""


class Proof(Word, frozen=True):
    """The follower's proof: the seal of this frame."""


class Welcome(Word, frozen=True):
    """The leader admits the follower; the nonce proves that it read the Hello."""

    nonce: Name
    run: Name
    uid: Name
    of_node: bool = False
    """True where rank 0 was not reached and the processes of one node report together."""
    rank: Rank = 0
    """The leader's first rank: not 0 if it stands in for rank 0's process."""
    packages: Name = ""
    """The hash of the distributions installed on the leader's node; empty if unknown."""


class NotYet(Word, frozen=True):
    """The follower looks for another master; it may be admitted if ranks stay missing."""

    nonce: Name
    master: Name


class Elsewhere(Word, frozen=True):
    """A redirect from another follower: it reached the leader at this address."""

    nonce: Name
    address: Name


class Refused(Word, frozen=True):
    """The leader refuses: another job, or the roll call is closed."""

    nonce: Name
    reason: Name
    full: bool = False
    """True where the leader may not open more files."""


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
    """Its endpoints for peers."""
    clock_seconds: Offset | None = None
    """time.time() when it is sent, after the Welcome."""
    brief: Name = ""
    """A digest of the GPUs that it sees, if the large facts of its node are left to another process of the node."""


class AskNode(Word, frozen=True):
    """Send the facts of your node, which you have left out of your report."""


class NodeReport(Word, frozen=True):
    """The answer to AskNode."""

    node: NodeFacts


class Roster(Word, frozen=True):
    """The endpoints that this follower tests, and the nonce for the handshake there."""

    nonce: Name
    doors: tuple[PeerDoor, ...]
    seconds: Seconds
    """How long one endpoint may take."""
    again: bool = False
    """Only repeat the transfer to these endpoints, while most other nodes are quiet."""


class PeerReport(Word, frozen=True):
    """The tests of peer endpoints, and the reverse look-ups of the others' addresses."""

    trials: tuple[PeerTrial, ...]
    reverse: Annotated[tuple[ReverseLookup, ...], Meta(max_length=64)] = ()


class Start(Word, frozen=True):
    """Run the collectives."""

    plan: Plan
    seconds: Seconds
    world_size: int
    store: tuple[Name, Port] | None
    """Where rank 0's store listens; an empty host stands for the leader's. None: rank 0 could not start; only report
    whether you could."""


class Ready(Word, frozen=True):
    """Torch is imported here, or the import has failed."""


class Trouble(Word, frozen=True):
    """A rank of this process cannot finish, so the others need not wait for it."""

    reason: str


class Abort(Word, frozen=True):
    """End the collectives now and report."""


class RunReport(Word, frozen=True):
    """How this process's ranks ended in the collectives, and what they measured."""

    runs: dict[Rank, RankRun]
    timings: tuple[tuple[Rank, Timing], ...]
    software: Software | None = None
    computed: dict[Rank, Computed] = {}
    gpus: GpuLoads | Missing | None = None
    """What the node's GPUs showed meanwhile, from the process that reads their health."""
    counters: Counters | Missing | None = None
    """The counters of the node's RDMA adapters afterwards, from the process that read them before."""
    trial: Count = 0
    """The number of the trial; 0 is the run of all ranks."""
    groups: tuple[tuple[Rank, GroupTiming], ...] = ()
    """What they measured in the groups of the mesh."""


class StartTrial(Word, frozen=True):
    """Run the collectives again, in new rank processes and in a subset of the ranks."""

    number: int
    plan: Plan
    seconds: Seconds
    parts: dict[int, tuple[int, int]]
    """Per rank: its number in the subset, and the subset's size."""
    store: tuple[Name, Port] | None = None
    """Where the subset's store listens (an empty host stands for the leader's); None: open it."""
    variables: dict[Name, Name] = {}
    """Environment variables to set in the rank processes."""


class StoreAt(Word, frozen=True):
    """The store of a trial is open."""

    trial: Count
    port: Port


class Halt(Word, frozen=True):
    """End a trial now and report."""

    trial: Count


class LastCall(Word, frozen=True):
    """The verdict is next: answer if you are still there to receive it."""


class Here(Word, frozen=True):
    """The answer to LastCall."""


class Bye(Word, frozen=True):
    """The report is written: exit with this code, as all processes do."""

    exit_code: int
    headline: Name
    """The first line of the report."""
    node: Name
    """Of the process that wrote the report."""
    pid: Count


class Deflated(Word, frozen=True):
    """A follower's large message, compressed by zlib: a node's report takes a sixth of its size."""

    data: bytes


FromFollower = Report | NodeReport | PeerReport | Ready | Trouble | RunReport | StoreAt | Here
FromLeader = AskNode | Roster | Start | Abort | StartTrial | Halt | LastCall | Bye

hello_decoder = msgspec.msgpack.Decoder(Hello)
proof_decoder = msgspec.msgpack.Decoder(Proof)
Answer = Challenge | Welcome | NotYet | Elsewhere | Refused
answer_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
follower_decoder: msgspec.msgpack.Decoder[FromFollower] = msgspec.msgpack.Decoder(FromFollower)
wrapped_decoder: msgspec.msgpack.Decoder[FromFollower | Deflated] = msgspec.msgpack.Decoder(FromFollower | Deflated)
leader_decoder: msgspec.msgpack.Decoder[FromLeader] = msgspec.msgpack.Decoder(FromLeader)
