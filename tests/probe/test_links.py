"""What /sys, /proc and NCCL's files show of a node's network, from made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import Link, Resolution
from distcheck.probe import links

OWN = Resolution(name="node1", addresses=("127.0.0.1",), seconds=0.001)


@pytest.fixture
def write(tmp_path):
    """Write a file below the made-up root."""

    def write(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


@pytest.fixture
def interface(tmp_path, write):
    """Write an interface as the kernel shows it."""

    def interface(name: str, *, device: bool = True, **files: str) -> None:
        usual = {
            "flags": "0x1003",
            "type": "1",
            "operstate": "up",
            "carrier": "1",
            "address": "02:00:00:00:00:01",
            "mtu": "1500",
            "speed": "100000",
            "duplex": "full",
        }
        for file, text in (usual | files).items():
            write(f"sys/class/net/{name}/{file}", f"{text}\n")
        if device:
            (tmp_path / f"sys/class/net/{name}/device").mkdir()

    return interface


@pytest.fixture
def one(tmp_path, interface):
    """Write one interface and return the link that is read."""

    def one(name: str = "eth0", **files) -> Link:
        interface(name, **files)
        (seen,) = links.links(tmp_path)
        return seen

    return one


def test_a_card_has_its_negotiated_speed_and_duplex(one):
    assert one() == Link(
        name="eth0",
        mac="02:00:00:00:00:01",
        kind="physical",
        speed_Mbps=100_000,
        full_duplex=True,
    )


def test_a_wireless_adapter_and_the_driver_of_a_card_are_told(tmp_path, interface):
    interface("eth0")
    interface("wlan0", speed="")
    (tmp_path / "sys/class/net/wlan0/phy80211").mkdir()
    (tmp_path / "sys/class/net/eth0/device/driver").symlink_to("../../../bus/virtio/drivers/virtio_net")
    seen = [(link.name, link.wireless, link.driver) for link in links.links(tmp_path)]
    assert seen == [("eth0", False, "virtio_net"), ("wlan0", True, "")]


@pytest.mark.parametrize(
    ("speed", "duplex", "full"),
    [
        ("100000", "half", False),
        ("-1", "unknown", None),
        ("", "", None),
        ("0", "unknown", None),
        ("429x", "?", None),
    ],
)
def test_a_link_without_a_speed_or_with_half_duplex(one, speed, duplex, full):
    seen = one(speed=speed, duplex=duplex)
    assert (seen.speed_Mbps, seen.full_duplex) == (100_000 if speed == "100000" else None, full)


def test_the_loopback_and_virtual_links(tmp_path, interface):
    interface("lo", device=False, type="772", operstate="unknown", mtu="65536", flags="0x9")
    interface("docker0", device=False, speed="-1")
    interface("ib0", type="32")
    assert [(link.name, link.kind) for link in links.links(tmp_path)] == [
        ("docker0", "virtual"),
        ("ib0", "physical"),
        ("lo", "loopback"),
    ]


def test_unreadable_values_of_a_link_are_unknown(tmp_path):
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    (tmp_path / "sys/class/net/bonding_masters").write_text("bond0\n")
    assert links.links(tmp_path) == (Link(name="eth0", mac="", kind="virtual"),)


def test_without_sysfs_the_links_are_missing(tmp_path):
    found = links.links(tmp_path)
    assert isinstance(found, Missing)
    assert "No such file" in found.reason


def test_a_bond_names_its_members_and_which_of_them_are_down(tmp_path, interface):
    interface("bond0", device=False, **{"bonding/slaves": "eth1 eth2 eth3"})
    interface("eth1", **{"bonding_slave/mii_status": "up"})
    interface("eth2", **{"bonding_slave/mii_status": "down"})
    interface("eth3", **{"bonding_slave/mii_status": "going back"})
    bond, *members = links.links(tmp_path)
    assert bond.members == {"eth1": True, "eth2": False, "eth3": True}
    assert (bond.kind, bond.speed_Mbps) == ("virtual", 100_000)
    assert [member.members for member in members] == [{}, {}, {}]


# -- the own name


@pytest.mark.parametrize(
    ("addresses", "binds"),
    [
        (("127.0.1.1",), "127.0.1.1"),
        (("203.0.113.9", "127.0.0.1"), "127.0.0.1"),
        (("::1", "127.0.0.1"), "::1"),
        (("2001:db8::9", "::1"), "::1"),
    ],
)
def test_the_own_name_binds_to_its_first_local_address(tmp_path, addresses, binds):
    own = Resolution(name="node1", addresses=addresses, seconds=0.001)
    assert links.collect({}, own, open_files=(1, 2), root=tmp_path).own_name_binds == binds


def test_a_remote_or_unknown_own_name_does_not_bind(tmp_path):
    elsewhere = Resolution(name="node1", addresses=("203.0.113.9", "2001:db8::9"), seconds=0.001)
    found = links.collect({}, elsewhere, open_files=(1, 2), root=tmp_path)
    assert found.own_name == elsewhere
    assert found.own_name_binds == Missing(reason="cannot bind a socket to 203.0.113.9, 2001:db8::9")
    unknown = Missing(reason="[Errno -2] Name or service not known")
    found = links.collect({}, unknown, open_files=(1, 2), root=tmp_path)
    assert (found.own_name, found.own_name_binds) == (unknown, unknown)


# -- NCCL's files


def test_the_users_file_overrides_the_systems(tmp_path, write):
    write("home/eve/.nccl.conf", "NCCL_SOCKET_IFNAME=eth1\nNCCL_DEBUG=INFO\n")
    write("etc/nccl.conf", "NCCL_SOCKET_IFNAME=eth0\nNCCL_SOCKET_FAMILY=AF_INET\n")
    assert links.nccl_files({"HOME": "/home/eve"}, tmp_path) == {
        "NCCL_SOCKET_IFNAME": "eth1",
        "NCCL_SOCKET_FAMILY": "AF_INET",
    }
    assert links.nccl_files({}, tmp_path)["NCCL_SOCKET_IFNAME"] == "eth0"


def test_nothing_is_trimmed_and_the_first_setting_of_a_name_wins(tmp_path, write):
    lines = [
        "# NCCL_SOCKET_FAMILY=AF_INET",
        "#NCCL_SOCKET_FAMILY=AF_INET",
        " NCCL_SOCKET_FAMILY=AF_INET",
        "NCCL_SOCKET_FAMILY",
        "NCCL_SOCKET_IFNAME= eth0 ",
        "NCCL_SOCKET_IFNAME=eth1",
        "NCCL_SOCKET_NTHREADS=a=b",
        "",
    ]
    write("etc/nccl.conf", "\n".join(lines))
    assert links.nccl_files({}, tmp_path) == {"NCCL_SOCKET_IFNAME": " eth0 ", "NCCL_SOCKET_NTHREADS": "a=b"}


# -- limits


def test_the_limits_that_matter_at_scale(tmp_path, write):
    write("proc/sys/net/core/somaxconn", "4096\n")
    write("proc/sys/net/netfilter/nf_conntrack_count", "12\n")
    write("proc/sys/net/netfilter/nf_conntrack_max", "262144\n")
    found = links.collect({}, OWN, open_files=(1024, -1), root=tmp_path)
    assert (found.open_files, found.listen_backlog, found.connections_tracked) == ((1024, -1), 4096, (12, 262_144))


@pytest.mark.parametrize("files", [{}, {"count": "12"}, {"max": "262144"}, {"count": "-", "max": "262144"}])
def test_a_kernel_without_connection_tracking(tmp_path, write, files):
    for what, text in files.items():
        write(f"proc/sys/net/netfilter/nf_conntrack_{what}", text)
    found = links.collect({}, OWN, open_files=(1, 2), root=tmp_path)
    assert isinstance(found.connections_tracked, Missing)
    assert isinstance(found.listen_backlog, Missing)
    assert "somaxconn cannot be read" in found.listen_backlog.reason


# -- the hardware


def test_hardware_is_identified_without_its_numbers(tmp_path, interface, write):
    def machine() -> str | Missing:
        return links.collect({}, OWN, open_files=(1, 2), root=tmp_path).machine_id

    assert isinstance(machine(), Missing)
    interface("docker0", device=False, address="02:42:00:00:00:01")
    assert isinstance(machine(), Missing)
    interface("eth0")
    by_card = machine()
    interface("docker1", device=False, address="02:42:00:00:00:02")
    assert machine() == by_card
    write("sys/class/dmi/id/product_uuid", "4c4c4544-0042\n")
    by_uuid = machine()
    assert by_uuid != by_card
    assert len(by_uuid) == 16
    assert "4c4c" not in by_uuid
    write("sys/class/dmi/id/product_uuid", "4c4c4544-0043\n")
    assert machine() not in {by_uuid, by_card}


# -- InfiniBand

IBV = """hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.39.1002
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		4096 (5)
			sm_lid:			1
			link_layer:		InfiniBand

hca_id:	mlx5_1
	transport:			InfiniBand (0)
	phys_port_cnt:			2
		port:	1
			state:			PORT_DOWN (1)
			max_mtu:		4096 (5)
			active_mtu:		1024 (3)
			link_layer:		Ethernet

		port:	2
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			active_mtu:		1024 (3)
			link_layer:		Ethernet
"""


def test_the_mtu_of_active_ports_is_read():
    assert links.parse_ibv_devinfo(IBV) == {"mlx5_0/1": 4096, "mlx5_1/2": 1024}


@pytest.mark.parametrize("text", ["", "No IB devices found\n", "\0\xff", "active_mtu: 4096", IBV[:80]])
def test_other_output_has_no_ports(text):
    assert links.parse_ibv_devinfo(text) == {}


@pytest.mark.process
def test_the_program_runs_only_if_there_are_such_devices_and_is_killed_if_it_hangs(tmp_path, monkeypatch):
    program = tmp_path / "bin/ibv_devinfo"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{IBV}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    def asked() -> dict[str, int]:
        return links.collect({}, OWN, open_files=(1, 2), root=tmp_path).ib_mtu_bytes

    assert asked() == {}
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    assert asked() == {"mlx5_0/1": 4096, "mlx5_1/2": 1024}
    monkeypatch.setattr(links, "_IBV_SECONDS", 0.2)
    for text in ("#!/bin/sh\nexit 1\n", "no program at all", "#!/bin/sh\nexec sleep 60\n"):
        program.write_text(text)
        assert asked() == {}, text
    program.unlink()
    assert asked() == {}


MOUNTS = """\
22 1 0:21 / / rw shared:1 - ext4 /dev/vda1 rw
40 22 0:40 / /shared rw shared:2 - nfs4 server:/x rw,vers=4.2,local_lock=none
41 22 0:41 / /shared/old\\040one rw - nfs server:/y rw,vers=3,nolock
"""


@pytest.mark.parametrize(
    ("path", "kind", "locks", "size"),
    [
        ("/tmp/meet", "ext4", True, None), ("/shared/meet", "nfs4", True, 3),
        ("/shared/old one/meet", "nfs", False, None), ("/sharedness", "ext4", True, None),
    ],
)  # fmt: skip
def test_a_rendezvous_file_is_read_with_its_mount(tmp_path, path, kind, locks, size):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/meet").write_text("key")
    seen = links.rendezvous_file(path, tmp_path)
    assert (seen.path, seen.file_system, seen.locks, seen.bytes) == (path, kind, locks, size)


def test_without_mounts_a_rendezvous_file_is_missing(tmp_path):
    assert isinstance(links.rendezvous_file("/tmp/meet", tmp_path), Missing)
