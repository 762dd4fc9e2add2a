"""GPUs and their health, as NVML or AMD's kernel driver reports them."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Amount, Bits, Count, Facts, Missing, Offset, Seconds, Whole

NOT_SUPPORTED = Missing(reason="NVML error 3: Not Supported")
"""NVML's answer for what a card or a virtual machine does not have; as the default it is not serialized."""
HARDWARE_SLOWDOWN, SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
"""NVML's bits of why clocks are low; amdgpu's counters of PROCHOT and of heat are told in the same."""


class Ecc(Facts, frozen=True, omit_defaults=True):
    """A GPU's ECC errors."""

    enabled: bool | Missing = NOT_SUPPORTED
    enabled_after_reset: bool | Missing = NOT_SUPPORTED
    uncorrected_volatile: Count | Missing = NOT_SUPPORTED
    """Since its last reset."""


class RemappedRows(Facts, frozen=True):
    """Rows of a GPU's memory that are remapped to spare rows (Ampere and later)."""

    corrected: Count
    uncorrected: Count
    pending: bool
    """A remapping takes effect at the GPU's next reset."""
    failure: bool
    """No spare row was left."""


class GpuClocks(Facts, frozen=True, omit_defaults=True):
    """A GPU's clocks and what slowed them; seconds count from the load of the driver."""

    event_reasons: Bits | Missing = NOT_SUPPORTED
    """NVML's bits: why the clocks are below their maximum now; of an AMD GPU those of heat alone."""
    sm_application_MHz: Count | Missing = NOT_SUPPORTED  # noqa: N815 the unit's own spelling
    sm_application_default_MHz: Count | Missing = NOT_SUPPORTED  # noqa: N815
    software_thermal_seconds: Seconds | Missing = NOT_SUPPORTED
    hardware_thermal_seconds: Seconds | Missing = NOT_SUPPORTED
    power_brake_seconds: Seconds | Missing = NOT_SUPPORTED


class PcieLink(Facts, frozen=True, omit_defaults=True):
    """A GPU's PCIe link; an idle GPU does not lower the width."""

    width: Count | Missing = NOT_SUPPORTED
    max_generation: Count | Missing = NOT_SUPPORTED
    """The most for this GPU in this system."""
    max_width: Count | Missing = NOT_SUPPORTED
    replays: Count | Missing = NOT_SUPPORTED
    """Packets retransmitted since the driver was loaded."""


Remote = Literal["switch", "gpu", "cpu", "unknown"]


class LinkErrors(Facts, frozen=True):
    """One of NVML's NVLink error counters of a GPU, since the driver was loaded."""

    counter: str
    """replay, recovery, crc, receive, integrity, failed recovery, ..."""
    by_link: tuple[Count, ...]


class NvLinks(Facts, frozen=True, omit_defaults=True):
    """A GPU's NVLinks; every tuple has one item per link, in NVML's order."""

    active: tuple[bool, ...]
    remote: tuple[Remote, ...] = ()
    """The device at the other end."""
    version: Whole | Missing = NOT_SUPPORTED
    speed_MBps: Count | Missing = NOT_SUPPORTED  # noqa: N815 the unit's own spelling
    """Of one active link in one direction."""
    errors: tuple[LinkErrors, ...] | Missing = ()
    """Counters that are 0 on every link are left out."""


class Fabric(Facts, frozen=True):
    """A GPU's state in its NVSwitch fabric, in NVML's numbers."""

    state: Whole
    """0 no fabric, 1 not started, 2 in progress, 3 completed."""
    status: Whole
    """An NVML error; valid when the state is 3."""
    cluster: str
    """UUID of the multi-node domain, hexadecimal; empty without one."""
    clique: Whole
    health_mask: Bits | Missing
    health_summary: Whole | Missing
    """0 not reported, 1 healthy, 2 unhealthy, 3 limited capacity."""


class GpuProcess(Facts, frozen=True):
    """A process that computes on a GPU; its pid is the host's, not the container's."""

    pid: Count
    memory_bytes: Count | None
    """None if NVML does not report it."""


class XgmiPeer(Facts, frozen=True):
    """How an AMD GPU reaches another one of its hive, as KFD's topology says."""

    pci: str
    """The other one's address."""
    hops: Count
    """1 over a link of its own; more through others."""
    MBps: Count
    """Of all direct links together, in one direction; 0 without one."""


class Amd(Facts, frozen=True, omit_defaults=True):
    """What only AMD's driver shows of a GPU."""

    compute_partition: str = ""
    """SPX, DPX, TPX, QPX or CPX; empty for a GPU that cannot be partitioned."""
    memory_partition: str = ""
    """NPS1, NPS2, NPS4."""
    xgmi: tuple[XgmiPeer, ...] = ()
    uncorrected: dict[str, Count] = {}
    """Uncorrectable errors since the driver was loaded, of blocks that had some: umc, gfx, xgmi_wafl."""
    failed_pages: Count = 0
    """Bad pages of memory that could not be reserved, so that they may be used."""
    iommu: str = ""
    """The type of its IOMMU group: identity with iommu=pt; DMA, DMA-FQ; empty without an IOMMU."""
    firmware: dict[str, str] = {}
    """Versions by the driver's names: vbios, smc, mec; without what the card does not have."""
    performance_level: str = ""
    """power_dpm_force_performance_level: auto, low, manual."""


class GpuHealth(Facts, frozen=True, omit_defaults=True):
    """A GPU's health as NVML or amdgpu reports it to an unprivileged process."""

    recovery_action: Whole | Missing = NOT_SUPPORTED
    """The driver's request: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, ..."""
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
    processes: tuple[GpuProcess, ...] | Missing = NOT_SUPPORTED
    mps_processes: tuple[GpuProcess, ...] | Missing = NOT_SUPPORTED
    """Processes that compute through the MPS server."""
    display: bool | Missing = NOT_SUPPORTED
    """Whether it drives a display; graphics need memory too."""
    vbios: str | Missing = NOT_SUPPORTED
    cpus: str | Missing = NOT_SUPPORTED
    """The CPUs next to it, folded: 0-55,112-167."""
    numa_node: Whole | Missing = NOT_SUPPORTED
    """The NUMA node next to it."""
    own_numa_node: Whole | Missing = NOT_SUPPORTED
    """The NUMA node of its own memory (Grace); the kernel caches files there too."""
    amd: Amd | None = None
    """None for GPUs of NVIDIA."""


class PeerAccess(Facts, frozen=True):
    """Whether two GPUs of a node access each other's memory: NVML's P2P status, 0 is yes."""

    gpus: tuple[Count, Count]
    read: Whole | Missing
    write: Whole | Missing
    nvlink: Whole | Missing


class Xid(Facts, frozen=True):
    """An error that the driver reported in the kernel log."""

    number: Count
    pci: str
    seconds_ago: Offset | None
    text: str


class DriverError(Facts, frozen=True):
    """An error that amdgpu reported in the kernel log."""

    kind: Literal["hang", "reset", "reset failed", "uncorrectable", "xgmi", "start"]
    pci: str
    """Empty if the line does not name the GPU."""
    seconds_ago: Offset | None
    text: str


class GpuLoad(Facts, frozen=True, omit_defaults=True):
    """A GPU during the collectives: the growth of its counters, and the highest readings."""

    seconds: Seconds
    """Between the first and the last reading."""
    busy: Count = 0
    """Readings, four per second, at which its clocks were not lowered because it was idle."""
    event_reasons: dict[Bits, Count] = {}
    """NVML's bits of clock event reasons, with the number of busy readings at which each was set."""
    software_thermal_seconds: Seconds | Missing = NOT_SUPPORTED
    hardware_thermal_seconds: Seconds | Missing = NOT_SUPPORTED
    power_brake_seconds: Seconds | Missing = NOT_SUPPORTED
    sm_MHz: Count | Missing = NOT_SUPPORTED  # noqa: N815 the unit's own spelling
    """The highest at a busy reading, as the two fields below."""
    pcie_generation: Count | Missing = NOT_SUPPORTED
    temperature_celsius: Whole | Missing = NOT_SUPPORTED
    replays: Count | Missing = NOT_SUPPORTED
    uncorrected_ecc: Count | Missing = NOT_SUPPORTED
    nvlink_errors: tuple[LinkErrors, ...] = ()
    """Without counters that did not grow on any link."""


class GpuLoads(Facts, frozen=True, omit_defaults=True):
    """A node's GPUs during the collectives, by UUID."""

    gpus: dict[str, GpuLoad] = {}
    lost: dict[str, str] = {}
    """GPUs that were lost meanwhile, with NVML's text."""
    xids: tuple[Xid, ...] | Missing | None = None
    """The node's Xids, read again after the collectives."""
    driver_errors: tuple[DriverError, ...] | Missing | None = None
    """amdgpu's errors, read again after the collectives."""


class Gpu(Facts, frozen=True):
    """One GPU as NVML or amdgpu shows it; a partition of an AMD GPU counts as one, as for HIP."""

    index: Count
    """NVML's; of an AMD GPU its place in KFD's list, by which HIP numbers."""
    uuid: str | Missing
    """NVML's; of an AMD GPU ``GPU-`` and its unique id, followed by ``/1`` for a partition."""
    pci: str | Missing
    """Lower case, four-digit domain: 0000:9b:00.0."""
    name: str | Missing
    memory_bytes: Count | Missing
    memory_used_bytes: Count | Missing
    mig: bool | Missing = Missing(reason="not read")
    """True when MIG is enabled; its instances are in `mig_uuids`."""
    mig_uuids: tuple[str, ...] = ()
    lost: str = ""
    """The driver's text if the device exists but gives no handle, or is lost."""
    health: GpuHealth | None = None
    """None: not checked."""
    load: GpuLoad | None = None
    """None: no collectives ran, or it was not watched."""


def is_instinct(gpu: Gpu) -> bool:
    """Return whether a GPU is one of AMD's for compute; others are in desktops, or part of a CPU."""
    return isinstance(gpu.name, str) and gpu.name.startswith("AMD Instinct")


def usable_name(gpu: Gpu) -> str:
    """Return a GPU's UUID, else ``PCI-`` and its address; empty for a lost GPU."""
    if gpu.lost:
        return ""
    if isinstance(gpu.uuid, str):
        return gpu.uuid
    return f"PCI-{gpu.pci}" if isinstance(gpu.pci, str) else ""


class Gpus(Facts, frozen=True):
    """A node's GPUs as NVML or amdgpu reports them."""

    driver: str | Missing
    """Its version; of an amdgpu that comes with the kernel, the kernel's."""
    cuda_driver: str | Missing
    devices: tuple[Gpu, ...]
    denied: tuple[str, ...] = ()
    """Device files whose permissions keep this user from their GPU, which NVML then does not count: /dev/nvidia0."""
    unopened: dict[str, str] = {}
    """Device files of AMD GPUs that could not be opened, /dev/kfd and /dev/dri/renderD128, and why not."""
    unread: str = ""
    """Why the GPUs' health could not be read, if NVML did not finish."""
    unwatched: str = ""
    """Why the GPUs could not be watched while the collectives ran."""
    peer_access: tuple[PeerAccess, ...] = ()
    """Each pair of GPUs once; empty if not checked."""
    confidential_compute: bool | Missing = NOT_SUPPORTED
    mps_daemon: bool = False
    """Whether the probing process sees nvidia-cuda-mps-control running."""
    imex_channel: Literal["usable", "denied", "absent"] | None = None
    """The device through which nodes of one NVLink domain share memory; None: not checked, or no such domain."""
