from __future__ import annotations

import pytest

from distcheck.facts.errors import UsageError
from distcheck.facts.mesh import Mesh
from distcheck.selection.meshes import nearest, parse, resolved


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("pp=2,dp=4,tp=8", {"pp": 2, "dp": 4, "tp": 8}),
        (" PP=2 , tp = 8 ", {"pp": 2, "tp": 8}),
        ("hsdp=2x8", {"replicate": 2, "shard": 8}),
        ("pp=2,hsdp=2x8,tp=4", {"pp": 2, "replicate": 2, "shard": 8, "tp": 4}),
        ("dp=-1,tp=8", {"dp": 0, "tp": 8}),
        ("rail,node", {"rail": 0, "node": 0}),
        ("node", {"node": 0}),
    ],
)
def test_a_mesh_is_read_outermost_first(text, sizes):
    mesh = parse(text)

    assert mesh.sizes == sizes
    assert list(mesh.sizes) == list(sizes)
    assert parse(str(mesh)) == mesh


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("tp", "'tp'"),
        ("tp=0", "'tp=0'"),
        ("tp=two", "'tp=two'"),
        ("tp=2,,dp=4", "''"),
        ("2=tp", "'2=tp'"),
        ("tp=2,tp=4", "tp is given twice"),
        ("hsdp=2", "'hsdp=2'"),
        ("dp=-1,pp=-1", "only one size can be -1"),
        ("node,tp=2", "node and rail"),
        ("a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1", "9 dimensions"),
        ("a=1048576,b=2", "more than 1048576 ranks"),
    ],
)
def test_what_is_no_mesh_is_refused_by_name(text, named):
    with pytest.raises(UsageError, match=r"--mesh") as refused:
        parse(text)

    assert named in str(refused.value)


@pytest.mark.parametrize("order", ["tp-tp-dp", "tp--dp", "dp-pp", "tp,dp"])
def test_an_order_must_name_every_dimension_once(order):
    with pytest.raises(UsageError, match=r"--mesh-order"):
        parse("tp=2,dp=4", order)


# Megatron's RankGenerator (megatron/core/parallel_state.py) with these arguments gives these groups: the two examples
# of its docstrings, and the experts' generator worked out by its own formula.
@pytest.mark.parametrize(
    ("text", "order", "world", "groups"),
    [
        ("tp=2,pp=2,dp=2", "tp-pp-dp", 8, {
            "dp": [[0, 4], [1, 5], [2, 6], [3, 7]],
            "pp": [[0, 2], [1, 3], [4, 6], [5, 7]],
            "tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
        }),
        ("tp=2,pp=4", "tp-cp-ep-dp-pp", 16, {
            "dp": [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]],
            "pp": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
        }),
        ("tp=2,ep=2,pp=2", "tp-cp-ep-dp-pp", 16, {
            "dp": [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]],
            "ep": [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]],
            "edp": [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]],
            "pp": [[first, first + 8] for first in range(8)],
        }),
        ("tp=2,etp=1,ep=4,cp=2", "tp-cp-ep-dp-pp", 8, {
            "cp": [[0, 2], [1, 3], [4, 6], [5, 7]],
            "dp": [[0, 4], [1, 5], [2, 6], [3, 7]],
            "ep": [[0, 1, 2, 3], [4, 5, 6, 7]],
            "edp": [[0, 4], [1, 5], [2, 6], [3, 7]],
        }),
    ],
)  # fmt: skip
def test_megatrons_order_gives_megatrons_groups(text, order, world, groups):
    mesh = resolved(parse(text, order), world, [])

    assert mesh is not None
    assert {name: [list(group) for group in mesh.groups(name)] for name in groups} == groups


def test_torchtitan_takes_the_experts_out_of_the_ranks_within_a_stage():
    mesh = resolved(parse("pp=2,dp_shard=4,tp=2,ep=4"), 16, [])

    assert mesh is not None
    assert (mesh.sizes, mesh.experts) == ({"pp": 2, "dp_shard": 4, "tp": 2}, {"pp": 2, "efsdp": 2, "ep": 4})
    assert mesh.group_of(9, "ep") == range(8, 12)


def test_experts_that_are_a_factor_of_the_world_are_a_plain_dimension():
    mesh = resolved(parse("pp=2,ep=4,tp=2"), 16, [])

    assert mesh == Mesh({"pp": 2, "ep": 4, "tp": 2})


@pytest.mark.parametrize(
    ("text", "order", "world"),
    [
        ("dp=4,tp=2", "", 16),
        ("dp=-1,tp=3", "", 16),
        ("dp=-1,tp=32", "", 16),
        ("tp=4,ep=3,pp=2", "tp-cp-ep-dp-pp", 16),
        ("tp=2,pp=2,ep=2,etp=1", "tp-pp-ep-dp", 16),
    ],
)
def test_a_mesh_that_does_not_fit_is_none(text, order, world):
    assert resolved(parse(text, order), world, []) is None


def test_a_size_that_is_left_open_is_filled():
    mesh = resolved(parse("dp=-1,tp=8"), 64, [])

    assert mesh == Mesh({"dp": 8, "tp": 8})


def test_the_mesh_of_nodes_follows_from_the_placement():
    mesh = resolved(parse("node"), 4, ["a", "b", "a", "b"])

    assert mesh is not None
    assert mesh.groups("node") == [range(0, 4, 2), range(1, 5, 2)]


@pytest.mark.parametrize(
    ("text", "order", "world", "first"),
    [
        ("pp=2,dp=4,tp=8", "", 128, "pp=2,dp=8,tp=8"),
        ("dp=4,tp=2", "", 16, "dp=8,tp=2"),
        ("pp=2,dp=4,tp=8", "", 24, "pp=1,dp=3,tp=8"),
        ("dp=4,tp=2", "", 7, "dp=7,tp=1"),
        ("pp=2,dp=2,tp=3", "", 7, "pp=1,dp=7,tp=1"),
        ("dp=-1,tp=3", "", 16, "dp=4,tp=4"),
        ("tp=4,ep=8,pp=2,dp=3", "tp-cp-ep-dp-pp", 64, "pp=2,dp=8,ep=8,tp=4"),
    ],
)
def test_the_nearest_mesh_changes_data_parallelism_first(text, order, world, first):
    found = nearest(parse(text, order), world)

    assert str(found[0]) == first
    assert 1 <= len(found) <= 3
    assert all(resolved(mesh, world, []) for mesh in found)


def test_the_nearest_mesh_of_any_world_is_found():
    for world in range(1, 300):
        for text in ("pp=2,dp=4,tp=8", "pp=3,replicate=2,shard=5,cp=2,tp=7"):
            assert all(mesh.ranks == world for mesh in nearest(parse(text), world))
