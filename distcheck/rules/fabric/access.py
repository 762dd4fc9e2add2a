"""Rules about using the adapters: device files, libibverbs, locked memory, the plugin and the provider of EFA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Collectives, Job
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.fabric.lines import View, each_view, views
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.nccl_remedies import removals
from distcheck.rules.wording import are, brief, found, grouped, listed, named, once, starter
from distcheck.selection.nccl_settings import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.infiniband import Hca
    from distcheck.facts.rank import RankFacts

_TOO_LITTLE_BYTES = 64 << 20
_LITTLE_BYTES = 1 << 30
_SHOWN = 16
"""Adapters of a node that evidence shows."""
_OF_SLURM = (
    "# add to slurmd's unit: LimitMEMLOCK=infinity",
    "# add to slurm.conf: PropagateResourceLimitsExcept=MEMLOCK",
)
_FILES = Fix(
    "Give the container the device files of the adapters.",
    ("# add to docker run: --device=/dev/infiniband --cap-add=IPC_LOCK", "ls -l /dev/infiniband"),
)
_PROVIDERS = Fix(
    "Install libibverbs and the providers of the adapters, in the container if there is one.",
    ("apt-get install -y libibverbs1 ibverbs-providers librdmacm1", "ibv_devices"),
)


@rule("peers", scope="rank", of=each_view)
def ib_no_device_in_container(_: Job, view: View) -> Answer:
    """The node has active InfiniBand adapters, but NCCL cannot use any of them here.

    NCCL logs ``NET/IB : No device found.`` or ``Failed to open libibverbs.so[.1]`` and uses TCP sockets, at a fraction
    of the bandwidth. The usual cause is a container that sees the adapters in /sys, but was started without
    /dev/infiniband, has no libibverbs, or has one without a provider that fits: ``libibverbs: Warning: Driver bnxt_re
    does not support the kernel ABI of 6``, ``no userspace device-specific driver found``.

    Found by loading libibverbs.so.1 as NCCL does, by asking it for its devices, and by opening the files in
    /dev/infiniband.

    Fix: start the container with ``--device=/dev/infiniband --cap-add=IPC_LOCK``; install libibverbs1 and
    ibverbs-providers in it, of the release of the host's driver or a later one.

    See: https://github.com/NVIDIA/nccl/issues/229
    """
    names, error = [hca.name for hca in view.active], view.adapters.libibverbs
    fix = _PROVIDERS
    if error:
        why = f"libibverbs cannot be loaded ({error})"
    elif all(hca.device_file == "absent" for hca in view.active):
        why, fix = "/dev/infiniband has no file for them", _FILES
    elif _without_provider(view):
        drivers = dict.fromkeys(f"{hca.driver or hca.name}, kernel ABI {hca.abi}" for hca in view.active)
        why = f"libibverbs has no provider that fits their driver ({'; '.join(drivers)})"
    else:
        return None
    return Fault(f"{listed(names, 2)} {are(names)} active, but {why}", fix, {"adapters": names}) if names else None


def _without_provider(view: View) -> bool:
    """Whether libibverbs offers none of the active adapters, although all can be opened."""
    offered = view.adapters.offered
    asked = all(hca.abi is not None and hca.device_file == "usable" for hca in view.active)
    return asked and offered is not None and not any(hca.name in offered for hca in view.active)


@rule("peers", scope="node", owner="admin", of=each_view)
def ib_device_not_openable(job: Job, view: View) -> Answer:
    """The device files of some InfiniBand adapters cannot be opened here.

    NCCL logs ``NET/IB : Unable to open device mlx5_1`` and leaves them out; without any it uses TCP sockets.

    Found by opening the files in /dev/infiniband, which also asks the container's device cgroup. It is an error if none
    can be opened, a warning if fewer can than on other nodes, and an info finding if all nodes have equally many, as
    with a device plugin that assigns adapters to pods.

    Fix: Correct the permissions of the device files, or what the container or the device plugin lets it open.

        ls -l /dev/infiniband
        # add to docker run: --device=/dev/infiniband

    See: https://github.com/NVIDIA/nccl/issues/2428
    """
    refused = [hca for hca in view.active if hca.device_file in {"denied", "absent"}]
    denied = [hca for hca in refused if hca.device_file == "denied"]
    count = _usable(view)
    if not refused or not (count or denied):  # without any file ib-no-device-in-container reports it
        return None
    first = (denied or refused)[0]
    why = f"{first.name} (/dev/infiniband/{first.file_name}: {first.denied or 'No such file or directory'})"
    return Fault(
        f"{len(refused)} of {len(view.active)} active adapters cannot be opened: {why}",
        severity="error" if not count else "warning" if count < _most_usable(job) else "info",
        evidence={view.node.name: [f"{hca.name} {hca.file_name}: {hca.device_file}" for hca in view.active]},
    )


def _usable(view: View) -> int:
    return sum(hca.device_file == "usable" for hca in view.active)


@once
def _most_usable(job: Job) -> int:
    return max(map(_usable, views(job)), default=0)


@rule("peers", "host-memlock", scope="rank", owner="admin")
def ib_fork_or_memlock(job: Job) -> Iterator[Outcome]:
    """The ranks may lock too little memory for InfiniBand or RoCE.

    Registering memory with the adapter fails: ``Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory``,
    ``ibv_create_qp`` and ``ibv_create_cq failed``.

    Found by RLIMIT_MEMLOCK of the processes of this launch (a login shell can have another), where they lack
    CAP_IPC_LOCK and the node has active adapters. Less than 64 MiB is an error, less than 1 GiB a warning.

    Fix: Raise the limit where the ranks are started, then restart that service or session.

        echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/memlock.conf
        {where|# add to docker run: --ulimit memlock=-1}
        ulimit -l

    See: https://github.com/NVIDIA/nccl-tests/issues/206
    """
    limits = {
        process.uid: limit
        for process in job.processes
        if (limit := process.locked_memory_bytes) is not None and 0 <= limit < _LITTLE_BYTES
    }
    served = [rank for view in views(job) if limits and view.taken for rank in view.ranks if rank.process in limits]
    for limit, ranks in grouped(served, lambda rank: limits[rank.process]).items():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} may lock {limit >> 10} KiB of memory (RLIMIT_MEMLOCK); expected unlimited for RDMA",
            severity="error" if limit < _TOO_LITTLE_BYTES else "warning",
            evidence={"RLIMIT_MEMLOCK": limit},
            values={"where": _OF_SLURM} if starter(ranks[0]) == "srun" else {},
        )


@rule("peers", severity="warning", scope="rank", of=each_view)
def nccl_efa_plugin_missing(job: Job, view: View) -> Answer:
    """The node has AWS EFA adapters, but NCCL's plugin for them cannot be loaded.

    NCCL alone cannot use EFA: ``NET/IB : No device found.``, ``NET/Plugin: Could not find: libnccl-net.so``, and it
    continues over TCP at a small part of the bandwidth.

    Found where the only active adapters have a link layer that NCCL lacks, and loading libnccl-net.so (or
    NCCL_NET_PLUGIN) fails in this environment. After collectives, NCCL's own log decides instead.

    Fix: Install aws-ofi-nccl and libfabric, and make their folders known to the ranks, also in a container.

        find / -name 'libnccl-net*.so' 2>/dev/null
        export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:$LD_LIBRARY_PATH

    See: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html
    """
    names = [line.hca.name for line in view.lines if line.active and not line.own]
    if not names or view.adapters.net_plugin != "" or view.taken or isinstance(job.collectives, Collectives):
        return None
    words = f"NCCL can use {listed(names, 2)} only with a network plugin, and none can be loaded"
    return Fault(words, evidence={"adapters": names})


@rule("peers", scope="rank")
def nccl_efa_provider_missing(job: Job) -> Iterator[Outcome]:
    """The node has AWS EFA adapters, but libfabric cannot offer them here.

    NCCL's plugin logs ``NET/OFI Could not find any optimal provider``, libfabric ``fi_getinfo: provider efa output
    empty list``. NCCL then continues over TCP at a small part of the bandwidth; if only some nodes do, the start hangs.

    Found by opening the adapters' files in /dev/infiniband, and by FI_PROVIDER: the providers that libfabric may use,
    or after a leading ``^`` may not use. It is a warning if no node can use EFA, an error if some can. Silent with
    NCCL_NET=Socket. A plugin that cannot be loaded, as without libfabric, is nccl-efa-plugin-missing.

    Fix: Give the ranks the device files of the adapters; remove FI_PROVIDER, or set it to efa.

        {removal|# add to docker run: --device=/dev/infiniband}
        fi_info -p efa

    See: https://github.com/aws/aws-ofi-nccl/issues/803
    See: https://ofiwg.github.io/libfabric/main/man/fabric.7.html
    """
    fitted = [(rank, view) for view in views(job) if _efa(view) for rank in view.ranks]
    equipped = [item for item in fitted if value_of(job, item[0], "NCCL_NET").lower() != "socket"]
    causes = [(rank, view, _efa_refused(view) or _efa_excluded(job, rank)) for rank, view in equipped]
    refused = [item for item in causes if item[2]]
    everywhere = len(refused) == len(equipped)
    for why, group in grouped(refused, lambda item: item[2]).items():
        ranks, hcas = [rank for rank, *_ in group], _efa(group[0][1])
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: libfabric cannot use {listed([hca.name for hca in hcas], 2)} (EFA): {why}",
            severity="warning" if everywhere else "error",
            evidence={hca.name: f"{hca.file_name or 'no device file'}: {hca.device_file}" for hca in hcas[:_SHOWN]},
            values={"removal": removals(job, ranks, "FI_PROVIDER")} if why.startswith("FI_PROVIDER") else {},
        )


def _efa(view: View) -> list[Hca]:
    """Return a node's EFA adapters with an active port; NCCL_IB_HCA does not select them."""
    return [h for h in view.adapters.hcas if h.driver == "efa" and any(p.state == "ACTIVE" for p in h.ports)]


def _efa_refused(view: View) -> str:
    """Return why none of a node's EFA adapters can be opened, '' if one can."""
    hcas = _efa(view)
    if all(hca.device_file == "absent" for hca in hcas):
        return "/dev/infiniband has no file for them"
    if all(hca.device_file in {"absent", "denied"} for hca in hcas):
        first = next(hca for hca in hcas if hca.device_file == "denied")
        return f"/dev/infiniband/{first.file_name}: {first.denied or 'Permission denied'}"
    return ""


def _efa_excluded(job: Job, rank: RankFacts) -> str:
    """Return a rank's FI_PROVIDER if it excludes EFA, '' if it does not; NCCL's files may set it too."""
    value = value_of(job, rank, "FI_PROVIDER")
    names = value.lower().removeprefix("^").replace(";", ",").split(",")
    listed_there = any(name.strip() in {"efa", "efa-direct"} for name in names)
    return f"FI_PROVIDER={brief(value, 60)} excludes efa" if value and listed_there == value.startswith("^") else ""
