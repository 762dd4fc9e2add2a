"""Rules about what a training step of ``--step`` gives: gradients, outputs, parameters, and what it leaves."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.job import Collectives, Job
from distcheck.facts.quantities import count
from distcheck.facts.training import Leftovers
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.endings import who
from distcheck.rules.collectives.trained import (
    differing,
    fault,
    first_wrong,
    named,
    others,
    samples_alike,
    scaled,
    split,
    states_of,
    trained,
    wrongs,
)
from distcheck.rules.finding import Fix
from distcheck.rules.wording import found, grouped, listed, unread

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
    for way, ranks in trained(job).items():
        if not samples_alike(ranks):
            continue  # the batches are not the expected ones, which another rule reports
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
        if scale is None or any(one.training.wrong_own for one in ranks) or not samples_alike(ranks):
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


@rule("training", scope=("node", "link"), owner="admin")
def step_output_wrong(job: Job) -> Iterator[Outcome]:
    """Tensor parallel layers do not return what the whole layer returns.

    A layer that is divided among ranks gathers or sums its parts in every forward pass. If one part is wrong, lost or
    in another order, every activation after it is wrong, without an error: the loss is higher than on one GPU. Causes
    are a rank with another part of the weights, ranks in another order than the mesh has, and a network or a GPU that
    returns wrong numbers.

    Found with ``--step`` and a ``--mesh`` that has a dimension of tensor parallel ranks: two linear layers are divided
    by ``parallelize_module``, one by columns and one by rows. Weights and data are whole numbers, so that the outputs
    of the whole layers are known exactly. A rank whose own gradients or parameters are wrong is in the rules for these,
    and the outputs are then a consequence.

    Fix: Do not train on these nodes; measure the groups of the mesh, then search for the bad node.

        distcheck gate --mesh {mesh}
        distcheck isolate

    See: https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html
    """
    for way, ranks in trained(job).items():
        odd = [one for one in ranks if one.training.wrong_output]
        if odd and not any(one.training.wrong_own or one.training.wrong_update for one in ranks):
            yield fault(
                job,
                odd,
                f"{named(job, odd)} received wrong outputs of layers that are divided for {way}: "
                f"{first_wrong(odd[0].training.wrong_output)}",
                wrongs(odd, lambda t: t.wrong_output),
                scope="node" if 2 * len(odd) < len(ranks) else "link",
                confirmed=False,
                values={"mesh": [quote(str(job.asked.mesh))] if job.asked.mesh else []},
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
                apart = split(groups)
                names = [parameter.name for parameter in apart.odd[0].training.parameters]
                unlike = [n for n, own, usual in zip(names, apart.other, apart.usual, strict=False) if own != usual]
                yield differing(
                    job,
                    apart,
                    f"{named(job, apart.odd)} and {others(job, apart)} have different parameters for {way} {when}: "
                    f"{listed(unlike)}",
                    {named(job, group): f"{names[0]} {digests[0]}" for digests, group in groups.items()},
                )
                break  # what follows differs for the same reason


@rule("training", severity="warning", scope="rank")
def step_group_left_behind(job: Job) -> Iterator[Outcome]:
    """A destroyed process group leaves threads, sockets or processes in a rank.

    What stays keeps ports, memory and connections of a group that no longer exists: a script that destroys and creates
    groups runs out of descriptors, and one that ends hangs at exit. Causes are plugins and wrappers of torch that keep
    a group, and faults of torch.

    Found with ``--step`` and Gloo: every rank creates a second group of all ranks, uses it, calls
    ``destroy_process_group`` and compares its threads, sockets and children with those before.

    Fix: Find what keeps the group there: a plugin, a sitecustomize module, a reference in a list or a closure.

        python -c 'import sitecustomize; print(sitecustomize.__file__)'

    See: https://docs.pytorch.org/docs/stable/distributed.html#shutdown
    """
    ran = [(rank, rank.run.leftovers) for rank in job.ranks if rank.run]
    yield from unread(job, ((rank, left.reason) for rank, left in ran if isinstance(left, Missing)))
    kept = [(rank, left) for rank, left in ran if isinstance(left, Leftovers) and left != Leftovers()]
    for left, pairs in grouped(kept, lambda pair: pair[1]).items():
        ranks = [rank for rank, _ in pairs]
        parts = [f"{count(len(left.threads), 'thread')} ({listed(left.threads)})"] if left.threads else []
        parts += [count(left.sockets, "socket")] if left.sockets else []
        parts += [f"the processes {listed(left.children)}"] if left.children else []
        yield found(
            job,
            ranks,
            f"a destroyed process group left {listed(parts)} in {who(job, ranks)}",
            confirmed=False,
        )
