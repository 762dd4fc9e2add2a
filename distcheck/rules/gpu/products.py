"""The rule about the results of repeated products: wrong bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import NotChecked
from distcheck.rules.gpu.own_work import tested, whose
from distcheck.rules.wording import found, grouped, named, nodes_of, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.rank import RankFacts
    from distcheck.rules.finding import Fault

_MOST = 8


@rule("collectives", scope=("gpu", "node"), owner="admin")
def gpu_wrong_product(job: Job) -> Iterator[Outcome]:
    """A GPU or CPU returns different results for the same matrix product.

    There is no error: training goes on with wrong gradients, until the loss spikes or the model is useless. One such
    device in thousands is common in large fleets, and no counter shows it.

    Found by a checksum over the bits of every product of the device test, which multiplies the same matrices of small
    whole numbers again and again. Every sum is exact, so all products on all devices have the same bits. A device is
    at fault if its own results differ, or if most of the ranks with such a device agree on another result. Where two
    results stand against each other, both are named. ``--burn SECONDS`` repeats the products for longer: many such
    faults show only when the device is warm.

    Fix: Do not train on this node; test it alone for longer, and have the device replaced if it fails again.

        distcheck bandwidth --burn 60 --timeout 120

    See: https://arxiv.org/abs/2102.11245
    """
    burn = job.asked.burn_seconds
    ran = [rank for rank in job.ranks if rank.run is not None]
    without = [rank for rank in ran if not getattr(rank.run and rank.run.device_test, "burn", None)] if burn else []
    if without and not any(rank.run and rank.run.outcome != "done" for rank in ran):
        yield NotChecked(
            reason=f"--burn {burn:g}: the products were not repeated",
            ranks=numbers_of(without),
            nodes=nodes_of(job, without),
        )
    for alike in tested(job).values():
        for one in alike:
            if one.test.different:
                bad = f"{one.test.different} of {one.test.products} equal products of {whose(job, one)}"
                yield _wrong(job, [one.rank], f"{bad} differ from its first one")
        steady = [one for one in alike if not one.test.different]
        results = grouped(steady, lambda one: one.test.checksum)
        usual = max(results.values(), key=len, default=[])
        if 2 * len(usual) > len(steady) > 2:
            for one in steady:
                if one.test.checksum != usual[0].test.checksum:
                    words = f"every product of {whose(job, one)} has another result than on {len(usual)} of"
                    yield _wrong(job, [one.rank], f"{words} {len(steady)} ranks")
        elif len(results) > 1:
            ranks = [one.rank for one in steady]
            words = f"the same product has {len(results)} different results on {named(job, ranks)}"
            yield _wrong(job, ranks, f"{words}; any of them may be wrong", confirmed=False)


def _wrong(job: Job, ranks: list[RankFacts], message: str, *, confirmed: bool = True) -> Fault:
    on_gpu = any(rank.run and rank.run.device != "cpu" for rank in ranks)
    tests = [(rank.placement.rank, rank.run.device_test) for rank in ranks[:_MOST] if rank.run]
    return found(
        job,
        ranks,
        message,
        scope="gpu" if on_gpu else "node",
        confirmed=confirmed,
        evidence={f"checksum of rank {number}": getattr(test, "checksum", None) for number, test in tests},
    )
