"""Rules about what NCCL uses inside a node: NVLink, NVLS, and how it identifies nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.quantities import count, size
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.nccl_logs import Logged, logged, nodes_in_use, setting, settings_shown, who
from distcheck.rules.finding import Fix
from distcheck.rules.gpu.readings import Reading, not_ready, nvlinks_of, readings
from distcheck.rules.job.nccl_remedies import owner, removals
from distcheck.rules.wording import are, found, grouped, listed, once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NVLS_GPUS = 8
"""With fewer GPUs NCCL prefers rings on some systems (4 Hopper GPUs, 5 Blackwell GPUs)."""
_NVLS_BYTES = 64 << 20
"""Far above the size from which 8 Hopper GPUs use NVLS, 2 MiB with NCCL 2.30."""
_NVLS_SINCE = (2, 17)
_MULTICAST_GPU = re.compile(r"\bG?[HB]\d{2,3}\b")


@rule("collectives", severity="warning", scope=("job", "node"))
def perf_p2p_not_nvlink(job: Job) -> Iterator[Outcome]:
    """NCCL copies between GPUs through the host although NVLink connects them.

    This gives 10 to 20 GB/s instead of hundreds. NCCL's log says ``via SHM/direct`` or ``via NET/`` for two ranks of
    one node. The usual causes are a leftover NCCL_P2P_DISABLE=1, NCCL_P2P_LEVEL, and ranks in containers that do not
    share memory.

    Found by the transports in NCCL's log, for pairs of GPUs of one node that, according to NVML, are connected by
    NVLink and may access each other's memory. Where they may not, gpu-nvlink-down reports it. Where NCCL treats the
    ranks of one node as several nodes, nccl-hostid-split reports it.

    Fix: Run the ranks of a node in one container with shared memory, without NCCL_P2P_DISABLE and NCCL_P2P_LEVEL.

        nvidia-smi topo -p2p r
        # add to docker run: --gpus all --ipc=host
        df /dev/shm

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable
    """
    split, world = {node.key for node, _ in _split(job)}, job.world_size
    whole = [t for t in logged(job) if t.log.ranks == world and t.node.key not in split]
    of = {rank.placement.rank: rank for rank in job.ranks}
    for how in ("SHM", "NET"):
        to_others = [(t, peers) for t in whole if (peers := t.log.peers.get(how))]
        group = [t for t, peers in to_others if _linked_to(job, t, [of[peer] for peer in peers if peer in of])]
        if not group:
            continue
        ranks = [t.rank for t in group]
        off = settings_shown(group, "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")
        yield found(
            job,
            ranks,
            f"{who(job, group)}: NCCL uses {'shared memory' if how == 'SHM' else 'the network'} between GPUs of the "
            f"same node that NVLink connects{_set(off)}",
            Fix("Remove the setting.", removals(job, ranks, *off)) if off else None,
            scope="job" if off else "node",
            owner=owner(job, ranks, *off) if off else "unknown",
            evidence={f"rank {t.rank.placement.rank}": listed(list(t.log.transports)) for t in group[:8]} | off,
        )


def _set(variables: dict[str, str]) -> str:
    """Return which variables are set, for the end of a message; '' if none are."""
    values = [f"{name}={value}" for name, value in variables.items()]
    return f"; {listed(values)} {are(values)} set" if values else ""


def _linked_to(job: Job, t: Logged, peers: Iterable[RankFacts]) -> bool:
    """Return whether NVLink connects a rank's GPU to that of one of these, and each may access the other's memory."""
    beside = [rank for rank in peers if job.node_of(rank) is t.node]
    if not beside or not isinstance(t.node.gpus, Gpus):
        return False
    pairs = t.node.gpus.peer_access
    linked = {frozenset(pair.gpus) for pair in pairs if (pair.nvlink, pair.read, pair.write) == (0, 0, 0)}
    own = _index(t.node, t.rank)
    return any({own, _index(t.node, other)} in linked for other in beside)


def _index(node: NodeFacts, rank: RankFacts) -> int | None:
    devices = node.gpus.devices if isinstance(node.gpus, Gpus) else ()
    return next((gpu.index for gpu in devices if gpu.uuid == rank.gpu and gpu.mig is not True), None)


@rule("collectives", severity="warning", scope="node", owner="admin")
def perf_nvls_not_used(job: Job) -> Iterator[Outcome]:
    """NCCL does not reduce in the NVSwitches although they support it.

    On nodes with 8 Hopper or later GPUs the switches can reduce for all_reduce (NVLS, NVLink SHARP): 460 GB/s bus
    bandwidth instead of 370 on H100, 840 instead of 690 on B200. NCCL then logs ``NVLS multicast support is not
    available on dev 0``, or nothing at all; ``NVLS Created Multicast group`` is no proof that NVLS is used.

    Found by the algorithm in NCCL's log for all_reduce of 64 MiB and more on one node, where the GPUs are of that kind,
    their links lead to switches, the fabric is up, and no variable excludes NVLS. It needs NCCL 2.23, which logs the
    operation.

    Fix: Check the fabric manager and what NCCL logs about NVLS.

        systemctl status nvidia-fabricmanager
        nvidia-smi -q | grep -A 4 Fabric
        export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NVLS,TUNING NCCL_NVLS_ENABLE=1

    See: https://github.com/NVIDIA/nccl/issues/1672
    """
    nodes = nodes_in_use(job)
    first = next((t for t in logged(job) if t.log.ranks == job.world_size and t.log.algorithms), None)
    if len(nodes) != 1 or first is None or not _nvls_possible(job, nodes[0], first):
        return
    sizes = {int(key.split()[1]): used for key, used in first.log.algorithms.items() if key.startswith("all_reduce ")}
    largest = max(sizes, default=0)
    used = sizes.get(largest, "")
    if largest < _NVLS_BYTES or re.search("NVLS|SYMMETRIC|COPY", used):
        return
    log = first.log
    yield found(
        job,
        list(job.ranks_on(nodes[0])),
        f"{nodes[0].name}: NCCL uses {used} for all_reduce of {size(largest)} instead of NVLS, which these GPUs "
        "and their NVSwitches support",
        evidence={
            "NCCL": log.version,
            "multicast": {True: "available", False: "not available", None: "unknown"}[log.nvls_available],
            "NVLS channels": log.nvls_channels or 0,
            **({"plugins": list(log.plugins)} if log.plugins else {}),
            **settings_shown([first], "NCCL_CUMEM_ENABLE", "NCCL_TUNER_PLUGIN"),
        },
    )


def _nvls_possible(job: Job, node: NodeFacts, t: Logged) -> bool:
    """Return whether NCCL should use NVLS for large all_reduces on a node, as far as is known."""
    numbers = re.match(r"(\d{1,6})\.(\d{1,6})", t.log.version)
    version = (int(numbers[1]), int(numbers[2])) if numbers else _NVLS_SINCE
    algorithm, protocol = setting(t, "NCCL_ALGO").lower(), setting(t, "NCCL_PROTO").lower()
    excluded = (
        setting(t, "NCCL_NVLS_ENABLE") == "0"
        or (algorithm and ("nvls" in algorithm) is algorithm.startswith("^"))
        or (protocol and ("simple" in protocol) is protocol.startswith("^"))
    )
    one_node = t.log.nodes in {None, 1} and not t.log.mnnvl
    open_to_all = isinstance(node.gpus, Gpus) and node.gpus.confidential_compute is not True
    used = [reading for reading in readings(job) if reading.node is node and reading.ranks]
    shared = any(len(reading.ranks) > 1 for reading in used)
    enough = len(used) >= _NVLS_GPUS and not shared and all(_multicast(reading) for reading in used)
    return version >= _NVLS_SINCE and not excluded and one_node and open_to_all and enough


def _multicast(reading: Reading) -> bool:
    name, links = reading.gpu.name, nvlinks_of(reading)
    kind = isinstance(name, str) and _MULTICAST_GPU.search(name) is not None and reading.gpu.mig is not True
    return kind and links is not None and "switch" in links.remote and any(links.active) and not not_ready(reading)


@rule("collectives", scope=("job", "node"))
def nccl_hostid_split(job: Job) -> Iterator[Outcome]:
    """NCCL treats the ranks of one node as several nodes, or several nodes as one.

    NCCL identifies a host by its name and the kernel's boot id, or by NCCL_HOSTID alone. Ranks of one node with
    different host names, as in several containers, or with different NCCL_HOSTID use the network between them and never
    NVLink or shared memory. So do ranks that can use neither. Nodes with the same NCCL_HOSTID do not find each other's
    GPUs and fail or hang.

    Found by comparing the number of ranks that NCCL's log counts on a node (since NCCL 2.20) with distcheck's.

    Fix: Give the ranks of a node the same host name and /dev/shm, and no NCCL_HOSTID.

        {remove|unset NCCL_HOSTID}
        hostname; cat /proc/sys/kernel/random/boot_id
        df /dev/shm

    See: https://github.com/NVIDIA/nccl/blob/master/src/misc/utils.cc (getHostHash)
    """
    for node, group in _split(job):
        here, ranks = len(job.ranks_on(node)), [t.rank for t in group]
        hostid = settings_shown(group, "NCCL_HOSTID", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
        yield found(
            job,
            ranks,
            f"{who(job, group)}: NCCL counts {group[0].log.local_ranks} of the {here} ranks of {node.name} on one node"
            f"{_set(hostid)}",
            severity="warning",
            scope="node",
            owner=owner(job, ranks, "NCCL_HOSTID"),
            evidence={"ranks there": here, "NCCL's nodes": group[0].log.nodes or 0, **hostid},
            values={"remove": removals(job, ranks, "NCCL_HOSTID")},
        )
    boots = [node.boot_id for node in nodes_in_use(job)]
    machines = len(set(boots)) if all(isinstance(boot, str) for boot in boots) else 0
    merged = [t for t in _whole(job) if not t.log.mnnvl and t.log.nodes is not None and t.log.nodes < machines]
    if merged:
        ranks = [t.rank for t in merged]
        yield found(
            job,
            ranks,
            f"{who(job, merged)}: NCCL counts {count(merged[0].log.nodes or 0, 'node')}; expected "
            f"{count(machines, 'machine')}",
            Fix("Give every machine its own NCCL_HOSTID, or none.", removals(job, ranks, "NCCL_HOSTID")),
            owner=owner(job, ranks, "NCCL_HOSTID"),
            evidence=settings_shown(merged, "NCCL_HOSTID"),
        )


@once
def _whole(job: Job) -> list[Logged]:
    """Return the ranks whose log covers all ranks of the job; none if ranks are missing."""
    world = job.world_size
    return [] if job.missing_ranks else [t for t in logged(job) if t.log.ranks == world]


@once
def _split(job: Job) -> list[tuple[NodeFacts, list[Logged]]]:
    """Return the nodes that NCCL splits into several, with the ranks whose logs show it."""
    here = {node.key: len(job.ranks_on(node)) for node in job.nodes}
    few = [t for t in _whole(job) if t.log.local_ranks is not None and t.log.local_ranks < here[t.node.key]]
    return [(group[0].node, group) for group in grouped(few, lambda t: t.node.key).values()]
