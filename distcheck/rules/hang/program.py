"""What holds up a running job in its own program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distcheck.facts.job import Job
from distcheck.facts.quantities import count, duration
from distcheck.facts.ranges import numbered
from distcheck.rules import rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.hang.judging import OF_MACHINES, HangJudgement, answer_of
from distcheck.rules.hang.rights import missing_rights
from distcheck.rules.hang.sentences import doing, fix_of, holders, threads, waits, who
from distcheck.rules.hang.states import RankState, nodes_of, ranks_of
from distcheck.rules.wording import grouped, listed


@rule("hang", scope="rank")
def hang_rank_missing(job: Job) -> Iterator[Fault]:
    """A rank has no process any more, and the others wait for it.

    The rank ended, was killed, or was never started. The others wait in a collective or at init until torch's timeout,
    10 or 30 minutes by default, and a collective of Gloo may wait for ever. Its log or the kernel's has the cause:
    ``Killed``, ``Out of memory``, a traceback.

    Found where WORLD_SIZE names more ranks than there are processes on the nodes that were looked at, and the others
    make no progress.

    Fix: Look for the rank's first error, then end the job and start it again.

        distcheck explain --log LOG
        sudo dmesg -T | grep -iE 'killed process|segfault'
    """
    found = answer_of(job)
    if found.why != "missing":
        return
    ended = [pid for node in (job.hang.nodes if job.hang else ()) for pid in node.ended]
    reaped = f" (process {', '.join(map(str, ended[:4]))} ended and was not reaped)" if ended else ""
    are = "has" if len(found.missing) == 1 else "have"
    rest = f"; {waits(found.waiting)}" if found.waiting else ""
    twice = "".join(
        f", and rank {rank} has {len(group)} ({', '.join(str(s.process.pid) for s in group)})"
        for rank, group in grouped(found.states, lambda s: s.process.rank).items()
        if len(group) > 1
    )
    none = f"{numbered(found.missing, 6)} {are} no process"
    message = f"{none}{reaped}{twice}{rest}, for at least {duration(found.seconds)}"
    fix = Fix("Start each rank once, with a RANK of its own.") if twice else None
    yield Fault(message, fix, found.evidence, ranks=found.missing)


@rule("hang", scope="rank")
def hang_rank_elsewhere(job: Job) -> Iterator[Fault]:
    """A rank is blocked in the program, and the others wait for it in a collective.

    It sleeps, waits for a file, a lock, a subprocess, a data-loader worker or standard input, or is in a debugger. The
    others wait until torch's timeout: ``Watchdog caught collective operation timeout`` blames them.

    Found by two samples of every rank: the innermost frame of the program, the system call, context switches, and CPU
    time with queue time, of it and of the processes below it. A rank that only sleeps, polls or reads gets a longer
    look, 10 s.

    Fix: Look at the line that is named; all ranks must come to the same collectives in the same order.
    """
    found = answer_of(job)
    if found.word == "hung" and found.why == "odd":
        yield from _alike(found, [s for s in found.odd if s.kind not in OF_MACHINES])


@rule("hang", scope="rank")
def hang_collective_mismatch(job: Job) -> Iterator[Fault]:
    """Ranks wait in different collectives or at different lines, so that none completes.

    A rank left a collective out, called another one, or called those of two groups in another order. With NCCL the
    others may even compute with wrong data before.

    Found where all ranks wait in communication without a context switch, at more than one operation or line. The fewer
    ranks are named; of equally many, all. Where ranks wrote dumps of torch's Flight Recorder since they started, those
    that the dumps name are.

    Fix: Compare the code paths to the two lines; a condition on the rank, uneven data or an exception leads there.

    See: https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
    """
    found = answer_of(job)
    if found.why != "mismatch":
        return
    odd = {id(s) for s in found.odd}
    rest = [s for s in found.waiting if id(s) not in odd]
    others = f", while {waits(rest)}" if rest else ""
    recorded = f"{found.recorded}; " if found.recorded else ""
    message, fix = f"{recorded}{waits(found.odd)}{others}", _group_fix(found.odd)
    if found.odd[0].process.meets:
        meet = grouped((*found.odd, *rest), lambda s: s.process.meets)
        where = [f"{numbered(ranks_of(group), 6)} at {place}" for place, group in meet.items()]
        message = f"ranks meet at different places: {listed(where)}; {waits((*found.odd, *rest))}"
        fix = Fix("Start all ranks with the same MASTER_ADDR and MASTER_PORT.")
    message += f"; unchanged for at least {duration(found.seconds)}"
    yield Fault(message, fix, found.evidence, ranks=ranks_of(found.odd), nodes=nodes_of(found.odd))


@rule("hang", scope="link", owner="unknown")
def hang_collective_stuck(job: Job) -> Iterator[Fault]:
    """All ranks wait in the same collective at the same line, and nothing moves.

    No rank is late in its program, so the collective itself does not complete: the network drops packets, ranks differ
    in the number of calls before, or in shapes or groups of one call.

    Found where all ranks of the world wait in the same operation without progress for 10 s, and no TCP connection
    retransmits.

    Fix: Check the network between the nodes; compare the sequence numbers of the ranks' collectives.

        distcheck net
        distcheck explain --flight DUMPS
    """
    found = answer_of(job)
    if found.why == "alike":
        everyone = f"all {count(len(found.waiting), 'rank')}"
        message = f"{everyone}: {waits(found.waiting)}, for at least {duration(found.seconds)}"
        yield Fault(message, _group_fix(found.waiting), found.evidence, confirmed=False)


@rule("hang", severity="warning", scope="rank")
def hang_rank_slow(job: Job) -> Iterator[Fault]:
    """The job makes progress, and the same ranks keep the others waiting.

    An evaluation or a checkpoint on one rank, a slow reader, more data on one rank, or an endless loop: two samples
    cannot tell long work from a loop without end.

    Found where ranks that do not communicate compute, read, write or go on in their program, while others wait in a
    collective without a single context switch.

    Fix: If it lasts, look again for longer; if the same line is named again and again, look at that line.

        distcheck hang --wait 60
    """
    found = answer_of(job)
    if found.word == "slow":
        yield from _alike(found, list(found.odd))


@rule("hang", scope="job", owner="unknown")
def hang_untold(job: Job) -> Iterator[NotChecked]:
    """What could not be seen, so that the answer is not known.

    Without the right to attach there are no stacks, and /proc alone may not decide: a rank that waits for a lock looks
    like one that waits in a collective.

    Found where no rank was found, a node did not answer, processes may not be read, or all ranks only wait.

    Fix: Allow what is named, or look from where it is allowed.
    """
    found = answer_of(job)
    lacking = missing_rights(job.hang) if job.hang is not None else ""
    if found.word == "cannot tell":
        reason = "; ".join(filter(None, (found.reason, lacking))) or "the ranks cannot be told apart"
        yield NotChecked(reason=reason, ranks=ranks_of(found.waiting), required=True)
    elif lacking and found.word != "not hung" and job.hang is not None and job.hang.stacks:
        yield NotChecked(reason=f"lines of the program: {lacking}", ranks=ranks_of(found.odd), required=False)


def _alike(found: HangJudgement, states: list[RankState]) -> Iterator[Fault]:
    """Yield a fault for each group of ranks that are at the same place."""
    evidence, seconds = found.evidence, found.seconds  # once, and not for each group
    for group in grouped(states, lambda s: (s.kind, s.place.at)).values():
        yield Fault(
            holders(group, len(found.waiting), seconds),
            fix_of(group[0]) if found.word == "hung" else None,
            {**evidence, **threads(group[0]), **{who([s]): doing(s) for s in group[1:5]}},
            ranks=ranks_of(group),
            nodes=nodes_of(group),
        )


def _group_fix(states: Iterable[RankState]) -> Fix | None:
    if not any(s.operation == "new_group" for s in states):
        return None
    return Fix("Call new_group in every rank of the job, also in those outside of the group, and in the same order.")
