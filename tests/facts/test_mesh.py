from __future__ import annotations

import pytest

from distcheck.facts.mesh import Mesh, placed, role


def lists(mesh, name):
    return [list(group) for group in mesh.groups(name)]


def test_the_last_dimension_varies_fastest():
    mesh = Mesh({"pp": 2, "dp": 2, "tp": 2})

    assert mesh.coordinates(5) == {"pp": 1, "dp": 0, "tp": 1}
    assert lists(mesh, "tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert lists(mesh, "dp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert lists(mesh, "pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("sizes", [{"pp": 2, "dp": 3, "tp": 4}, {"a": 5}, {"a": 1, "b": 6, "c": 1}])
def test_every_rank_is_in_one_group_of_each_dimension_at_its_coordinate(sizes):
    mesh = Mesh(sizes)

    for name in mesh.names:
        groups = mesh.groups(name)
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.ranks))
        for place, group in enumerate(groups):
            for number, rank in enumerate(group):
                assert mesh.group_of(rank, name) == group
                assert mesh.group_number(rank, name) == place
                assert mesh.coordinates(rank)[name] == number


@pytest.mark.long  # imports torch
@pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")
def test_the_mesh_is_that_of_torch():
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    own = Mesh({"pp": 2, "dp": 3, "tp": 4})
    for rank in (0, 7, 23):
        dist.init_process_group("fake", rank=rank, world_size=own.ranks, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", tuple(own.sizes.values()), mesh_dim_names=tuple(own.sizes))
            assert mesh.mesh.equal(torch.arange(24).view(2, 3, 4))
            for name in own.names:
                assert dist.get_process_group_ranks(mesh.get_group(name)) == list(own.group_of(rank, name))
                assert mesh.get_local_rank(name) == own.coordinates(rank)[name]
        finally:
            dist.destroy_process_group()


def test_the_experts_have_groups_of_their_own_over_the_same_ranks():
    mesh = Mesh({"pp": 2, "dp": 4}, experts={"pp": 2, "edp": 2, "ep": 2})

    assert mesh.names == ("pp", "dp", "edp", "ep")
    assert lists(mesh, "ep") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert lists(mesh, "edp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.coordinates(6) == {"pp": 1, "dp": 2, "edp": 1, "ep": 0}


@pytest.mark.parametrize(
    ("nodes", "own_groups"),
    [
        ("aabbcc", [[0, 1], [2, 3], [4, 5]]),
        ("abcabc", [[0, 3], [1, 4], [2, 5]]),
        ("aaaa", [[0, 1, 2, 3]]),
        ("abcd", [[0], [1], [2], [3]]),
    ],
)
def test_nodes_and_rails_are_a_mesh_wherever_the_ranks_are(nodes, own_groups):
    mesh = placed(list(nodes))

    assert mesh is not None
    assert lists(mesh, "node") == own_groups
    assert lists(mesh, "rail") == [list(rail) for rail in zip(*own_groups, strict=True)]


@pytest.mark.parametrize("nodes", ["aab", "aaabbc", "abba", ""])
def test_nodes_with_other_numbers_of_ranks_or_no_order_are_no_mesh(nodes):
    assert placed(list(nodes)) is None


def test_usual_names_tell_what_a_dimension_is_for():
    assert [role(name) for name in ("tp", "EP", "dp_shard", "replicate", "pp", "banana")] == [
        "tensor", "expert", "shard", "replicate", "pipeline", "other",
    ]  # fmt: skip
