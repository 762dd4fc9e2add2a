"""Healthy jobs of any shape as facts, and ways to change one thing about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from distcheck.facts.asked import Asked
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.facts.job import Job
from distcheck.facts.nccl import NcclFile
from distcheck.facts.network import Attempt, Bind, Interface, Resolution
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.placement import Placement
from distcheck.facts.rank import Installed, ProcessFacts, RankFacts, Role
from distcheck.rollcall.protocol import Report
from distcheck.selection.placement import local_placements, place, rank_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

LAUNCHERS = (
    "by hand",
    "torchrun",
    "slurm",
    "openmpi",
    "hydra",
    "mvapich",
    "pals",
    "jsrun",
    "horovod",
    "distcheck",
)
PORT = 29500
replace = msgspec.structs.replace


def launcher_variables(launcher: str, shape: Sequence[int], rank: int, local_rank: int, node: int) -> dict[str, str]:
    """Return what a launcher itself sets in a rank's environment."""
    world, here = sum(shape), shape[node]
    prefix = {
        "openmpi": "OMPI_COMM_WORLD_",
        "mvapich": "MV2_COMM_WORLD_",
        "jsrun": "JSM_NAMESPACE_",
        "horovod": "HOROVOD_",
    }
    if launcher in prefix:
        numbers = {"RANK": rank, "SIZE": world, "LOCAL_RANK": local_rank, "LOCAL_SIZE": here}
        return {prefix[launcher] + name: str(value) for name, value in numbers.items()}
    variables: dict[str, dict[str, Any]] = {
        "by hand": {},
        "distcheck": {},
        "torchrun": {
            "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GROUP_RANK": node, "GROUP_WORLD_SIZE": len(shape),
            "ROLE_RANK": rank, "ROLE_WORLD_SIZE": world, "ROLE_NAME": "default",
        },
        "slurm": {
            "SLURM_JOB_ID": 77, "SLURM_STEP_ID": 0, "SLURM_JOB_NODELIST": f"node[1-{len(shape)}]",
            "SLURM_PROCID": rank, "SLURM_NTASKS": world, "SLURM_LOCALID": local_rank,
            "SLURM_NODEID": node, "SLURM_NNODES": len(shape),
        },
        "hydra": {
            "PMI_RANK": rank, "PMI_SIZE": world, "MPI_LOCALRANKID": local_rank, "MPI_LOCALNRANKS": here,
        },
        "pals": {
            "PALS_RANKID": rank, "PMI_SIZE": world, "PALS_LOCAL_RANKID": local_rank, "PMI_LOCAL_SIZE": here,
            "PALS_NODEID": node,
        },
    }  # fmt: skip
    return {name: str(value) for name, value in variables[launcher].items()}


def node_of(number: int, gpus: int) -> NodeFacts:
    """Return a healthy node: node1 has the address 10.0.0.1 and GPUs GPU-1-0, GPU-1-1, ..."""
    name = f"node{number}"
    devices = tuple(
        Gpu(
            index=i,
            uuid=f"GPU-{number}-{i}",
            pci=f"0000:{i + 1:02x}:00.0",
            name="NVIDIA H100",
            memory_bytes=80 << 30,
            memory_used_bytes=0,
            mig=False,
        )
        for i in range(gpus)
    )
    return NodeFacts(
        key=f"{name}/boot/net",
        name=name,
        hostname=name,
        boot_id=f"boot-{number}",
        network_namespace="net:[1]",
        kernel="6.8.0",
        python="3.11.7",
        distcheck="0.1.0",
        torch=TorchBuild(version="2.13.0", cuda="12.2" if gpus else None, hip=None),
        interfaces=(
            Interface(name="lo", address="127.0.0.1", up=True, mtu_bytes=65536),
            Interface(name="eth0", address=f"10.0.0.{number}", up=True, mtu_bytes=1500),
        ),
        ephemeral_ports=(32768, 60999),
        unprivileged_port_start=1024,
        accelerator="nvidia" if gpus else "none",
        gpus=Gpus(driver="580.95", cuda_driver="13.0", devices=devices) if gpus else None,
    )


def process_of(node: NodeFacts, number: int, launcher: str, *, leader: bool, alone: bool, master: str) -> ProcessFacts:
    """Return a process that met everybody it should; pid 100 is the first."""
    agent = launcher == "torchrun"
    attempt = Attempt(address=master, port=PORT, door="master", outcome="agent" if agent else "met")
    return ProcessFacts(
        uid=f"process-{number}",
        node=node.key,
        pid=100 + number,
        command=("python", "-m", "distcheck", "env"),
        installed=Installed(node.python, "/opt/venv", node.torch),
        ancestors=("/usr/bin/python /usr/bin/torchrun --nnodes 2 distcheck", "bash") if agent else ("bash", "sshd"),
        stage="done",
        role=Role.ALONE if alone else Role.LEADER if leader else Role.FOLLOWER,
        bind=Bind(port=PORT, outcome="agent" if agent else "bound") if leader and not alone else None,
        free_ports=(PORT + 1, PORT + 2) if leader else (),
        master_resolution=Resolution(
            name=master, addresses=("127.0.0.1" if master == "localhost" else "10.0.0.1",), seconds=0.001
        ),
        attempts=() if leader or alone else (attempt,),
    )


def healthy_job(
    nodes: int = 1,
    per_node: int | Sequence[int] = 2,
    launcher: str = "by hand",
    looks: Sequence[str] = ("environment", "meeting"),
    *,
    gpus: int = 0,
    mapped: bool = True,
    **asked: Any,
) -> Job:
    """Return a healthy job.

    Args:
        nodes: how many nodes; node1 holds rank 0 and is MASTER_ADDR (localhost when it is the only node).
        per_node: ranks per node, or the ranks of each node.
        launcher: one of LAUNCHERS; every rank is a process of its own, but with "distcheck" each node is.
        looks: what was looked at.
        gpus: NVIDIA GPUs on every node; rank i of a node takes the i-th.
        mapped: False leaves RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE to the launcher.
        asked: further fields of `Asked`.
    """
    shape = (per_node,) * nodes if isinstance(per_node, int) else tuple(per_node)
    world, master = sum(shape), "node1" if len(shape) > 1 else "localhost"
    here = tuple(node_of(n + 1, gpus) for n in range(len(shape)))
    placements = local_placements(world, master, PORT) if launcher == "distcheck" else ()
    processes: list[ProcessFacts] = []
    ranks: list[RankFacts] = []
    for n, node in enumerate(here):
        for local_rank in range(shape[n]):
            rank = len(ranks)
            if launcher != "distcheck" or local_rank == 0:
                processes.append(
                    process_of(node, len(processes), launcher, leader=rank == 0, alone=world == 1, master=master)
                )
            environment = launcher_variables(launcher, shape, rank, local_rank, n)
            environment |= {"MASTER_ADDR": master, "MASTER_PORT": str(PORT)}
            if mapped:
                environment |= {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_RANK": str(local_rank),
                    "LOCAL_WORLD_SIZE": str(shape[n]),
                }
            placement = place(environment)
            if launcher == "distcheck":
                placement = replace(placements[rank], local_rank=local_rank, local_world_size=shape[n], node_rank=n)
                environment = rank_environment({}, placement)
            ranks.append(
                RankFacts(
                    process=processes[-1].uid,
                    placement=placement,
                    environment=environment,
                    visible_gpus=tuple(f"GPU-{n + 1}-{i}" for i in range(gpus)) if gpus else None,
                    gpu=f"GPU-{n + 1}-{local_rank}" if local_rank < gpus else None,
                )
            )
    asked.setdefault("started_here", launcher == "distcheck")
    return Job(
        distcheck="0.1.0",
        run="run",
        asked=Asked(command=asked.pop("command", "env"), looks=tuple(looks), **asked),
        met=True,
        nodes=here,
        processes=tuple(processes),
        ranks=tuple(ranks),
    )


def reports_of(job: Job) -> list[Report]:
    """Return what each process of a job reports, rank 0's first."""
    nodes = {node.key: node for node in job.nodes}
    ranks: dict[str, list[RankFacts]] = {p.uid: [] for p in job.processes}
    for rank in job.ranks:
        ranks[rank.process].append(rank)
    return [Report(nodes[p.node], p, tuple(ranks[p.uid])) for p in job.processes]


def _chosen(where: int | Sequence[int] | None, length: int) -> set[int]:
    return set(range(length)) if where is None else {where} if isinstance(where, int) else set(where)


def change_environment(
    job: Job, where: int | Sequence[int] | None, options: Placement | None = None, **variables: str | None
) -> Job:
    """Set variables (None unsets) of the ranks at these positions (None: all) and place them again."""
    chosen = _chosen(where, len(job.ranks))

    def changed(rank: RankFacts) -> RankFacts:
        merged: dict[str, str | None] = {**rank.environment, **variables}
        environment = {name: value for name, value in merged.items() if value is not None}
        return replace(rank, environment=environment, placement=place(environment, options))

    return replace(job, ranks=tuple(changed(r) if i in chosen else r for i, r in enumerate(job.ranks)))


def change_rank(job: Job, where: int | Sequence[int] | None, **fields: Any) -> Job:
    """Change fields of the RankFacts at these positions (None: all)."""
    chosen = _chosen(where, len(job.ranks))
    return replace(job, ranks=tuple(replace(r, **fields) if i in chosen else r for i, r in enumerate(job.ranks)))


def change_process(job: Job, where: int | Sequence[int] | None, **fields: Any) -> Job:
    """Change fields of the processes that speak for the ranks at these positions (None: all)."""
    uids = {job.ranks[i].process for i in _chosen(where, len(job.ranks))}
    return replace(job, processes=tuple(replace(p, **fields) if p.uid in uids else p for p in job.processes))


def change_nccl_file(
    job: Job, where: int | Sequence[int] | None, *lines: str, path: str = "/etc/nccl.conf", origin: str = "system"
) -> Job:
    """Give the NCCL of these ranks (None: all) a configuration file with these lines."""
    return change_process(job, where, nccl_files=(NcclFile(path=path, origin=origin, library="nccl", lines=lines),))


def change_node(job: Job, where: int | Sequence[int] | None, **fields: Any) -> Job:
    """Change fields of the nodes at these positions (None: all)."""
    chosen = _chosen(where, len(job.nodes))
    return replace(job, nodes=tuple(replace(n, **fields) if i in chosen else n for i, n in enumerate(job.nodes)))


def keep_ranks(job: Job, *positions: int) -> Job:
    """Leave only the ranks at these positions, with their processes and nodes, as a partial report does."""
    ranks = tuple(job.ranks[i] for i in positions)
    processes = tuple(p for p in job.processes if p.uid in {r.process for r in ranks})
    nodes = tuple(n for n in job.nodes if n.key in {p.node for p in processes})
    return replace(job, ranks=ranks, processes=processes, nodes=nodes)
