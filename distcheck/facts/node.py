"""One node: where processes share a host, a boot and a network."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Count, Facts, Missing, Whole
from distcheck.facts.gpu import Gpus, Pci, Xid
from distcheck.facts.network import Interface, NetworkFacts, Resolution


class TorchBuild(Facts, frozen=True):
    """The installed torch, read without importing it."""

    version: str
    cuda: str | None
    hip: str | None


class Space(Facts, frozen=True):
    """A file system as a job finds it."""

    total_bytes: Count
    free_bytes: Count
    """What users may still write, without what is kept for root."""
    free_files: Count | None
    """How many more files it can hold; None where the file system does not count them."""
    writable: bool


class NodeState(Facts, frozen=True):
    """What a node shows of itself to a process that is no rank, without peers and without GPUs."""

    own_name: Resolution | Missing
    """What its own host name resolves to there."""
    spaces: dict[str, Space | Missing]
    """By folder."""
    open_files: tuple[Whole, Whole]
    """Soft and hard limit of open files of the process that looked; -1 is unlimited."""
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
    """Whose GPUs the node shows in /dev, /proc and on the PCI bus."""
    gpus: Gpus | Missing | None = None
    """None: not looked at."""
    pci: Pci | Missing | None = None
    """None: not looked at."""
    xids: tuple[Xid, ...] | Missing | None = None
    """What the kernel's log tells of the last hours, newest last; None: not looked at."""
    proxy_ports: tuple[Count, ...] = ()
    """Of a service mesh's sidecar, those on which somebody listens; looked at in pods only."""
    state: NodeState | Missing | None = None
    """None: not looked at."""
    network: NetworkFacts | None = None
    """None: not looked at."""
    shm: Space | Missing | None = None
    """The room for shared memory in /dev/shm, where ranks are to measure; None: not looked at."""
    tmp: Space | Missing | None = None
    """The room in the folder for temporary files, where torch writes; None: not looked at."""
    tmp_folder: str = "/tmp"  # noqa: S108 a name only
    """TMPDIR where that is a folder."""
    cpus: Count | None = None
    """CPUs that are online, whoever may use them; None where that is not known."""
