"""Rules about the counters of RDMA ports that grew while the collectives ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.fabric.lines import ranks_of, views, where
from distcheck.rules.finding import NotChecked
from distcheck.rules.wording import found, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINK = {
    "symbol_error": 10,
    "link_error_recovery": 1,
    "link_downed": 1,
    "port_rcv_errors": 1,
    "local_link_integrity_errors": 1,
    "excessive_buffer_overrun_errors": 1,
}
"""Growth from which on a counter of the link is reported; a few symbol errors are within the specification."""
_TRANSPORT = {
    "packet_seq_err": 10,
    "local_ack_timeout_err": 10,
    "rnr_nak_retry_err": 10,
    "req_transport_retries_exceeded": 1,
}
"""The same for repeated packets. out_of_sequence and congestion marks also grow on healthy networks with adaptive
routing and congestion control, so they are only shown as evidence."""


@rule("collectives", severity="warning", scope="link", owner="admin")
def ib_hw_counters_growing(job: Job) -> Iterator[Outcome]:
    """Error counters of an InfiniBand or RoCE port's link grew while the collectives ran.

    A bad cable, transceiver or switch port damages packets, which are then repeated: low and varying bandwidth, until
    the link goes down.

    Found by reading symbol_error, link_downed, link_error_recovery, port_rcv_errors and others before and after. Their
    values from earlier do not matter. Fewer than 10 symbol errors are ignored.

    Fix: Clean, reseat or replace the cable or transceiver.

        grep . /sys/class/infiniband/*/ports/*/counters/*err*

    See: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
    """
    yield from _unwatched(job)
    yield from _grown(job, _LINK, "the link has errors")


@rule("collectives", severity="warning", scope="link", owner="admin")
def roce_pfc_ecn(job: Job) -> Iterator[Outcome]:
    """An RDMA port had to repeat packets while the collectives ran: the network dropped some.

    RoCE needs a network that drops nothing, by priority flow control (PFC) or congestion marks (ECN) for the traffic
    class that NCCL uses. Otherwise it is slow and unstable under load, up to ``status=12``
    (IBV_WC_RETRY_EXC_ERR).

    Found by packet_seq_err, local_ack_timeout_err and rnr_nak_retry_err in hw_counters, read before and after: 10 more.

    Fix: Set NCCL_IB_TC (and NCCL_IB_SL) to the class that the network treats as lossless; check PFC and ECN on the
    switches. A port that is down or a wrong GID looks the same.

        # set NCCL_IB_TC to the class of the site, such as: export NCCL_IB_TC=106
        rdma statistic show link
        ibstat; env | grep '^NCCL_IB_'

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-tc
    """
    yield from _unwatched(job)
    yield from _grown(job, _TRANSPORT, "packets were lost and repeated")


def _grown(job: Job, limits: dict[str, int], what: str) -> Iterator[Outcome]:
    ports = [line for view in views(job) for line in view.lines if line.port.growth]
    grown = [
        (line, over)
        for line in ports
        if (over := {name: n for name, n in line.port.growth.items() if n >= limits.get(name, n + 1)})
    ]
    for names, items in grouped(grown, lambda item: tuple(item[1])).items():
        lines = [line for line, _ in items]
        growth = listed([f"{name} +{max(over[name] for _, over in items)}" for name in names], 3)
        yield found(
            job,
            ranks_of(job, lines),
            f"{where(lines)}: {growth} during the run; {what}",
            evidence={
                f"{line.node.name} {line.name}": [f"{name} +{n}" for name, n in line.port.growth.items()]
                for line in lines[:16]
            },
        )


def _unwatched(job: Job) -> Iterator[NotChecked]:
    """Yield the nodes whose counters could not be read again."""
    for view in views(job):
        if view.adapters.unwatched:
            yield NotChecked(reason=view.adapters.unwatched, nodes=(view.node.name,), required=False)
