"""Rules about how NCCL fits the hosts and containers of the ranks: namespaces, memory policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.node import TorchBuild
from distcheck.facts.ranges import numbered
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.kinds import ranks_with
from distcheck.rules.job.versions import build_of, nccl_of, version_of
from distcheck.rules.wording import found, grouped, named, numbers_of
from distcheck.selection.nccl_settings import number_of, setting_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_CUMEM_SINCE = (2, 19)
"""NCCL_CUMEM_ENABLE is on by default where the system supports it."""
_SOCKET_FILES_SINCE = (2, 29)
"""NCCL_IPC_USE_ABSTRACT_SOCKET exists."""
_HOST_BY_CHOICE, _HOST_BY_DEFAULT, _HOST_CHECKED = (2, 23), (2, 24), (2, 26, 3)
"""NCCL_CUMEM_HOST_ENABLE exists; is on by default; is switched off by NCCL itself if it does not work (src/misc)."""


def _nvidia(job: Job) -> bool:
    """Return whether the job uses NCCL itself; AMD's RCCL has its own defaults."""
    return job.backend == "nccl" and not any(node.accelerator == "amd" for node in job.nodes)


@rule("gpu", severity="warning", scope="rank")
def nccl_ipc_abstract_socket(job: Job) -> Iterator[Outcome]:
    """Ranks of one host are in different network namespaces, where NCCL cannot exchange GPU memory.

    NCCL takes ranks with the same host name, boot id and /dev/shm for one host and connects them directly. It passes
    the handles of their memory through abstract Unix sockets, which exist in one network namespace only, so that the
    start of NCCL fails. The usual cause is one container per GPU with ``--ipc=host`` and a network of its own.

    Found by comparing host name (or NCCL_HOSTID), boot id, the device of /dev/shm and the network namespace. Silent for
    NCCL before 2.19, and with NCCL_CUMEM_ENABLE=0 or NCCL_IPC_USE_ABSTRACT_SOCKET=0 (read since 2.29).

    Fix: ``docker run --network=host``; or, since 2.29, ``export NCCL_IPC_USE_ABSTRACT_SOCKET=0`` in containers that
    share /tmp.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ipc-use-abstract-socket
    """
    if not _nvidia(job) or len({node.boot_id for node in job.nodes}) == len(job.nodes):
        return
    concerned = [rank for rank in job.ranks if _by_abstract_sockets(job, rank)]
    for (_, _, shm), ranks in grouped(concerned, lambda rank: _host(job, rank)).items():
        node = job.node_of(ranks[0])
        spaces = grouped(ranks, lambda rank: job.node_of(rank).network_namespace)
        known = [space for space in spaces if isinstance(space, str)]
        if len(known) < 2 or isinstance(node.boot_id, Missing) or shm is None:
            continue
        numbers = [version_of(nccl_of(job, rank)) for rank in ranks]
        newer = all(number >= _SOCKET_FILES_SINCE for number in numbers)
        where = "; ".join(f"{numbered(numbers_of(spaces[space]))} {space}" for space in known[:4])
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} share the host {node.hostname} and its /dev/shm, but have {len(known)} network "
            "namespaces; expected 1",
            Fix(
                "Start the containers of a host in one network namespace"
                + (", or let NCCL use socket files; the containers then need one /tmp." if newer else "."),
                (
                    "# add to docker run: --network=host",
                    "export NCCL_IPC_USE_ABSTRACT_SOCKET=0" if newer else "export NCCL_CUMEM_ENABLE=0",
                ),
            ),
            evidence={"host": node.hostname, "network namespaces": where},
        )


def _by_abstract_sockets(job: Job, rank: RankFacts) -> bool:
    """Return whether a rank's NCCL passes handles of memory through abstract sockets."""
    nccl = version_of(nccl_of(job, rank))
    if (nccl and nccl < _CUMEM_SINCE) or not number_of(job, rank, "NCCL_CUMEM_ENABLE", -2):
        return False
    by_files = not number_of(job, rank, "NCCL_IPC_USE_ABSTRACT_SOCKET", 1)
    return not by_files or () < nccl < _SOCKET_FILES_SINCE


def _host(job: Job, rank: RankFacts) -> tuple[str, str, int | None]:
    """Return what NCCL compares to decide whether ranks are on one host: src/misc/utils.cc and src/graph/paths.cc."""
    node, shm = job.node_of(rank), job.process_of(rank).shm_device
    boot, own = "" if isinstance(node.boot_id, Missing) else node.boot_id, setting_of(job, rank, "NCCL_HOSTID")
    return boot, own.value if own else node.hostname, shm if isinstance(shm, int) else None


@rule("gpu", "host-selinux-seccomp", severity="warning", scope="rank")
def nccl_cumem_host_docker(job: Job) -> Iterator[Outcome]:
    """The container forbids memory policies, without which NCCL's shared host memory does not work.

    Docker denies ``get_mempolicy`` unless the container has CAP_SYS_NICE. NCCL 2.24 to 2.26.2 relies on that memory and
    fails. Since 2.26.3 it logs ``cuMem host allocations do not appear to be working`` and uses /dev/shm instead, which
    works: an info finding.

    Found by calling get_mempolicy in each process, where the driver supports CUDA 12.6 and torch was built with CUDA
    12.2 or later, as NCCL requires. Silent with NCCL_CUMEM_HOST_ENABLE=0.

    Fix: Allow memory policies in the container, or have NCCL use /dev/shm; no action if it falls back to a large one.

        # add to docker run: --cap-add SYS_NICE
        export NCCL_CUMEM_HOST_ENABLE=0

    See: https://github.com/NVIDIA/nccl/blob/master/docs/userguide/source/troubleshooting/runtime_and_mpi_issues.rst
    """
    denied = ranks_with(job, lambda r: job.process_of(r).memory_policy_error) if _nvidia(job) else []
    used = [rank for rank in denied if _host_memory(job, rank)]
    for (error, version), ranks in grouped(
        used, lambda rank: (job.process_of(rank).memory_policy_error, nccl_of(job, rank))
    ).items():
        checked = version_of(version) >= _HOST_CHECKED
        effect = "falls back to /dev/shm" if checked else "does not check whether its host memory works"
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: get_mempolicy fails ({error}); NCCL {version} {effect}",
            severity="info" if checked else "warning",
            evidence={"get_mempolicy": error or "", "NCCL": version},
        )


def _host_memory(job: Job, rank: RankFacts) -> bool:
    """Return whether a rank's NCCL allocates shared host memory through CUDA: ncclCuMemHostEnable, src/misc."""
    gpus, build, nccl = job.node_of(rank).gpus, build_of(job, rank), version_of(nccl_of(job, rank))
    driver = version_of(gpus.cuda_driver) if isinstance(gpus, Gpus) and isinstance(gpus.cuda_driver, str) else ()
    runtime = version_of(build.cuda or "") if isinstance(build, TorchBuild) else ()
    wanted = number_of(job, rank, "NCCL_CUMEM_HOST_ENABLE", -1)
    if wanted == 0 or not nccl or runtime < (12, 2):
        return False
    if wanted == -1:
        return nccl >= _HOST_BY_DEFAULT and driver >= (12, 6)
    return nccl >= _HOST_BY_CHOICE and driver >= (12, 2)
