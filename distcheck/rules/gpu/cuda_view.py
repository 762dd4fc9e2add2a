"""What CUDA told of a rank's GPUs beside what NVML and the rank's variables lead to expect; what its errors mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts import CudaView, Gpus, Job, RankFacts
from distcheck.facts.gpu import usable_name
from distcheck.rules.finding import Fix, Owner
from distcheck.rules.gpu.nodes import VARIABLE, at, seen, values
from distcheck.rules.wording import once
from distcheck.selection.visible_devices import device_of, visible

if TYPE_CHECKING:
    from distcheck.facts import Gpu, NodeFacts

ORDER = "CUDA_DEVICE_ORDER"
LIBRARY = "libcuda.so.1"
NO_DEVICE, FABRIC_NOT_READY = 100, 802
WRONG_LIBRARY = frozenset({34, 803, 804})
"""A stub library, a library that does not fit the kernel module, forward compatibility where there is none."""


class Shown(NamedTuple):
    """A rank to which CUDA has shown GPUs, with what was to be expected of its variables."""

    node: NodeFacts
    devices: tuple[Gpu, ...]
    rank: RankFacts
    uuids: tuple[str, ...]
    """As CUDA shows them."""
    expected: tuple[str, ...]
    """As CUDA_VISIBLE_DEVICES leaves them of NVML's."""

    @property
    def taken(self) -> str | None:
        """The GPU that the rank was expected to take."""
        return device_of(self.rank.placement.local_rank, self.expected)

    @property
    def withheld(self) -> tuple[str, ...]:
        """What CUDA does not show of the expected GPUs."""
        return tuple(uuid for uuid in self.expected if uuid not in self.uuids)

    @property
    def reordered(self) -> bool:
        """Whether CUDA shows the same GPUs in another order, or numbers them so that a list means other ones."""
        if self.uuids == self.expected:
            return False
        if set(self.uuids) == set(self.expected):
            return True
        return len(self.uuids) == len(self.expected) and order_matters(self.rank, self.devices)


@once
def shown(job: Job) -> tuple[Shown, ...]:
    """Return the ranks to which CUDA showed GPUs; lost GPUs and wrong lists are other rules' findings."""
    found = []
    for node, devices in seen(job):
        if any(gpu.lost for gpu in devices):
            continue
        for rank, _, fault, own, expected in values(job, node):
            view = rank.cuda
            if fault is None and isinstance(view, CudaView) and not view.error and all(d.uuid for d in view.devices):
                uuids = tuple(device.uuid for device in view.devices)
                found.append(Shown(node, own, rank, uuids, expected.uuids))
    return tuple(found)


@once
def deprived(job: Job) -> set[int]:
    """Return the ids of the ranks that cannot take the GPU that was to be expected because CUDA hides some."""
    return {id(s.rank) for s in shown(job) if s.withheld and not s.reordered and s.rank.gpu != s.taken}


@once
def should_start(job: Job) -> list[tuple[NodeFacts, Gpus, RankFacts]]:
    """Return the ranks whose node has GPUs that CUDA should be able to use, as far as NVML can say."""
    found = []
    for node, devices in seen(job):
        gpus = node.gpus
        if not isinstance(gpus, Gpus) or gpus.unread or any(gpu.lost for gpu in devices):
            continue
        if visible(None, devices).uuids:
            found += [(node, gpus, rank) for rank in job.ranks_on(node)]
    return found


def error_of(rank: RankFacts) -> int:
    """Return CUDA's error where it did not start, else 0."""
    return rank.cuda.error if isinstance(rank.cuda, CudaView) else 0


def order_matters(rank: RankFacts, devices: tuple[Gpu, ...]) -> bool:
    """Tell whether CUDA may number a rank's GPUs in another order than NVML does: models differ, by index, by speed."""
    by_uuid = rank.environment.get(VARIABLE, "").lstrip().startswith(("GPU-", "MIG-"))
    models = {gpu.name for gpu in devices if usable_name(gpu) and isinstance(gpu.name, str)}
    return rank.environment.get(ORDER) != "PCI_BUS_ID" and not by_uuid and len(models) > 1


def title(uuid: str | None, devices: tuple[Gpu, ...]) -> str:
    """Name a GPU as nvidia-smi numbers it, GPU 3 (0000:61:00.0); MIG devices and what NVML does not list by UUID."""
    match = next((gpu for gpu in devices if uuid and usable_name(gpu) == uuid), None)
    return f"GPU {match.index}{at(match)}" if match else uuid or "none"


class Remedy(NamedTuple):
    """What to make of an error with which CUDA does not start."""

    owner: Owner
    fix: Fix


_MPS = Remedy(
    "unknown",
    Fix(
        "Start the MPS daemon anew as the user of the job, or leave it out.",
        (
            "echo get_server_list | nvidia-cuda-mps-control",
            "echo quit | nvidia-cuda-mps-control",
            "nvidia-cuda-mps-control -d",
        ),
    ),
)
_DEVICE_FILES = Remedy(
    "admin",
    Fix(
        "Let the job open CUDA's device file /dev/nvidia-uvm, and load its kernel module; start containers with GPUs.",
        (
            "ls -l /dev/nvidia-uvm /dev/nvidia[0-9]*",
            "sudo modprobe nvidia-uvm; sudo nvidia-modprobe -u -c=0",
            "# add to docker run: --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
    ),
)
_BY_CODE = {
    2: Remedy(
        "admin",
        Fix(
            "Free memory on the node and on its GPUs, and let processes take as much as they like.",
            ("free -g; ulimit -v", "nvidia-smi --query-compute-apps=pid,used_memory --format=csv"),
        ),
    ),
    46: Remedy(
        "admin",
        Fix(
            "Another process holds the GPU for itself: end it, or set the compute mode back.",
            ("nvidia-smi -q -d COMPUTE,PIDS", "sudo nvidia-smi -c 0"),
        ),
    ),
    NO_DEVICE: _DEVICE_FILES,
    101: _DEVICE_FILES,
    304: _DEVICE_FILES,
    **dict.fromkeys(range(805, 810), _MPS),
    3: Remedy(
        "admin",
        Fix(
            "Load CUDA's kernel module anew, start the container anew; after an Xid reset the GPU or reboot the node.",
            (
                "sudo dmesg | grep -iE 'nvrm|xid' | tail",
                "sudo rmmod nvidia_uvm; sudo modprobe nvidia-uvm",
                "sudo reboot",
            ),
        ),
    ),
}
_HANG = Remedy(
    "admin",
    Fix(
        "See whether the MPS daemon or the driver hangs; keep the driver loaded where starting it takes so long.",
        (
            "sudo dmesg | grep -iE 'nvrm|xid|hung' | tail",
            "timeout -s KILL 60 nvidia-smi -q -d COMPUTE; pgrep -a nvidia-cuda-mps",
            "sudo nvidia-smi -pm 1",
        ),
    ),
)


def remedy(error: int) -> Remedy:
    """Return what to make of an error of CUDA's; 0: of no answer at all."""
    return _BY_CODE.get(error, _BY_CODE[3]) if error else _HANG
