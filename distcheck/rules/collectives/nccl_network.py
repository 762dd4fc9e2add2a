"""Rules about what NCCL uses between nodes: the network, its plugin, GPUDirect RDMA."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.pci import Pci
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.nccl_logs import (
    Logged,
    adapter_names,
    adapters,
    crossing,
    nodes_in_use,
    plugin_adapters,
    setting,
    settings_shown,
    switched_on,
    unread_logs,
    who,
)
from distcheck.rules.finding import Fix, Scope
from distcheck.rules.job.kinds import ranks_with
from distcheck.rules.job.nccl_remedies import owner, removals
from distcheck.rules.wording import are, found, grouped, listed, unread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_DESKTOP_GPU = re.compile(r"GeForce|\bRTX\b|\bTITAN\b|Quadro")
_CHOICES = frozenset({"NCCL_NET", "NCCL_NET_PLUGIN"})
"""Variables that select the network."""
_GDR_LEVEL = "NCCL_NET_GDR_LEVEL"
_FAR_APART = Fix(
    "Give NCCL the machine's topology (NCCL_TOPO_FILE), or allow a longer path and measure.",
    ("nvidia-smi topo -m", "export NCCL_NET_GDR_LEVEL=PHB"),
)
_AMAZON = "/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib"
_GOOGLE = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_")


@rule("collectives", scope=("job", "node"))
def perf_socket_instead_of_ib(job: Job) -> Iterator[Outcome]:
    """NCCL uses TCP sockets between nodes that have InfiniBand or RoCE.

    This gives a tenth of the bandwidth and sends every byte through the CPU. NCCL falls back without an error; its log
    says ``NET/IB : No device found.`` and ``Using network Socket``. The usual causes are containers without
    ``/dev/infiniband`` or libibverbs, and NCCL_IB_DISABLE=1 or NCCL_NET=Socket left over from earlier debugging.

    Found by NCCL's own log and the adapters whose ports are up. It is an error where they are InfiniBand; a warning
    where they are RoCE, which needs a network configured for it, and where a variable selects sockets.

    Fix: Give the ranks access to the adapters: /dev/infiniband and libibverbs in the container.

        ls -l /dev/infiniband
        ibv_devinfo
        # add to docker run: --device /dev/infiniband --ulimit memlock=-1

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-disable
    """
    yield from unread_logs(job)
    over_sockets = [t for t in crossing(job) if t.log.network == "Socket"]
    unseen = [t for t in over_sockets if not isinstance(t.node.pci, Pci)]
    reasons = (f": {t.node.pci.reason}" if isinstance(t.node.pci, Missing) else "" for t in unseen)
    whether = "unknown whether there are InfiniBand adapters"
    yield from unread(job, ((t.rank, whether + reason) for t, reason in zip(unseen, reasons, strict=True)))
    # nccl-net-plugin-missing reports those that need a plugin.
    slow = [t for t in over_sockets if adapters(t.node) and not _plugin_wanted(t)]
    for (chosen, infiniband), group in grouped(slow, lambda t: (_sockets_chosen(t), _has_infiniband(t.node))).items():
        nics, ranks, name = adapters(group[0].node), [t.rank for t in group], chosen.partition("=")[0]
        yield found(
            job,
            ranks,
            f"{who(job, group)}: NCCL uses TCP sockets ({listed(group[0].log.devices) or 'Socket'}) between "
            f"nodes, although {adapter_names(nics)} {are(nics)} up{chosen and f'; {chosen} selects sockets'}",
            Fix(f"Remove {name}, unless it is still needed.", removals(job, ranks, name)) if chosen else None,
            severity="error" if infiniband and not chosen else "warning",
            scope=_scope(job, group),
            owner=owner(job, ranks, name) if chosen else "unknown",
            evidence={
                **({"NCCL says": "NET/IB : No device found."} if group[0].log.no_ib_device else {}),
                **settings_shown(group, "NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA"),
            },
        )


def _sockets_chosen(t: Logged) -> str:
    """Return the variable that excludes InfiniBand, with its value, '' when none does."""
    if switched_on(t, "NCCL_IB_DISABLE"):
        return f"NCCL_IB_DISABLE={setting(t, 'NCCL_IB_DISABLE')}"
    return f"NCCL_NET={setting(t, 'NCCL_NET')}" if setting(t, "NCCL_NET").lower() == "socket" else ""


def _has_infiniband(node: NodeFacts) -> bool:
    return any(nic.link_layer == "InfiniBand" for nic in adapters(node))


def _scope(job: Job, group: Sequence[Logged]) -> Scope:
    """Return the scope of a fault: job if all nodes show it, else node."""
    return "job" if len({t.node.key for t in group}) == len(nodes_in_use(job)) else "node"


@rule("collectives", scope=("job", "node"))
def nccl_net_plugin_missing(job: Job) -> Iterator[Outcome]:
    """NCCL could not load a required network plugin.

    NCCL continues with its own transports: on AWS EFA and Google's GPUDirect-TCPX and FasTrak that is TCP, 4 GB/s
    instead of the usual 300. Its log says ``NET/Plugin: Could not find: libnccl-net.so``, which is harmless where no
    plugin is needed, and ``Using network Socket``. With NCCL_NET set to the plugin's name it fails instead: ``Failed to
    initialize any NET plugin``.

    Found by NCCL's own log, where NCCL_NET_PLUGIN or NCCL_NET names a plugin, where an adapter is up that NCCL cannot
    use by itself (EFA), and where variables of Google's plugins are set. It is an error where NCCL falls back to TCP.

    Fix: Make the plugin's library loadable on these nodes, also inside the container. With NCCL_NET set to its name,
    NCCL fails instead of falling back.

        find / -name 'libnccl-net*.so' 2>/dev/null
        export LD_LIBRARY_PATH={folders|"$(dirname "$(find / -name 'libnccl-net*.so' | head -n 1)")"}:$LD_LIBRARY_PATH

    See: https://github.com/NVIDIA/nccl/issues/959
    """
    own = [t for t in crossing(job) if t.log.network in {"IB", "Socket", ""}]
    without = [t for t in own if t.log.network or t.log.plugins_missing or t.log.plugins_failed]
    wanting = _wanting_plugins(job)
    likely = [t for t in without if id(t.rank) in wanting or not _CHOICES.isdisjoint(t.log.settings)]
    failed = [(t, why) for t in likely if (why := _plugin_wanted(t))]
    for (why, network), items in grouped(failed, lambda item: (item[1], item[0].log.network)).items():
        group = [t for t, _ in items]
        log = group[0].log
        yield found(
            job,
            [t.rank for t in group],
            f"{who(job, group)}: {why}, but NCCL "
            f"{f'uses its own {network} transport' if network else 'could not load it and has no network'}",
            severity="warning" if network == "IB" else "error",
            scope=_scope(job, group),
            values={"folders": [_AMAZON]} if plugin_adapters(group[0].node) else {},
            evidence={
                "loaded": list(log.plugins),
                "not found": list(log.plugins_missing),
                "failed": list(log.plugins_failed),
                **settings_shown(group, "NCCL_NET_PLUGIN", "NCCL_NET"),
            },
        )


def _plugin_wanted(t: Logged) -> str:
    """Return why NCCL needs a network plugin on a rank's node, '' when it needs none."""
    plugin, network = setting(t, "NCCL_NET_PLUGIN"), setting(t, "NCCL_NET")
    if plugin and plugin.lower() != "none":
        return f"NCCL_NET_PLUGIN={plugin} requires a network plugin"
    if network and network.lower() not in {"ib", "socket"}:
        return f"NCCL_NET={network} requires a network plugin"
    if network or plugin:
        return ""
    if nics := plugin_adapters(t.node):
        return f"NCCL can use {adapter_names(nics)} only through a network plugin"
    google = next((name for name in t.rank.environment if name.startswith(_GOOGLE)), "")
    return google and f"{google} is set, a variable of Google's network plugin"


def _wanting_plugins(job: Job) -> set[int]:
    """Return the ids of the ranks whose variables or whose nodes' adapters may need a network plugin."""
    there = job.ranks_on(*filter(plugin_adapters, job.nodes))
    given = ranks_with(job, lambda rank: any(name in _CHOICES or name.startswith(_GOOGLE) for name in rank.environment))
    return {id(rank) for rank in (*there, *given)}


@rule("collectives", "gdr-level-too-strict", severity="warning", scope=("job", "node"))
def gdr_not_used(job: Job) -> Iterator[Outcome]:
    """NCCL does not use GPUDirect RDMA between nodes.

    All data then goes through host memory: a half to a quarter of the bandwidth. NCCL's log says ``via NET/IB/0``
    without ``/GDRDMA``. Either it also says ``GPU Direct RDMA Disabled for HCA 0 'mlx5_0'`` (nvidia-peermem is not
    loaded, and the kernel or the driver has no DMA-BUF), or the GPU is too far from the adapter: virtual machines
    without a topology file, NCCL_NET_GDR_LEVEL, or adapters on another socket.

    Found by the transports in NCCL's log and what it reports for each adapter. Desktop GPUs, which do not support it,
    are left out. It is a warning; info where other ranks use it and adapters and GPUs may simply be far apart.

    Fix: Load nvidia-peermem at every boot, or use the open kernel driver with DMA-BUF; give virtual machines their
    topology file.

        sudo modprobe nvidia-peermem
        echo nvidia-peermem | sudo tee /etc/modules-load.d/peermem.conf

    See: https://github.com/NVIDIA/nccl/issues/1537
    """
    between = [t for t in crossing(job) if t.log.gdr is not None and t.log.network != "Socket"]
    some_use_it = any(t.log.gdr for t in between)
    without = [t for t in between if not t.log.gdr and t.log.gdr_devices and not _desktop(t)]
    for (allowed, limit), group in grouped(without, lambda t: (_gdr_allowed(t), _gdr_limit(t))).items():
        names, ranks = list(group[0].log.gdr_devices), [t.rank for t in group]
        fix = None
        if not allowed:
            reason = f"the driver does not let {listed(names, most=2)} access GPU memory"
        elif limit:
            reason = f"{limit} is set"
            fix = Fix(f"Remove {_GDR_LEVEL}.", removals(job, ranks, _GDR_LEVEL))
        else:
            reason = "NCCL considers GPU and adapter too far apart"
            fix = _FAR_APART
        yield found(
            job,
            ranks,
            f"{who(job, group)}: NCCL uses {group[0].log.network} between nodes without GPUDirect RDMA; {reason}",
            fix,
            severity="info" if allowed and some_use_it and not limit else "warning",
            scope=_scope(job, group) if not limit else "job",
            owner=owner(job, ranks, _GDR_LEVEL) if limit else "admin",
            evidence={
                "transports": list(group[0].log.transports),
                "adapters": [
                    f"{name} {'enabled' if on else 'disabled'}" for name, on in group[0].log.gdr_devices.items()
                ],
                **({"NCCL says": group[0].log.gdr_refused} if group[0].log.gdr_refused else {}),
                **settings_shown(group, _GDR_LEVEL, "NCCL_NET_GDR_READ"),
            },
        )


def _gdr_allowed(t: Logged) -> bool:
    return any(t.log.gdr_devices.values())


def _gdr_limit(t: Logged) -> str:
    level = setting(t, _GDR_LEVEL)
    return f"{_GDR_LEVEL}={level}" if level.upper() in {"0", "1", "LOC", "PIX"} else ""


def _desktop(t: Logged) -> bool:
    devices = t.node.gpus.devices if isinstance(t.node.gpus, Gpus) else ()
    return any(isinstance(gpu.name, str) and _DESKTOP_GPU.search(gpu.name) for gpu in devices)
