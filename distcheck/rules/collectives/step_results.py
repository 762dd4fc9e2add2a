"""Rules about what a training step of ``--step`` gives: gradients and parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Collectives, Job
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.trained import (
    differing,
    fault,
    first_wrong,
    named,
    scaled,
    states_of,
    trained,
    untrained,
    usual_and_other,
    wrongs,
)
from distcheck.rules.finding import Fix
from distcheck.rules.wording import found, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator


@rule("training", scope=("node", "link"), owner="admin")
def step_gradient_wrong(job: Job) -> Iterator[Outcome]:
    """After a training step, a gradient is not the average of the ranks' gradients.

    Training goes on without an error, with a loss that falls more slowly, spikes or stays: the most expensive kind of
    fault, because it is found after days. Causes are a GPU or a network that returns wrong numbers, a communication
    hook or plugin that scales or drops a part, and a rank that does not take part.

    Found in two steps of a small model, whose gradients are whole numbers, so that every sum of them is exact. Every
    rank compares its own gradients with what its batch must give, and the averages with the gradients of all ranks'
    batches together. A rank is at fault if its own gradient is wrong, or if its gradient is in the average with
    another factor than 1 (0: it is missing). Where no factor explains a wrong average, the ranks that have it are
    suspects.

    Fix: Do not train on these nodes; test them again without communication hooks and NCCL plugins, then alone.

        NCCL_NET_PLUGIN=none distcheck bandwidth --step
        distcheck isolate

    See: https://arxiv.org/abs/2102.11245
    """
    yield from untrained(job)
    for way, ranks in trained(job).items():
        own = [one for one in ranks if one.training.wrong_own]
        if own:
            first = first_wrong(own[0].training.wrong_own)
            share = own[0].training.share
            part = "" if share is None else f"; its gradient has the factor {share:g} in the average"
            message = f"{named(job, own)} computed wrong gradients for {way}: {first}{part}"
            yield fault(job, own, message, wrongs(own, lambda t: t.wrong_own))
        if not own and scaled(ranks) is not None:
            continue
        average = [one for one in ranks if one.training.wrong_average and one not in own]
        known = [one for one in average if one.training.share is not None]
        for share, group in grouped(known, lambda one: one.training.share).items():
            how = "is missing from" if share == 0 else f"has the factor {share:g} instead of 1 in"
            yield fault(
                job,
                group,
                f"the gradient of {named(job, group)} {how} the average for {way}: "
                f"{first_wrong(group[0].training.wrong_average)}",
                wrongs(group, lambda t: t.wrong_average),
            )
        if average and not own and not known:
            yield fault(
                job,
                average,
                f"{named(job, average)} received wrong averages of the gradients for {way}, and all ranks' own "
                f"gradients are right: {first_wrong(average[0].training.wrong_average)}",
                wrongs(average, lambda t: t.wrong_average),
                scope="node" if 2 * len(average) < len(ranks) else "link",
                confirmed=False,
            )


@rule("training")
def step_average_scaled(job: Job) -> Iterator[Outcome]:
    """All averaged gradients are the exact average times one factor, on all ranks.

    The ranks then agree with each other, and every step is too large or too small, as with another learning rate. A
    communication hook that sums and does not divide, and a loss that is divided twice, are causes. So is FSDP2 with
    Gloo in some versions of torch: it requests the average, and the reduce-scatter of Gloo returns the sum.

    Found like step-gradient-wrong. With FSDP2 on CPUs it is a warning: only jobs that use both are affected.

    Fix: Look for a communication hook, a plugin or a setting that scales gradients on every rank. With FSDP2 and Gloo,
    upgrade torch, or train with DistributedDataParallel on CPUs.

        NCCL_NET_PLUGIN=none distcheck gate --step

    See: https://github.com/pytorch/pytorch/issues/162338
    """
    for way, ranks in trained(job).items():
        scale = scaled(ranks)
        if scale is None or any(one.training.wrong_own for one in ranks):
            continue
        summed = "; they are summed and not divided" if scale == len(ranks) else ""
        gloo = way != "DDP" and isinstance(job.collectives, Collectives) and job.collectives.backend != "nccl"
        version = isinstance(job.collectives, Collectives) and job.collectives.torch
        yield found(
            job,
            [one.rank for one in ranks],
            f"the averaged gradients for {way} are {scale:g} times the average on all {len(ranks)} ranks{summed}",
            Fix(
                f"Upgrade torch{f' {version}' if version else ''}, or train with DistributedDataParallel on CPUs.",
                ("python -m pip install --upgrade torch",),
            )
            if gloo
            else None,
            severity="warning" if gloo else "error",
            evidence=wrongs(ranks, lambda t: t.wrong_average),
        )


@rule("training", scope="node", owner="admin")
def step_parameters_differ(job: Job) -> Iterator[Outcome]:
    """The parameters of a model are not the same on all ranks, before or after a training step.

    Data parallel training keeps one model on all ranks only because each of them starts from the same parameters and
    makes the same updates. Once they differ, gradients are averaged for different models, and a checkpoint of rank 0
    is not what was trained. Nothing fails.

    Found by a digest of every parameter on every rank: after DistributedDataParallel copied rank 0's, and after each
    of two steps. Every rank also compares its new parameters with the step that its own gradients give, which names
    the rank that skips or changes an update. Ranks that differ because their gradients do are in step-gradient-wrong.

    Fix: Do not train on these nodes; look there for a hook of the optimizer and other code that changes parameters.

        python -c 'import sitecustomize; print(sitecustomize.__file__)'
        distcheck bandwidth --step

    See: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """
    for way, ranks in trained(job).items():
        moved = [one for one in ranks if one.training.wrong_update]
        if moved:
            yield fault(
                job,
                moved,
                f"{named(job, moved)} changed the parameters for {way} otherwise than by the gradients: "
                f"{first_wrong(moved[0].training.wrong_update)}",
                wrongs(moved, lambda t: t.wrong_update),
            )
        if moved or any(one.training.wrong_average for one in ranks):
            continue
        for when, states in states_of(ranks).items():
            shown = ((one, states[id(one)]) for one in ranks if id(one) in states)
            groups = {state: [one for one, _ in pairs] for state, pairs in grouped(shown, lambda p: p[1]).items()}
            if len(groups) > 1:
                usual, other = usual_and_other(groups)
                names = [parameter.name for parameter in groups[other][0].training.parameters]
                unlike = [n for n, own, theirs in zip(names, other, usual, strict=False) if own != theirs]
                what = f"showed other parameters for {way} {when}: {listed(unlike)}"
                yield differing(job, groups, what, lambda digests: digests[0])
                break  # what follows differs for the same reason
