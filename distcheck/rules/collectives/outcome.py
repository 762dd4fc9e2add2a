"""Rules about the collectives: what became of the ranks, and whether results are right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.facts import Collectives, Job, Missing, RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.deaths import cause_of_death, evidence_of_death
from distcheck.rules.collectives.endings import (
    UNAVAILABLE,
    call_of,
    detail_of,
    endings,
    evidence_of,
    late_import,
    step_of,
    steps_of,
    suspects,
    who,
    why_ended,
)
from distcheck.rules.collectives.figures import missing_figures
from distcheck.rules.finding import Finding, Fix, NotChecked
from distcheck.rules.wording import brief, found, grouped, listed, numbered, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@rule("collectives")
def torch_backend_missing(job: Job) -> Iterator[Outcome]:
    """This torch does not have the backend that the job wants.

    ``init_process_group("nccl")`` raises ``Distributed package doesn't have NCCL built in`` on every rank, or
    on the ranks of the nodes where a CPU build of torch was installed; then the others wait for those for ten
    minutes and more. A torch that has NCCL but is shown no GPU fails a little later with ``ProcessGroupNCCL
    is only supported with GPUs, no GPUs found!``. Found by asking torch on every rank, before anything is
    tried.

    Fix: install the build of torch that fits the nodes' GPUs, the same one everywhere; or ask for a backend
    that is there: ``--backend gloo`` and ``init_process_group("gloo")``.
    See: https://pytorch.org/get-started/locally/
    """
    for detail, ranks in grouped(endings(job).unavailable, detail_of).items():
        words = detail.removeprefix(UNAVAILABLE)
        yield found(
            job,
            ranks,
            f"{who(job, ranks)} cannot use {_backend(job)}: {brief(words, 120)}",
            Fix(
                "Install the build of torch that fits the GPUs, or use a backend that this torch has.",
                (
                    "python -c 'import torch; print(torch.__version__, torch.version.cuda)'",
                    "distcheck bandwidth --backend gloo",
                ),
            ),
            scope="job",
            evidence={"backend": _backend(job), "error": words},
        )


@rule("collectives")
def collective_rank_stopped(job: Job) -> Iterator[Outcome]:
    """A rank's process was stopped by a signal in the middle of a collective.

    A stopped process (state T) neither works nor dies, so no connection breaks: all other ranks wait until
    their watchdog ends the job, after ten minutes with NCCL: ``Watchdog caught collective operation
    timeout``. The log then shows the ranks that waited, not the one that was stopped. Schedulers stop jobs to
    suspend them, container runtimes to freeze them, debuggers to look at them. Found by the state of every
    rank's process in /proc, so that only the stopped ranks are named.

    Fix: find who stopped it and let it go on: ``kill -CONT PID``; leave the node out when nobody knows.
    See: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    ranks = endings(job).stopped
    if ranks:
        pids = " ".join(str(r.run.pid) for r in ranks if r.run and r.run.pid)
        yield found(
            job,
            ranks,
            f"{who(job, ranks)} {'was' if len(ranks) == 1 else 'were'} stopped during {steps_of(ranks)}; "
            "all others waited",
            Fix(
                "Find what stops processes there: the scheduler's suspend, a frozen cgroup, a debugger.",
                (f"ps -o pid,stat,wchan,cmd -p {pids.replace(' ', ',')}", f"kill -CONT {pids}"),
            ),
            scope="node",
            owner="unknown",
            confirmed=False,
            evidence=evidence_of(ranks),
        )


@rule("collectives")
def collective_rank_died(job: Job) -> Iterator[Outcome]:
    """A rank's process died during the collectives.

    The others see only that it is gone: ``Connection closed by peer``, ``Connection reset by peer``, or with
    NCCL ``ncclRemoteError: A call failed possibly due to a network error or a remote process exiting
    prematurely``, or they wait for their watchdog. The signal tells more than their errors do: SIGKILL is
    the memory limit of the cgroup (exit code 137), the kernel's OOM killer, or somebody; SIGBUS (135) most
    often a /dev/shm that is too small, SIGSEGV (139) a crash in a driver or a plugin, SIGABRT (134) torch's
    watchdog or a failed assertion, SIGILL (132) a library made for another processor. Found by the exit
    status of every rank's process, and by what its node shows right after: how many processes the kernel has
    killed for want of memory and whose limit was reached (memory.events, or memory.oom_control of cgroup v1),
    the room in /dev/shm, and the ranks' last words. A limit that was reached is the job's own (exit code 30);
    anything else is only suspected. A rank that the watchdog aborted is named only where no other rank shows
    the cause.

    Fix: by the signal: raise the memory limit, give the container a larger ``/dev/shm``, or look for the
    crash.
    See: https://man7.org/linux/man-pages/man7/signal.7.html
    """
    ended = endings(job)
    ranks = ended.died or ([] if ended.clear or ended.failed else ended.aborted)
    # What mends it makes them alike, not the room or the words that were left at each one's own moment.
    for (detail, _), group in grouped(ranks, lambda r: (detail_of(r), cause_of_death(r).text)).items():
        cause = cause_of_death(group[0])
        yield found(
            job,
            group,
            f"{who(job, group)} died during {steps_of(group)}: "
            f"{'its' if len(group) == 1 else 'each'} process {detail or 'ended'}"
            f"{'; ' if cause.seen else ''}{cause.seen}",
            Fix(cause.text, cause.commands),
            scope=cause.scope,
            owner=cause.owner,
            confirmed=cause.scope == "rank",
            evidence={**evidence_of(group), **evidence_of_death(group[0])},
        )


@rule("collectives")
def collective_failed(job: Job) -> Iterator[Outcome]:
    """A collective, or joining the process group, raised an error.

    The job would end with the same error. Where a rank fails by itself (a CUDA error, no memory, an interface
    that does not exist) the others report only that it is gone, so that the first error in time is worth more
    than the loudest. Found by running the collectives; ranks whose error says only that another rank does not
    answer are left out when a rank shows a cause of its own. Ranks that could not begin, because their torch
    cannot be imported, are reported here too, and so is, as not checked, every figure that was asked for and
    is not there.

    Fix: follow the error's text; ``distcheck explain --log FILE`` names the rules that fit an error, and
    ``NCCL_DEBUG=INFO`` makes NCCL say what it tried.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    ended = endings(job)
    for detail, ranks in grouped(ended.unstarted, detail_of).items():
        yield found(
            job,
            ranks,
            f"{who(job, ranks)} could not begin{f': {brief(detail, 120)}' if detail else ''}",
            Fix("Make the same torch importable on every node.", ("python -c 'import torch'",)),
            scope="node",
            confirmed=False,
            evidence={"error": detail},
        )
    own = bool(ended.failed)
    failures = [] if ended.clear else ended.failed if own else [] if ended.aborted else ended.lost
    for ranks in grouped(failures, lambda r: re.sub(r"\d+", "#", detail_of(r))).values():
        yield found(
            job,
            ranks,
            f"{who(job, ranks)} failed in {steps_of(ranks)}: {brief(detail_of(ranks[0]), 120)}",
            _mend(job, detail_of(ranks[0]), own=own),
            scope="node" if own else "link",
            owner="unknown",
            confirmed=False,
            evidence=evidence_of(ranks),
        )
    yield from _unmeasured(job)


@rule("collectives")
def collective_stalled(job: Job) -> Iterator[Outcome]:
    """Ranks did not get through a collective in time, and no rank shows why.

    This is the hang that costs most: nothing fails, every GPU is busy waiting, and after ten minutes NCCL's
    watchdog ends all ranks with ``Watchdog caught collective operation timeout: WorkNCCL(SeqNum=...)``. Found
    by what every rank said last and when. A few ranks that fell silent, hang in the kernel or got less far
    than the others are named; where all ranks wait in the same place, nobody is blamed: then the network
    between them, or simply too little time for the sizes asked, is the more likely cause.

    Where importing torch took most of the time, on a busy machine or from a slow file system, that is reported.

    Fix: give it more time or smaller ``--sizes`` to tell slow from stuck; ``distcheck net`` looks at the
    network, ``distcheck isolate`` finds the node or link.
    See: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    """
    ended = endings(job)
    waiting = ended.stalled + ended.vanished
    if not waiting or ended.clear or ended.failed or ended.lost or ended.died or ended.aborted:
        return
    few, sign = suspects(job, ended)
    if few:
        steps = "" if few[0].run is None else f" in {steps_of(few)}"
        yield found(
            job,
            few,
            f"{who(job, few)} {sign}{steps}; the other {len(job.ranks) - len(few)} show no fault",
            Fix("Look at this node first.", ("distcheck isolate", "dmesg -T | tail -n 50")),
            scope="node",
            owner="unknown",
            confirmed=False,
            evidence=evidence_of(few),
        )
        return
    late = late_import(job, waiting)
    yield Finding(
        scope="link",
        owner="unknown",
        confirmed=False,
        message=f"{len(waiting)} of {len(job.ranks)} ranks were still in {steps_of(waiting)} "
        f"when the run was ended{late or f'{why_ended(job)}; no rank shows a cause'}",
        evidence={
            **{f"in '{step}'": numbered(numbers_of(group)) for step, group in grouped(waiting, step_of).items()},
            **{f"at {call}": numbered(numbers_of(group)) for call, group in grouped(waiting, call_of).items() if call},
        },
        fix=Fix(
            "Retry: the kernel has torch's files in memory now. Else see what keeps the CPUs or the file system busy.",
            (
                f"distcheck {job.asked.command} --timeout {2 * job.asked.timeout_seconds:g}",
                "time python -c 'import torch'",
            ),
        )
        if late
        else Fix(
            "Tell slow from stuck with more time or smaller sizes; then look at the network.",
            ("distcheck bandwidth --sizes 1M --timeout 300", "distcheck net", "distcheck isolate"),
        ),
    )


@rule("collectives")
def collective_wrong_result(job: Job) -> Iterator[Outcome]:
    """A collective delivered wrong numbers.

    Nothing fails and nothing warns: training goes on with gradients that differ between ranks, the loss
    spikes or drifts, and checkpoints are poisoned. A faulty GPU, memory, NIC or switch does this, and so do
    broken kernels of a driver or plugin, and an IOMMU that redirects PCIe peer-to-peer traffic. Found by one
    pass of every operation over small whole numbers whose exact sum every rank knows, with the receive
    buffers poisoned, so that not a single bit may differ. A rank that sees wrong numbers may have received
    them from its neighbour: it is a suspect, not a proof.

    Fix: do not train on these nodes; test them apart with ``distcheck isolate``, and look at the ECC counters
    and Xid errors of the suspects.
    See: https://docs.nvidia.com/deploy/xid-errors/
    """
    wrong = [r for r in job.ranks if r.run is not None and any(r.run.wrong.values())]
    if not wrong:
        return
    by_op: dict[str, dict[int, list[RankFacts]]] = {}
    for r in wrong:
        for op, count in (r.run.wrong if r.run else {}).items():
            if count:
                by_op.setdefault(op, {}).setdefault(count, []).append(r)
    of = {op: max(r.run.checked.get(op, 0) for r in wrong if r.run) for op in by_op}
    counts = [f"{max(ranks)} of {of[op]} elements of {op}" for op, ranks in by_op.items()]
    few = 2 * len(wrong) <= len(job.ranks)
    yield found(
        job,
        wrong,
        f"{who(job, wrong)} received wrong numbers: {'up to ' if len(wrong) > 1 else ''}{listed(counts)}",
        Fix(
            "Do not train on these nodes before the faulty one is found.",
            ("distcheck isolate", "nvidia-smi -q -d ECC,ROW_REMAPPER", "dmesg -T | grep -i xid")
            if _backend(job) == "nccl"
            else ("distcheck isolate",),
        ),
        scope="node" if few else "link",
        owner="admin",
        confirmed=False,
        evidence={
            op: f"wrong elements of {of[op]}: "
            + "; ".join(f"{count} on {numbered(numbers_of(ranks))}" for count, ranks in list(counted.items())[:16])
            for op, counted in by_op.items()
        },
    )


def _unmeasured(job: Job) -> Iterator[NotChecked]:
    """Say which figures are not there, where no finding of this family explains it."""
    collectives = job.collectives
    if collectives is None or isinstance(collectives, Missing):
        reason = collectives.reason if collectives else "the collectives were not run"
        yield NotChecked(reason=reason)
        return
    if any(endings(job)):
        return
    gaps = missing_figures(job, collectives)
    if gaps:
        yield NotChecked(reason=f"no figure for {listed(gaps)}{why_ended(job)}")


def _mend(job: Job, error: str, *, own: bool) -> Fix:
    """Return what to do about an error of a rank, or (not its own) about ranks that lost each other."""
    if "/dev/shm" in error:  # noqa: S108 NCCL's words
        return Fix(
            "Make /dev/shm larger; on a host, first remove from it what jobs that are gone have left there.",
            ("df -h /dev/shm; ls -la /dev/shm", "# add to docker run: --shm-size=8g"),
        )
    return Fix(
        "Follow the error; let the backend say what it tried."
        if own
        else "Look at the network between the nodes; these ranks lost each other and none shows why.",
        ("NCCL_DEBUG=INFO distcheck bandwidth -v" if _backend(job) == "nccl" else "distcheck net",),
    )


def _backend(job: Job) -> str:
    return job.collectives.backend if isinstance(job.collectives, Collectives) else job.asked.backend
