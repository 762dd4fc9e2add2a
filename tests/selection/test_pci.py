"""How far devices are from each other: definitions, and properties of any two places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.selection.pci import DISTANCES, ON_SWITCH, by_gpu, distance, nearest

ROOT = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")


def place(*path, numa=0):
    return PciPlace(path, numa)


def nic(name, *path, numa=0, **fields):
    return Nic(name, place(*path, numa=numa), fields.pop("kind", "ib"), "InfiniBand", **fields)


GPU = place(*ROOT, "0000:17:02.0", "0000:1b:00.0")


def test_the_distance_names_match_nvidia_smi():
    assert distance(GPU, place(*ROOT, "0000:17:00.0", "0000:18:00.0")) == "PIX"
    deeper = place(*ROOT, "0000:17:00.0", "0000:18:00.0", "0000:19:00.0", "0000:1a:00.0")
    assert distance(GPU, deeper) == "PXB"
    assert distance(GPU, place("pci0000:15", "0000:15:02.0", "0000:30:00.0")) == "PHB"
    assert distance(GPU, place("pci0000:37", "0000:37:01.0", "0000:38:00.0")) == "NODE"
    assert distance(GPU, place("pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=1)) == "SYS"


def test_functions_of_one_card_are_on_one_switch():
    assert distance(place(*ROOT[:2], "0000:16:00.0"), place(*ROOT[:2], "0000:16:00.1")) == "PIX"


def test_incomplete_places_have_an_unknown_distance():
    far = ("pci0000:37", "0000:37:01.0", "0000:38:00.0")
    assert distance(GPU, place(*far, numa=None)) is None
    assert distance(GPU, place()) is None
    assert distance(place("pci0001:00", "0001:00:00.0"), place("pci0101:00", "0101:00:00.0")) is None


def test_in_a_hypervisors_tree_only_switches_count():
    assert distance(GPU, place(*ROOT, "0000:17:00.0", "0000:18:00.0"), virtual=True) == "PIX"
    assert distance(GPU, place("pci0000:15", "0000:15:02.0", "0000:30:00.0"), virtual=True) is None
    assert distance(GPU, place("pci0000:37", "0000:37:01.0", "0000:38:00.0"), virtual=True) is None


# Trees: a bridge's name includes its parent, so equal prefixes are one path down, as in sysfs.
ways = st.lists(st.integers(0, 2), min_size=1, max_size=6)
numas = st.sampled_from([None, 0, 1])
places = st.builds(
    lambda way, numa: PciPlace(tuple("/".join(map(str, way[: n + 1])) for n in range(len(way))), numa), ways, numas
)


@given(places, places, st.booleans())
def test_the_distance_is_symmetric(one, other, virtual):
    assert distance(one, other, virtual=virtual) == distance(other, one, virtual=virtual)


@given(places, places)
def test_a_hypervisor_only_makes_distances_unknown(one, other):
    assert distance(one, other, virtual=True) in {distance(one, other), None}


@given(places, places)
def test_the_name_shows_which_part_of_the_path_is_shared(one, other):
    found = distance(one, other)
    together = one.path[:1] == other.path[:1]
    if found in ON_SWITCH:
        assert one.path[:2] == other.path[:2]
    elif found == "PHB":
        assert together
        assert one.path[:2] != other.path[:2]
    elif found is not None:
        assert not together
        assert (found == "NODE") == (one.numa_node == other.numa_node)


@given(places, st.lists(places, max_size=6), st.booleans())
def test_no_adapter_is_nearer_than_the_nearest(gpu, others, virtual):
    nics = tuple(Nic(f"mlx5_{n}", other, "ib") for n, other in enumerate(others))
    found = nearest(gpu, nics, virtual=virtual)
    ways = [distance(gpu, nic.place, virtual=virtual) for nic in nics]
    if found is not None:
        assert found.nics == tuple(nic for nic, way in zip(nics, ways, strict=True) if way == found.distance)
        assert all(way is None or DISTANCES.index(way) >= DISTANCES.index(found.distance) for way in ways)
        assert found.distance in ON_SWITCH or None not in ways


def test_an_adapter_that_is_down_or_cannot_be_opened_is_not_near():
    near = nic("mlx5_0", *ROOT, "0000:17:00.0", "0000:18:00.0", active=False)
    other = nic("mlx5_1", *ROOT, "0000:17:01.0", "0000:19:00.0", usable=False)
    far = nic("mlx5_2", "pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=1)
    found = nearest(GPU, (near, other, far))
    assert found is not None
    assert (found.distance, [n.name for n in found.nics]) == ("SYS", ["mlx5_2"])
    assert nearest(GPU, (near, other)) is None


def test_a_software_adapter_is_skipped():
    far = nic("mlx5_2", "pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=1)
    found = nearest(GPU, (nic("rxe0"), far))
    assert found is not None
    assert [n.name for n in found.nics] == ["mlx5_2"]


def test_an_adapter_whose_distance_is_unknown_may_be_the_nearest():
    far = nic("mlx5_2", "pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=1)
    unknown = nic("mlx5_3", "pci0000:a7", "0000:a7:01.0", "0000:a8:00.0", numa=None)
    assert nearest(GPU, (far, unknown)) is None


def test_two_gpus_with_two_adapters_take_one_each_and_with_three_they_share():
    gpus = {f"0000:1{n}:00.0": place(*ROOT, f"0000:17:0{n}.0", f"0000:1{n}:00.0") for n in range(2)}
    nics = tuple(nic(f"mlx5_{n}", *ROOT, f"0000:17:1{n}.0", f"0000:2{n}:00.0") for n in range(3))
    assert [[n.name for n in near.nics] for near in by_gpu(Pci(gpus, nics[:2])).values()] == [["mlx5_0"], ["mlx5_1"]]
    assert [[n.name for n in near.nics] for near in by_gpu(Pci(gpus, nics)).values()] == [
        ["mlx5_0", "mlx5_1", "mlx5_2"],
        ["mlx5_0", "mlx5_1", "mlx5_2"],
    ]


def test_ethernet_counts_where_no_infiniband_device_can_be_used():
    card = nic("eth0", *ROOT, "0000:17:00.0", "0000:18:00.0", kind="ethernet")
    fast = nic("mlx5_2", "pci0000:97", "0000:97:01.0", "0000:98:00.0", numa=1)
    gpus = {"0000:1b:00.0": GPU}
    (near,) = by_gpu(Pci(gpus, (card, fast))).values()
    assert (near.distance, near.nics) == ("SYS", (fast,))
    (near,) = by_gpu(Pci(gpus, (card, nic("mlx5_2", active=False)))).values()
    assert (near.distance, near.nics) == ("PIX", (card,))
