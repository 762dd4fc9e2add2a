"""Rules about distcheck itself."""

from __future__ import annotations

from collections.abc import Iterator

from distcheck.facts import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Finding, Fix
from distcheck.rules.wording import found, grouped, named, nodes_of


@rule("environment")
def probe_rule_crashed(job: Job) -> Iterator[Outcome]:
    """A rule of distcheck crashed, so one problem may have gone unnoticed.

    The facts held something that the rule's author did not foresee. All other rules were run; their findings hold.
    The engine itself reports this one, with the rule and its error; there is nothing to find in the facts.

    Fix: save the job with ``--save job.json`` and report it to distcheck's developers; the file shows the fault again.
    """
    del job
    yield from ()


@rule("environment")
def probe_version_differs(job: Job) -> Iterator[Outcome]:
    """The nodes run different versions of distcheck.

    The report can then be incomplete: an older probe does not collect what a newer rule wants to see. It is often a
    sign that the nodes do not share one environment, which bites torch too. Found by comparing the version that
    each probe states.

    Fix: install the same version on every node: ``pip install distcheck==<version>``.
    """
    versions = sorted({node.distcheck for node in job.nodes})
    if len(versions) > 1:
        odd = [n for n in job.nodes if n.distcheck != job.distcheck]
        yield Finding(
            severity="warning",
            nodes=tuple(n.name for n in odd),
            ranks=tuple(r.placement.rank for n in odd for r in job.ranks_on(n) if r.placement.rank is not None),
            message=f"the nodes run distcheck {', '.join(versions)}",
            evidence={n.name: n.distcheck for n in job.nodes},
            fix=Fix(
                f"Install distcheck {job.distcheck} on every node.",
                (f"pip install distcheck=={job.distcheck}",),
            ),
        )


@rule("meeting", always=True)
def probe_process_lost(job: Job) -> Iterator[Outcome]:
    """A process of distcheck came to the roll call and was lost before the verdict.

    What it was still to say is not known, so there is no pass without it: its node may have crashed, its process may
    have been killed, frozen or ended by its own ``--timeout``, or the network between it and rank 0 broke. The job's
    own processes would be lost in the same way, and the others would wait for them until their watchdog ends the job.
    Found by its connection, which closed, or by its silence when it was asked for something that every process can
    say at once. A process that is lost in the middle of the collectives is reported with its ranks there. Where rank
    0's process itself is lost, the others cannot agree any more: each of them says so, in a partial report of its own,
    and all of them end with exit code 20.

    Fix: look at the log of that process and at its node; give all processes the same ``--timeout``; then try again.
    """
    yield from _host_lost(job)
    lost = {p.uid: p for p in job.processes if p.lost}
    ranks = grouped((r for r in job.ranks if r.process in lost), lambda r: r.process)
    # Those whose end in the collectives is known are named by the rules about collectives.
    mute = [uid for uid in lost if not all(r.run is not None for r in ranks.get(uid, [])) or not ranks.get(uid)]
    for (stage, how), uids in grouped(mute, lambda uid: (lost[uid].stage, lost[uid].lost)).items():
        theirs = [r for uid in uids for r in ranks.get(uid, [])]
        who = named(job, theirs) if theirs else "a process without a rank"
        yield found(
            job,
            theirs,
            f"{who} {'was' if len(theirs) < 2 else 'were'} lost in the stage '{stage}': {how}",
            Fix("Look at the log of the process and at its node, then try again.", ("dmesg -T | tail -n 50",)),
            scope="node",
            owner="unknown",
            confirmed=False,
            evidence={"pids": [lost[uid].pid for uid in uids], "stage": stage},
        )


def _host_lost(job: Job) -> Iterator[Outcome]:
    """Yield where processes lost the one that was to give the verdict: rank 0's, or who stood in for it."""
    left = [p for p in job.processes if p.host_lost]
    for (host, stage, how), processes in grouped(left, lambda p: (p.host_rank, p.stage, p.host_lost)).items():
        first = [r for r in job.ranks if r.placement.rank == host]
        own = {p.uid for p in processes}
        theirs = named(job, [r for r in job.ranks if r.process in own])
        yield Finding(
            scope="node",
            owner="unknown",
            confirmed=False,
            ranks=(host,),
            nodes=nodes_of(job, first),
            message=f"rank {host}'s process was lost in the stage '{stage}', says {theirs}: {how}",
            fix=Fix(
                f"Look at the log of rank {host}'s process and at its node, then try again.",
                ("dmesg -T | tail -n 50",),
            ),
            evidence={"stage": stage, "processes": len(processes)},
        )
