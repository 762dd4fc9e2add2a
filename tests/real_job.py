"""Jobs on nodes as real ones are, healthy and with faults, of any size: eight GPUs and twelve adapters on every node.

A node has the interfaces of a DGX H100 with containers: loopback, a management network with IPv6, a bridge of Docker
and its ends, and an address on each of eight rails. Its PCI tree is what the probe reads of such a machine.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import machines
import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.gpu import Ecc, Fabric, Gpu, GpuClocks, GpuHealth, NvLinks, PcieLink, PeerAccess, RemappedRows, Xid
from distcheck.facts.host import CgroupLimit, HostFacts, Limits
from distcheck.facts.job import Collectives, Job, Measurement
from distcheck.facts.nccl import NcclLog
from distcheck.facts.network import Interface, Link, NetworkFacts, PeerTrial, Resolution, Transfer
from distcheck.facts.node import NodeFacts
from distcheck.facts.rank import RankFacts, RankRun
from distcheck.facts.storage import Space
from distcheck.probe import pci
from distcheck.rollcall.peers import distances
from distcheck.selection.placement import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distcheck.facts.pci import Pci

    Fault = Callable[[Job, set[str]], Job]
    """What changes the nodes of these keys."""

GPUS = 8
"""On every node."""
LOOKS = ("environment", "meeting", "peers", "gpu", "collectives")
OPERATIONS = ("all_reduce", "broadcast")
SIZES = range(20, 29, 2)
"""Powers of 2, in bytes."""
GIB = 1 << 30
replace = msgspec.structs.replace


def _load_conftest() -> object:
    """Return the module that builds healthy jobs for the tests of the rules."""
    path = Path(__file__).parent / "rules" / "conftest.py"
    spec = importlib.util.spec_from_file_location("rules_conftest", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def healthy(nodes: int, per_node: int = GPUS) -> Job:
    """Return a healthy gate of NCCL's under srun; no two of its facts are one object, as in what came by a network."""
    plain: Job = _load_conftest().healthy_job(nodes, per_node, "slurm", LOOKS, gpus=GPUS, command="gate")
    with tempfile.TemporaryDirectory() as folder:
        tree = pci.collect(machines.write(Path(folder), machines.DGX_H100))
    here = tuple(_own(_node(node, n, tree)) for n, node in enumerate(plain.nodes))
    processes = tuple(
        replace(
            p,
            arrived_seconds=0.5,
            clock_ahead_seconds=0.0,
            bind=p.bind if n == 0 else None,
            limits=_own(_limits()),
            clock_offset_seconds=0.002 if n else None,
            clock_error_seconds=0.01 if n else None,
        )
        for n, p in enumerate(plain.processes)
    )
    rows = tuple(
        Measurement(
            op=op, bytes=1 << n, dtype="float32", iterations=20, seconds_by_rank=(_seconds(1 << n),) * len(plain.ranks)
        )
        for op in OPERATIONS
        for n in SIZES
    )
    job = replace(
        plain,
        asked=replace(plain.asked, operations=OPERATIONS),
        nodes=here,
        processes=processes,
        ranks=tuple(_own(_rank(rank, n, nodes, per_node)) for n, rank in enumerate(plain.ranks)),
        collectives=Collectives(
            backend="nccl", backend_reason="there are GPUs", torch="2.13.0", nccl="2.27.5", measurements=rows
        ),
    )
    return replace(job, peers=tuple(_trials(job)))


def _own(fact):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(fact), type=type(fact))


def _seconds(size_bytes: int) -> float:
    return 1e-4 + size_bytes / 200e9


def _ipv4(network: int, n: int) -> str:
    """Return the address of a node in one of 128 networks of 131,070 nodes each."""
    return f"10.{2 * network + (n + 1 >> 16)}.{n + 1 >> 8 & 255}.{n + 1 & 255}"


def _ipv6(prefix: str, n: int) -> str:
    return f"{prefix}::{n + 1 >> 16:x}:{n + 1 & 65535:x}"


def _node(node: NodeFacts, n: int, tree: Pci) -> NodeFacts:
    own = _ipv4(0, n)
    mac = f"{n >> 8 & 255:02x}:{n & 255:02x}"
    bridge = ("br-5f1c2d", "172.18.0.1", 16)
    rails = [(f"ibp{bus}s0", _ipv4(8 + rail, n), 15) for rail, bus in enumerate((24, 64, 79, 94, 154, 192, 206, 220))]
    ends = [(f"veth{n:04x}{end}", f"fe80::{end}:{n:x}", 64) for end in range(3)]
    addresses = [
        ("lo", "127.0.0.1", 8), ("eno3", own, 15), *rails, ("docker0", "172.17.0.1", 16), bridge,
        ("lo", "::1", 128), ("eno3", _ipv6("fd00:7", n), 64), ("eno3", _ipv6("fe80", n), 64),
        *((name, _ipv6("fe80", n), 64) for name, _, _ in rails), *ends,
    ]  # fmt: skip
    kinds = {"lo": "loopback", "eno3": "physical"} | {name: "physical" for name, _, _ in rails}
    names = dict.fromkeys(name for name, _, _ in addresses)
    gpus = tuple(
        _gpu(gpu, i, address)
        for i, (gpu, address) in enumerate(zip(node.gpus.devices, machines.gpus(machines.DGX_H100), strict=True))
    )
    access = tuple(PeerAccess((a, b), 0, 0, 0) for b in range(GPUS) for a in range(b))
    return replace(
        node,
        interfaces=tuple(
            Interface(name, address, up=True, mtu_bytes=65536 if name == "lo" else 1500, prefix_bits=bits)
            for name, address, bits in addresses
        ),
        network=NetworkFacts(
            links=tuple(
                Link(
                    name,
                    mac=f"02:{n >> 16:02x}:{i:02x}:{mac}:07" if i else "00:00:00:00:00:00",
                    kind=kinds.get(name, "virtual"),
                    running=True,
                    mtu_bytes=1500 if i else 65536,
                )
                for i, name in enumerate(names)
            ),
            own_name=Resolution(name=node.name, addresses=(own,), seconds=0.001),
            own_name_binds=own,
            open_files=(1 << 20, 1 << 20),
            listen_backlog=65535,
            connections_tracked=(2000, 262144),
            machine_id=f"machine-{n}",
        ),
        gpus=replace(node.gpus, devices=gpus, peer_access=access),
        pci=tree,
        xids=(),
        shm=Space(total_bytes=1000 * GIB, free_bytes=990 * GIB, free_files=None, writable=True),
        cpus=224,
        host=HostFacts(
            memory_bytes=2015 * GIB, available_bytes=1990 * GIB, load=1.5 + n % 7 / 10, uptime_seconds=1e6 + n,
            tasks=2900 + n % 50, most_tasks=4 << 20, zombies=0, oom_kills=n % 3, cpu_model="Xeon Platinum 8480C",
            settings={"scaling_governor": "performance", "transparent_hugepage": "madvise", "smt": "on"},
            throttled_seconds=0.0, running=3, numa_cpus={0: "0-55,112-167", 1: "56-111,168-223"},
        ),
    )  # fmt: skip


def _limits() -> Limits:
    """Return what Slurm lets a rank use: memory of the whole node, and no other limit of a cgroup."""
    step = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_77/step_0"
    return Limits(
        memory=CgroupLimit(limit=2000 * GIB, used=4 * GIB, cgroup=step),
        tasks=CgroupLimit(limit=1 << 22, used=90, cgroup="/sys/fs/cgroup/system.slice"),
        user_tasks=(1 << 20, 120),
        stack_bytes=8 << 20,
        namespaces={"ipc": "ipc:[4026531839]", "pid": "pid:[4026531836]"},
    )


def _gpu(gpu: Gpu, place: int, address: str) -> Gpu:
    health = GpuHealth(
        recovery_action=0,
        ecc=_ecc(uncorrected=0),
        remapped_rows=RemappedRows(0, 0, pending=False, failure=False),
        retired_pages_pending=False,
        clocks=GpuClocks(1, 345, 1980, 1980, 1980),
        pcie=PcieLink(5, 16, 5, 16, 5, 0),
        nvlinks=NvLinks(active=(True,) * 18, remote=("switch",) * 18, version=6, speed_MBps=26562),
        fabric=Fabric(3, 0, "", 0, 0, 1),
        power_limit_watts=700.0,
        power_limit_default_watts=700.0,
        temperature_celsius=31,
        slowdown_celsius=87,
        compute_mode=0,
        persistence=True,
        processes=(),
        mps_processes=(),
        utilisation_percent=0,
        display=False,
        module=place + 1,
        minor=place,
        vbios="96.00.61.00.01",
        cpus=machines.DGX_H100.cpus[place // 4],
        numa_node=place // 4,
    )
    return replace(gpu, pci=address, name="NVIDIA H100 80GB HBM3", health=health, memory_used_bytes=5 << 27)


def _ecc(uncorrected: int) -> Ecc:
    return Ecc(
        enabled=True,
        enabled_after_reset=True,
        corrected_volatile=0,
        uncorrected_volatile=uncorrected,
        corrected_aggregate=0,
        uncorrected_aggregate=uncorrected,
    )


def _rank(rank: RankFacts, number: int, nodes: int, per_node: int) -> RankFacts:
    local = number % per_node
    first = number - local
    beside = tuple(sorted({first + (local + step) % per_node for step in (1, -1)} - {number}))
    out = nodes > 1
    adapters = ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11")
    log = NcclLog(
        version="2.27.5", rank=number, ranks=nodes * per_node, nodes=nodes, local_ranks=per_node,
        channels=24, nvls_channels=16, nvls_available=True, nvls_created=True,
        algorithms={f"{op} {1 << n}": "NVLS/SIMPLE" for op in OPERATIONS for n in SIZES} if number == 0 else {},
        transports={"P2P/CUMEM": 48} | ({f"NET/IB/{local}/GDRDMA": 2} if out else {}),
        peers={"P2P": beside} | ({"NET": ((number + per_node) % (nodes * per_node),)} if out else {}),
        network="IB", devices=tuple(f"{name}:1/IB" for name in adapters),
        gdr=True if out else None, gdr_devices=dict.fromkeys(adapters, True),
        plugins_missing=("NET libnccl-net.so", "TUNER libnccl-tuner.so"),
    )  # fmt: skip
    run = RankRun(
        pid=4711 + local, step="done", outcome="done", joined_seconds=0.4,
        first_call_seconds=dict.fromkeys(OPERATIONS, 0.5), wrong=dict.fromkeys(OPERATIONS, 0),
        checked=dict.fromkeys(OPERATIONS, 262_147), device="NVIDIA H100 80GB HBM3", gpu=rank.gpu, nccl=log,
    )  # fmt: skip
    return replace(
        rank,
        environment=rank.environment
        | {"NCCL_IB_HCA": "=" + ",".join(adapters), "NCCL_SOCKET_IFNAME": "eno3", "OMP_NUM_THREADS": "14"},
        cuda=CudaView(
            devices=tuple(CudaDevice(uuid=uuid, capability=(9, 0)) for uuid in rank.visible_gpus),
            version=13000,
            library="/usr/lib/x86_64-linux-gnu/libcuda.so.580.95",
        ),
        cpu_list="0-223",
        cpus=224,
        run=run,
    )


def _trials(job: Job) -> Iterator[PeerTrial]:
    """Yield what the nodes' first processes met with at those further on, as in a job of more than 64 nodes."""
    first = list({p.node: p for p in reversed(job.processes)}.values())[::-1]
    addresses = {node.key: node.network.own_name_binds for node in job.nodes}
    sent = Transfer(bytes=1 << 21, seconds=0.001, stalled=False, segments=1500)
    for n, source in enumerate(first):
        for step in distances(len(first)) if len(first) > 1 else ():
            target = first[(n + step) % len(first)]
            yield PeerTrial(
                source.uid, target.uid, addresses[target.node], 40000, "met", 0.001,
                uses=("master", "nccl", "gloo"), transfer=sent, datagrams={256: True, 1500: True},
            )  # fmt: skip


def _on_nodes(change: Callable[[NodeFacts], NodeFacts]) -> Fault:
    def broken(job: Job, ill: set[str]) -> Job:
        return replace(job, nodes=tuple(change(node) if node.key in ill else node for node in job.nodes))

    return broken


def _on_ranks(change: Callable[[RankFacts], RankFacts]) -> Fault:
    def broken(job: Job, ill: set[str]) -> Job:
        home = {p.uid: p.node for p in job.processes}
        return replace(job, ranks=tuple(change(rank) if home[rank.process] in ill else rank for rank in job.ranks))

    return broken


def _on_trials(change: Callable[[PeerTrial], PeerTrial]) -> Fault:
    """Change the trials that lead to these nodes."""

    def broken(job: Job, ill: set[str]) -> Job:
        home = {p.uid: p.node for p in job.processes}
        return replace(job, peers=tuple(change(trial) if home[trial.target] in ill else trial for trial in job.peers))

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
    "data to them stops": _on_trials(lambda t: replace(t, transfer=replace(t.transfer, bytes=6000, stalled=True))),
    "large packets to them are lost": _on_trials(lambda t: replace(t, datagrams={256: True, 1500: False})),
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
    "a GPU with an uncorrected error": _health(ecc=_ecc(uncorrected=4)),
    "a GPU with a link down": _health(
        nvlinks=NvLinks(active=(True,) * 17 + (False,), remote=("switch",) * 18, version=6)
    ),
    "an error in the kernel's log": _on_nodes(
        lambda n: replace(n, xids=(Xid(79, "0000:1b:00.0", 60.0, "GPU has fallen off the bus"),))
    ),
    "the ranks of a node died": _run(outcome="died", detail="SIGKILL", step="all_reduce 1048576 B"),
    "wrong results": _run(wrong=dict.fromkeys(OPERATIONS, 7)),
    "they are late": _slow,
    "NCCL goes over TCP": _on_ranks(_over_tcp),
}  # fmt: skip
"""What may be wrong with some nodes of a job."""


def faulty(job: Job, fault: str, every: int) -> Job:
    """Return the job with this fault on every so many nodes, from the second one on."""
    return FAULTS[fault](job, {node.key for node in job.nodes[1::every]})
