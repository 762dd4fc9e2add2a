"""Rules about distcheck itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distcheck.facts.job import Job, Launched
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.job.leader_files import is_out_of_files, short_of_files, turned_away
from distcheck.rules.wording import brief, found, grouped, listed, named, nodes_of, numbers_of


@rule("environment", scope="tool")
def probe_rule_crashed(job: Job) -> Iterator[Outcome]:
    """A rule of distcheck crashed, so a problem may be missed.

    The facts contain a case that the rule does not handle. All other rules ran, and their findings are valid.
    The rule engine reports this finding with the rule and its error.

    Fix: save the job with ``--save job.json`` and send it to distcheck's developers; the file reproduces the crash.
    """
    del job
    yield from ()


@rule("environment", severity="warning")
def probe_version_differs(job: Job) -> Iterator[Outcome]:
    """The nodes run different versions of distcheck.

    The report may be incomplete: an older probe does not collect the facts that a newer rule needs. It is often a
    sign that the nodes have different environments, which causes failures in torch too. Found by comparing the version
    that each probe reports.

    Fix: Install the same version on every node.

        pip install distcheck=={version|VERSION}
    """
    versions = sorted({node.distcheck for node in job.nodes})
    if len(versions) > 1:
        odd = [n for n in job.nodes if n.distcheck != job.distcheck]
        yield Fault(
            f"the nodes run distcheck {', '.join(versions)}",
            evidence={n.name: n.distcheck for n in job.nodes},
            ranks=numbers_of(job.ranks_on(*odd)),
            nodes=tuple(n.name for n in odd),
            values={"version": (job.distcheck,)},
        )


@rule("meeting", scope="job", owner="admin")
def probe_open_files(job: Job) -> Iterator[Outcome]:
    """The process of rank 0 may not open enough files for a connection to every process of the job.

    Ranks beyond the limit cannot join the roll call. The job's own store fails in the same way, with ``Too many open
    files``, because it holds a connection to every rank. distcheck raises the soft limit by itself; only the hard limit
    counts. Found if ranks are missing and the limit has no room for their processes. It is an error once the limit
    is reached, and a warning before that, because then the missing ranks have another cause as well. A rank that comes
    too late is told so by rank 0's process, and reports it.

    Fix: Raise the hard limit of open files of the service that starts the jobs, or of the container
    (``docker run --ulimit nofile=131072``); or start one distcheck for each node (``--nproc``), which needs one
    connection for each node.

        ulimit -Hn
        sudo systemctl edit slurmd  # [Service] LimitNOFILE=131072
    """
    if short := short_of_files(job):
        leader, most, expected = short
        ranks = [r for r in job.ranks if r.process == leader.uid]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)} may hold connections to {most} processes; the job has {expected} others",
            severity="error" if is_out_of_files(job) else "warning",
            evidence={"room": most, "processes": expected, "joined": len(job.processes) - 1},
        )
    elif ranks := turned_away(job):
        yield found(job, ranks, f"{named(job, ranks)} could not join: rank 0's process may not open more files")


@rule("meeting", always=True, scope="node", unless=("launch-probe-broken",), owner="unknown")
def probe_process_lost(job: Job) -> Iterator[Outcome]:
    """A process of distcheck joined the roll call and was lost before the verdict.

    Its remaining results are unknown, so the verdict cannot be pass. Its node may have crashed, its process may
    have been killed, frozen or ended by its own ``--timeout``, or the network between it and rank 0 broke. The job's
    own processes would be lost in the same way, and the other ranks would wait for them until their watchdog ends the
    job. Found by its closed connection, or by its missing answer to a request that every process can answer at once.
    The rules about collectives report a process that is lost during the collectives, with its ranks.

    If rank 0's process is lost, the others cannot agree on a verdict. Each writes its own partial report with this
    finding, and all exit with code 20. Where srun or mpirun ended all processes, because it could not start anything on
    one of the nodes, they are not checked.

    Fix: Check the log of the process and its node; set the same ``--timeout`` for all processes; then retry.

        dmesg -T | tail -n 50
    """
    launched = job.launched
    if launched is not None and _ended_all(launched):
        gone = {p.uid for p in job.processes if p.lost or p.leader_lost}
        if ended := [r for r in job.ranks if r.process in gone]:
            reason = f"{launched.command[0]} failed on another node and ended the probes there"
            yield NotChecked(ranks=numbers_of(ended), nodes=nodes_of(job, ended), reason=reason)
        return
    yield from _leader_lost(job)
    lost = {p.uid: p for p in job.processes if p.lost}
    ranks = grouped((r for r in job.ranks if r.process in lost), lambda r: r.process)
    others = [uid for uid in lost if not _ended_badly(ranks.get(uid, []))]
    for (stage, how), uids in grouped(others, lambda uid: (lost[uid].stage, lost[uid].lost)).items():
        theirs = [r for uid in uids for r in ranks.get(uid, [])]
        who = named(job, theirs) if theirs else "a process without a rank"
        yield found(
            job,
            theirs,
            f"{who} {'was' if len(theirs) < 2 else 'were'} lost in stage '{stage}': {how}",
            confirmed=False,
            evidence={"pids": [lost[uid].pid for uid in uids], "stage": stage},
        )


def _ended_all(launched: Launched) -> bool:
    """Whether srun or mpirun ended all probes, as they do if they cannot start anything on one of the nodes."""
    failed = launched.engine != "ssh" and bool(launched.exit_code)
    return failed and any(n.outcome == "unreachable" for n in launched.nodes)


def _ended_badly(ranks: Sequence[RankFacts]) -> bool:
    """Return whether a rank did not end well in the collectives, whose rules then report its process."""
    runs = [rank.run for rank in ranks]
    return None not in runs and any(run is not None and run.outcome != "done" for run in runs)


def _leader_lost(job: Job) -> Iterator[Outcome]:
    """Yield a finding for each lost leader: rank 0's process, or the one that replaced it."""
    left = [p for p in job.processes if p.leader_lost]
    for (leader, stage, how), processes in grouped(left, lambda p: (p.leader_rank, p.stage, p.leader_lost)).items():
        first = [r for r in job.ranks if r.placement.rank == leader]
        own = {p.uid for p in processes}
        theirs = named(job, [r for r in job.ranks if r.process in own])
        yield Fault(
            f"rank {leader}'s process was lost in stage '{stage}', reported by {theirs}: {how}",
            evidence={"stage": stage, "processes": len(processes)},
            confirmed=False,
            ranks=(leader,),
            nodes=nodes_of(job, first),
        )


@rule("environment", severity="warning", scope="tool", owner="admin")
def tool_policy_differs(job: Job) -> Iterator[Outcome]:
    """The nodes of the job have different policies.

    The process of rank 0 judges the job, by its own policy. The next job may have its rank 0 on another node and get
    another verdict, and ``distcheck node`` judges each node by its own.

    Found by the digest of the files that each node read.

    Fix: Install the same files on all nodes.

        sha256sum /etc/distcheck/policy.toml /etc/distcheck/policy.d/*.toml
    """
    alike = grouped(job.nodes, lambda node: node.policy)
    if len(alike) < 2:
        return
    parts = {
        f"policy {digest[:12]}" if digest else "no policy": listed([node.name for node in nodes])
        for digest, nodes in sorted(alike.items(), key=lambda item: -len(item[1]))
    }
    words = "; ".join(f"{nodes}: {which}" for which, nodes in parts.items())
    yield Fault(brief(f"the nodes have different policies: {words}", 300), evidence=dict(parts))
