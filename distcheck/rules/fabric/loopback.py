"""The rule about RDMA ports in loopback (``--loopback``)."""

from __future__ import annotations

from shlex import quote
from statistics import median
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import Infiniband
from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.fabric.lines import ports, ranks_of, where
from distcheck.rules.finding import NotChecked
from distcheck.rules.wording import found, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHARE = 0.5
"""Below this share of its rate a port is slow; a healthy one writes to itself at about nine tenths of it."""
_MOST = 16


@rule("gpu", scope=("node", "job"), owner="admin")
def ib_loopback_slow(job: Job) -> Iterator[Outcome]:
    """An RDMA port writes to itself far more slowly than its rate.

    The data passes through the adapter and its PCIe link twice, and through no cable. So the adapter, its slot, its
    PCIe link or the host's memory is at fault, and the node's network is as slow in every job.

    Found with ``--loopback`` where perftest is installed: ib_write_bw with a server and a client on the same port, one
    port after the other. A port is slow below 0.5 of its rate. If the other ports of that rate are below it as well,
    that is one warning: PCIe may be too slow for such ports. Without perftest nothing is checked.

    Fix: Compare the adapter's PCIe width and generation with the maximum; reseat or replace it, or exclude the node.

        sudo lspci -vv -s $(basename $(readlink /sys/class/infiniband/{hca}/device))

    See: https://github.com/linux-rdma/perftest
    """
    read = [(node, node.infiniband) for node in job.nodes if job.asked.loopback]
    lines = [line for node, own in read if isinstance(own, Infiniband) for line in ports(node, own)]
    reached = {id(line): rate for line in lines if isinstance(rate := line.port.loopback_Gbps, float)}
    unknown = [(line, why.reason) for line in lines if isinstance(why := line.port.loopback_Gbps, Missing)]
    for reason, those in grouped(unknown, lambda item: item[1]).items():
        group = [line for line, _ in those]
        names = tuple(dict.fromkeys(line.node.name for line in group))
        yield NotChecked(reason=f"{where(group)}: {reason}", nodes=names)
    for rate, alike in grouped((i for i in lines if id(i) in reached), lambda line: line.port.rate_Gbps or 0).items():
        usual = median(reached[id(line)] for line in alike)
        slow = [line for line in alike if reached[id(line)] < _SHARE * rate]
        shared = usual < _SHARE * rate and len(alike) > 1
        for group in [slow] if shared and slow else [[line] for line in slow]:
            least = min(reached[id(line)] for line in group)
            others = f"; the {len(alike)} ports of this rate reach {usual:.0f} Gb/s (median)" if len(alike) > 1 else ""
            yield found(
                job,
                ranks_of(job, group),
                f"{where(group)} {'writes to itself' if len(group) == 1 else 'write to themselves'} at {least:.0f} Gb/s"
                f", its rate is {rate:g} Gb/s{others}",
                severity="warning" if shared else "error",
                scope="job" if shared else "node",
                confirmed=not shared and len(alike) > 2,
                evidence={
                    f"{line.node.name} {line.name}": f"{reached[id(line)]:.0f} of {rate:g} Gb/s"
                    for line in group[:_MOST]
                },
                values={"hca": [quote(group[0].hca.name)]},
            )
