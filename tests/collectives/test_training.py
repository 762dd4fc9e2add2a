"""Training steps in real ranks: they pass on a healthy job, and each broken rank is named by the rule for its fault."""

from importlib.metadata import version

import msgspec
import pytest
from collectives.conftest import asking
from made.jobs import healthy_job

from distcheck.facts.base import Missing
from distcheck.facts.rank import RankRun
from distcheck.facts.training import Leftovers, Training
from distcheck.rules.diagnose import judge

GLOO_SUMS = version("torch").startswith(("2.7.", "2.8."))
"""FSDP2 with Gloo does not divide there (pytorch #162338)."""
replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def trained():
    with asking("training_ranks.py") as ask:
        yield ask


@pytest.fixture
def judged(trained, tmp_path):
    """Return a function that takes training steps in ranks and returns the job and its diagnosis."""

    def judged(ranks, fault="", mesh=None):
        stderr = tmp_path / "stderr"
        said = trained(ranks=ranks, fault=fault, mesh=mesh, stderr=str(stderr))
        assert stderr.read_text() == ""
        job = healthy_job(ranks, 1, looks=("environment", "training"))
        left = [msgspec.convert(ways.pop("left"), Leftovers | Missing) for ways in said]
        kept = [msgspec.convert(ways, dict[str, Training | Missing]) for ways in said]
        runs = [RankRun(1, "done", "done", training=w, leftovers=of) for w, of in zip(kept, left, strict=True)]
        job = replace(job, ranks=tuple(replace(r, run=run) for r, run in zip(job.ranks, runs, strict=True)))
        return kept, judge(job)

    return judged


@pytest.mark.process
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_healthy_ranks_take_exact_steps(judged, ranks):
    kept, said = judged(ranks)
    undivided = GLOO_SUMS and ranks == 2  # with 3 ranks, float64, for which torch divides itself
    assert [f.rule for f in said.findings] == ["step-average-scaled"] * undivided
    assert not any(n.required for n in said.not_checked)
    for trained in kept:
        assert list(trained) == ["DDP", "FSDP2"]
        for way in trained.values():
            if isinstance(way, Missing):  # an older torch
                assert "has no fully_shard" in way.reason
                continue
            assert (way.steps, way.dtype) == (2, "float64" if ranks == 3 else "float32")
            assert all(len({p.built, p.wrapped, *p.stepped}) == 3 for p in way.parameters), "every step changes all"
            assert all((s.taken, s.due, s.foreign) == (16 - (ranks == 1), s.taken, 0) for s in way.shards)


FAULTS = {
    "another_model": ("step-model-differs", "layers.2.weight 4x128, not 3x128"),
    "another_seed": ("step-seed-differs", "the CPU generator's state and 6 of 6 initial parameters"),
    "a_skipped_update": ("step-parameters-differ", "changed the parameters for DDP otherwise than by the gradients"),
    "no_second_batch": ("step-skipped", "had no batch for DDP after 1 of 2 training steps"),
    "scaled_gradients": ("step-gradient-wrong", "its gradient has the factor 2 in the average"),
    "a_hook_that_drops_the_gradients": ("step-gradient-wrong", "is missing from the average"),
    "one_replica": ("step-sampler-overlaps", "drew 47 indices"),
    "a_fixed_epoch": ("step-epoch-order-differs", "set_epoch did not change the order"),
    "a_broadcast_that_changes_one_element": ("step-parameters-differ", "before the first step: layers.0.weight"),
}


@pytest.mark.process
@pytest.mark.parametrize("fault", FAULTS)
def test_the_one_broken_rank_of_three_is_named(judged, fault):
    rule, words = FAULTS[fault]
    _, said = judged(3, fault)
    assert {(f.rule, f.ranks, f.confirmed) for f in said.findings} == {(rule, (1,), True)}
    assert words in said.findings[0].message
    assert said.verdict.exit_code == 40


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "rule", "words"),
    [
        ("", "", ""),
        ("another_part_of_a_layer", "step-parameters-differ", "changed the parameters for TP"),
        pytest.param(
            "a_layer_that_returns_something_else", "step-output-wrong", "of layers.0 in step 1", marks=pytest.mark.slow
        ),
    ],
)
def test_tensor_parallel_layers_of_a_mesh_are_exact_and_a_wrong_part_is_named(judged, fault, rule, words):
    kept, said = judged(4, fault, {"dp": 2, "tp": 2})
    assert list(kept[0]) == ["DDP", "FSDP2", "TP"]
    if isinstance(kept[0]["TP"], Missing):
        pytest.skip(kept[0]["TP"].reason)
    assert {way["TP"].steps for way in kept} == {2}
    about = [f for f in said.findings if f.rule != "step-average-scaled"]
    assert [(f.rule, f.ranks) for f in about] == ([(rule, (1,))] if rule else [])
    assert all(words in f.message for f in about)


@pytest.mark.process
def test_a_group_that_is_not_destroyed_is_named_by_what_it_leaves(judged):
    _, said = judged(2, "a_group_that_stays")
    about = [f for f in said.findings if f.rule != "step-average-scaled"]
    if any("deadlocks" in n.reason for n in said.not_checked):
        pytest.skip("torch before 2.8")
    assert [(f.rule, f.ranks, f.severity) for f in about] == [("step-group-left-behind", (1,), "warning")]
    assert "socket" in about[0].message
    assert "thread" in about[0].message


@pytest.mark.process
def test_a_mesh_that_torch_refuses_on_one_rank_is_not_checked_and_nothing_hangs(judged):
    kept, said = judged(2, "a_mesh_that_torch_refuses", {"tp": 2})
    assert not said.findings
    for way in ("FSDP2", "TP"):
        reasons = [ways[way].reason for ways in kept]
        assert all(reason.startswith("torch ") for reason in reasons)
        assert "12 ranks and 8 cuda devices" in reasons[1] or "fully_shard" in reasons[1] or "older" in reasons[1]
    assert kept[0]["DDP"].steps == 2
    assert not any(n.required for n in said.not_checked)
