"""Training steps in real ranks: they pass on a healthy job, and each broken rank is named by the rule for its fault."""

from importlib.metadata import version

import msgspec
import pytest
from collectives.conftest import asking
from made.jobs import healthy_job

from distcheck.facts.base import Missing
from distcheck.facts.rank import RankRun
from distcheck.facts.training import Training
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

    def judged(ranks, fault=""):
        stderr = tmp_path / "stderr"
        said = trained(ranks=ranks, fault=fault, stderr=str(stderr))
        assert stderr.read_text() == ""
        job = healthy_job(ranks, 1, looks=("environment", "training"))
        kept = [msgspec.convert(ways, dict[str, Training | Missing]) for ways in said]
        runs = [RankRun(1, "done", "done", training=ways) for ways in kept]
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
            assert all(len({p.wrapped, *p.stepped}) == 3 for p in way.parameters), "every step changes all"


FAULTS = {
    "a_skipped_update": ("step-parameters-differ", "changed the parameters for DDP otherwise than by the gradients"),
    "scaled_gradients": ("step-gradient-wrong", "its gradient has the factor 2 in the average"),
    "a_hook_that_drops_the_gradients": ("step-gradient-wrong", "is missing from the average"),
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
def test_a_mesh_that_torch_refuses_on_one_rank_is_not_checked_and_nothing_hangs(judged):
    kept, said = judged(2, "a_mesh_that_torch_refuses")
    assert not said.findings
    reasons = [ways["FSDP2"].reason for ways in kept]
    assert all(reason.startswith("torch ") for reason in reasons)
    assert "12 ranks and 8 cuda devices" in reasons[1] or "fully_shard" in reasons[1]
    assert kept[0]["DDP"].steps == 2
    assert not any(n.required for n in said.not_checked)
