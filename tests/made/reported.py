"""Four judged jobs that every format is tried on: healthy, messy, large with three bad nodes, and without GPUs.

Their diagnoses are fixed, so that reports of them change with the reports only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from distcheck.facts.asked import Asked, Baseline, BaselineRow
from distcheck.facts.base import Missing
from distcheck.facts.device import DeviceTest
from distcheck.facts.gpu import Gpu, GpuHealth, GpuLoad, Gpus
from distcheck.facts.job import Collectives, Job, Measurement
from distcheck.facts.network import Attempt, Bind, Interface, PeerTrial, Transfer
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.placement import Placement
from distcheck.facts.rank import Installed, ProcessFacts, RankFacts, RankRun, Role
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import Finding, Fix, NamedGpu, NotChecked, verdict

LOOKS = ("environment", "meeting", "peers", "gpu", "collectives")
SIZES = (1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
FULL = {"all_reduce": 380e9, "broadcast": 320e9}
"""Algorithm bandwidth of large messages in bytes per second."""


class Case(NamedTuple):
    """A job and its diagnosis."""

    job: Job
    diagnosis: Diagnosis


def case(job: Job, *outcomes: Finding | NotChecked) -> Case:
    found = tuple(o for o in outcomes if isinstance(o, Finding))
    unlooked = tuple(o for o in outcomes if isinstance(o, NotChecked))
    return Case(job, Diagnosis(found, unlooked, verdict(found, unlooked)))


def a_node(name: str, gpus: int, celsius: Callable[[int], int]) -> NodeFacts:
    devices = tuple(
        Gpu(
            n, f"GPU-{name}-{n}", f"0000:{16 + n:02x}:00.0", "NVIDIA H200", 150_754_820_096, 0,
            health=GpuHealth(temperature_celsius=31, vbios="96.00.A5.00.01"),
            load=GpuLoad(3.0, 12, temperature_celsius=celsius(n)),
        )
        for n in range(gpus)
    )  # fmt: skip
    return NodeFacts(
        key=f"{name}/b1/4026531840",
        name=name,
        hostname=name,
        boot_id=f"b1-{name}",
        network_namespace="4026531840",
        kernel="6.8.0-45-generic",
        python="3.11.7",
        distcheck="0.1.0",
        torch=TorchBuild("2.13.0+cu130", "13.0", None),
        interfaces=(Interface("eth0", "10.0.0.1", up=True, mtu_bytes=9000),),
        ephemeral_ports=(32768, 60999),
        unprivileged_port_start=1024,
        accelerator="nvidia" if gpus else "none",
        cpus=224 if gpus else 64,
        gpus=Gpus("580.65.06", "13.0", devices) if gpus else None,
    )


def build(
    nodes: int,
    per_node: int,
    *,
    gpus: bool = True,
    slow: frozenset[int] = frozenset(),
    hot: frozenset[int] = frozenset(),
    measured: bool = True,
    world: int | None = None,
) -> Job:
    """Build a gate on `nodes` nodes, in which some ranks take longer and some GPUs are hot.

    A larger `world` leaves its last ranks missing.
    """
    width = len(str(nodes))
    names = [f"node{n + 1:0{width}d}" for n in range(nodes)]
    ranks = nodes * per_node
    where = [
        a_node(
            name,
            per_node if gpus else 0,
            lambda n, first=place * per_node: 86 if first + n in hot else 54 + (first + 3 * n) % 9,
        )
        for place, name in enumerate(names)
    ]
    installed = Installed("3.11.7", "/opt/venv", TorchBuild("2.13.0+cu130", "13.0", None), "2.28.9")
    processes = [
        ProcessFacts(
            uid=f"p{n}", node=node.key, pid=4100 + n, command=("distcheck", "gate"), stage="done",
            role=Role.FOLLOWER if n else Role.LEADER, bind=None if n else Bind(29500, "bound"),
            attempts=(Attempt("10.0.0.1", 29500, "master", "met"),) if n else (), installed=installed,
            arrived_seconds=0.02 + (n % 7) / 10,
            began_seconds={
                "started": (n % 7) / 10 - 0.1, "meeting": 0.02 + (n % 7) / 10,
                "peers": 0.75, "collectives": 1.1, "done": 6.1,
            },
        )
        for n, node in enumerate(where)
    ]  # fmt: skip
    pace = [1.4 if rank in slow else 1 + rank % 5 / 500 for rank in range(ranks)]
    found = [
        RankFacts(
            process=f"p{rank // per_node}",
            placement=Placement(
                rank, world or ranks, rank % per_node, per_node, rank // per_node, names[0], 29500, launcher="slurm"
            ),
            environment={
                "RANK": str(rank), "WORLD_SIZE": str(world or ranks), "LOCAL_RANK": str(rank % per_node),
                "MASTER_ADDR": names[0], "NCCL_SOCKET_IFNAME": "eth0",
            },
            gpu=f"GPU-{names[rank // per_node]}-{rank % per_node}" if gpus else None,
            cpu_list=f"{rank % per_node * 8}-{rank % per_node * 8 + 7}",
            run=RankRun(
                9000 + rank, "end", "done", joined_seconds=0.4 + rank % 3 / 10, import_seconds=1.6,
                first_call_seconds={"all_reduce": 0.9, "broadcast": 0.1},
                checked=dict.fromkeys(FULL, 4096), wrong=dict.fromkeys(FULL, 0),
                device="NVIDIA H200" if gpus else "cpu",
                device_test=_device(pace[rank]) if gpus else None,
            ) if measured else None,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    figures = tuple(
        Measurement(
            op, size, "float32", 20, tuple((size / (full if gpus else full / 100) + 2e-5) * part for part in pace),
            bursts=9, uncertainty=0.012 + 2e4 / size, ended="steady",
        )
        for op, full in FULL.items()
        for size in SIZES[: 5 if gpus else 3]
    )  # fmt: skip
    ran = Collectives("nccl" if gpus else "gloo", "2.13.0+cu130", "2.28.9" if gpus else "", figures, 3.4)
    return Job(
        distcheck="0.1.0",
        run="r1",
        asked=Asked("gate", LOOKS),
        seconds=6.25,
        met=True,
        nodes=tuple(where),
        processes=tuple(processes),
        ranks=tuple(found),
        peers=_peers(nodes),
        collectives=ran if measured else None,
    )


def _device(pace: float) -> DeviceTest:
    return DeviceTest("bfloat16", 8192, 690.0 / pace, 3900.0 / pace, 54.0, 53.0, 60, 0)


def _peers(nodes: int) -> tuple[PeerTrial, ...]:
    """Return trials between neighbours, up to three steps apart."""
    return tuple(
        PeerTrial(
            f"p{source}", f"p{(source + step) % nodes}", f"10.0.0.{(source + step) % nodes % 250 + 1}", 40000, "met",
            0.001, uses=("master", "nccl"),
            transfer=Transfer(
                50_000_000, 50_000_000 / (2.6e9 + source % 5 * 1e8), stalled=False, round_trip_seconds=1e-5
            ),
        )
        for source in range(nodes)
        for step in range(1, min(nodes, 4))
    )  # fmt: skip


def healthy() -> Case:
    """16 GPUs on two nodes, with a baseline and an expectation."""
    job = build(2, 8)
    rows = tuple(
        BaselineRow(op, "float32", size, "world", size / full + 2.1e-5, 0.01)
        for op, full in FULL.items()
        for size in SIZES
    )
    before = Baseline("last-week.json", (8, 8), {"NVIDIA H200": 16}, "nccl", "2.12.0+cu130", "2.27.3", rows=rows)
    return case(msgspec.structs.replace(job, asked=Asked("gate", LOOKS, baseline=before)))


def messy() -> Case:
    """Six nodes with nearly every kind of trouble: a lost GPU, missing ranks, a blocked path, other software."""
    job = build(6, 8, slow=frozenset({17, 21}), hot=frozenset({33, 35}))
    nodes = list(job.nodes)
    nodes[1] = msgspec.structs.replace(
        nodes[1], kernel="6.5.0-21-generic", interfaces=(Interface("eth0", "10.0.0.2", up=True, mtu_bytes=1500),)
    )
    nodes[4] = msgspec.structs.replace(nodes[4], gpus=Missing("NVML error 15: GPU is lost"))
    ranks = [rank for rank in job.ranks if (rank.placement.rank or 0) < 40]
    odd = ranks[9]
    ranks[9] = msgspec.structs.replace(
        odd, environment={**odd.environment, "NCCL_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "INFO"}
    )
    peers = [
        msgspec.structs.replace(trial, outcome="refused", transfer=None)
        if (trial.source, trial.target) == ("p0", "p3")
        else msgspec.structs.replace(trial, outcome="timeout", transfer=None, detail="no answer in 3 s")
        if trial.target == "p4"
        else msgspec.structs.replace(trial, transfer=msgspec.structs.replace(trial.transfer, seconds=0.08))
        if (trial.source, trial.target) == ("p1", "p2")
        else trial
        for trial in job.peers
        if "p5" not in {trial.source, trial.target}
    ]
    job = msgspec.structs.replace(
        job, nodes=tuple(nodes[:5]), processes=job.processes[:5], ranks=tuple(ranks), peers=tuple(peers)
    )
    return case(
        job,
        Finding(
            rule="gpu-duplicate", scope="rank", ranks=(10, 11), nodes=("node2",),
            message="ranks 10 and 11 both run on GPU-node2-2 (0000:12:00.0)",
            evidence={"uuid": "GPU-node2-2", "ranks": [10, 11], "CUDA_VISIBLE_DEVICES": {"node2": "2"}},
            fix=Fix(
                "Let every task see all GPUs of its node.", ("srun --gpus-per-task=0 --gres=gpu:8 python train.py",)
            ),
            docs="docs/rules/gpu.mapping.md#gpu-duplicate",
        ),
        Finding(
            rule="gpu-lost", scope="gpu", owner="admin", ranks=(32,), nodes=("node5",),
            gpus=(NamedGpu("node5", 0, "GPU-node5-0"),),
            message="GPU 0 of node5 fell off the bus", evidence={"nvml": "NVML error 15: GPU is lost"},
            fix=Fix("Drain the node and reset the GPU.",
                    ("scontrol update nodename=node5 state=drain reason=gpu-lost", "nvidia-smi --gpu-reset -i 0")),
            docs="docs/rules/gpu.mapping.md#gpu-lost",
        ),
        Finding(
            rule="net-mtu-differs", severity="warning", scope="link", owner="admin", confirmed=False,
            ranks=tuple(range(8, 16)), nodes=("node2",),
            message="node2 sees MTU 1500 on eth0; the other nodes see 9000",
            evidence={"mtu": [1500, 9000], "eth0": 1500},
            fix=Fix("Set one MTU.", ("ip link set eth0 mtu 9000",)),
            docs="docs/rules/network.master_reachability.md#net-mtu-differs",
        ),
        Finding(rule="env-nccl-set", severity="info", message="NCCL_DEBUG is set", fix=Fix("No action if intended.")),
        NotChecked(rule="net-peer-blocked", reason="node6 did not join", nodes=("node6",)),
        NotChecked(rule="nccl-slow", reason="no expectation is known for this card", required=False),
    )  # fmt: skip


def large() -> Case:
    """8,192 GPUs on 1,024 nodes, three of them bad."""
    bad = {"node0017": 128, "node0512": 4088, "node1000": 7992}
    slow = frozenset(rank + n for rank in bad.values() for n in range(8))
    return case(
        build(1024, 8, slow=slow, hot=frozenset({4090})),
        *(
            Finding(
                rule="perf-slow-node", scope="node", owner="admin", nodes=(name,), ranks=tuple(range(rank, rank + 8)),
                message=f"{name} takes 1.4 times as long as the other nodes",
                evidence={"node": name, "times": 1.4, "tested alone": "slow"},
                fix=Fix("Exclude the node and look for its slow GPU or link.", (f"distcheck isolate --hosts {name}",)),
                docs="docs/rules/collectives.outcome.md#perf-slow-node",
            )
            for name, rank in bad.items()
        ),
    )  # fmt: skip


def cpu() -> Case:
    """Four Gloo ranks on one machine."""
    job = build(1, 4, gpus=False)
    return case(
        msgspec.structs.replace(job, asked=Asked("bandwidth", LOOKS, started_here=True)),
        NotChecked(rule="nccl-slow", reason="the ranks have no GPU", required=False),
    )


CASES = {"healthy": healthy, "messy": messy, "large": large, "cpu": cpu}
