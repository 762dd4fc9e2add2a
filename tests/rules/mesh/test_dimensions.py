"""The sizes of --mesh against the world."""

from __future__ import annotations

import pytest

from distcheck.facts.asked import Asked
from distcheck.selection.meshes import parse


@pytest.fixture
def said(job_of, change, judge):
    """Return what is found about a job with this mesh, and the exit code."""

    def judged(text, order="", **shape):
        job = change.asked(job_of(**shape), mesh=parse(text, order))
        diagnosis = judge(job, "mesh.dimensions")
        return diagnosis.findings, diagnosis.verdict.exit_code

    return judged


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("dp=8,tp=2", ""),
        ("dp=-1,tp=2", ""),
        ("hsdp=2x8", ""),
        ("rail,node", ""),
        ("tp=2,pp=2", "tp-cp-ep-dp-pp"),
        ("pp=2,dp=4,tp=2,ep=4", ""),
    ],
)
@pytest.mark.parametrize("launcher", ["by hand", "torchrun", "slurm", "openmpi", "distcheck"])
def test_a_mesh_that_fits_is_silent(said, text, order, launcher):
    assert said(text, order, nodes=2, per_node=8, launcher=launcher) == ((), 0)


def test_a_job_without_a_mesh_has_no_such_rules(job_of, judge):
    assert judge(job_of(2, 8), "mesh.dimensions")[:2] == ((), ())
    assert Asked("env", ()).mesh is None


@pytest.mark.parametrize(
    ("text", "order", "mesh"),
    [
        ("pp=2,dp=4,tp=8", "", "pp=2,dp=4,tp=8"),
        ("dp=-1,tp=3", "", "dp=-1,tp=3"),
        ("tp=4,ep=3", "tp-cp-ep-dp-pp", "dp=-1,ep=3,tp=4"),
        ("tp=4,dp=4,ep=3", "tp-cp-ep-dp-pp", "dp=4,ep=3,tp=4"),
    ],
)
def test_sizes_that_do_not_make_the_world_are_an_error_with_the_nearest_meshes(said, text, order, mesh):
    (finding,), code = said(text, order, nodes=2, per_node=8)
    assert (finding.rule, code) == ("mesh-size-mismatch", 30)
    assert finding.message == f"the dimensions {mesh} do not fit WORLD_SIZE 16"
    assert finding.fix.commands
    if text.startswith("pp"):
        assert finding.fix.commands[0].endswith('mesh_dim_names=("pp", "dp", "tp"))  # --mesh pp=2,dp=1,tp=8')


def test_nodes_with_different_numbers_of_ranks_have_no_rails(said):
    (finding,), code = said("rail,node", per_node=(4, 2))
    assert code == 30
    assert finding.evidence == {"ranks_by_node": "node1 4, node2 2"}


def test_a_mesh_of_an_unknown_world_is_not_checked(job_of, change, judge):
    job = change.environment(job_of(2, 2), 0, WORLD_SIZE="8")
    diagnosis = judge(change.asked(job, mesh=parse("dp=2,tp=2")), "mesh.dimensions")
    assert diagnosis.findings == ()
    assert [gap.rule for gap in diagnosis.not_checked] == ["mesh-size-mismatch"]
    assert diagnosis.verdict.exit_code == 20
