"""Rules about what else a node does before the job starts: load, stuck processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.host.shown import HostSeen, beside, each_host, unread
from distcheck.rules.wording import are, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUSY, _IDLE, _RUNNING = 1.0, 0.25, 0.5


@rule("node", also=("collectives", "isolation"), severity="warning", scope="node", owner="admin")
def host_busy(job: Job) -> Iterator[Outcome]:
    """A node is busy with something else while the other nodes are idle.

    Processes of an earlier job, of a backup or of monitoring take the CPUs that the ranks need, so that its ranks are
    late in every collective. CPU overload is among the most frequent incidents of large jobs.

    Found by the load average of the last minute: at least as many processes as the node has CPUs, and four times as
    many for each CPU as half of the nodes have; and half as many must be running now, which they are not after a job
    that has just ended. A load that all nodes share is not reported.

    Fix: Find the processes, and end those that do not belong to the job.

        ps -eo pcpu,pid,user,args --sort=-pcpu | head
        uptime

    See: https://man7.org/linux/man-pages/man5/proc_loadavg.5.html, https://arxiv.org/abs/2509.16293 (11 % of the
    incidents)
    """
    loads = beside(job, lambda its: its.facts.load / its.node.cpus if its.node.cpus else None)
    for (node, host), load, usual, whose in loads:
        running = host.load if host.running is None else host.running
        if load >= _BUSY and usual <= _IDLE * load and running >= _RUNNING * (node.cpus or 0):
            yield Fault(
                f"{node.name}: load {host.load:.1f} on {count(node.cpus or 0, 'CPU')} before the job, {load:.2f} for "
                f"each; {whose} {usual:.2f} or less",
                evidence={"load": round(host.load, 2), "running": host.running, "cpus": node.cpus},
                nodes=(node.name,),
            )
    yield from unread(job)


@rule("node", also=("collectives", "isolation"), severity="warning", scope="node", owner="admin", of=each_host)
def host_stuck_processes(_: Job, host: HostSeen) -> Fault | None:
    """A process on a node is stuck in the kernel: it waits without end, or was killed and cannot end.

    The usual causes are a file server that does not answer, a failing disk, and a driver that hangs. The ranks will
    wait there as well when they touch the same file system or device, and no signal ends them. A killed process that
    cannot end often still holds its GPU's memory.

    Found in /proc: a process in state D that is not scheduled for three seconds (on a busy disk a page may take more
    than one), or a zombie that has threads in state D. What the processes wait for is not guessed from the name of a
    kernel function. Kernel threads, processes of a frozen cgroup (a paused container) or stopped by a signal or a
    debugger, those whose core is being written, and those that wait for a child of vfork or for a FUSE file system of
    another container do not count.

    Fix: Look where it waits, and check the file servers, the disks and the driver; reboot the node if it does not
    recover.

        sudo cat /proc/{pid}/stack
        sudo dmesg -T | grep -iE 'blocked for|not responding|i/o error'

    See: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    stuck = host.facts.stuck
    if not stuck:
        return None
    names = listed([f"{p.name} (pid {p.pid})" for p in stuck], most=3)
    places = sorted({p.waits_in for p in stuck if p.waits_in})
    blocked = any(p.state == "blocked" for p in stuck)
    what = f"{are(stuck)} stuck in the kernel" if blocked else "cannot end after a signal"
    return Fault(
        f"{names} {what}" + (f", in {listed(places, most=2)}" if places else ""),
        evidence={f"pid {p.pid}": f"{p.name}, {p.state}, {p.waits_in or 'unknown place'}" for p in stuck},
        confirmed=False,
        values={"pid": (str(stuck[0].pid),)},
    )
