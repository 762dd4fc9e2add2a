"""Rules about torch's build and the node it runs on: CUDA version, driver and GPU architectures."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.job import Job
from distcheck.facts.libraries import Libraries
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import RankFacts
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.gpu.cuda_view import WRONG_LIBRARY, Equipped, each_equipped, error_of, should_start
from distcheck.rules.job.versions import build_of
from distcheck.rules.wording import found, grouped, named, once

if TYPE_CHECKING:
    from collections.abc import Iterator

_DRIVERS = {11: "450.80", 12: "525", 13: "580"}
"""The first driver for each major CUDA version (Linux): docs.nvidia.com/deploy/cuda-compatibility."""
_INDEXES = {11: "cu118", 12: "cu126"}
"""PyTorch's package index for the last CUDA version that a driver of that major version runs."""
_ROCM_INDEX = ("rocm6.4",)
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")


@rule("gpu", scope=("job", "node"), of=each_equipped)
def sw_driver_too_old(job: Job, equipped: Equipped) -> Answer:
    """NVIDIA's driver is too old for the CUDA version that torch was built with.

    ``torch.cuda.is_available()`` is False, and the first use of a GPU fails: ``The NVIDIA driver on your system is too
    old (found version 11040)``, ``CUDA driver version is insufficient for CUDA runtime version``.

    Within one major version of CUDA every driver of that version works (minor version compatibility): CUDA 11 needs
    driver 450.80, CUDA 12 needs 525, CUDA 13 needs 580. A forward compatibility package (cuda-compat) that CUDA loads
    counts as the newer version. Found by cuDriverGetVersion with the rank's own variables, otherwise by NVML, and the
    CUDA version in torch's version.py.

    Fix: install a newer driver, or a torch that was built for the driver's CUDA version.
    See: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    """
    if (old := _too_old(job, equipped)) is None:
        return None
    torch, cuda, supported = old
    needs, has = _major(cuda), _major(supported)
    driver = equipped.gpus.driver if isinstance(equipped.gpus.driver, str) else "of unknown version"
    newer = f"driver {_DRIVERS[needs]} or later" if needs in _DRIVERS else f"a driver for CUDA {needs}"
    index = f"pip install torch --index-url https://download.pytorch.org/whl/{_INDEXES.get(has)}"
    everywhere = len(_old_drivers(job)) == len(job.nodes)
    return Fault(
        f"torch {torch} needs CUDA {needs}; driver {driver} supports {supported}",
        Fix(
            f"Install {newer}, or a torch for CUDA {has}.",
            ("nvidia-smi --query-gpu=driver_version --format=csv,noheader", *[index] * (has in _INDEXES)),
        ),
        {"torch": f"{torch} (CUDA {cuda})", "driver": driver, "CUDA of the driver": supported},
        scope="job" if everywhere else "node",
        owner="unknown" if everywhere else "admin",
    )


@once
def _old_drivers(job: Job) -> set[str]:
    """Return the keys of the nodes on which a rank's torch needs another major version of CUDA than the driver has."""
    return {each.node.key for each in should_start(job) if _too_old(job, each) is not None}


def _too_old(job: Job, equipped: Equipped) -> tuple[str, str, str] | None:
    """Return torch's version, the CUDA that it needs and that of the driver, if these are of other major versions."""
    build, supported = build_of(job, equipped.rank), _supported(equipped)
    if not isinstance(build, TorchBuild) or not build.cuda or not supported or error_of(equipped.rank) in WRONG_LIBRARY:
        return None
    return (build.version, build.cuda, supported) if _major(supported) < _major(build.cuda) else None


def _supported(equipped: Equipped) -> str:
    """Return the CUDA version of the libcuda that the rank loads, which may be a forward compatibility package."""
    view, gpus = equipped.rank.cuda, equipped.gpus
    if isinstance(view, CudaView) and view.version:
        return f"{view.version // 1000}.{view.version % 1000 // 10}"
    return gpus.cuda_driver if isinstance(gpus.cuda_driver, str) else ""


@lru_cache(64)
def _major(version: str) -> int:
    text = version.partition(".")[0]
    return int(text) if text.isdecimal() else 0


@rule("gpu", scope="rank", of=each_equipped)
def sw_arch_unsupported(job: Job, equipped: Equipped) -> Answer:
    """The installed torch has no code for the architecture of a GPU.

    The first kernel fails: ``CUDA error: no kernel image is available for execution on the device``, after the warning
    ``NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation``. The
    GPU is newer than torch, or older than the oldest one that the build supports.

    A GPU of capability 8.9 runs code for sm_89 or a lower minor version of sm_8x, and compiles code for compute_89 or
    lower. Code for an architecture with a letter (sm_90a) runs only there. Found by the capability that CUDA reports
    for the rank's GPU, and by the list in torch's libtorch_python.so, which torch.cuda.get_arch_list() returns.

    Fix: Install a torch whose build supports this GPU.

        python3 -c 'import torch; print(torch.cuda.get_arch_list())'
        pip install --upgrade torch

    See: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    libraries, device = job.process_of(equipped.rank).libraries, _device(equipped.rank)
    built = libraries.architectures if isinstance(libraries, Libraries) else ()
    if device is None or not built or device.capability == (0, 0) or _has_code(device.capability, built):
        return None
    build, name = build_of(job, equipped.rank), "sm_{}{}".format(*device.capability)
    torch = f"torch {build.version}" if isinstance(build, TorchBuild) else "this torch"
    words = f"the GPU is {name}; {torch} was built for {built[0]} to {built[-1]}"
    return Fault(words, evidence={"GPU": name, "torch's build": " ".join(built)})


def _device(rank: RankFacts) -> CudaDevice | None:
    """Return the device that a rank takes, the first visible one if that is not known."""
    devices = rank.cuda.devices if isinstance(rank.cuda, CudaView) and not rank.cuda.error else ()
    return next((device for device in devices if device.uuid == rank.gpu), devices[0] if devices else None)


@lru_cache(64)
def _has_code(capability: tuple[int, int], built: tuple[str, ...]) -> bool:
    return any(runs(capability, architecture) for architecture in built)


def runs(capability: tuple[int, int], architecture: str) -> bool:
    """Return whether a GPU of this compute capability runs code for an architecture: sm_90, compute_80, sm_90a."""
    match = _ARCHITECTURE.fullmatch(architecture)
    if match is None:
        return False
    built = int(match[2]), int(match[3])
    if match[4] == "a":
        return built == capability
    return built <= capability if match[1] == "compute" else built[0] == capability[0] and built <= capability


@rule("gpu", scope="rank")
def sw_torch_cpu_build(job: Job) -> Iterator[Outcome]:
    """The job is to use NCCL or RCCL on GPUs, and the installed torch is a build without support for them.

    ``init_process_group("nccl")`` fails with ``Distributed package doesn't have NCCL built in``, and ``.cuda()`` with
    ``Torch not compiled with CUDA enabled``. Often another package's dependency replaced the CUDA build.

    Found with ``--backend nccl`` where GPUs are listed and torch's version.py does not name CUDA, or ROCm for those of
    AMD. Where only some of the ranks have such a build, sw-torch-version-differs reports it.

    Fix: Install torch's build for the GPUs in the job's environment.

        python3 -c 'import torch; print(torch.__version__, torch.version.cuda, torch.version.hip)'
        pip install --force-reinstall torch=={version} --index-url https://download.pytorch.org/whl/{index|cu126}

    See: https://pytorch.org/get-started/locally/
    """
    if job.asked.backend != "nccl":
        return
    builds = [(build_of(job, each.rank), each) for each in should_start(job)]
    lacking = [(b.version, _platform(e), e.rank) for b, e in builds if isinstance(b, TorchBuild) and not _runs(b, e)]
    kinds = grouped(lacking, lambda item: item[:2]) if len(lacking) == len(builds) else {}
    for (version, platform), items in kinds.items():
        ranks = [rank for *_, rank in items]
        needs = f"--backend nccl needs a build with {platform}"
        words = f"{named(job, ranks)}: torch {version} is built without {platform}; {needs}"
        values = {"version": (version.partition("+")[0],), "index": _ROCM_INDEX * (platform == "ROCm")}
        yield found(job, ranks, words, evidence={"torch": version}, values=values)


def _platform(equipped: Equipped) -> str:
    return "ROCm" if equipped.node.accelerator == "amd" else "CUDA"


def _runs(build: TorchBuild, equipped: Equipped) -> bool:
    return (build.hip if _platform(equipped) == "ROCm" else build.cuda) is not None
