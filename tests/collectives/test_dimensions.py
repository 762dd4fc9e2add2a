import pytest

from distcheck.collectives.dimensions import inside, measured, operations_of
from distcheck.collectives.plan import ALL_OPERATIONS
from distcheck.facts.mesh import Mesh


@pytest.mark.parametrize(
    ("dimension", "operations"),
    [
        ("tp", ("reduce_scatter", "all_gather")),
        ("ep", ("all_to_all",)),
        ("cp", ("all_gather",)),
        ("dp_shard", ("all_gather", "reduce_scatter")),
        ("replicate", ("all_reduce",)),
        ("dp", ("all_reduce",)),
        ("pp", ("send_recv",)),
        ("node", ("all_reduce",)),
        ("rail", ("all_reduce",)),
        ("whatever", ("all_reduce",)),
    ],
)
def test_a_dimension_is_measured_with_what_the_job_does_on_it(dimension, operations):
    assert operations_of(dimension) == operations
    assert set(operations) <= set(ALL_OPERATIONS)


def test_a_dimension_of_one_rank_has_no_traffic():
    mesh = Mesh({"pp": 1, "dp": 2, "tp": 4})
    assert list(measured(mesh)) == [("dp", "all_reduce"), ("tp", "reduce_scatter"), ("tp", "all_gather")]
    assert list(measured(None)) == []


def test_the_dimensions_of_the_experts_own_mesh_are_measured_too():
    mesh = Mesh({"dp": 4, "tp": 2}, {"edp": 2, "ep": 4})
    assert [d for d, _ in measured(mesh)] == ["dp", "tp", "tp", "edp", "ep"]


def test_an_operation_is_named_with_its_dimension():
    assert inside("all_reduce", "dp") == "all_reduce in dp"
