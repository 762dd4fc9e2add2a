"""Rules that compare the GPUs of a job with each other: models, numbers and drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.facts.ranges import numbered
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.gpu.nodes import gpu_nodes, not_seen
from distcheck.rules.gpu.readings import Presence, gpu_names, present
from distcheck.rules.gpu.shortfall import shortfalls
from distcheck.rules.wording import are, brief, grouped, listed, majority, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.node import NodeFacts

_ALIKE = 1.01
"""Memory sizes within this factor count as equal: the driver does not reserve the same amount everywhere."""
_MOST = 16


@rule("gpu", severity="warning", scope=("job", "node"), unless=("gpu-partition-differs",))
def gpu_mixed_models(job: Job) -> Iterator[Outcome]:
    """The job's GPUs are of different models or have different memory sizes.

    The slowest GPU sets the pace, the smallest memory decides what fits, and NCCL disables algorithms that not all GPUs
    support. You would see ``CUDA out of memory`` on some ranks only.

    Found by the names and memory sizes of the GPUs that the job uses; sizes within 1 % count as equal. The finding
    names the nodes or GPUs that differ from the majority, or all of them where there is no majority, as with one node
    against one.

    Fix: Request one GPU model from the scheduler, and exclude the odd nodes.

        sinfo --format='%N %G %f'
        nvidia-smi --query-gpu=index,name,memory.total --format=csv
    """
    yield from not_seen(job)
    used = [p for p in present(job) if p.used]
    if len({(p.gpu.name, p.gpu.memory_bytes) for p in used}) < 2:
        return
    kinds = _kinds(used)
    if len(kinds) < 2:
        return
    nodes = {kind: {p.node.key for p in alike} for kind, alike in kinds.items()}
    everywhere = set().union(*nodes.values())
    total = sum(map(len, kinds.values()))
    usual = majority(nodes, of=len(everywhere)) if len(everywhere) > 1 else majority(kinds, of=total)
    odd = [p for kind, alike in kinds.items() if kind != usual for p in alike]
    parts = [f"{_where(alike)}: {kind}" for kind, alike in kinds.items() if kind != usual]
    yield Fault(
        _unlike(parts, "model", f"most of the job's GPUs are {usual}" if usual is not None else ""),
        evidence={kind: _where(alike, most=_MOST) for kind, alike in kinds.items()},
        severity="info" if "node" in job.asked.looks else "warning",  # which of them a job will use is not known yet
        scope="job" if usual is None else "node",
        confirmed=usual is not None,
        ranks=numbers_of(rank for p in odd for rank in p.ranks),
        nodes=tuple(dict.fromkeys(p.node.name for p in odd)),
    )


def _unlike(parts: list[str], kind: str, rest: str) -> str:
    """Return who has what, where not all have the same, and what most have."""
    more = [f"and {count(len(parts) - 3, f'more {kind}')}"] if len(parts) > 3 else []
    return brief("; ".join([*parts[:3], *more, *[rest] * bool(rest)]), 300)


def _kinds(gpus: Sequence[Presence]) -> dict[str, list[Presence]]:
    """Group GPUs by model and memory size, each kind as text; GPUs without a name are skipped."""
    kinds: dict[str, list[Presence]] = {}
    for name, alike in grouped(gpus, lambda p: p.gpu.name).items():
        if not isinstance(name, str):
            continue
        sizes: list[int] = []
        for bytes_ in sorted({p.gpu.memory_bytes for p in alike if isinstance(p.gpu.memory_bytes, int)}):
            if not sizes or bytes_ > sizes[-1] * _ALIKE:
                sizes.append(bytes_)
        for p in alike:
            memory = p.gpu.memory_bytes
            size = max(s for s in sizes if s <= memory) if isinstance(memory, int) else next(iter(sizes), None)
            kind = name if size is None else f"{name} with {size / 1e9:.1f} GB"
            kinds.setdefault(kind, []).append(p)
    return kinds


def _where(gpus: Sequence[Presence], most: int = 3) -> str:
    """Name GPUs of several nodes, equal nodes together: node1 and node2, GPUs 0-7."""
    by_node = grouped(gpus, lambda p: p.node.name)
    alike = grouped(by_node, lambda name: gpu_names([p.gpu for p in by_node[name]]))
    return listed([f"{listed(names, most=most)}, {words}" for words, names in alike.items()], most=most)


@rule("gpu", scope=("job", "node"))
def gpu_fewer_on_one_node(job: Job) -> Iterator[Outcome]:
    """A node has fewer GPUs than nodes with as many ranks, or than its PCI bus shows.

    A GPU has failed, was removed, or was not given to the job. The last rank there gets no GPU: ``CUDA error: invalid
    device ordinal`` on one node while the others wait, or, with ``--nproc-per-node=gpu``, a world that is too small.

    Found by comparing the number of GPUs that NVML lists on nodes with as many ranks. It is an error where a rank gets
    no GPU, else a warning if the models are the same. With one node against one it is uncertain which is wrong, and the
    finding names both. NVIDIA GPUs on the PCI bus that NVML does not list are only an info finding by themselves,
    because a container may have been given a part of them. They confirm that the node is at fault when it also has
    fewer GPUs than most. The rule does not look at the bus where the variables show a scheduler or a container runtime.
    A lost GPU that NVML still counts is gpu-fell-off-bus.

    Fix: Look for the GPU on the bus and in the kernel log; if the scheduler allocated fewer, request as many.

        nvidia-smi -L; lspci -d 10de:
        sudo dmesg | grep -iE 'nvrm|xid'
        #SBATCH --gpus-per-node={gpus|8}
    """
    yield from not_seen(job)
    for short in shortfalls(job):
        node, without, hidden, here = short.node, short.without, short.undriven, len(job.ranks_on(short.node))
        parts = [f"{node.name} has {count(short.gpus, 'GPU')}"]
        if short.most:
            have = f"{listed(short.others, most=3)} {'has' if len(short.others) == 1 else 'have'} {short.most}"
            parts.append(f"{have} for as many ranks ({here})")
        if without:
            parts.append(f"{numbered(numbers_of(without))} {'has' if len(without) == 1 else 'have'} none")
        if hidden:
            parts.append(f"{listed(hidden)} {are(hidden)} on its PCI bus but not in the driver's list")
        both = short.most and not short.blamed and not without
        yield Fault(
            brief("; ".join(parts), 300),
            evidence={"gpus": short.gpus, "gpus_elsewhere": short.most or None, "ranks": here}
            | ({"on_the_pci_bus": listed(hidden, most=_MOST)} if hidden else {}),
            severity="error" if without else "warning" if short.most else "info",
            scope="node" if short.blamed else "job",
            owner="admin" if short.blamed else "unknown",
            confirmed=short.blamed and short.whole and bool(hidden),
            ranks=numbers_of(without or job.ranks_on(node)),
            nodes=(node.name, *short.others) if both else (node.name,),
            values={"gpus": (str(short.most),) * bool(short.most)},
        )


@rule("gpu", severity="warning", scope=("job", "node"), unless=("sw-driver-too-old",), owner="admin")
def sw_driver_differs_nodes(job: Job) -> Iterator[Outcome]:
    """Nodes of the job differ in the GPUs' driver or in the CUDA version that it supports.

    Mostly a new driver is being rolled out. NCCL decides by the driver which features it uses (memory allocation,
    NVLink SHARP, multi-node NVLink), IMEX refuses to join nodes with different drivers, and a torch that needs a newer
    CUDA fails on some nodes only: ``The NVIDIA driver on your system is too old``.

    Found by the versions that NVML reports on each node; on nodes with AMD GPUs, by that of amdgpu, which is the
    kernel's where the driver comes with the kernel. A node whose CUDA version is unknown counts with the nodes
    that have its driver. The finding names the nodes that differ from the majority, or all of them where there is no
    majority, as with one node against one.

    Fix: Install one driver on all nodes; until then request nodes that have the same one.

        nvidia-smi --query-gpu=driver_version --format=csv,noheader
        sinfo -o '%N %f'
    """
    yield from not_seen(job)
    versions = _versions(job)
    if len(versions) < 2:
        return
    usual = majority(versions)
    odd = {node.key for version, nodes in versions.items() if version != usual for node in nodes}
    parts = [
        f"{listed([node.name for node in nodes], most=3)} {'has' if len(nodes) == 1 else 'have'} {version}"
        for version, nodes in versions.items()
        if version != usual
    ]
    yield Fault(
        _unlike(parts, "version", f"most nodes have {usual}" if usual is not None else ""),
        evidence={version: listed([n.name for n in nodes], most=_MOST) for version, nodes in versions.items()},
        scope="job" if usual is None else "node",
        confirmed=usual is not None,
        ranks=numbers_of(job.ranks_on(*(node for node in job.nodes if node.key in odd))),
        nodes=tuple(node.name for node in job.nodes if node.key in odd),
    )


def _versions(job: Job) -> dict[str, list[NodeFacts]]:
    """Return the nodes by version; a driver's only known CUDA version counts for all nodes that have the driver.

    Nodes whose version remains unknown are left out.
    """
    read = [(node, node.gpus) for node in gpu_nodes(job) if isinstance(node.gpus, Gpus)]
    versions: dict[str, list[NodeFacts]] = {}
    for driver, nodes in grouped(read, lambda item: item[1].driver).items():
        known = {gpus.cuda_driver for _, gpus in nodes if isinstance(gpus.cuda_driver, str)}
        for node, gpus in nodes if isinstance(driver, str) else ():
            cuda = gpus.cuda_driver if len(known) > 1 else next(iter(known), "")
            if isinstance(cuda, str):
                versions.setdefault(f"driver {driver}{cuda and f' (CUDA {cuda})'}", []).append(node)
    return versions
