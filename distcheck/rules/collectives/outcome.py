"""Rules about the collectives: how the ranks ended, and whether results are correct."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.ranges import numbered
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.deaths import cause_of_death, evidence_of_death
from distcheck.rules.collectives.endings import (
    UNAVAILABLE,
    backend_of,
    call_of,
    detail_of,
    endings,
    evidence_of,
    fix_for_error,
    fix_for_start,
    late_import,
    of_groups,
    short_of_time,
    shows_cause,
    step_of,
    steps_of,
    suspects,
    who,
    why_ended,
)
from distcheck.rules.collectives.figures import unmeasured
from distcheck.rules.collectives.ras import ras_evidence, ras_named, ras_ranks
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.wording import brief, found, grouped, listed, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_FAULTS_OF_GPUS = ("nvidia-smi -q -d ECC,ROW_REMAPPER", "dmesg -T | grep -i xid")


@rule("collectives")
def torch_backend_missing(job: Job) -> Iterator[Outcome]:
    """This torch build lacks the backend that the job uses.

    ``init_process_group`` raises ``Distributed package doesn't have NCCL built in``, or ``Unknown c10d backend type``
    for one of a plugin. If only some nodes have such a torch, the other ranks wait for ten minutes or more. A torch
    with NCCL that sees no GPU fails a little later: ``ProcessGroupNCCL is only supported with GPUs, no GPUs found!``.

    Found by querying torch on every rank, before any collective runs. Of plugins' backends those count that torch finds
    by the entry points torch.backends and torch.distributed.backends; one that only the job's script registers cannot
    be measured.

    Fix: Install the torch build for the nodes' GPUs, or the plugin, the same one everywhere; or use a backend that this
    torch has: ``--backend gloo`` and ``init_process_group("gloo")``.

        python -c 'import torch; print(torch.__version__, torch.version.cuda, torch.distributed.Backend.backend_list)'
        distcheck bandwidth --backend gloo

    See: https://pytorch.org/get-started/locally/
    """
    for detail, ranks in grouped(endings(job)["unavailable"], detail_of).items():
        error = detail.removeprefix(UNAVAILABLE)
        yield found(
            job,
            ranks,
            f"{who(job, ranks)} cannot use {backend_of(job)}: {brief(error, 120)}",
            evidence={"backend": backend_of(job), "error": error},
        )


@rule("collectives", scope="node", owner="unknown")
def collective_rank_stopped(job: Job) -> Iterator[Outcome]:
    """A signal stopped a rank's process during a collective.

    A stopped process (state T) neither runs nor exits, so no connection breaks. All other ranks wait until their
    watchdog ends the job, after ten minutes with NCCL: ``Watchdog caught collective operation timeout``. The log then
    shows the ranks that waited, not the stopped one. Schedulers stop processes to suspend a job, container runtimes to
    freeze it, debuggers to inspect it.

    Found by the state of every rank's process in /proc, so that only the stopped ranks are named.

    Fix: Find what stops processes there: a scheduler suspend, a frozen cgroup, a debugger. Exclude the node if the
    cause stays unknown.

        ps -o pid,stat,wchan,cmd -p {pids|PID}
        kill -CONT {pids|PID}

    See: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    ranks = endings(job)["stopped"]
    if ranks:
        pids = " ".join(str(r.run.pid) for r in ranks if r.run and r.run.pid)
        yield found(
            job,
            ranks,
            f"{who(job, ranks)} {'was' if len(ranks) == 1 else 'were'} stopped during {steps_of(ranks)}; "
            "all other ranks waited",
            confirmed=False,
            evidence=evidence_of(ranks),
            values={"pids": (pids,)},
        )


@rule("collectives", scope=("rank", "node"))
def collective_rank_died(job: Job) -> Iterator[Outcome]:
    """A rank's process died during the collectives.

    The other ranks report only that it is gone: ``Connection closed by peer``, ``Connection reset by peer``, or with
    NCCL ``ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely``. Or
    they wait for their watchdog. The signal says more than their errors: SIGKILL (exit code 137) is the memory limit of
    the cgroup, the kernel's OOM killer, or a kill by a person or program; SIGBUS (135) most often a /dev/shm that is
    too small, SIGSEGV (139) a crash in a driver or a plugin, SIGABRT (134) torch's watchdog or a failed assertion,
    SIGILL (132) a library built for another processor.

    Found by the exit status of every rank's process, and by the state of its node right after: how many processes the
    kernel OOM-killed and which limit was reached (memory.events, or memory.oom_control of cgroup v1), the free space in
    /dev/shm, and the ranks' last output. A reached limit is the job's own (exit code 30); any other cause is only
    suspected. A rank that the watchdog aborted is named only where no other rank shows the cause.

    Fix: by the signal: raise the memory limit, give the container a larger ``/dev/shm``, or investigate the crash.
    See: https://man7.org/linux/man-pages/man7/signal.7.html
    """
    ended = endings(job)
    ranks = ended["died"] or ([] if shows_cause(job) or ended["failed"] else ended["aborted"])
    # Group by the fix; free space and last output differ from rank to rank.
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


@rule("collectives", scope=("node", "link"), unless=("sw-torch-missing",))
def collective_failed(job: Job) -> Iterator[Outcome]:
    """A collective, or joining the process group, raised an error.

    The job would fail with the same error. Where one rank fails first (a CUDA error, out of memory, an interface that
    does not exist), the others report only that it is gone. So the first error in time matters more than the loudest.

    Found by running the collectives. Ranks whose error says only that another rank does not answer are left out when
    another rank shows its own cause. Ranks that could not start, because torch cannot be imported or a limit of
    processes is reached, are also reported here. Every requested figure that is missing is listed as not checked.

    Fix: follow the error text; ``distcheck explain --log FILE`` names the rules that match an error, and
    ``NCCL_DEBUG=INFO`` makes NCCL log what it tried.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    ended = endings(job)
    for detail, ranks in grouped(ended["not started"], detail_of).items():
        if short := short_of_time(job, detail):
            yield NotChecked(reason=short)
            continue
        yield found(
            job,
            ranks,
            f"{who(job, ranks)} could not start{f': {brief(detail, 120)}' if detail else ''}",
            fix_for_start(detail),
            confirmed=False,
            evidence={"error": detail},
        )
    own, hidden = bool(ended["failed"]), shows_cause(job) or (ended["aborted"] and not ended["failed"])
    failures = [] if hidden else ended["failed"] or ended["lost"]
    for ranks in grouped(failures, lambda r: re.sub(r"\d+", "#", detail_of(r))).values():
        yield found(
            job,
            ranks,
            f"{who(job, ranks)} failed in {steps_of(ranks)}: {brief(detail_of(ranks[0]), 120)}",
            fix_for_error(job, detail_of(ranks[0]), own=own),
            scope="node" if own else "link",
            owner="unknown",
            confirmed=False,
            evidence=evidence_of(ranks),
        )
    yield from unmeasured(job)


@rule("collectives", scope=("node", "link"), owner="unknown")
def collective_stalled(job: Job) -> Iterator[Outcome]:
    """Ranks did not finish a collective in time, and no rank shows why.

    This is the most expensive hang: no rank fails, and all of them wait until torch's timeout. After ten minutes NCCL's
    watchdog ends all ranks with ``Watchdog caught collective operation timeout: WorkNCCL(SeqNum=...)``; Gloo reports
    ``Timed out waiting 1800000ms for recv operation to complete`` after thirty.

    Found by what every rank reported last and when. If a few ranks stopped reporting, hang in the kernel or made less
    progress than the others, they are named. If all ranks wait in the same place, no rank is blamed: the network
    between them, or too little time for the requested sizes, is the more likely cause. If importing torch took most of
    the time, on a busy machine or from a slow file system, that is reported.

    With NCCL 2.24 and later, NCCL's RAS is asked before the ranks are ended: the ranks that do not answer it, and those
    that launched fewer operations than the others, are in the message and the evidence. They are a lead and not a
    proof, and a rank that RAS does not list is not shown to be healthy.

    Fix: Distinguish slow from stuck with more time or smaller sizes; then check the network.

        distcheck bandwidth --sizes 1M --timeout 300
        distcheck net
        distcheck isolate

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
    """
    ended = endings(job)
    waiting = ended["stalled"] + ended["vanished"]
    if not waiting or shows_cause(job) or any(ended[how] for how in ("failed", "lost", "aborted")):
        return
    few, sign = suspects(job)
    if few:
        steps = "" if few[0].run is None else f" in {steps_of(few)}"
        others = "wait" if ras_ranks(job) - set(numbers_of(few)) else "show no fault"
        yield found(
            job,
            few,
            f"{who(job, few)} {sign}{steps}; the other {len(job.ranks) - len(few)} {others}{ras_named(job)}",
            Fix("Check this node first.", ("distcheck isolate", "dmesg -T | tail -n 50")),
            confirmed=False,
            evidence={**evidence_of(few), **ras_evidence(job)},
        )
        return
    late = late_import(job, waiting)
    yield Fault(
        scope="link",
        confirmed=False,
        message=f"{len(waiting)} of {len(job.ranks)} ranks were still in {steps_of(waiting)} "
        f"when the run was ended{late or f'{why_ended(job)}; no rank shows a cause{ras_named(job)}'}",
        evidence={
            **ras_evidence(job),
            **{f"in '{step}'": numbered(numbers_of(group)) for step, group in grouped(waiting, step_of).items()},
            **{f"at {call}": numbered(numbers_of(group)) for call, group in grouped(waiting, call_of).items() if call},
        },
        fix=Fix(
            "Retry: torch's files are now in the page cache. Otherwise find what keeps the CPUs or file system busy.",
            (
                f"distcheck {job.asked.command} --timeout {2 * job.asked.timeout_seconds:g}",
                "time python -c 'import torch'",
            ),
        )
        if late
        else None,
    )


@rule("collectives", scope=("node", "link"), owner="admin")
def collective_wrong_result(job: Job) -> Iterator[Outcome]:
    """A collective returned wrong numbers.

    There is no error and no warning: training continues with gradients that differ between ranks, the loss spikes or
    drifts, and checkpoints are corrupted. Possible causes are a faulty GPU, memory, NIC or switch, broken kernels of a
    driver or plugin, and an IOMMU that redirects PCIe peer-to-peer traffic.

    Found by one pass of every operation over small whole numbers whose exact sum every rank knows, with poisoned
    receive buffers, so that not a single bit may differ. A rank with wrong numbers may have received them from its
    neighbour: it is a suspect, not a proof.

    Fix: Do not train on these nodes until the faulty one is found.

        distcheck isolate
        {look|nvidia-smi -q -d ECC,ROW_REMAPPER}

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
        scope="node" if few else "link",
        confirmed=False,
        values={"look": _FAULTS_OF_GPUS if backend_of(job) == "nccl" else ()},
        evidence={
            op: f"wrong elements of {of[op]}: "
            + "; ".join(f"{count} on {numbered(numbers_of(ranks))}" for count, ranks in list(counted.items())[:16])
            + of_groups(job, op, wrong)
            for op, counted in by_op.items()
        },
    )
