"""Which interfaces NCCL and Gloo take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.base import Missing
from distcheck.facts.network import Interface
from distcheck.selection.interfaces import COMM_ID, FAMILIES, FAMILY, IFNAME, gloo, matching, nccl, settings, subnet


def at(name, address, bits=24, *, up=True):
    return Interface(name=name, address=address, up=up, mtu_bytes=1500, prefix_bits=bits)


LO, LO6 = at("lo", "127.0.0.1", 8), at("lo", "::1", 128)
ETH0, ETH1, ETH10 = at("eth0", "10.0.0.1"), at("eth1", "10.1.0.1"), at("eth10", "10.10.0.1")
ETH0_6, LINK_6 = at("eth0", "fd00::1", 64), at("eth0", "fe80::1", 64)
IB, DOCKER, VIRBR = at("ib0", "10.8.0.1"), at("docker0", "172.17.0.1", 16), at("virbr0", "192.168.122.1")
BRIDGE = at("br-1f2e", "172.18.0.1", 16)
DOWN = at("eth5", "10.5.0.1", up=False)
NODE = (LO, DOCKER, VIRBR, ETH0, ETH1, ETH10, DOWN, LO6, ETH0_6, LINK_6)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("eth0", ["eth0"]),
        ("eth1", ["eth1", "eth10"]),
        ("=eth1", ["eth1"]),
        ("eth", ["eth0", "eth1", "eth10"]),
        ("eth1,eth0", ["eth0", "eth1", "eth10"]),
        ("=eth10,eth0", ["eth0", "eth10"]),
        ("eth0:1,eth1:2:3", ["eth0", "eth1", "eth10"]),
        ("=eth0:1", ["eth0"]),
        (",,eth0,,", ["eth0"]),
        (":1,eth0", ["eth0"]),
        ("eth0, eth1", ["eth0"]),
        (" eth0", []),
        ("eth0 ", []),
        ("'eth0'", []),
        ("eth5", []),
        ("eth99", []),
        ("lo", ["lo"]),
        ("^lo,docker,virbr", ["eth0", "eth1", "eth10"]),
        ("^=eth1,lo,docker0,virbr0", ["eth0", "eth10"]),
        ("^docker,^lo", ["lo", "virbr0", "eth0", "eth1", "eth10"]),
        ("=eth0,=eth1", ["eth0"]),
        ("=^eth0", []),
        ("==eth0", []),
        ("^^eth0", ["lo", "docker0", "virbr0", "eth0", "eth1", "eth10"]),
        ("^=", []),
        (",,", ["lo", "docker0", "virbr0", "eth0", "eth1", "eth10"]),
        ("^,", []),
        ("", ["eth0", "eth1", "eth10"]),
        ("^", ["eth0", "eth1", "eth10"]),
        ("=", ["eth0", "eth1", "eth10"]),
        ("d", ["eth0", "eth1", "eth10"]),
    ],
)
def test_a_value_of_nccl_socket_ifname_is_read_as_nccl_reads_it(value, names):
    assert [i.name for i in nccl(NODE, {IFNAME: value})] == names


@pytest.mark.parametrize(
    ("interfaces", "chosen"),
    [
        ((), ()),
        ((LO, LO6), (LO,)),
        ((LO6,), ()),
        ((LO, ETH0), (ETH0,)),
        ((LO, ETH0, ETH1, LO6, ETH0_6, LINK_6), (ETH0, ETH1)),
        ((LO, BRIDGE, ETH0), (BRIDGE, ETH0)),
        ((LO, ETH0, IB), (IB,)),
        ((LO, ETH0, at("ibp1s0", "10.8.0.1"), IB), (at("ibp1s0", "10.8.0.1"), IB)),
        ((LO, DOCKER, VIRBR, ETH0), (ETH0,)),
        ((LO, VIRBR, DOCKER), (DOCKER,)),
        ((LO, VIRBR), (LO,)),
        ((VIRBR,), (VIRBR,)),
        ((LO, DOWN), (LO,)),
        ((LO, LO6, ETH0_6, LINK_6), (ETH0_6,)),
        ((LO, LINK_6), (LINK_6,)),
        ((LO, at("bond0", "10.0.0.1"), at("bond0", "10.0.0.2")), (at("bond0", "10.0.0.1"),)),
    ],
)
def test_without_it_nccl_skips_loopback_docker_and_libvirt_bridges(interfaces, chosen):
    assert nccl(interfaces, {}) == chosen


@pytest.mark.parametrize(
    ("family", "chosen"),
    [
        ("AF_INET", (ETH0, ETH1, ETH10)),
        ("AF_INET6", (ETH0_6,)),
        ("IPv6", (ETH0, ETH1, ETH10)),
        ("AF_INET6 ", (ETH0, ETH1, ETH10)),
        ("", (ETH0, ETH1, ETH10)),
    ],
)
def test_the_family_is_forced_by_its_exact_name_only(family, chosen):
    assert nccl(NODE, {FAMILY: family}) == chosen


def test_a_forced_family_may_exclude_the_named_interface():
    assert nccl((LO, ETH1), {FAMILY: "AF_INET6", IFNAME: "eth1"}) == ()


@pytest.mark.parametrize(
    ("place", "more", "chosen"),
    [
        ("10.1.0.9:5000", {}, (ETH1,)),
        ("10.1.0.9:5000", {IFNAME: "eth0"}, (ETH1, ETH0)),
        ("10.5.0.9:5000", {}, (DOWN,)),
        ("127.0.0.1:5000", {}, (LO,)),
        ("[fd00::9]:5000", {}, (ETH0_6,)),
        ("[fe80::9%eth0]:5000", {}, (LINK_6,)),
        ("[fe80::9]:5000", {}, ()),
        ("10.77.0.9:5000", {}, ()),
        ("", {}, ()),
        ("node1:5000", {}, (ETH0, ETH1, ETH10)),
        ("[node1]:5000", {}, (ETH0, ETH1, ETH10)),
        ("[fd00::9", {}, (ETH0, ETH1, ETH10)),
    ],
)
def test_the_bootstrap_takes_the_subnet_of_nccl_comm_id(place, more, chosen):
    assert nccl(NODE, {COMM_ID: place, **more}) == chosen


def test_infiniband_precedes_the_subnet_of_nccl_comm_id_for_sockets():
    assert nccl((LO, IB, ETH1), {COMM_ID: "10.1.0.9:5000"}) == (ETH1, IB)


def test_an_unknown_subnet_matches_no_nccl_comm_id():
    assert nccl((at("eth1", "10.1.0.1", None),), {COMM_ID: "10.1.0.1:5000"}) == ()
    assert subnet(at("eth1", "10.1.0.1", 99)) is None


def test_variables_override_files_even_if_empty():
    files = {IFNAME: "eth0", FAMILY: "AF_INET", "NCCL_SOCKET_NTHREADS": "4"}
    assert settings({IFNAME: "", "PATH": "/bin"}, files) == {IFNAME: "", FAMILY: "AF_INET"}
    assert settings({COMM_ID: "10.0.0.1:1"}, {}) == {COMM_ID: "10.0.0.1:1"}
    assert settings({}, {}) == {}


def test_no_more_than_sixteen_interfaces_are_taken():
    many = [at(f"eth{n}", f"10.0.{n}.1") for n in range(20)]
    assert nccl(many, {}) == tuple(many[:16])
    assert nccl(many, {IFNAME: "=" + ",".join(i.name for i in many)}) == tuple(many[:16])


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("eth0", (ETH0,)),
        ("eth1,eth0", (ETH1, ETH0)),
        ("eth0,", (ETH0,)),
        ("eth5", (DOWN,)),
        ("lo", (LO,)),
        ("eth0,eth0", (ETH0, ETH0)),
    ],
)
def test_gloo_takes_the_first_address_of_each_name(value, chosen):
    assert gloo(NODE, {"GLOO_SOCKET_IFNAME": value}, "10.0.0.1") == chosen


@pytest.mark.parametrize("value", ["eth", "eth99", "^lo", "=eth0", "eth0, eth1", " eth0", "eth0,eth99", "eth0:1"])
def test_gloo_needs_exact_names(value):
    chosen = gloo(NODE, {"GLOO_SOCKET_IFNAME": value}, "10.0.0.1")
    assert isinstance(chosen, Missing)
    assert chosen.reason.startswith("Unable to find address for: ")


@pytest.mark.parametrize("value", [",eth0", "eth0,,eth1", ",,"])
def test_gloo_refuses_an_empty_name(value):
    chosen = gloo(NODE, {"GLOO_SOCKET_IFNAME": value}, "10.0.0.1")
    assert chosen == Missing(reason="GlooDeviceFactory::makeTCPDevice(): interface or hostname can't be empty")


@pytest.mark.parametrize("environment", [{}, {"GLOO_SOCKET_IFNAME": ""}, {"GLOO_SOCKET_IFNAME": "e"}])
@pytest.mark.parametrize(
    ("binds", "name", "address"),
    [
        ("10.1.0.1", "eth1", "10.1.0.1"),
        ("127.0.1.1", "lo", "127.0.1.1"),
        ("127.0.0.1", "lo", "127.0.0.1"),
        ("::1", "lo", "::1"),
        ("10.99.0.1", "", "10.99.0.1"),
        (Missing(reason="Name or service not known"), "lo", "127.0.0.1"),
    ],
)
def test_gloo_takes_the_address_of_its_own_name_by_default(environment, binds, name, address):
    (chosen,) = gloo(NODE, environment, binds)
    assert (chosen.name, chosen.address) == (name, address)


def test_gloos_loopback_needs_no_interface():
    assert gloo((), {}, Missing(reason="no answer"))[0].address == "127.0.0.1"


# -- properties

names = st.sampled_from(["lo", "eth0", "eth1", "eth10", "ib0", "docker0", "virbr0", "br-1", "l", "e"])
addresses = st.sampled_from(["127.0.0.1", "10.0.0.1", "10.1.0.1", "172.17.0.1", "::1", "fd00::1", "fe80::1"])
interfaces = st.lists(
    st.builds(Interface, names, addresses, st.booleans(), st.just(1500), st.sampled_from([None, 8, 24])), max_size=12
)
values = st.text(alphabet="^=,: lethbro01d-", max_size=12)
wishes = st.fixed_dictionaries(
    {},
    optional={
        IFNAME: values,
        FAMILY: st.sampled_from(["AF_INET", "AF_INET6", "inet", ""]),
        COMM_ID: st.sampled_from(["10.0.0.9:1", "[fd00::9]:1", "host:1", "", "[", "[]:", "[fe80::1%eth0]:1"]),
    },
)


@given(interfaces, wishes)
def test_nccl_takes_running_interfaces_once_each_in_the_kernels_order(there, wished):
    chosen = nccl(there, wished)
    assert len({i.name for i in chosen}) == len(chosen)
    assert set(chosen) <= set(there)
    if COMM_ID not in wished:
        positions = [there.index(i) for i in chosen]
        assert positions == sorted(positions)
        assert all(i.up and i.address != "::1" for i in chosen)
        family = FAMILIES.get(wished.get(FAMILY, ""))
        assert all(family in {None, 6 if ":" in i.address else 4} for i in chosen)


@given(interfaces, st.text(alphabet="lethbr01", min_size=2, max_size=5))
def test_exact_matches_are_prefix_matches_and_the_caret_inverts_them(there, name):
    def taken(value):
        return {i.name for i in nccl(there, {IFNAME: value})}

    everything = taken(",,")
    assert taken("=" + name) <= taken(name)
    assert taken("^" + name) == everything - taken(name)
    assert taken("^=" + name) == everything - taken("=" + name)


@given(interfaces, values)
def test_a_value_that_counts_decides_alone(there, value):
    chosen = nccl(there, {IFNAME: value})
    if len(value) > 1:
        assert matching(chosen, value) == list(chosen)
    else:
        assert chosen == nccl(there, {})


@given(interfaces)
def test_the_default_finds_an_interface_if_there_is_one(there):
    usable = [i for i in there if i.up and i.address != "::1"]
    assert bool(nccl(there, {})) == bool(usable)


@given(interfaces, values, st.sampled_from(["10.0.0.1", "127.0.1.1", "::1"]))
def test_gloo_takes_an_address_of_every_name_or_none(there, value, binds):
    chosen = gloo(there, {"GLOO_SOCKET_IFNAME": value}, binds)
    if isinstance(chosen, Missing):
        assert len(value) > 1
    elif len(value) > 1:
        assert ",".join(i.name for i in chosen) == value.removesuffix(",")
    else:
        assert [i.address for i in chosen] == [binds]
