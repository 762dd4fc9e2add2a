"""Rules about how far a rank's GPU is from its CPUs, its adapter and other nodes' GPUs."""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.facts.job import Job
from distcheck.facts.pci import Pci
from distcheck.facts.quantities import count
from distcheck.facts.ranges import unfold
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.gpu.assigned import WORDS, Routes, Take, by_picture, reach, takes, takes_by_node, ways
from distcheck.rules.gpu.nodes import card, not_seen
from distcheck.rules.job.nccl_remedies import removal
from distcheck.rules.wording import (
    are,
    brief,
    grouped,
    listed,
    majority,
    named,
    numbers_of,
    once,
    process_name,
    starter,
)
from distcheck.selection.adapters import HCA
from distcheck.selection.pci import Near, by_gpu, fabric_nics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.node import NodeFacts
    from distcheck.rules.finding import Owner, Scope, Severity

_MOST = 16
"""Ranks that a finding's evidence shows."""


@rule("gpu", severity="warning", scope="rank")
def gpu_far_from_cpu(job: Job) -> Iterator[Outcome]:
    """A rank is pinned to CPUs that are not next to its GPU.

    Every copy from the CPU to the GPU and every kernel launch then crosses the link between the sockets. The rank is
    slower than the others, and all ranks wait for it.

    Found by comparing the CPUs on which the rank may run with those that NVML, or else sysfs, lists next to its GPU. A
    rank that may run on every CPU is not pinned and is not reported. The rule also finds a scheduler that gives a job a
    few CPUs of one socket and a GPU of the other.

    Fix: bind each rank to its GPU's NUMA node: ``torchrun --numa-binding=node``, ``srun --cpu-bind=...``, ``#SBATCH
    --gres-flags=enforce-binding``, or ``numactl --cpunodebind``.

    See: https://docs.pytorch.org/docs/stable/elastic/numa.html, https://slurm.schedmd.com/sbatch.html
    """
    yield from not_seen(job)
    faults = []
    for take in takes(job):
        own = unfold(take.rank.cpu_list)
        if not own or len(own) >= (take.node.cpus or 0):
            continue
        near = unfold(take.cpus)
        if near and near.isdisjoint(own):
            words = f"bound to CPUs {take.rank.cpu_list}; the CPUs next to its {take.name} are {take.cpus}"
            faults.append((take, words))
    for alike in by_picture(faults):
        yield _finding(job, alike, _binding(alike[0][0]), scope="rank", owner="user")


_TOPOLOGY = "nvidia-smi topo -m"


def _binding(take: Take) -> Fix:
    node = take.place.numa_node if take.place is not None else None
    by_hand = f"# prefix the rank's command with: numactl --cpunodebind={node}" if node is not None else _TOPOLOGY
    if starter(take.rank) == "srun":
        return Fix(
            "Have Slurm allocate the CPUs next to the job's GPUs, and bind each task to the CPUs next to its GPU.",
            ("#SBATCH --gres-flags=enforce-binding", "export SLURM_CPU_BIND=verbose,ldoms", by_hand),
        )
    if starter(take.rank) == "torchrun":
        return Fix(
            "Have torchrun bind each rank to the NUMA node of its GPU.",
            ("# add to torchrun: --numa-binding=node", by_hand),
        )
    return Fix(
        "Bind each rank to the NUMA node of its GPU, or remove the binding.",
        (by_hand, "# add to torchrun: --numa-binding=node", "export SLURM_CPU_BIND=none"),
    )


@rule("gpu", severity="warning", scope=("rank", "node"))
def gpu_far_from_nic(job: Job) -> Iterator[Outcome]:
    """NCCL uses a network adapter far from the GPU although a nearer one exists.

    NCCL uses GPUDirect RDMA only between devices on common PCIe switches. Otherwise the data goes through the CPU,
    mostly through main memory, at a fraction of the adapter's bandwidth, and several GPUs share it.

    Found by the PCI tree in sysfs, in two cases. Either NCCL_IB_HCA, read as NCCL reads it, excludes an active adapter
    that is nearer than all those it allows, of the same link type and at least as fast. Or the nearest adapter has no
    port up, while most GPUs of this model have theirs up; `net` and `gate` report this as ib-port-down. The rule is
    silent where a hypervisor makes up the PCI tree,
    with NCCL_NET_PLUGIN or NCCL_TOPO_FILE, without NCCL's InfiniBand transport, and on a single node.

    Fix: unset NCCL_IB_HCA or have it name the adapter next to every GPU; bring the port up.

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    yield from not_seen(job)
    if len(job.nodes) < 2:
        return
    yield from _no_tree(job)
    left_out: list[tuple[Take, str]] = []
    down: list[tuple[Take, str]] = []
    adapters: dict[int, str] = {}
    for take, found in ways(job):
        if found.left_out is not None:
            left_out.append((take, f"{_gets(take, found)}, although {_verb(found.left_out)} {_where(found.left_out)}"))
        elif found.down is not None and take.node.infiniband is None and _usual(job, take, found.down):
            adapters[id(take)] = found.down.nics[0].name
            down.append((take, f"{_gets(take, found)}; {_verb(found.down)} {_where(found.down)} but down"))
    for alike in by_picture(left_out):
        yield _finding(job, alike, _list_of(job, alike[0][0]), scope="rank", owner="user")
    for alike in by_picture(down):
        name = quote(adapters[id(alike[0][0])])
        fix = Fix(
            "Bring the port up; until then exclude the node, or accept the slower path.",
            (f"ibstat {name}", f"rdma link show {name}/1", f"cat /sys/class/infiniband/{name}/ports/*/phys_state"),
        )
        yield _finding(job, alike, fix, scope="node", owner="admin")


def _no_tree(job: Job) -> Iterator[NotChecked]:
    """Yield the nodes whose PCI tree could not be read."""
    blind = [here[0].node for here in takes_by_node(job).values() if isinstance(here[0].node.pci, Missing)]
    for reason, nodes in grouped(blind, lambda node: node.pci.reason if isinstance(node.pci, Missing) else "").items():
        yield NotChecked(reason=reason, nodes=tuple(node.name for node in nodes), required=False)


def _gets(take: Take, found: Routes) -> str:
    by_hand = f"with {HCA}={brief(found.value, 40)} " if found.value else ""
    names = listed([nic.name for nic in found.got.nics], most=2)
    return f"{by_hand}{take.name} reaches the network through {names} {_where(found.got)}"


def _verb(near: Near) -> str:
    return f"{listed([nic.name for nic in near.nics], most=2)} {are(near.nics)}"


def _where(near: Near) -> str:
    return WORDS[near.distance]


@once
def _reached(job: Job) -> dict[str | Missing, Counter[int]]:
    """Return by model how many GPUs have their adapter at which reach."""
    models = grouped(ways(job), lambda item: item[0].gpu.name)
    return {name: Counter(reach(found.got.distance) for _, found in alike) for name, alike in models.items()}


def _usual(job: Job, take: Take, wanted: Near) -> bool:
    """Return whether most other GPUs of this model have an adapter at least as near as this one lacks."""
    others = _reached(job)[take.gpu.name]
    near = sum(count for distance, count in others.items() if distance <= reach(wanted.distance))
    return 2 * near > others.total() - 1


def _list_of(job: Job, take: Take) -> Fix:
    near = by_gpu(take.node.pci) if isinstance(take.node.pci, Pci) else {}
    names = dict.fromkeys(nic.name for found in near.values() for nic in found.nics)
    return Fix(
        f"Unset {HCA} so that NCCL chooses, or have it name the adapter next to every GPU.",
        (removal(job, take.rank, HCA), f"export {HCA}={quote('=' + ','.join(names))}", "nvidia-smi topo -m"),
    )


@rule("gpu", severity="warning", scope="node")
def gpu_rails_differ(job: Job) -> Iterator[Outcome]:
    """One LOCAL_RANK takes GPUs at different positions on different nodes.

    NCCL connects the ranks of one LOCAL_RANK over one rail: the GPU, its adapter, and the switch to which that adapter
    is cabled on every node. The traffic of a node that orders its GPUs differently crosses the spine of the network,
    which is slower and slows down other jobs.

    Found by the position of each rank's GPU among its node's GPUs, sorted by PCI address, over nodes with the same
    model and number of GPUs. The rule reports the nodes that differ from the majority. It is silent without a majority
    and where a node has a single adapter, and an info finding where the node's adapters are unknown.

    Fix: set CUDA_VISIBLE_DEVICES to the same value on all nodes, or unset it, and have each rank take
    ``cuda:LOCAL_RANK``.
    """
    yield from not_seen(job)
    for shapes in _shapes(job):
        usual = majority(shapes)
        if usual is None:
            continue
        for order, nodes in shapes.items():
            for rails in (True, False) if order != usual else ():
                odd = [here for here in nodes if _rails(here[0].node) is rails]
                if odd:
                    yield _out_of_line(odd, dict(usual), sum(map(len, shapes.values())), "warning" if rails else "info")


_Order = tuple[tuple[int, int], ...]
"""Each LOCAL_RANK with its GPU's position in PCI order."""


def _shapes(job: Job) -> Iterator[dict[_Order, list[list[Take]]]]:
    """Yield groups of comparable nodes, by the order in which their ranks take the GPUs."""
    comparable: dict[tuple[object, ...], dict[_Order, list[list[Take]]]] = {}
    last: object = None
    for here in takes_by_node(job).values():
        node = here[0].node
        taken = [(take.rank.placement.local_rank, take.gpu.pci) for take in here]
        seen = taken, [(gpu.pci, gpu.name) for gpu in _devices(node)], len(job.ranks_on(node))
        if seen != last:  # most nodes are as the one before
            last, same = seen, _order(here, seen[-1])
        if same is not None and not any(take.gpu.mig_uuids and take.rank.gpu in take.gpu.mig_uuids for take in here):
            kind, order = same
            comparable.setdefault(kind, {}).setdefault(order, []).append(here)
    for alike in comparable.values():
        if len(alike) > 1:
            railed = ((order, [on for on in nodes if _rails(on[0].node) is not None]) for order, nodes in alike.items())
            yield {order: nodes for order, nodes in railed if nodes}


def _order(here: list[Take], ranks: int) -> tuple[tuple[object, ...], _Order] | None:
    """Return what nodes must have in common to be compared, and the order of a node; None where one is unknown."""
    node = here[0].node
    addresses, models = _addresses(node), {g.name for g in _devices(node) if isinstance(g.name, str)}
    local = [n for take in here if (n := take.rank.placement.local_rank) is not None]
    complete = len(set(local)) == len(here) == ranks
    if not addresses or len(models) != 1 or not complete:
        return None
    places = (addresses.index(str(take.gpu.pci)) for take in here)
    return (*models, len(addresses), *sorted(local)), tuple(sorted(zip(local, places, strict=True)))


def _devices(node: NodeFacts) -> tuple[Gpu, ...]:
    return node.gpus.devices if isinstance(node.gpus, Gpus) else ()


def _addresses(node: NodeFacts) -> list[str]:
    """Return the sorted PCI addresses of a node's GPUs, empty where one is unknown."""
    found = sorted(gpu.pci for gpu in _devices(node) if isinstance(gpu.pci, str))
    return found if len(found) == len(_devices(node)) else []


def _rails(node: NodeFacts) -> bool | None:
    """Return whether a node has several NCCL adapters: None with one, False if unknown."""
    if not isinstance(node.pci, Pci):
        return False
    return True if sum(nic.active and nic.usable for nic in fabric_nics(node.pci)) > 1 else None


def _out_of_line(nodes: list[list[Take]], usual: dict[int, int], total: int, severity: Severity) -> Fault:
    """Return the finding about nodes that take their GPUs in the same unusual order."""
    ranks: list[RankFacts] = []
    evidence: dict[str, str] = {}
    for here in nodes:
        addresses = _addresses(here[0].node)
        for take in here:
            local = take.rank.placement.local_rank or 0
            place = addresses.index(str(take.gpu.pci))
            if place != usual[local]:
                ranks.append(take.rank)
                words = f"takes {take.name}, position {place} in PCI order; on most nodes position {usual[local]}"
                evidence[f"{take.node.name} LOCAL_RANK {local}"] = words
    number, words = ranks[0].placement.local_rank, next(iter(evidence.values()))
    more = f"; different on {count(len(evidence) - 1, 'more rank')}" if len(evidence) > 1 else ""
    value = ranks[0].environment.get("CUDA_VISIBLE_DEVICES")
    variable = f" (CUDA_VISIBLE_DEVICES={brief(value, 40)})" if value is not None else ""
    names = [here[0].node.name for here in nodes]
    return Fault(
        severity=severity,
        ranks=numbers_of(ranks),
        nodes=tuple(names),
        message=f"{listed(names, most=3)} of {total} nodes: LOCAL_RANK {number} {words}{variable}{more}",
        evidence=dict(list(evidence.items())[:_MOST]),
        fix=Fix(
            "Give all nodes the same CUDA_VISIBLE_DEVICES, or unset it, and have each rank take its own GPU.",
            (
                "unset CUDA_VISIBLE_DEVICES",
                "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
                '# in the script: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            ),
        ),
    )


def _finding(job: Job, faults: list[tuple[Take, str]], fix: Fix, *, scope: Scope, owner: Owner) -> Fault:
    """Return one finding about ranks with the same problem on each of their nodes."""
    ranks = [take.rank for take, _ in faults]
    rest = f"; same for {named(job, ranks[1:])}" if len(ranks) > 1 else ""
    evidence = card(faults[0][0].gpu) if len(faults) == 1 else {}
    for take, words in faults[:_MOST] if len(faults) > 1 else ():
        number = take.rank.placement.rank
        evidence[process_name(job, take.rank) if number is None else f"rank {number}"] = words
    return Fault(
        scope=scope,
        owner=owner,
        ranks=numbers_of(ranks),
        nodes=tuple(dict.fromkeys(take.node.name for take, _ in faults)),
        message=brief(f"{named(job, ranks[:1])}: {faults[0][1]}{rest}", 300),
        evidence=evidence,
        fix=fix,
    )
