"""GPUs and their condition, as NVML tells them."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Amount, Bits, Count, Facts, Missing, Offset, Seconds, Whole

NOT_SUPPORTED = Missing(reason="NVML error 3: Not Supported")
"""What NVML says of all that a card or a virtual machine does not have; as a default it need not travel."""


class Ecc(Facts, frozen=True, omit_defaults=True):
    """Errors that a GPU's memories have found in themselves; volatile ones are those since its last reset."""

    enabled: bool | Missing = NOT_SUPPORTED
    enabled_after_reset: bool | Missing = NOT_SUPPORTED
    corrected_volatile: Count | Missing = NOT_SUPPORTED
    uncorrected_volatile: Count | Missing = NOT_SUPPORTED
    corrected_aggregate: Count | Missing = NOT_SUPPORTED
    uncorrected_aggregate: Count | Missing = NOT_SUPPORTED


class RemappedRows(Facts, frozen=True):
    """Rows of a GPU's memory that spare ones stand in for (Ampere and later)."""

    corrected: Count
    uncorrected: Count
    pending: bool
    """A row waits for the GPU's next reset."""
    failure: bool
    """No spare row was left."""


class GpuClocks(Facts, frozen=True, omit_defaults=True):
    """A GPU's clocks and what has slowed them; seconds are summed up since the driver was loaded."""

    event_reasons: Bits | Missing = NOT_SUPPORTED
    """NVML's bits: why the clocks are as low as they are at this moment."""
    sm_MHz: Count | Missing = NOT_SUPPORTED  # noqa: N815 the unit's own spelling
    sm_max_MHz: Count | Missing = NOT_SUPPORTED  # noqa: N815
    sm_application_MHz: Count | Missing = NOT_SUPPORTED  # noqa: N815
    sm_application_default_MHz: Count | Missing = NOT_SUPPORTED  # noqa: N815
    software_thermal_seconds: Seconds | Missing = NOT_SUPPORTED
    hardware_thermal_seconds: Seconds | Missing = NOT_SUPPORTED
    power_brake_seconds: Seconds | Missing = NOT_SUPPORTED


class PcieLink(Facts, frozen=True, omit_defaults=True):
    """A GPU's PCIe link; an idle GPU lowers the generation of its own accord, the width it keeps."""

    generation: Count | Missing = NOT_SUPPORTED
    width: Count | Missing = NOT_SUPPORTED
    max_generation: Count | Missing = NOT_SUPPORTED
    """Of this GPU in this system."""
    max_width: Count | Missing = NOT_SUPPORTED
    gpu_max_generation: Count | Missing = NOT_SUPPORTED
    """Of the GPU, whatever it is plugged into."""
    replays: Count | Missing = NOT_SUPPORTED
    """Packets that were sent again since the driver was loaded."""


Remote = Literal["switch", "gpu", "cpu", "unknown"]


class LinkErrors(Facts, frozen=True):
    """One of NVML's counters of what went wrong on a GPU's NVLinks, since the driver was loaded."""

    counter: str
    """replay, recovery, crc, receive, integrity, failed recovery, ..."""
    by_link: tuple[Count, ...]


class NvLinks(Facts, frozen=True, omit_defaults=True):
    """A GPU's NVLinks; every tuple has an item for each link, in NVML's order."""

    active: tuple[bool, ...]
    remote: tuple[Remote, ...] = ()
    """What is at the other end."""
    version: Whole | Missing = NOT_SUPPORTED
    speed_MBps: Count | Missing = NOT_SUPPORTED  # noqa: N815 the unit's own spelling
    """Of one active link in one direction."""
    errors: tuple[LinkErrors, ...] | Missing = ()
    """Counters that are 0 on every link are left out."""


class Fabric(Facts, frozen=True):
    """How a GPU stands in the fabric of its NVSwitches, in NVML's numbers."""

    state: Whole
    """0 no fabric, 1 not started, 2 in progress, 3 completed."""
    status: Whole
    """An NVML error; it counts when the state is 3."""
    cluster: str
    """UUID of the domain over several nodes, hexadecimal; empty where there is none."""
    clique: Whole
    health_mask: Bits | Missing
    health_summary: Whole | Missing
    """0 not told, 1 healthy, 2 unhealthy, 3 limited capacity."""


class GpuProcess(Facts, frozen=True):
    """A process that computes on a GPU; its number is the host's, which in a container may be another's."""

    pid: Count
    memory_bytes: Count | None
    """None where NVML does not tell."""


class GpuHealth(Facts, frozen=True, omit_defaults=True):
    """What NVML says of a GPU's condition to a process without special rights."""

    recovery_action: Whole | Missing = NOT_SUPPORTED
    """What the driver wants done: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, ..."""
    ecc: Ecc = Ecc()
    remapped_rows: RemappedRows | Missing = NOT_SUPPORTED
    retired_pages_pending: bool | Missing = NOT_SUPPORTED
    clocks: GpuClocks = GpuClocks()
    pcie: PcieLink = PcieLink()
    nvlinks: NvLinks | Missing = NOT_SUPPORTED
    fabric: Fabric | Missing = NOT_SUPPORTED
    power_limit_watts: Amount | Missing = NOT_SUPPORTED
    """The limit in force."""
    power_limit_default_watts: Amount | Missing = NOT_SUPPORTED
    temperature_celsius: Whole | Missing = NOT_SUPPORTED
    slowdown_celsius: Whole | Missing = NOT_SUPPORTED
    compute_mode: Whole | Missing = NOT_SUPPORTED
    """0 default, 1 and 3 exclusive, 2 prohibited."""
    persistence: bool | Missing = NOT_SUPPORTED
    processes: tuple[GpuProcess, ...] | Missing = NOT_SUPPORTED
    mps_processes: tuple[GpuProcess, ...] | Missing = NOT_SUPPORTED
    """Those that compute through the MPS server."""
    utilisation_percent: Count | Missing = NOT_SUPPORTED
    display: bool | Missing = NOT_SUPPORTED
    """Whether a display is driven by it; graphics need memory too."""
    module: Whole | Missing = NOT_SUPPORTED
    """Its place on the baseboard."""
    minor: Whole | Missing = NOT_SUPPORTED
    """N of /dev/nvidiaN."""
    vbios: str | Missing = NOT_SUPPORTED
    cpus: str | Missing = NOT_SUPPORTED
    """The CPUs next to it, folded: 0-55,112-167."""
    numa_node: Whole | Missing = NOT_SUPPORTED
    """The NUMA node next to it."""
    own_numa_node: Whole | Missing = NOT_SUPPORTED
    """The NUMA node that its memory is (Grace); the kernel keeps files there too."""


class PeerAccess(Facts, frozen=True):
    """Whether two GPUs of a node reach each other's memory: NVML's P2P status, 0 is yes."""

    gpus: tuple[Count, Count]
    read: Whole | Missing
    write: Whole | Missing
    nvlink: Whole | Missing


class PciPlace(Facts, frozen=True, omit_defaults=True):
    """Where a device hangs in the node's PCI tree, as sysfs shows it."""

    path: tuple[str, ...]
    """From the root complex down: pci0000:15, 0000:15:01.0, …, 0000:1b:00.0. Empty where sysfs does not show it."""
    numa_node: Whole | None
    """None where the kernel does not know it (-1)."""
    cpus: str = ""
    """The CPUs next to it, folded (0-15,32-47), of a GPU; empty where the kernel does not know them."""


class Nic(Facts, frozen=True, omit_defaults=True):
    """A network adapter that NCCL may use: an InfiniBand or RoCE device, or an Ethernet card."""

    name: str
    """mlx5_0, eth0."""
    place: PciPlace
    kind: Literal["ib", "ethernet"]
    """ib: it is in /sys/class/infiniband, over whatever link."""
    link_layer: str = ""
    """InfiniBand or Ethernet; of an InfiniBand or RoCE device."""
    active: bool = True
    """Whether a port is up."""
    ports: tuple[Count, ...] = ()
    """Those that are up, of an InfiniBand or RoCE device."""
    usable: bool = True
    """Whether the process that looked may open its device file; a container may be given some of them only."""
    rate_Gbps: Amount | None = None  # noqa: N815 the unit's own spelling
    """Of the fastest active port; None where it is not told."""


class Pci(Facts, frozen=True, omit_defaults=True):
    """A node's GPUs and network adapters on the PCI bus."""

    gpus: dict[str, PciPlace]
    """NVIDIA's GPUs by their address (0000:1b:00.0), whether or not NVML counts them."""
    nics: tuple[Nic, ...]
    virtual: bool = False
    """Whether a hypervisor stands between: what it does not pass on, it makes up."""


class CudaDevice(Facts, frozen=True, omit_defaults=True):
    """A GPU as CUDA gives it to a process; its place in the list is the number in ``cuda:N``."""

    uuid: str
    """As NVML writes it: GPU-…, or MIG-… of a MIG device."""
    pci: str = ""
    """0000:1b:00.0; empty where CUDA does not tell, and of a rank's facts where it is what NVML says of this UUID."""
    name: str = ""
    """Empty as `pci` is."""
    capability: tuple[Count, Count] = (0, 0)
    """Compute capability; (0, 0) where CUDA does not tell."""


class CudaView(Facts, frozen=True, omit_defaults=True):
    """What CUDA itself showed to a process with a rank's variables."""

    devices: tuple[CudaDevice, ...]
    error: Whole = 0
    """What cuInit or the first call after it returned (CUresult); 0 is success."""
    words: str = ""
    """That error in CUDA's words."""
    version: Whole = 0
    """Of CUDA that the driver supports: 12040 is 12.4."""
    library: str = ""
    """The libcuda.so.1 that was loaded, where links lead."""


class Xid(Facts, frozen=True):
    """An error that the driver has reported in the kernel's log."""

    number: Count
    pci: str
    seconds_ago: Offset | None
    text: str


class GpuLoad(Facts, frozen=True, omit_defaults=True):
    """What a GPU showed while the collectives ran: by how much its counters grew, and the highest of what was seen."""

    seconds: Seconds
    """Between the first and the last look."""
    busy: Count = 0
    """Looks, four a second, at which its clocks were not down for want of work."""
    event_reasons: dict[Bits, Count] = {}
    """NVML's bits of reasons for the present clocks, and at how many of the busy looks each was set."""
    software_thermal_seconds: Seconds | Missing = NOT_SUPPORTED
    hardware_thermal_seconds: Seconds | Missing = NOT_SUPPORTED
    power_brake_seconds: Seconds | Missing = NOT_SUPPORTED
    sm_MHz: Count | Missing = NOT_SUPPORTED  # noqa: N815 the unit's own spelling
    """The highest at a busy look, as the two below."""
    pcie_generation: Count | Missing = NOT_SUPPORTED
    temperature_celsius: Whole | Missing = NOT_SUPPORTED
    replays: Count | Missing = NOT_SUPPORTED
    uncorrected_ecc: Count | Missing = NOT_SUPPORTED
    nvlink_errors: tuple[LinkErrors, ...] = ()
    """Counters that did not grow on any link are left out."""


class GpuLoads(Facts, frozen=True, omit_defaults=True):
    """What a node's GPUs showed while the collectives ran, by UUID."""

    gpus: dict[str, GpuLoad] = {}
    lost: dict[str, str] = {}
    """GPUs that were lost meanwhile, and NVML's words."""
    xids: tuple[Xid, ...] | Missing | None = None
    """The node's, read once more after the collectives."""


class Gpu(Facts, frozen=True):
    """One GPU as NVML sees it."""

    index: Count
    uuid: str | Missing
    pci: str | Missing
    """Lower case, four-digit domain: 0000:9b:00.0."""
    name: str | Missing
    memory_bytes: Count | Missing
    memory_used_bytes: Count | Missing
    mig: bool | Missing = Missing(reason="not read")
    """True when MIG is enabled; its instances are in `mig_uuids`."""
    mig_uuids: tuple[str, ...] = ()
    lost: str = ""
    """NVML's words when the device is there but gives no handle or is lost."""
    health: GpuHealth | None = None
    """None: not looked at."""
    load: GpuLoad | None = None
    """None: no collectives ran, or it was not watched meanwhile."""


def usable_name(gpu: Gpu) -> str:
    """Return a GPU's UUID, else ``PCI-`` and its address; empty for a GPU that CUDA cannot open either."""
    if gpu.lost:
        return ""
    if isinstance(gpu.uuid, str):
        return gpu.uuid
    return f"PCI-{gpu.pci}" if isinstance(gpu.pci, str) else ""


class Gpus(Facts, frozen=True):
    """What NVML says of a node."""

    driver: str | Missing
    cuda_driver: str | Missing
    devices: tuple[Gpu, ...]
    unread: str = ""
    """Why the condition of the GPUs could not be read, where NVML did not come to an end with it."""
    unwatched: str = ""
    """Why the GPUs could not be watched while the collectives ran."""
    peer_access: tuple[PeerAccess, ...] = ()
    """Of every two GPUs, each pair once; empty where it was not looked at."""
    confidential_compute: bool | Missing = NOT_SUPPORTED
    mps_daemon: bool = False
    """Whether nvidia-cuda-mps-control runs in sight of the process that looked."""
    imex_channel: Literal["usable", "denied", "absent"] | None = None
    """Of the device through which nodes of one NVLink domain share memory; None: not looked at, as without one."""
