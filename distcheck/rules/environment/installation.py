"""Rules about what is installed on the nodes: the time to import torch, network drivers, torchrun's modules."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.rank import RankFacts
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.job.kinds import each_rank
from distcheck.rules.wording import brief, found, grouped, listed, majority, named

if TYPE_CHECKING:
    from collections.abc import Iterator


_SLOW_IMPORT_SECONDS = 20.0
_SLOW_IMPORT_FACTOR = 4


@rule("collectives", severity="info", scope="rank")
def sw_import_slow(job: Job) -> Iterator[Outcome]:
    """Importing torch takes much longer on some nodes than on the others.

    The other ranks wait meanwhile, and their timeouts run: ``DistStoreError: wait timeout after 600000ms`` on nodes
    that are healthy. The usual causes are a Python environment on a shared file system that many nodes read at once,
    and a local disk that is failing or full.

    Found by the time that each node's processes need for ``import torch``: more than 20 s, and more than 4 times the
    median of the other nodes. The first import after a boot is slow as well, so this is an info finding.

    Fix: Put the Python environment on a local disk or into the container image; copy it at the start of the job.

        df -T $(python3 -c 'import torch; print(torch.__path__[0])')
        time python3 -c 'import torch'
    """
    took: dict[str, float] = {}
    for rank in job.ranks:
        if rank.run is not None and rank.run.import_seconds is not None:
            key = job.node_of(rank).key
            took[key] = max(took.get(key, 0.0), rank.run.import_seconds)
    slow = {
        key: seconds
        for key, seconds in took.items()
        if len(took) > 1
        and seconds > _SLOW_IMPORT_SECONDS
        and seconds > _SLOW_IMPORT_FACTOR * median_low(other for node, other in took.items() if node != key)
    }
    if slow:
        ranks = [rank for rank in job.ranks if job.node_of(rank).key in slow]
        rest = median_low(seconds for key, seconds in took.items() if key not in slow)
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: importing torch took {max(slow.values()):.0f} s; the other nodes took {rest:.1f} s",
            evidence={job.node_of(rank).name: f"{took[job.node_of(rank).key]:.1f} s" for rank in ranks[:16]},
        )


@rule("peers", scope="rank", of=each_rank)
def sw_etcd_missing(job: Job, rank: RankFacts) -> Answer:
    """The etcd rendezvous of torchrun needs the Python module etcd, which is not installed.

    torchrun ends before it starts a rank: ``EtcdStubError: The 'etcd' module is required but not installed.`` The
    backends etcd and etcd-v2 both need it.

    Found with ``distcheck gate -- torchrun``, by --rdzv-backend or PET_RDZV_BACKEND and the modules that this Python
    can import.

    Fix: Use the c10d rendezvous, which needs no server, or install the module.

        # use with torchrun: --rdzv-backend=c10d
        pip install python-etcd

    See: https://pytorch.org/docs/stable/elastic/rendezvous.html
    """
    lacks = job.process_of(rank).etcd is False
    return "torchrun's etcd rendezvous needs the Python module etcd, which is not installed" if lacks else None


@rule("peers", severity="warning", scope=("job", "node"), owner="admin")
def sw_ofed_kernel(job: Job) -> Iterator[Outcome]:
    """Nodes use different releases of a network driver: MLNX_OFED or DOCA, the kernel's own, or EFA's.

    Mostly an upgrade has reached only some of the nodes, or a new kernel came without the rebuilt modules. Then
    GPUDirect RDMA works on some nodes only (``GPU Direct RDMA Disabled for HCA 0 'mlx5_0'``), or connections between
    old and new nodes are slow or fail.

    Found by comparing /sys/module/NAME/version of mlx5_core and efa over the nodes that have the module; the modules
    that come with the kernel have no version.

    Fix: Install one release of the driver on all nodes, built for the running kernel.

        cat /sys/module/{module|mlx5_core}/version; uname -r; ofed_info -s
        dkms status

    See: https://github.com/NVIDIA/nccl/issues/1939
    """
    for module in sorted({module for node in job.nodes for module in node.modules}):
        having = grouped((n for n in job.nodes if module in n.modules), lambda n, module=module: n.modules[module])  # type: ignore[misc]
        if len(having) < 2:
            continue
        usual = majority(having)
        odd = {version: nodes for version, nodes in having.items() if version != usual}
        nodes = [n for n in job.nodes if n.modules.get(module, usual) != usual]
        shown = [f"{listed([n.name for n in few], most=3)}: {v or 'of the kernel'}" for v, few in odd.items()]
        rest = f"; most nodes have {usual or 'that of the kernel'}" if usual is not None else ""
        yield found(
            job,
            job.ranks_on(*nodes),
            brief(f"different releases of {module}: {'; '.join(shown[:3])}{rest}", 300),
            evidence={v or "of the kernel": listed([n.name for n in nodes], most=16) for v, nodes in having.items()},
            scope="job" if usual is None else "node",
            confirmed=usual is not None,
            values={"module": (module,)},
        )
