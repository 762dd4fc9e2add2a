"""What holds up a running job in a node, a device or the network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from distcheck.facts.job import Job
from distcheck.facts.quantities import duration
from distcheck.facts.ranges import numbered
from distcheck.rules import rule
from distcheck.rules.finding import Fault
from distcheck.rules.hang.judging import answer_of
from distcheck.rules.hang.sentences import holders, waits
from distcheck.rules.hang.states import Kind, RankState, nodes_of, ranks_of
from distcheck.rules.wording import brief, by_name, grouped, listed

_MOST_PAIRS = 8


@rule("hang", scope="node", owner="admin")
def hang_uninterruptible(job: Job) -> Iterator[Fault]:
    """A rank is in D state: the kernel waits for a disk, a file server or a device, and no signal ends it.

    The others wait in a collective. The process cannot be killed before the device answers, and the scheduler reports
    ``Kill task failed``.

    Found by /proc/PID/stat in all samples, without a context switch and without progress for 10 s.

    Fix: Find out which mount or device does not answer on {node}, then drain the node; the process ends with the wait.

        cat /proc/{pid}/wchan /proc/{pid}/stack
        findmnt -t nfs,nfs4,lustre,fuse
    """
    yield from _faults(job, "disk")


@rule("hang", scope="node", owner="admin")
def hang_gpu_failed(job: Job) -> Iterator[Fault]:
    """The GPU of a rank is lost or had a fatal error since the rank started, and the others wait for it.

    What the rank has sent to the GPU never ends, so it waits in ``torch.cuda.synchronize`` or ``.item()``, and the
    others in the next collective.

    Found by NVML or KFD's list, or by an Xid of the kernel log (48, 79, 119 and others, see gpu-xid-recent) or an error
    of amdgpu (see gpu-amdgpu-error-recent) since the rank's process started, where the rank makes no progress.

    Fix: End the job and drain {node}; reset the GPU, or reboot the node if it is lost.

        nvidia-smi -q  # AMD: amd-smi metric
        sudo dmesg | grep -E 'NVRM: Xid|amdgpu'

    See: https://docs.nvidia.com/deploy/xid-errors/
    """
    yield from _faults(job, "gpu")


@rule("hang", scope="node", owner="unknown")
def hang_stopped(job: Job) -> Iterator[Fault]:
    """A rank is stopped by a signal or a debugger, and the others wait for it.

    SIGSTOP, SIGTSTP, a debugger or a scheduler that suspends jobs stopped it; it does not go on by itself.

    Found by the state T or t in /proc/PID/stat.

    Fix: Let the process go on, or end the debugger.

        kill -CONT {pid}
    """
    yield from _faults(job, "stopped")


@rule("hang", scope="link", owner="admin")
def hang_no_packets(job: Job) -> Iterator[Fault]:
    """Ranks wait in a collective, and what they send to some others is never acknowledged.

    A firewall, a switch or a route drops the packets of connections that were open before. TCP retries for 15 minutes.

    Found by the retransmissions of the ranks' own connections in /proc/PID/net/tcp; a job that only hangs has none.

    Fix: Test the path between the two nodes.

        distcheck net
        ss -ti
    """
    found = answer_of(job)
    if found.why != "network":
        return
    cut = [(f"rank {s.process.rank}", c) for s in found.odd for c in s.process.unanswered]
    pairs = ", ".join(f"{who} {c.local} to {c.remote}" for who, c in cut[:2])
    waiting = f"{waits(found.waiting)}, for at least {duration(found.seconds)}"
    message = f"no answer on {len(cut)} connections ({pairs}); {waiting}"
    evidence = by_name(
        (who, f"{c.local} to {c.remote}: {c.retransmits} retransmissions, {c.queued_bytes} B queued")
        for who, c in cut[:_MOST_PAIRS]
    )
    yield Fault(message, None, evidence, ranks=ranks_of(found.odd), nodes=nodes_of(found.odd), confirmed=False)


@rule("hang", scope="node", owner="admin")
def hang_node_silent(job: Job) -> Iterator[Fault]:
    """A node does not answer, and the ranks of the others wait for those on it.

    It crashed, lost its network, or nobody may log in there. Its ranks are then dead or unreachable, and the others
    wait until torch's timeout.

    Found where all ranks that were seen wait in communication without progress, ranks of the world were not seen, and
    a node of the job gave no answer.

    Fix: Look at the node's console and at the scheduler's state of it; drain it if it is down.

        ping -c 3 {node}
    """
    found = answer_of(job)
    if found.why != "silent" or job.hang is None:
        return
    problems = {node.name: node.problem for node in job.hang.nodes if node.problem}
    names, why = tuple(problems), brief(next(iter(problems.values())), 60)
    message = (
        f"{listed(names)} {'does' if len(names) == 1 else 'do'} not answer ({why}), where "
        f"{numbered(found.unseen, 6)} may run; {waits(found.waiting)}, for at least {duration(found.seconds)}"
    )
    values = {"node": tuple(map(shlex.quote, names[:4]))}
    yield Fault(message, confirmed=False, ranks=found.unseen, nodes=names, values=values)


def _faults(job: Job, kind: Kind) -> Iterator[Fault]:
    found = answer_of(job)
    odd = [s for s in found.odd if s.kind == kind and found.word == "hung"]
    evidence, seconds = (found.evidence, found.seconds) if odd else ({}, 0.0)  # once, and not for each node
    for node, group in grouped(odd, lambda s: s.process.node).items():
        yield Fault(
            holders(group, len(found.waiting), seconds),
            evidence=evidence,
            confirmed=kind == "gpu" or (kind == "disk" and _same(group)),
            ranks=ranks_of(group),
            nodes=(node,),
            values={"pid": tuple(str(s.process.pid) for s in group), "node": (shlex.quote(node),)},
        )


def _same(group: list[RankState]) -> bool:
    """Return whether every rank was in the same kernel function in all samples."""
    return all(len({m.waits_in for m in s.process.moments}) == 1 for s in group)
