"""What a process knows while the facts come in."""

from __future__ import annotations

from types import SimpleNamespace

from made.jobs import change_rank, healthy_job
from msgspec.structs import replace

from distcheck.facts.asked import Asked
from distcheck.rollcall.protocol import Report
from distcheck.run.record import Record


def test_the_world_size_is_that_of_most_ranks_that_are_known():
    record = Record(SimpleNamespace(asked=Asked(command="gate", looks=()), start=0.0, placements=()))
    assert record.world_size == 1
    job = healthy_job(3, 1, launcher="slurm")
    job = change_rank(job, 0, placement=replace(job.ranks[0].placement, world_size=2))
    record.ranks = job.ranks[:1]
    assert record.world_size == 2
    others = zip(job.nodes, job.processes, job.ranks, strict=True)
    record.take_reports([Report(node, process, (rank,)) for node, process, rank in [*others][1:]])
    assert record.world_size == record.job().world_size == 3
