"""Rules about what ranks bring to a training step of ``--step``: model, seed, sampler and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.trained import (
    differing,
    fault,
    first_way,
    named,
    others,
    samples_alike,
    shards_of,
    split,
    trained,
    untrained,
)
from distcheck.rules.finding import Fault
from distcheck.rules.wording import grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARKS = 1 << 64
"""The marks of shards add up modulo this."""


@rule("training", scope="node", owner="admin")
def step_model_differs(job: Job) -> Iterator[Outcome]:
    """Ranks that build the same model have different parameters.

    DistributedDataParallel averages gradients parameter by parameter, in the order in which the model has them. With
    another model on one rank it raises ``DDP expects same model across all ranks``, or ``params[0] in this process
    with sizes ... appears not to match sizes of the same param in process 0``; without that check the ranks would
    average unrelated numbers, or wait for each other. Causes are another version of a library or of the code on one
    node.

    Found by names and shapes of the parameters of the small model that every rank builds for ``--step``. The ranks
    compare these before the constructor, so that nothing hangs.

    Fix: Make code and packages of these ranks the same as on the others.

        python -m pip freeze | sha256sum

    See: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    yield from untrained(job)
    for way, ranks in first_way(job):
        models = grouped(ranks, lambda one: tuple((p.name, p.shape) for p in one.training.parameters))
        if len(models) > 1:
            apart = split(models)
            own, usual = dict(apart.other), dict(apart.usual)
            names = [name for name in {**own, **usual} if own.get(name) != usual.get(name)]
            shapes = [f"{name} {own.get(name, 'missing')}, not {usual.get(name, 'missing')}" for name in names]
            yield differing(
                job,
                apart,
                f"{named(job, apart.odd)} built another model for {way} than {others(job, apart)}: {listed(shapes)}",
                {named(job, group): ", ".join(f"{n} {s}" for n, s in model) for model, group in models.items()},
            )


@rule("training", scope="node", owner="admin")
def step_seed_differs(job: Job) -> Iterator[Outcome]:
    """Ranks that set the same seed have different random numbers.

    A script that sets one seed on every rank expects the same initial parameters, and with tensor parallel layers the
    same dropout mask, everywhere. If one rank has others, no error follows: DistributedDataParallel hides it, because
    it copies rank 0's parameters, and everything that is not copied differs. Causes are code that seeds again, such as
    a ``sitecustomize`` or a plugin, and another version of torch.

    Found by digests of the generators' states (the CPU's, and CUDA's) and of the parameters, after every rank set the
    same seed and built the same model.

    Fix: Find what sets another seed there: a sitecustomize module, a plugin, another version of torch.

        python -c 'import torch; torch.manual_seed(1); print(torch.rand(3), torch.__version__)'
        python -c 'import sitecustomize; print(sitecustomize.__file__)'

    See: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    for way, ranks in first_way(job):
        if len({tuple((p.name, p.shape) for p in one.training.parameters) for one in ranks}) > 1:
            continue  # another model takes other random numbers
        random = grouped(
            ranks,
            lambda one: (tuple(sorted(one.training.seeds.items())), tuple(p.built for p in one.training.parameters)),
        )
        if len(random) > 1:
            apart = split(random)
            (seeds, parameters), (usual_seeds, usual_parameters) = apart.other, apart.usual
            parts = [f"the {name.upper()} generator's state" for name, _ in sorted(set(seeds) - set(usual_seeds))]
            count = sum(own != usual for own, usual in zip(parameters, usual_parameters, strict=True))
            parts += [f"{count} of {len(parameters)} initial parameters"] if count else []
            yield differing(
                job,
                apart,
                f"{named(job, apart.odd)} set the same seed as {others(job, apart)} and has other random numbers "
                f"for {way}: {listed(parts)}",
                {
                    named(job, group): ", ".join(f"{name} {state}" for name, state in states)
                    for (states, _), group in random.items()
                },
            )


@rule("training", scope=("node", "job"), owner="admin")
def step_sampler_overlaps(job: Job) -> Iterator[Outcome]:
    """An index of the data set is in the shards of several ranks, or in none.

    Ranks whose sampler does not know the right number of replicas, or their own rank, train on the same samples:
    an epoch then takes the time of one process, some samples never occur, and validation scores are wrong. Nothing
    fails. Where shards have unequal lengths, the ranks with fewer batches leave the loop first, and the others wait in
    the next all_reduce until the watchdog ends them.

    Found with a ``DistributedSampler(dataset)`` on every rank, which takes its number of replicas and its rank from the
    process group. Each rank compares its indices of two epochs with those that it should have; besides, the sums of a
    64-bit hash of all ranks' indices must be that of the whole data set and its padding.

    Fix: Create the sampler after init_process_group and let it take num_replicas and rank from the process group.

        # in the training script: sampler = DistributedSampler(dataset)

    See: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    for way, ranks in first_way(job):
        for epoch, shards in shards_of(ranks).items():
            bad = [(one, shard) for one, shard in shards if shard.foreign or shard.taken != shard.due]
            for (taken, due, foreign), pairs in grouped(bad, lambda p: (p[1].taken, p[1].due, p[1].foreign)).items():
                odd = [one for one, _ in pairs]
                yield fault(
                    job,
                    odd,
                    f"{named(job, odd)} drew {taken} indices of the data set for {way} in epoch {epoch}, {foreign} of "
                    f"them from other ranks' shards; expected its own {due}",
                )
            if bad:
                break  # the later epochs show the same
            whole = next((shard.whole for _, shard in shards if shard.whole), "")
            total = sum(int(shard.mark, 16) for _, shard in shards) % _MARKS
            if whole and len(shards) == job.world_size and samples_alike(ranks) and total != int(whole, 16):
                yield Fault(
                    owner="unknown",
                    confirmed=False,
                    message=f"the shards of all {len(shards)} ranks for {way} in epoch {epoch} do not add up to the "
                    "data set, though each rank drew the indices that it expects",
                    evidence={"sum of the shards": f"{total:x}", "the data set": whole},
                    scope="job",
                )
                break


@rule("training", scope="node", owner="admin")
def step_epoch_order_differs(job: Job) -> Iterator[Outcome]:
    """``set_epoch`` does not change the order of the data set, or not alike on all ranks.

    Every rank shuffles the whole data set by itself and takes its part. If one rank shuffles in another way, or stays
    in an earlier epoch, shards overlap and samples are lost. If no rank changes the order, every epoch has the same
    batches, and training converges worse. Nothing fails.

    Found by a digest of the order on every rank, in two epochs.

    Fix: Call set_epoch on every rank before each epoch, and give every sampler the same seed.

        # in the training script: sampler.set_epoch(epoch)

    See: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """
    for way, ranks in first_way(job):
        same = [one for one in ranks if len({s.order for s in one.training.shards}) < len(one.training.shards)]
        if same:
            yield fault(
                job,
                same,
                f"set_epoch did not change the order of the data set for {way} on {named(job, same)}",
            )
            continue
        for epoch, shards in shards_of(ranks).items():
            orders = {
                order: [one for one, _ in pairs] for order, pairs in grouped(shards, lambda p: p[1].order).items()
            }
            if len(orders) > 1:
                apart = split(orders)
                yield differing(
                    job,
                    apart,
                    f"{named(job, apart.odd)} shuffled the data set for {way} in epoch {epoch} in another order than "
                    f"{others(job, apart)}",
                    {named(job, group): order for order, group in orders.items()},
                )
                break


@rule("training", scope="node", owner="admin")
def step_skipped(job: Job) -> Iterator[Outcome]:
    """A rank has no batch for a training step that the others take.

    In every step all ranks average their gradients together. A rank that leaves the loop early, because its shard is
    shorter or it skips a batch, leaves the others waiting, until after ten minutes NCCL's watchdog ends them with
    ``Watchdog caught collective operation timeout: WorkNCCL(SeqNum=..., OpType=ALLREDUCE``.

    Found by asking every rank before each step whether it has a batch, so that nothing hangs.

    Fix: Give every rank the same number of batches.

        # in the training script: DistributedSampler(dataset, drop_last=True), or with model.join():

    See: https://docs.pytorch.org/tutorials/advanced/generic_join.html
    """
    for way, ranks in trained(job).items():
        odd = [one for one in ranks if one.training.lacks]
        if odd:
            steps = min(one.training.steps for one in odd)
            yield fault(
                job,
                odd,
                f"{named(job, odd)} had no batch for {way} after {steps} of {odd[0].training.due} training steps; "
                "the other ranks would wait",
            )
