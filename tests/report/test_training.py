"""The training steps of --step in JSON and in text."""

from __future__ import annotations

import json

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.rank import RankRun
from distcheck.facts.training import Parameter, Training, WrongTensor
from distcheck.report import render

STEPS = Training("float32", parameters=(Parameter("a"),) * 6, steps=2, due=2)
WRONG = (WrongTensor("a", 1, 64, 3, "5", "2.5"),)


def trained(judged, change):
    """Return a judged job whose ranks trained; `change` gives each rank's trainings, by way."""
    runs = (RankRun(1, "done", "done", training=change(n)) for n, _ in enumerate(judged.job.ranks))
    ranks = tuple(msgspec.structs.replace(r, run=run) for r, run in zip(judged.job.ranks, runs, strict=True))
    asked = msgspec.structs.replace(judged.job.asked, looks=(*judged.job.asked.looks, "training"))
    return msgspec.structs.replace(judged.job, ranks=ranks, asked=asked), judged.diagnosis


def rows(judged, change):
    return json.loads(render("json", *trained(judged, change)))["training"]


def test_without_step_there_is_no_row(healthy):
    assert json.loads(render("json", *healthy))["training"] == []


def test_each_way_to_train_has_a_row(healthy):
    ddp, fsdp = rows(healthy, lambda _rank: {"DDP": STEPS, "FSDP2": Missing("torch 2.5: too old")})
    ranks = [rank.placement.rank for rank in healthy.job.ranks]
    assert ddp == {
        "way": "DDP", "dtype": "float32", "ranks": len(ranks), "steps": 2, "due": 2, "tensors": 6,
        "wrong": [], "not_taken": [],
    }  # fmt: skip
    assert (fsdp["way"], fsdp["dtype"], fsdp["ranks"], fsdp["steps"]) == ("FSDP2", None, 0, 0)
    assert fsdp["not_taken"] == [{"ranks": ranks, "reason": "torch 2.5: too old"}]


def test_ranks_with_wrong_tensors_are_named(healthy):
    kinds = ("wrong_own", "wrong_average", "wrong_update")
    for kind in kinds:
        bad = msgspec.structs.replace(STEPS, **{kind: WRONG})
        late = msgspec.structs.replace(STEPS, steps=1)
        (row,) = rows(healthy, lambda rank, each=(STEPS, bad, late): {"DDP": each[rank] if rank < 3 else STEPS})
        assert row["wrong"] == [1], kind
        assert row["steps"] == 1


def test_the_line_of_a_way_that_no_rank_took_is_left_out(healthy):
    said = render("text", *trained(healthy, lambda _rank: {"DDP": STEPS, "FSDP2": Missing("too old")}))
    ranks = len(healthy.job.ranks)
    assert f"training with DDP: 2 steps on {ranks} ranks, 6 tensors in float32 compared with exact results" in said
    assert "training with FSDP2" not in said
