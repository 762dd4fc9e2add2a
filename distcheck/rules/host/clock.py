"""The rule about the clocks of the nodes."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from distcheck.facts.rank import Role
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job

_OFF_SECONDS = 1.0
"""NTP keeps clocks within milliseconds; the times in logs and of TLS tokens suffer from seconds."""
_SURE = 3.0
"""How many times its error an offset must be."""


@rule("node", also=("collectives", "isolation"), severity="warning", scope="node", owner="admin")
def host_clock_skew(job: Job) -> Iterator[Outcome]:
    """The clock of a node is wrong.

    Logs of different nodes then cannot be put in order, tokens and certificates are refused, files seem to be newer
    than they are, and torchrun's c10d rendezvous drops nodes at 15 seconds, with ``RendezvousClosedError`` or a
    rendezvous that restarts repeatedly.

    Found at the roll call: each process sends the time of its clock, and rank 0's process compares it with its own
    before and after. The offset is known to half of the time between. A warning if a clock is more than 1 second off
    that of half of the nodes, and by more than three times the error.

    Fix: Synchronize the clocks of all nodes by NTP.

        chronyc tracking || timedatectl
        sudo chronyc makestep
    """
    clocks = _clocks(job)
    middle = median(offset for offset, _ in clocks.values()) if clocks else 0.0
    for key, (offset, error) in clocks.items():
        # Of two clocks nobody knows which is right: the follower's is compared with the leader's.
        others = [job.node_names[k] for k in clocks if k != key] if len(clocks) == 2 else []
        off = offset if others else offset - middle
        if abs(off) - error <= _OFF_SECONDS or abs(off) <= _SURE * error:
            continue
        name, way = job.node_names[key], "ahead of" if off > 0 else "behind"
        than = f"that of {others[0]}" if others else "the clocks of most nodes"
        yield Fault(
            f"{name}: the clock is {abs(off):.1f} s {way} {than}, ± {error:.2f} s; expected less than "
            f"{_OFF_SECONDS:g} s",
            evidence={"offset_seconds": round(off, 3), "error_seconds": round(error, 3)},
            confirmed=False,
            nodes=tuple(job.node_names[k] for k in clocks) if others else (name,),
        )


def _clocks(job: Job) -> dict[str, tuple[float, float]]:
    """Return each node's offset to the leader's clock with its error, by key: of its process with the least error."""
    clocks: dict[str, tuple[float, float]] = {}
    for process in job.processes:
        if process.role is Role.LEADER:
            clocks[process.node] = 0.0, 0.0
        elif process.clock_offset_seconds is not None and process.clock_error_seconds is not None:
            known = clocks.get(process.node)
            if known is None or process.clock_error_seconds < known[1]:
                clocks[process.node] = process.clock_offset_seconds, process.clock_error_seconds
    return clocks
