"""Collect what a node is: its names, boot, network namespace, limits and software."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from distcheck import __version__
from distcheck.facts.base import Missing, legible
from distcheck.facts.gpu import DriverError, Gpus, Xid
from distcheck.facts.infiniband import Infiniband
from distcheck.facts.network import Interface, NetworkFacts
from distcheck.facts.node import NO_TORCH, NodeFacts, NodeState, TorchBuild
from distcheck.facts.pci import Pci
from distcheck.facts.policy import Policy
from distcheck.probe import ports

if TYPE_CHECKING:
    from typing import Literal

T = TypeVar("T")
_MODULES = ("efa", "mlx5_core")
_PROXY_PORTS = (15001, 15006, 4140, 4143)
_TORCH_VERSION = re.compile(r"^(__version__|cuda|hip)\b[^=]*=\s*(?:'([^']*)'|None)", re.MULTILINE)


def collect(
    environ: Mapping[str, str],
    *,
    accelerator: Literal["nvidia", "amd", "none"] = "none",
    gpus: Gpus | Missing | None = None,
    pci: Pci | Missing | None = None,
    state: NodeState | Missing | None = None,
    network: NetworkFacts | None = None,
    infiniband: Infiniband | Missing | None = None,
    addresses: bool = True,
    policy: Policy | None = None,
) -> NodeFacts:
    """Return the facts of this process's node; `addresses` includes its interfaces."""
    hostname, name = socket.gethostname(), name_of_node(environ)
    boot_id = _read("/proc/sys/kernel/random/boot_id")
    namespace = _link("/proc/self/ns/net")
    found = NodeFacts(
        key="|".join((name, _known(boot_id), _known(namespace))),
        name=name,
        hostname=hostname,
        boot_id=boot_id,
        network_namespace=namespace,
        kernel=os.uname().release,
        python=sys.version.partition(" ")[0],
        distcheck=__version__,
        torch=torch_build(),
        interfaces=interfaces() if addresses else Missing(reason="not read: no other rank to meet"),
        ephemeral_ports=_parsed("/proc/sys/net/ipv4/ip_local_port_range", _pair),
        reserved_ports=reserved_ports(),
        unprivileged_port_start=_parsed("/proc/sys/net/ipv4/ip_unprivileged_port_start", int),
        accelerator=accelerator,
        gpus=gpus,
        xids=_xids() if gpus is not None and accelerator != "amd" else None,
        driver_errors=_driver_errors() if accelerator == "amd" else None,
        pci=pci,
        state=state,
        network=network,
        infiniband=infiniband,
        cpus=os.cpu_count(),
        modules=modules(),
        policy=policy.digest if policy is not None else "",
        proxy_ports=_proxy_ports() if "KUBERNETES_SERVICE_HOST" in environ else (),
    )
    return legible(found)


def name_of_node(environ: Mapping[str, str]) -> str:
    """Return the scheduler's name of this node, else its host name."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname()


def torch_build() -> TorchBuild | Missing:
    """Return the version of the installed torch from its version.py, without a slow import."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return Missing(reason=NO_TORCH)
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError as error:
        return Missing(reason=f"torch's version.py cannot be read: {error}")
    found = {name: value or None for name, value in _TORCH_VERSION.findall(text)}
    version = found.get("__version__")
    if version is None:
        return Missing(reason="torch's version.py has no version")
    return TorchBuild(version=version, cuda=found.get("cuda"), hip=found.get("hip"))


def nccl_beside(torch: TorchBuild | Missing) -> str:
    """Return the version of the NCCL wheel that this torch loads, '' if there is none.

    torch's wheels for CUDA load libnccl.so.2 from the package nvidia-nccl-cu12 or -cu13, after CUDA's major version.
    The folder's name holds the version.
    """
    spec = find_spec("torch") if isinstance(torch, TorchBuild) and torch.cuda else None
    if spec is None or spec.origin is None or isinstance(torch, Missing):
        return ""
    pattern = f"nvidia_nccl_cu{(torch.cuda or '').partition('.')[0]}-*.dist-info"
    folders = sorted(Path(spec.origin).parent.parent.glob(pattern))
    return folders[-1].name.removesuffix(".dist-info").rpartition("-")[2] if folders else ""


def interfaces() -> tuple[Interface, ...] | Missing:
    """Return every IP address of this network namespace with its interface."""
    import psutil

    try:
        addresses, stats = psutil.net_if_addrs(), psutil.net_if_stats()
        place = {name: n for n, (_, name) in enumerate(socket.if_nameindex())}
    except OSError as error:
        return Missing(reason=f"cannot list the interfaces: {error}")
    # This is the kernel's order; psutil lists interfaces with an IPv4 address first.
    families = (socket.AF_INET, socket.AF_INET6)
    names = sorted(addresses, key=lambda name: place.get(_device(name), len(place)))
    return tuple(
        Interface(
            name=name,
            address=a.address.partition("%")[0],
            up=_device(name) in stats and stats[_device(name)].isup,
            mtu_bytes=stats[_device(name)].mtu if _device(name) in stats else 0,
            prefix_bits=_prefix_bits(a.netmask, family),
        )
        for family in families
        for name in names
        for a in addresses[name]
        if a.family == family
    )


def _device(name: str) -> str:
    """Return the interface of an address with a label such as eth0:1."""
    return name.partition(":")[0]


def _prefix_bits(mask: str | None, family: int) -> int | None:
    try:
        return sum(byte.bit_count() for byte in socket.inet_pton(family, mask or ""))
    except OSError:
        return None


def modules(root: Path = Path("/")) -> dict[str, str]:
    """Return the versions of the loaded network drivers (/sys/module/NAME/version).

    Drivers from MLNX_OFED, DOCA and AWS have one; those that come with the kernel have none.
    """
    found = {}
    for name in _MODULES:
        folder = root / "sys" / "module" / name
        if folder.is_dir():
            version = _read(str(folder / "version"))
            found[name] = version if isinstance(version, str) else ""
    return found


def _proxy_ports() -> tuple[int, ...]:
    """Return the ports of a service mesh's sidecar that listen in this network namespace.

    15001 and 15006 take what Istio's iptables rules redirect
    (https://istio.io/latest/docs/ops/deployment/application-requirements/), 4140 and 4143 what Linkerd's do.
    """
    listening = {port for port, _ in ports.listeners()}
    return tuple(port for port in _PROXY_PORTS if port in listening)


def _xids() -> tuple[Xid, ...] | Missing:
    from distcheck.probe import xids

    return xids.recent()


def _driver_errors() -> tuple[DriverError, ...] | Missing:
    from distcheck.probe import amdgpu_log

    return amdgpu_log.recent()


def _known(fact: str | Missing) -> str:
    return fact if isinstance(fact, str) else "?"


def _read(path: str) -> str | Missing:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        return Missing(reason=f"{path}: {error.strerror}")


def _link(path: str) -> str | Missing:
    try:
        return str(Path(path).readlink())
    except OSError as error:
        return Missing(reason=f"{path}: {error.strerror}")


def _parsed(path: str, parse: Callable[[str], T]) -> T | Missing:
    text = _read(path)
    try:
        return text if isinstance(text, Missing) else parse(text)
    except ValueError:
        return Missing(reason=f"{path} holds {text!r}")


def _pair(text: str) -> tuple[int, int]:
    low, high = text.split()
    return int(low), int(high)


def reserved_ports(path: str = "/proc/sys/net/ipv4/ip_local_reserved_ports") -> tuple[tuple[int, int], ...] | Missing:
    """Return the ranges of ports that the kernel assigns to no connection: 8080,9000-9100 has two."""

    def ranges(text: str) -> tuple[tuple[int, int], ...]:
        parts = (item.partition("-") for item in text.split(",") if item)
        return tuple((int(low), int(high or low)) for low, _, high in parts)

    return _parsed(path, ranges)
