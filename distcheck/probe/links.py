"""Collect a node's network facts: links, its own name, NCCL's files, limits at scale."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.mounts import mount_at
from distcheck.facts.network import Link, NetworkFacts, RendezvousFile, Resolution
from distcheck.facts.touch import touch, which
from distcheck.probe.kernel_files import contents, integer, link_name
from distcheck.probe.nccl_files import read
from distcheck.selection.nccl_settings import in_use, settings

if TYPE_CHECKING:
    from typing import Literal

_ROOT = Path("/")
_LOOPBACK = "772"  # ARPHRD_LOOPBACK of linux/if_arp.h
_IBV_SECONDS = 3.0
_DEVINFO = re.compile(r"^hca_id:\s*(\S+)|^\s*port:\s*(\d+)|^\s*active_mtu:\s*(\d+)|^\s*state:\s*(\S+)", re.MULTILINE)


def collect(
    environ: Mapping[str, str],
    own_name: Resolution | Missing,
    *,
    open_files: tuple[int, int],
    rendezvous: str = "",
    root: Path = _ROOT,
) -> NetworkFacts:
    """Return a node's network facts; `own_name` is what its host name resolves to."""
    found = links(root)
    return NetworkFacts(
        links=found,
        own_name=own_name,
        own_name_binds=_binds(own_name),
        nccl_files=nccl_files(environ, root),
        open_files=open_files,
        listen_backlog=_number(root / "proc/sys/net/core/somaxconn"),
        connections_tracked=_tracked(root),
        machine_id=_machine_id(root, found),
        rendezvous_file=rendezvous_file(rendezvous, root) if rendezvous else None,
        ib_mtu_bytes=_ib_mtu(root),
    )


def links(root: Path = _ROOT) -> tuple[Link, ...] | Missing:
    """Return the network interfaces as sysfs shows them.

    Source: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-net
    """
    folder = root / "sys/class/net"
    try:
        names = sorted(p.name for p in folder.iterdir() if p.is_dir())
    except OSError as error:
        return Missing(reason=f"{folder}: {error.strerror}")
    return tuple(_link(folder / name) for name in names)


def _link(folder: Path) -> Link:
    speed = integer(folder / "speed")  # unreadable for a link that is down
    kind: Literal["physical", "virtual", "loopback"] = "physical" if (folder / "device").exists() else "virtual"
    return Link(
        name=folder.name,
        mac=contents(folder / "address"),
        kind="loopback" if contents(folder / "type") == _LOOPBACK else kind,
        speed_Mbps=speed or None,
        full_duplex={"full": True, "half": False}.get(contents(folder / "duplex")),
        members=_members(folder),
        wireless=any((folder / name).exists() for name in ("wireless", "phy80211")),
        driver=link_name(folder / "device/driver"),
    )


def _members(folder: Path) -> dict[str, bool]:
    """Return the links of a bond and whether each is up.

    Source: https://www.kernel.org/doc/Documentation/networking/bonding.txt
    """
    names = contents(folder / "bonding/slaves").split()
    return {name: contents(folder.parent / name / "bonding_slave/mii_status") != "down" for name in names}


def _binds(own_name: Resolution | Missing) -> str | Missing:
    """Return the first address of the own name that a socket can bind, as Gloo does.

    Source: pytorch/gloo, gloo/transport/tcp/device.cc (lookupAddrForHostname).
    """
    if isinstance(own_name, Missing):
        return own_name
    for address in own_name.addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, 0))
        except OSError:
            continue
        return address
    return Missing(reason=f"cannot bind a socket to {', '.join(own_name.addresses)}")


def nccl_files(
    environ: Mapping[str, str], root: Path = _ROOT, names: tuple[str, ...] = ("NCCL_SOCKET_",)
) -> dict[str, str]:
    """Return the settings with these prefixes from the configuration files of a recent NCCL."""
    found = settings({}, in_use(read(environ, root), ()))
    return {name: setting.value for name, setting in found.items() if name.startswith(names)}


def rendezvous_file(path: str, root: Path = _ROOT) -> RendezvousFile | Missing:
    """Return a rendezvous file's size and file system; nothing is written.

    Source: nfs(5) for nolock and local_lock.
    """
    try:
        mount = mount_at(path, root)
    except OSError as error:
        return Missing(reason=f"cannot read the mounts: {error.strerror}")
    size: int | None = None
    try:
        place = root / path.lstrip("/")
        size = touch(path, "COMMAND", lambda: place.stat().st_size)
    except FileNotFoundError:
        pass
    except OSError as error:
        return Missing(reason=f"{path}: {error.strerror}")
    unshared = {"nolock", "local_lock=all", "local_lock=flock"}
    return RendezvousFile(
        path=path,
        bytes=size,
        file_system=mount.file_system if mount is not None else "",
        locks=mount is None or unshared.isdisjoint(mount.super_options),
    )


def _tracked(root: Path) -> tuple[int, int] | Missing:
    count, most = (_number(root / f"proc/sys/net/netfilter/nf_conntrack_{what}") for what in ("count", "max"))
    if isinstance(count, Missing):
        return count
    return most if isinstance(most, Missing) else (count, most)


def _machine_id(root: Path, found: tuple[Link, ...] | Missing) -> str | Missing:
    """Return a hash that identifies the hardware without revealing its numbers."""
    uuid = contents(root / "sys/class/dmi/id/product_uuid")
    macs = [] if isinstance(found, Missing) else sorted(link.mac for link in found if link.kind == "physical")
    known = uuid or " ".join(macs)
    if not known:
        return Missing(reason="no readable product_uuid or physical network interface")
    return hashlib.sha256(known.encode()).hexdigest()[:16]


def _ib_mtu(root: Path) -> dict[str, int]:
    """Return the active MTU of every active port from ibv_devinfo, empty if not available."""
    program = which("ibv_devinfo")
    if program is None or not (root / "sys/class/infiniband").is_dir():
        return {}
    try:
        done = subprocess.run(
            [program], check=False, capture_output=True, text=True, timeout=_IBV_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return {}
    return parse_ibv_devinfo(done.stdout)


def parse_ibv_devinfo(text: str) -> dict[str, int]:
    """Return the active MTU in bytes of active ports, by device and port ("mlx5_0/1")."""
    found: dict[str, int] = {}
    device = port = ""
    active = False
    for hca, number, mtu, state in _DEVINFO.findall(text):
        if hca:
            device = hca
        elif number:
            port, active = number, False
        elif state:
            active = state == "PORT_ACTIVE"
        elif active:
            found[f"{device}/{port}"] = int(mtu)
    return found


def _number(path: Path) -> int | Missing:
    found = integer(path)
    return found if found is not None else Missing(reason=f"{os.fspath(path)} cannot be read")
