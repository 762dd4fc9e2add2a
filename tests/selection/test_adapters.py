"""Which adapters NCCL takes by its variables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.pci import Nic, PciPlace
from distcheck.selection.adapters import chosen, off, overridden, served

NOWHERE = PciPlace((), None)


def nic(name, *ports, **fields):
    return Nic(name, NOWHERE, fields.pop("kind", "ib"), fields.pop("link_layer", "InfiniBand"), ports=ports, **fields)


ALL = tuple(nic(f"mlx5_{n}", 1) for n in range(12))


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (None, range(12)),
        ("", range(12)),
        ("mlx5", range(12)),
        ("mlx5_1", (1, 10, 11)),
        ("=mlx5_1", (1,)),
        ("^mlx5_1", (0, 2, 3, 4, 5, 6, 7, 8, 9)),
        ("^=mlx5_1", (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)),
        # The sign appears once, at the beginning, and in this order.
        ("=^mlx5_1", ()),
        ("=mlx5_1,=mlx5_2", (1,)),
        ("mlx5_2,mlx5_3", (2, 3)),
        ("mlx5_2, mlx5_3", (2,)),
        ("=mlx5_2:1,mlx5_3:2", (2,)),
        ("^=mlx5_2:1,mlx5_3:2", (0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11)),
        ("=mlx5_2:1:0:1", (2,)),
        ("=mlx5_2:", (2,)),
        (",,=", ()),
        ("^", ()),
        ("=", range(12)),
        (":1,mlx5_4", (4,)),
        ("mlx4", ()),
    ],
)
def test_the_list_is_read_as_nccl_does(value, taken):
    assert [n.name for n in ALL if chosen(n, value)] == [f"mlx5_{n}" for n in taken]


def test_of_several_ports_an_active_one_must_match():
    two = nic("mlx4_0", 1, 2)
    assert chosen(two, "mlx4_0:2")
    assert not chosen(nic("mlx4_0", 1), "mlx4_0:2")
    assert chosen(two, "^mlx4_0:2")
    assert not chosen(nic("mlx4_0", 2), "^mlx4_0:2")


def test_an_adapter_that_is_down_matches_by_name():
    assert chosen(nic("mlx5_0"), "mlx5_0:1")


def test_no_more_than_32_items_are_read():
    value = "=" + ",".join(f"other{n}" for n in range(32))
    assert not chosen(ALL[0], f"{value},mlx5_0")
    assert chosen(ALL[0], f"{value.rpartition(',')[0]},mlx5_0")


@given(st.text(alphabet="mlx5_01=^:,;- ", max_size=20))
def test_the_caret_excludes_the_matching_adapters(value):
    for one in ALL:
        if value and not value.startswith("^"):
            assert chosen(one, value) != chosen(one, f"^{value}")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"NCCL_IB_DISABLE": "1"}, True),
        ({"NCCL_IB_DISABLE": "0x1"}, True),
        ({"NCCL_IB_DISABLE": "0"}, False),
        ({"NCCL_IB_DISABLE": "true"}, False),
        ({"NCCL_NET": "Socket"}, True),
        ({"NCCL_NET": "ib"}, False),
    ],
)
def test_whether_the_infiniband_transport_is_off(variables, expected):
    assert off(variables) is expected


def test_a_plugin_or_a_topology_file_decides_otherwise():
    assert overridden({"NCCL_NET_PLUGIN": "aws-ofi"})
    assert overridden({"NCCL_TOPO_FILE": "/opt/topo.xml"})
    assert not overridden({"NCCL_NET_PLUGIN": "none", "NCCL_TOPO_FILE": ""})


def test_an_adapter_of_another_kind_of_link_or_without_its_file_is_not_served():
    assert served(nic("mlx5_0"))
    assert served(nic("mlx5_0", link_layer="Ethernet"))
    assert not served(nic("efa_0", link_layer="Unspecified"))
    assert not served(nic("mlx5_0", usable=False))
    assert not served(nic("eth0", kind="ethernet"))
