"""One node: where processes share a host, a boot and a network."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Count, Facts, Missing, Whole
from distcheck.facts.gpu import DriverError, Gpus, Xid
from distcheck.facts.host import HostFacts
from distcheck.facts.infiniband import Infiniband
from distcheck.facts.nccl import NodeDiagnosis
from distcheck.facts.network import Interface, NetworkFacts, Resolution
from distcheck.facts.pci import Pci
from distcheck.facts.storage import Space, Storage

NO_TORCH = "torch is not installed in this Python"
"""Why there is no TorchBuild, as opposed to one that cannot be read."""


class TorchBuild(Facts, frozen=True):
    """The installed torch, read without importing it."""

    version: str
    cuda: str | None
    hip: str | None


class NodeState(Facts, frozen=True):
    """A node's own state, without peers and GPUs, for a process that is not a rank."""

    own_name: Resolution | Missing
    """Its own host name, resolved on the node."""
    spaces: dict[str, Space | Missing]
    """By folder."""
    open_files: tuple[Whole, Whole]
    """The probing process's soft and hard limit of open files; -1 is unlimited."""
    slurm_context: str = ""
    """SLURM_SCRIPT_CONTEXT: prolog_slurmd in a Prolog; empty elsewhere."""
    slurm_job: str = ""
    """The job for which Slurm runs the Prolog."""


class NodeFacts(Facts, frozen=True):
    """One node: where processes share a host, a boot and a network."""

    key: str
    name: str
    """The scheduler's name for it, else its host name."""
    hostname: str
    boot_id: str | Missing
    network_namespace: str | Missing
    kernel: str
    python: str
    distcheck: str
    torch: TorchBuild | Missing
    interfaces: tuple[Interface, ...] | Missing
    ephemeral_ports: tuple[Count, Count] | Missing
    """net.ipv4.ip_local_port_range."""
    unprivileged_port_start: Count | Missing
    accelerator: Literal["nvidia", "amd", "none"]
    """The vendor of the GPUs in /dev, /proc and on the PCI bus."""
    gpus: Gpus | Missing | None = None
    """None: not checked."""
    pci: Pci | Missing | None = None
    """None: not checked."""
    xids: tuple[Xid, ...] | Missing | None = None
    """Xids in the kernel log of the last hours, newest last; None: not checked."""
    driver_errors: tuple[DriverError, ...] | Missing | None = None
    """amdgpu's errors in the kernel log of the last hours, newest last; None: not checked."""
    proxy_ports: tuple[Count, ...] = ()
    """Ports on which a service mesh's sidecar listens; checked in pods only."""
    state: NodeState | Missing | None = None
    """None: not checked."""
    network: NetworkFacts | None = None
    """None: not checked."""
    shm: Space | Missing | None = None
    """The space in /dev/shm, if ranks are to measure; None: not checked."""
    tmp: Space | Missing | None = None
    """The space in the folder for temporary files, where torch writes; None: not checked."""
    tmp_folder: str = "/tmp"  # noqa: S108 a name only
    """TMPDIR, if it is a folder."""
    cpus: Count | None = None
    """CPUs that are online, usable here or not; None if unknown."""
    infiniband: Infiniband | Missing | None = None
    """None: not checked."""
    modules: dict[str, str] = {}
    """Version by name of the loaded network drivers; empty text for a driver that comes with the kernel."""
    """vendor_id of the first CPU: GenuineIntel, AuthenticAMD; empty if the kernel names none, as on ARM."""
    host: HostFacts | Missing | None = None
    """The state of its operating system; None: not checked."""
    storage: Storage | Missing | None = None
    """The folders and files of the job; None: not checked, or checked by another process of the node."""
    reserved_ports: tuple[tuple[Count, Count], ...] | Missing | None = None
    """net.ipv4.ip_local_reserved_ports, the first and last port of each range; None: not checked."""
    diagnosis: NodeDiagnosis | Missing | None = None
    """NCCL's own diagnostics; None: not asked for."""
    policy: str = ""
    """The digest of the policy that its process read; empty without one."""
