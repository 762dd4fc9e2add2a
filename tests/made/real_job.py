"""Jobs on nodes as real ones are (`real_node`), healthy and with faults, of any size."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from made import machines
from made.jobs import healthy_job
from made.real_node import GIB, GPUS, OPERATIONS, SIZES, ecc, node_facts, process_facts, rank_facts

from distcheck.facts.base import Missing
from distcheck.facts.device import DeviceTest
from distcheck.facts.gpu import GpuProcess, NvLinks, Xid
from distcheck.facts.host import CgroupLimit
from distcheck.facts.job import Collectives, Job, Measurement
from distcheck.facts.network import PeerTrial, Transfer
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.rank import RankRun
from distcheck.facts.storage import Space
from distcheck.probe import pci
from distcheck.rollcall.brief import LEFT_OUT
from distcheck.rollcall.peers import distances
from distcheck.rollcall.protocol import NodeReport, PeerReport, Report, RunReport
from distcheck.rollcall.sharing import Sharing
from distcheck.selection.placement import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from distcheck.facts.infiniband import Hca
    from distcheck.facts.rank import ProcessFacts, RankFacts

    Fault = Callable[[Job, set[str]], Job]
    """What changes the nodes of these keys."""

SOURCE, TARGET = "source", "target"
LOOKS = ("environment", "meeting", "peers", "gpu", "collectives")
replace = msgspec.structs.replace


def healthy(nodes: int, per_node: int = GPUS, *, sparse: bool = False) -> Job:
    """Return a healthy gate of NCCL's under srun; its facts came over a network, so most are objects of their own.

    `sparse`: without adapters, loads of GPUs and software, so that half a million ranks have room in memory.
    """
    plain = healthy_job(nodes, per_node, "slurm", LOOKS, gpus=GPUS, command="gate")
    with tempfile.TemporaryDirectory() as folder:
        tree = pci.collect(machines.write(Path(folder), machines.DGX_H100))
    here = (node_facts(node, n, tree, sparse=sparse) for n, node in enumerate(plain.nodes))
    processes = (process_facts(process, n, sparse=sparse) for n, process in enumerate(plain.processes))
    of_process: defaultdict[str, list[tuple[int, RankFacts]]] = defaultdict(list)
    for n, rank in enumerate(plain.ranks):
        of_process[rank.process].append((n, rank))
    rows = tuple(
        Measurement(
            op=op, bytes=1 << n, dtype="float32", iterations=20, seconds_by_rank=(_seconds(1 << n),) * len(plain.ranks)
        )
        for op in OPERATIONS
        for n in SIZES
    )
    leader = _Leader()
    known = {node.key: node for node in leader.nodes(here)}
    reports = []
    for process in processes:
        ranks = (rank_facts(r, n, nodes, per_node, sparse=sparse) for n, r in of_process[process.uid])
        reports.append(leader.process(process, ranks, known[process.node]))
    job = replace(
        plain,
        asked=replace(plain.asked, operations=OPERATIONS),
        nodes=tuple(known.values()),
        processes=tuple([replace(report.process, stage="done") for report in reports]),
        ranks=tuple([leader.with_run(rank) for report in reports for rank in report.ranks]),
        collectives=Collectives(backend="nccl", torch="2.13.0", nccl="2.28.9", measurements=rows),
    )
    return replace(job, peers=tuple(leader.trials(_trials(job))))


class _Leader:
    """Receives facts as the leader does: one message after the other, which share their equal parts.

    So its facts lie in memory as the leader's: what came together is together, and what was replaced is apart.
    """

    def __init__(self) -> None:
        self._share = Sharing().share
        self._runs: dict[int, bytes] = {}

    def nodes(self, nodes: Iterable[NodeFacts]) -> Iterator[NodeFacts]:
        for node in map(_own, nodes):
            self._share(NodeReport(node))
            yield node

    def process(self, process: ProcessFacts, ranks: Iterable[RankFacts], node: NodeFacts) -> Report:
        told = []
        for rank in ranks:
            self._runs[rank.placement.rank] = msgspec.msgpack.encode(rank.run)
            told.append(_own(replace(rank, run=None)))
        report = Report(_brief(node), _own(process), tuple(told))
        self._share(report)
        return report

    def with_run(self, rank: RankFacts) -> RankFacts:
        run = msgspec.msgpack.decode(self._runs.pop(rank.placement.rank), type=RankRun)
        self._share(RunReport({rank.placement.rank: run}, ()))
        return replace(rank, run=run)

    def trials(self, trials: Iterable[PeerTrial]) -> Iterator[PeerTrial]:
        for trial in map(_own, trials):
            self._share(PeerReport((trial,)))
            yield trial


def _brief(node: NodeFacts) -> NodeFacts:
    """Return what the other processes of a node send of it."""
    return replace(node, interfaces=LEFT_OUT, gpus=LEFT_OUT, pci=LEFT_OUT, infiniband=None, host=None)


def _own(fact):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(fact), type=type(fact))


def _seconds(size_bytes: int) -> float:
    return 1e-4 + size_bytes / 200e9


def _trials(job: Job) -> Iterator[PeerTrial]:
    """Yield what the nodes' first processes met with at those further on, as in a job of more than 64 nodes."""
    first = list({p.node: p for p in reversed(job.processes)}.values())[::-1]
    addresses = {node.key: node.network.own_name_binds for node in job.nodes}
    for n, source in enumerate(first):
        for step in distances(len(first)) if len(first) > 1 else ():
            target, odd = first[(n + step) % len(first)], (n + step) % 59 / 1e6
            sent = Transfer(
                bytes=1 << 21, seconds=0.001 + odd, stalled=False, segments=1500, round_trip_seconds=1e-4 + odd
            )
            trial = PeerTrial(
                source.uid, target.uid, addresses[target.node], 40000 + (n + step) % 53, "met", 0.001 + odd,
                uses=("master", "nccl", "gloo"), transfer=sent, datagrams={256: True, 1500: True},
                round_trip_seconds=1e-4 + odd,
            )  # fmt: skip
            yield trial


def _on_nodes(change: Callable[[NodeFacts], NodeFacts]) -> Fault:
    def broken(job: Job, ill: set[str]) -> Job:
        return replace(job, nodes=tuple(change(node) if node.key in ill else node for node in job.nodes))

    return broken


def _on_ranks(change: Callable[[RankFacts], RankFacts]) -> Fault:
    def broken(job: Job, ill: set[str]) -> Job:
        home = {p.uid: p.node for p in job.processes}
        return replace(job, ranks=tuple(change(rank) if home[rank.process] in ill else rank for rank in job.ranks))

    return broken


def _on_trials(change: Callable[[PeerTrial], PeerTrial], *, ends: str = TARGET) -> Fault:
    """Change the trials that lead to these nodes, or those that come from them."""

    def broken(job: Job, ill: set[str]) -> Job:
        home = {p.uid: p.node for p in job.processes}
        return replace(job, peers=tuple(change(t) if home[getattr(t, ends)] in ill else t for t in job.peers))

    return broken


def _environment(**variables: str | None) -> Fault:
    def changed(rank: RankFacts) -> RankFacts:
        merged = {**rank.environment, **variables}
        environment = {name: value for name, value in merged.items() if value is not None}
        return replace(rank, environment=environment, placement=place(environment))

    return _on_ranks(changed)


def _run(**fields: object) -> Fault:
    return _on_ranks(lambda rank: replace(rank, run=replace(rank.run, **fields)))


def _health(**fields: object) -> Fault:
    """Change the condition of a node's first GPU."""

    def changed(node: NodeFacts) -> NodeFacts:
        first, *rest = node.gpus.devices
        first = replace(first, health=replace(first.health, **fields))
        return replace(node, gpus=replace(node.gpus, devices=(first, *rest)))

    return _on_nodes(changed)


def _loads(**fields: object) -> Fault:
    """Change what a node's first GPU showed under load."""

    def changed(node: NodeFacts) -> NodeFacts:
        first, *rest = node.gpus.devices
        return replace(
            node, gpus=replace(node.gpus, devices=(replace(first, load=replace(first.load, **fields)), *rest))
        )

    return _on_nodes(changed)


def _hcas(change: Callable[[Hca], Hca]) -> Fault:
    return _on_nodes(
        lambda node: replace(node, infiniband=replace(node.infiniband, hcas=tuple(map(change, node.infiniband.hcas))))
    )


def _ports(**fields: object) -> Fault:
    return _hcas(lambda hca: replace(hca, ports=tuple(replace(port, **fields) for port in hca.ports)))


def _on_processes(change: Callable[[ProcessFacts], ProcessFacts]) -> Fault:
    def broken(job: Job, ill: set[str]) -> Job:
        return replace(job, processes=tuple(change(p) if p.node in ill else p for p in job.processes))

    return broken


def _address(node: NodeFacts) -> NodeFacts:
    """Give a node the address of node1 on its management network."""
    there = tuple(
        replace(i, address="10.0.0.1") if i.name == "eno3" and "." in i.address else i for i in node.interfaces
    )
    return replace(node, interfaces=there, network=replace(node.network, own_name_binds="10.0.0.1"))


def _named_loopback(node: NodeFacts) -> NodeFacts:
    own = replace(node.network.own_name, addresses=("127.0.1.1",))
    return replace(node, network=replace(node.network, own_name=own, own_name_binds="127.0.1.1"))


def _over_tcp(rank: RankFacts) -> RankFacts:
    log = replace(rank.run.nccl, network="Socket", devices=("eno3",), no_ib_device=True, transports={"NET/Socket/0": 2})
    return replace(rank, run=replace(rank.run, nccl=log))


def _absent(job: Job, ill: set[str]) -> Job:
    processes = tuple(p for p in job.processes if p.node not in ill)
    here = {p.uid for p in processes}
    return replace(
        job,
        nodes=tuple(node for node in job.nodes if node.key not in ill),
        processes=processes,
        ranks=tuple(rank for rank in job.ranks if rank.process in here),
        peers=tuple(t for t in job.peers if {t.source, t.target} <= here),
        collectives=Missing(reason="ranks are missing"),
    )


def _slow(job: Job, ill: set[str]) -> Job:
    home = {p.uid: p.node for p in job.processes}
    factors = [3.0 if home[rank.process] in ill else 1.0 for rank in job.ranks]
    rows = tuple(
        replace(row, seconds_by_rank=tuple(s * f for s, f in zip(row.seconds_by_rank, factors, strict=True)))
        for row in job.collectives.measurements
    )
    return replace(job, collectives=replace(job.collectives, measurements=rows))


def _never_tried(job: Job, ill: set[str]) -> Job:
    home = {p.uid: p.node for p in job.processes}
    return replace(job, peers=tuple(trial for trial in job.peers if home[trial.target] not in ill))


FAULTS: dict[str, Fault] = {
    "no node tried them": _never_tried,
    "they do not answer": _on_trials(lambda t: replace(t, outcome="timeout", transfer=None, datagrams={})),
    "no data to them arrives": _on_trials(lambda t: replace(t, transfer=replace(t.transfer, bytes=0, stalled=True))),
    "packets to them are lost": _on_trials(lambda t: replace(t, transfer=replace(t.transfer, repeated=150))),
    "jumbo frames from them are lost": _on_trials(
        lambda t: replace(t, datagrams={256: True, 9000: False}), ends=SOURCE
    ),
    "they have the address of node1": _on_nodes(_address),
    "their name is a loopback": _on_nodes(_named_loopback),
    "NCCL takes Docker's bridge": _environment(NCCL_SOCKET_IFNAME="docker0"),
    "NCCL takes an interface that is not there": _environment(NCCL_SOCKET_IFNAME="bond0"),
    "Gloo takes a bridge of containers": _environment(GLOO_SOCKET_IFNAME="br-5f1c2d"),
    "another MASTER_PORT": _environment(MASTER_PORT="29501"),
    "RANK is unset": _environment(RANK=None, SLURM_PROCID=None),
    "all are rank 0": _environment(RANK="0", SLURM_PROCID="0"),
    "one GPU for all ranks": _on_ranks(lambda r: replace(r, gpu=r.visible_gpus[0])),
    "they did not come": _absent,
    "another driver": _on_nodes(lambda n: replace(n, gpus=replace(n.gpus, driver="570.10"))),
    "a GPU with an uncorrected error": _health(ecc=ecc(uncorrected=4)),
    "a GPU with a link down": _health(
        nvlinks=NvLinks(active=(True,) * 17 + (False,), remote=("switch",) * 18, version=6)
    ),
    "an error in the kernel's log": _on_nodes(
        lambda n: replace(n, xids=(Xid(79, "0000:1b:00.0", 60.0, "GPU has fallen off the bus"),))
    ),
    "a GPU got hot": _loads(hardware_thermal_seconds=4.0, temperature_celsius=92),
    "a GPU clocked low": _loads(sm_MHz=1200),
    "a GPU resent packets": _loads(replays=90_000),
    "a GPU is slow": _run(device_test=DeviceTest("bfloat16", 8192, 90.0, 3000.0, products=50, checksum=123_456_789)),
    "a GPU multiplies wrongly": _run(
        device_test=DeviceTest("bfloat16", 8192, 690.0, 3000.0, products=50, different=3, checksum=5)
    ),
    "ports are down": _ports(state="DOWN", physical_state="Polling"),
    "ports are slow": _ports(rate_Gbps=100.0, lanes=1),
    "ports have no partition": _ports(partition_keys={0: 0x8001}),
    "ports lose packets": _ports(growth={"packet_seq_err": 500}),
    "their adapters cannot be opened": _hcas(
        lambda hca: replace(hca, device_file="denied", denied="Permission denied")
    ),
    "an adapter is missing": _on_nodes(
        lambda n: replace(n, infiniband=replace(n.infiniband, hcas=n.infiniband.hcas[1:]))
    ),
    "no GPUDirect RDMA": _on_nodes(
        lambda n: replace(n, infiniband=replace(n.infiniband, peer_memory=(), open_driver=False))
    ),
    "another torch": _on_processes(
        lambda p: replace(p, installed=replace(p.installed, torch=TorchBuild("2.9.0", "12.8", None)))
    ),
    "another NCCL": _on_ranks(
        lambda r: replace(r, run=replace(r.run, nccl=replace(r.run.nccl, version="2.20.5")))
    ),
    "few processes are allowed": _on_processes(
        lambda p: replace(p, limits=replace(p.limits, tasks=CgroupLimit(limit=64, used=60, cgroup="/sys/fs/cgroup")))
    ),
    "little memory may be locked": _on_processes(lambda p: replace(p, locked_memory_bytes=64 << 10)),
    "their clocks are wrong": _on_processes(lambda p: replace(p, clock_offset_seconds=90.0)),
    "they were lost": _on_processes(lambda p: replace(p, lost="connection closed", stage="peers")),
    "their memory is full": _on_nodes(lambda n: replace(n, host=replace(n.host, available_bytes=1 << 28))),
    "their /dev/shm is small": _on_nodes(
        lambda n: replace(n, shm=Space(total_bytes=64 << 20, free_bytes=0, free_files=None, writable=True))
    ),
    "their cores are taken": _on_nodes(lambda n: replace(n, host=replace(n.host, load=900.0, running=900))),
    "GPUs of others' processes": _health(processes=(GpuProcess(4242, 70 * GIB),)),
    "NCCL was set to be slow": _environment(NCCL_P2P_DISABLE="1", NCCL_IB_DISABLE="1"),
    "the ranks of a node died": _run(outcome="died", detail="SIGKILL", step="all_reduce 1048576 B"),
    "wrong results": _run(wrong=dict.fromkeys(OPERATIONS, 7)),
    "they are late": _slow,
    "NCCL goes over TCP": _on_ranks(_over_tcp),
}  # fmt: skip
"""What may be wrong with some nodes of a job."""


def faulty(job: Job, fault: str, every: int) -> Job:
    """Return the job with this fault on every so many nodes, from the second one on."""
    return FAULTS[fault](job, {node.key for node in job.nodes[1::every]})
