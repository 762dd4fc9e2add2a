"""Rules about what the ranks' NCCL loaded and chose, compared across the ranks by their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.nccl_logs import crossing, logged, settings_shown, who
from distcheck.rules.finding import Fix
from distcheck.rules.wording import found, grouped, listed, majority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job


@rule("collectives", "nccl-tuner-plugin-mismatch", "nccl-collnet-mismatch")
def nccl_net_plugin_on_some_ranks(job: Job) -> Iterator[Outcome]:
    """NCCL loaded other plugins on some ranks than on the rest.

    A network plugin such as HPC-X's or aws-ofi-nccl's speaks its own protocol: ranks with it and ranks without it hang
    without an error, and SHARP on some nodes only gives ``Detected mixed local CollNet device counts across ranks``. A
    tuner plugin on some ranks chooses other algorithms there. The usual cause is a library that only some nodes or
    images have. Found by the plugins in each rank's NCCL log. It is an error for network plugins, else a warning.

    Fix: use the same image on all nodes, or ``NCCL_NET_PLUGIN=none`` everywhere.
    See: https://github.com/NVIDIA/nccl/issues/1634
    """
    read = [t for t in logged(job) if t.log.version]
    groups = grouped(read, lambda t: tuple(sorted(t.log.plugins)))
    if len(groups) < 2:
        return
    usual = majority(groups)
    odd = [t for plugins, group in groups.items() if plugins != usual for t in group]
    differing = set.symmetric_difference(*(set(plugins) for plugins in list(groups)[:2]))
    network = any(not plugin.startswith(("TUNER", "PROFILER", "ENV")) for plugin in differing)
    words = "; ".join(f"{who(job, group)}: {_plugins(plugins)}" for plugins, group in list(groups.items())[:3])
    yield found(
        job,
        [t.rank for t in odd],
        f"NCCL loaded different plugins: {words}",
        Fix(
            "Use the same image on all nodes, or no plugin.",
            ("export NCCL_NET_PLUGIN=none",) if network else ("export NCCL_TUNER_PLUGIN=none",),
        ),
        severity="error" if network else "warning",
        scope="job",
        evidence={_plugins(plugins): who(job, group) for plugins, group in groups.items()}
        | settings_shown(odd, "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN"),
    )


def _plugins(plugins: tuple[str, ...]) -> str:
    return listed(plugins, most=3) or "none"


@rule("collectives")
def nccl_ib_on_some_nodes(job: Job) -> Iterator[Outcome]:
    """NCCL uses InfiniBand on some nodes and sockets on others.

    The two sides cannot connect: the start of NCCL hangs forever. The usual causes are a container without libibverbs
    or ``/dev/infiniband`` on one node, and NCCL_IB_DISABLE on one node, which nccl-env-differs reports. Found by the
    network that each rank's NCCL log names.

    Fix: give all containers the adapters, or ``export NCCL_IB_DISABLE=1`` on all nodes.
    See: https://github.com/NVIDIA/nccl/issues/234
    """
    groups = grouped([t for t in crossing(job) if t.log.network], lambda t: t.log.network)
    if len(groups) < 2:
        return
    usual = majority(groups)
    odd = [t for network, group in groups.items() if network != usual for t in group]
    words = "; ".join(f"{who(job, group)}: {network}" for network, group in groups.items())
    yield found(
        job,
        [t.rank for t in odd],
        f"NCCL uses different networks, which cannot connect: {words}",
        Fix(
            "Give all containers access to the adapters, or use sockets everywhere.",
            ("ls -l /dev/infiniband", "ibv_devinfo", "export NCCL_IB_DISABLE=1"),
        ),
        scope="job",
        evidence={network: who(job, group) for network, group in groups.items()}
        | settings_shown(odd, "NCCL_IB_DISABLE", "NCCL_NET"),
    )
