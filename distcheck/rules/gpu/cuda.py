"""Rules about CUDA itself: whether it starts for each rank, and with which library."""

from __future__ import annotations

import re
from shlex import quote

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaView
from distcheck.facts.job import Job
from distcheck.facts.node import TorchBuild
from distcheck.facts.quantities import count
from distcheck.rules import Answer, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.cuda_view import (
    FABRIC_NOT_READY,
    LIBRARY,
    NO_DEVICE,
    WRONG_LIBRARY,
    Equipped,
    each_equipped,
    remedy,
)
from distcheck.rules.gpu.nvml_errors import WITH_LIBRARIES, without_folder
from distcheck.rules.wording import brief
from distcheck.selection.visible_devices import visible

_BORROWED = re.compile(r"/[^/]*(compat|stubs)[^/]*/")
"""Folders whose libcuda is not the driver's own: forward compatibility packages and link-time stubs."""


@rule("gpu", "nccl-uvm-missing", scope=("rank", "node"), of=each_equipped)
def gpu_cuda_init_failed(job: Job, equipped: Equipped) -> Answer:
    """CUDA does not start for a rank although NVML counts GPUs on its node.

    nvidia-smi shows the GPUs, but no job can use them. You would see ``CUDA unknown error`` (999), ``no
    CUDA-capable device is detected`` (100), ``CUDA-capable device(s) is/are busy or unavailable`` (46), ``Found no
    NVIDIA driver on your system`` where libcuda.so.1 is missing, or no message at all where CUDA hangs.

    Found by starting CUDA with the rank's own variables, in a child process with a deadline. Errors 802, 803, 804 and
    34 have their own rules. The rule is silent about a library that cannot be loaded if torch has no CUDA support
    either.

    Fix: the finding names the fix for the error: ``sudo modprobe nvidia-uvm``, a container with the ``compute``
    capability (``-e NVIDIA_DRIVER_CAPABILITIES=compute,utility``), the MPS daemon, a reboot after an Xid.

    See: https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html
    """
    rank, cuda = equipped.rank, equipped.rank.cuda
    if isinstance(cuda, CudaView):
        if cuda.error in {0, FABRIC_NOT_READY, *WRONG_LIBRARY}:
            return None
        value = rank.environment.get("CUDA_VISIBLE_DEVICES")
        if cuda.error == NO_DEVICE and not visible(value, equipped.gpus.devices).uuids:
            return None  # the variable hides every GPU; other rules report it
        return _failed(equipped, f"error {cuda.error} ({cuda.words})", cuda.error)
    if not isinstance(cuda, Missing) or not cuda.reason.startswith((LIBRARY, "CUDA")):
        return cuda
    if cuda.reason.startswith("CUDA"):
        return _failed(equipped, cuda.reason)
    torch = equipped.node.torch
    if job.asked.backend == "auto" and isinstance(torch, TorchBuild) and torch.cuda is None:
        return None
    return Fault(
        f"NVML counts {count(len(equipped.gpus.devices), 'GPU')}, but {brief(cuda.reason, 150)}",
        Fix(
            "Start the container with the `compute` capability; outside containers install the driver's CUDA library.",
            (
                WITH_LIBRARIES,
                "export NVIDIA_DRIVER_CAPABILITIES=compute,utility  # enroot, before the container starts",
                "ldconfig -p | grep libcuda.so.1",
            ),
        ),
        {"cuda": cuda.reason},
    )


def _failed(equipped: Equipped, words: str, error: int = 0) -> Fault:
    advice, cuda = remedy(error), equipped.rank.cuda
    what = f"CUDA does not start: {words}" if error else words
    library = {"library": cuda.library} if isinstance(cuda, CudaView) and cuda.library else {}
    return Fault(
        f"{brief(what, 150)}; NVML works and counts {count(len(equipped.gpus.devices), 'GPU')}",
        advice.fix,
        {"cuda": words} | library,
        scope="node",
        owner=advice.owner,
        confirmed=False,
    )


@rule("gpu", scope=("rank", "node"), of=each_equipped)
def sw_compat_libcuda(_: Job, equipped: Equipped) -> Answer:
    """A rank loads a libcuda.so.1 that does not match the driver of its node.

    You would see ``Error 803: system has unsupported display driver / cuda driver combination``, ``Error
    804: forward compatibility was attempted on non supported HW`` or ``CUDA driver is a stub library`` (34). Either the
    library comes from a ``compat`` or ``stubs`` folder in LD_LIBRARY_PATH or in the image, or the driver was upgraded
    while its old kernel module stayed loaded.

    Found by starting CUDA with the rank's own variables; the finding shows which file was loaded. A compat library that
    works is not reported.

    Fix: remove the folder from LD_LIBRARY_PATH; use an image whose CUDA the driver supports; after a driver upgrade
    restart the container or reboot the node.

    See: https://docs.nvidia.com/deploy/cuda-compatibility/
    """
    cuda = equipped.rank.cuda
    if not isinstance(cuda, CudaView) or cuda.error not in WRONG_LIBRARY:
        return None
    folder = _BORROWED.search(cuda.library)
    if own := folder is None and cuda.error == 803:
        fix = Fix(
            "The driver was upgraded while its old kernel module stayed loaded, or the container brings its own"
            " driver library: reboot the node or restart the container.",
            (
                "cat /proc/driver/nvidia/version",
                f"ls -l {quote(cuda.library) if cuda.library else '/usr/lib/*/libcuda.so*'}",
                "sudo reboot",
            ),
        )
    else:
        word = folder[1] if folder else "stubs" if cuda.error == 34 else "compat"
        fix = Fix(
            f"Remove the {word} folder from LD_LIBRARY_PATH so that the driver's own library is loaded, or use an"
            " image whose CUDA this driver supports.",
            (without_folder(word), "ldconfig -p | grep libcuda.so.1"),
        )
    driver = equipped.gpus.driver if isinstance(equipped.gpus.driver, str) else "unknown"
    return Fault(
        f"CUDA does not start: error {cuda.error} ({cuda.words});"
        f" {brief(cuda.library or LIBRARY, 100)} does not match driver {driver}",
        fix,
        {"cuda": f"error {cuda.error} ({cuda.words})", "library": cuda.library, "driver": driver},
        scope="node" if own else "rank",
        owner="admin" if own else "user",
    )
