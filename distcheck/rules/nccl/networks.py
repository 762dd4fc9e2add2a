"""Rules about the networks that the ranks' NCCL chose, compared across the ranks by their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.nccl_logs import crossing, settings_shown, who
from distcheck.rules.wording import found, grouped, majority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job


@rule("collectives")
def nccl_ib_on_some_nodes(job: Job) -> Iterator[Outcome]:
    """NCCL uses InfiniBand on some nodes and sockets on others.

    The two sides cannot connect: the start of NCCL hangs forever. The usual causes are a container without libibverbs
    or ``/dev/infiniband`` on one node, and NCCL_IB_DISABLE on one node, which nccl-env-differs reports. Found by the
    network that each rank's NCCL log names.

    Fix: Give all containers access to the adapters, or use sockets everywhere.

        ls -l /dev/infiniband
        ibv_devinfo
        export NCCL_IB_DISABLE=1

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
        evidence={network: who(job, group) for network, group in groups.items()}
        | settings_shown(odd, "NCCL_IB_DISABLE", "NCCL_NET"),
    )
