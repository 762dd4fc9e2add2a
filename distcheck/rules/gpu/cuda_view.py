"""What CUDA shows of a rank's GPUs, compared with NVML; and what CUDA's errors mean."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaView
from distcheck.facts.gpu import Gpus, usable_name
from distcheck.facts.job import Job
from distcheck.facts.rank import RankFacts
from distcheck.rules.gpu.nodes import all_visible, by_fault, name_of, not_seen, values, without_loss
from distcheck.rules.gpu.nvml_errors import KERNEL_LOG, WITH_LIBRARIES, Remedy, remedied
from distcheck.rules.wording import once
from distcheck.selection.visible_devices import device_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from distcheck.facts.gpu import Gpu
    from distcheck.facts.node import NodeFacts
    from distcheck.rules import Outcome
    from distcheck.rules.finding import Fault

LIBRARY = "libcuda.so.1"
NO_DEVICE, FABRIC_NOT_READY = 100, 802
WRONG_LIBRARY = frozenset({34, 803, 804})
"""A stub library, a library that does not match the kernel module, unsupported forward compatibility."""
_uuid = attrgetter("uuid")


class Shown(NamedTuple):
    """A rank to which CUDA showed other GPUs, or another order, than expected from its variables."""

    node: NodeFacts
    devices: tuple[Gpu, ...]
    rank: RankFacts
    uuids: tuple[str, ...]
    """The GPUs that CUDA shows."""
    expected: tuple[str, ...]
    """The GPUs of NVML's list that CUDA_VISIBLE_DEVICES leaves."""

    @property
    def taken(self) -> str | None:
        """Return the GPU that the rank was expected to take."""
        return device_of(self.rank.placement.local_rank, self.expected)

    @property
    def moved(self) -> bool:
        """Return whether the rank takes another GPU than expected, or none."""
        return self.rank.gpu != self.taken

    @property
    def withheld(self) -> tuple[str, ...]:
        """Return the expected GPUs that CUDA does not show."""
        return tuple(uuid for uuid in self.expected if uuid not in self.uuids)

    def names(self, uuids: Iterable[str]) -> tuple[str, ...]:
        """Name GPUs of the node, equally on nodes that are alike."""
        return tuple(title(uuid, self.devices) for uuid in uuids)

    @property
    def reordered(self) -> bool:
        """Return whether CUDA orders the GPUs differently, or reads a list of indices differently."""
        if set(self.uuids) == set(self.expected):
            return True
        return len(self.uuids) == len(self.expected) and order_matters(self.rank, self.devices)


@once
def shown(job: Job) -> tuple[Shown, ...]:
    """Return the ranks to which CUDA showed other GPUs, or another order, than their variables select.

    Nodes with a lost GPU and ranks with a wrong CUDA_VISIBLE_DEVICES are left to other rules. GPUs that neither a UUID
    nor an address can identify in both lists are not compared.
    """
    found = []
    for node, _ in without_loss(job):
        for ranks, _, _, fault, own, visible in values(job, node):
            expected, by_address = visible.uuids, any(isinstance(gpu.uuid, Missing) for gpu in own)
            usual: CudaView | None = None  # what most ranks are shown, in one object
            for rank in ranks if fault is None and not visible.unknown else ():
                view = rank.cuda
                if view is usual or not isinstance(view, CudaView) or view.error:
                    continue
                uuids = tuple(map(_uuid, view.devices))
                if uuids != expected and all(
                    gpu.uuid and (gpu.uuid in expected or gpu.pci or not by_address) for gpu in view.devices
                ):
                    found.append(Shown(node, own, rank, uuids, expected))
                else:
                    usual = view
    return tuple(found)


@once
def deprived(job: Job) -> set[int]:
    """Return the ids of the ranks that cannot take the expected GPU because CUDA hides some."""
    return {id(s.rank) for s in shown(job) if s.withheld and not s.reordered and s.moved}


class Equipped(NamedTuple):
    """A rank whose node has GPUs that CUDA should be able to use, judging by NVML."""

    node: NodeFacts
    gpus: Gpus
    rank: RankFacts


@once
def should_start(job: Job) -> list[Equipped]:
    """Return the ranks for which CUDA should start."""
    return [
        Equipped(node, gpus, rank)
        for node, _ in without_loss(job)
        if isinstance(gpus := node.gpus, Gpus) and not gpus.unread and all_visible(job, node).uuids
        for rank in job.ranks_on(node)
    ]


def each_equipped(job: Job, judge: Callable[[Equipped], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of `should_start` (``of=each_equipped``), once for all ranks with an equal fault."""
    yield from not_seen(job)
    yield from by_fault(job, ((judge(each), [each.rank]) for each in should_start(job)))


def error_of(rank: RankFacts) -> int:
    """Return CUDA's error code if it did not start, else 0."""
    return rank.cuda.error if isinstance(rank.cuda, CudaView) else 0


def order_matters(rank: RankFacts, devices: tuple[Gpu, ...]) -> bool:
    """Return whether CUDA may number a rank's GPUs in another order than NVML.

    That takes GPUs of different models, selected by index, without CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    by_uuid = rank.environment.get("CUDA_VISIBLE_DEVICES", "").lstrip().startswith(("GPU-", "MIG-"))
    models = {gpu.name for gpu in devices if usable_name(gpu) and isinstance(gpu.name, str)}
    return rank.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and not by_uuid and len(models) > 1


def title(uuid: str | None, devices: tuple[Gpu, ...]) -> str:
    """Name a GPU as nvidia-smi does, GPU 3 (0000:61:00.0); others, and MIG devices, by UUID."""
    match = next((gpu for gpu in devices if uuid and usable_name(gpu) == uuid), None)
    return name_of(match) if match else uuid or "none"


_MPS = remedied(
    "Restart the MPS daemon as the user of the job, or run without it.",
    "echo get_server_list | nvidia-cuda-mps-control",
    "echo quit | nvidia-cuda-mps-control",
    "nvidia-cuda-mps-control -d",
    owner="unknown",
)
_DEVICE_FILES = remedied(
    "Give the job access to /dev/nvidia-uvm and load its kernel module; start containers with GPUs.",
    "ls -l /dev/nvidia-uvm /dev/nvidia[0-9]*",
    "sudo modprobe nvidia-uvm; sudo nvidia-modprobe -u -c=0",
    WITH_LIBRARIES,
)
_BY_CODE = {
    0: remedied(  # no answer
        "Check whether the MPS daemon or the driver hangs; if the driver only starts slowly, keep it loaded.",
        "sudo dmesg | grep -iE 'nvrm|xid|hung' | tail",
        "timeout -s KILL 60 nvidia-smi -q -d COMPUTE; pgrep -a nvidia-cuda-mps",
        "sudo nvidia-smi -pm 1",
    ),
    2: remedied(
        "Free memory on the node and on its GPUs, and remove the processes' memory limits.",
        "free -g; ulimit -v",
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
    ),
    46: remedied(
        "Another process uses the GPU exclusively: end it, or reset the compute mode.",
        "nvidia-smi -q -d COMPUTE,PIDS",
        "sudo nvidia-smi -c 0",
    ),
    **dict.fromkeys((NO_DEVICE, 101, 304), _DEVICE_FILES),
    **dict.fromkeys(range(805, 810), _MPS),
}
_OTHER = remedied(
    "Reload CUDA's kernel module or restart the container; after an Xid reset the GPU or reboot the node.",
    f"{KERNEL_LOG} | tail",
    "sudo rmmod nvidia_uvm; sudo modprobe nvidia-uvm",
    "sudo reboot",
)


def remedy(error: int) -> Remedy:
    """Return the remedy for a CUDA error; for 0, the remedy for a hang."""
    return _BY_CODE.get(error, _OTHER)
