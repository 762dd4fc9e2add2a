"""Rules about torch's build and the node it runs on: CUDA version, driver and GPU architectures."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.libraries import Libraries
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.gpu.cuda_view import WRONG_LIBRARY, error_of, should_start
from distcheck.rules.gpu.nodes import not_seen
from distcheck.rules.job.kinds import kinds
from distcheck.rules.job.versions import build_of
from distcheck.rules.wording import found, grouped, named, once

if TYPE_CHECKING:
    from collections.abc import Iterator

_DRIVERS = {11: "450.80", 12: "525", 13: "580"}
"""The first driver for each major CUDA version (Linux): docs.nvidia.com/deploy/cuda-compatibility."""
_INDEXES = {11: "cu118", 12: "cu126"}
"""PyTorch's package index for the last CUDA version that a driver of that major version runs."""
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")


class TooOld(NamedTuple):
    """A rank whose torch needs a newer CUDA than its driver library supports."""

    rank: RankFacts
    torch: str
    needs: str
    """The CUDA version of torch's build: 13.0."""
    supported: str
    """The highest CUDA version that the loaded driver library supports: 12.2."""
    driver: str


@once
def too_old(job: Job) -> tuple[TooOld, ...]:
    """Return the ranks whose driver cannot run their torch at all: another major version of CUDA."""
    outcome = []
    builds = [build_of(job, kind.first) for kind in kinds(job)]
    newest = max((_major(build.cuda) for build in builds if isinstance(build, TorchBuild) and build.cuda), default=0)
    enough = set[object]()
    for _, gpus, rank in should_start(job):
        view = rank.cuda
        known = (view.version if isinstance(view, CudaView) else None) or gpus.cuda_driver
        if known in enough:
            continue
        supported = _supported(rank, gpus)
        if not supported or _major(supported) >= newest:
            enough.add(known)
            continue
        build = build_of(job, rank)
        if not isinstance(build, TorchBuild) or build.cuda is None or error_of(rank) in WRONG_LIBRARY:
            continue
        if _major(supported) < _major(build.cuda):
            driver = gpus.driver if isinstance(gpus.driver, str) else "of unknown version"
            outcome.append(TooOld(rank, build.version, build.cuda, supported, driver))
    return tuple(outcome)


def _supported(rank: RankFacts, gpus: Gpus) -> str:
    """Return the CUDA version of the libcuda that the rank loads, which may be a forward compatibility package."""
    if isinstance(rank.cuda, CudaView) and rank.cuda.version:
        return _release(rank.cuda.version)
    return gpus.cuda_driver if isinstance(gpus.cuda_driver, str) else ""


@lru_cache(64)
def _release(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


@lru_cache(64)
def _major(version: str) -> int:
    text = version.partition(".")[0]
    return int(text) if text.isdecimal() else 0


@rule("gpu", scope=("job", "node"))
def sw_driver_too_old(job: Job) -> Iterator[Outcome]:
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
    yield from not_seen(job)
    concerned = too_old(job)
    everywhere = {job.node_of(item.rank).key for item in concerned} == {node.key for node in job.nodes}
    for (torch, needs, supported, driver), items in grouped(concerned, lambda item: item[1:]).items():
        ranks = [item.rank for item in items]
        enough = _DRIVERS.get(_major(needs))
        index = _INDEXES.get(_major(supported))
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: torch {torch} needs CUDA {_major(needs)}; driver {driver} supports {supported}",
            Fix(
                f"Install driver {enough} or later, or a torch for CUDA {_major(supported)}."
                if enough
                else f"Install a driver for CUDA {_major(needs)}, or a torch for CUDA {_major(supported)}.",
                (
                    "nvidia-smi --query-gpu=driver_version --format=csv,noheader",
                    *((f"pip install torch --index-url https://download.pytorch.org/whl/{index}",) if index else ()),
                ),
            ),
            scope="job" if everywhere else "node",
            owner="unknown" if everywhere else "admin",
            evidence={"torch": f"{torch} (CUDA {needs})", "driver": driver, "CUDA of the driver": supported},
        )


@rule("gpu", scope="rank")
def sw_arch_unsupported(job: Job) -> Iterator[Outcome]:
    """The installed torch has no code for the architecture of a GPU.

    The first kernel fails: ``CUDA error: no kernel image is available for execution on the device``, after the warning
    ``NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation``. The
    GPU is newer than torch, or older than the oldest one that the build supports.

    A GPU of capability 8.9 runs code for sm_89 or a lower minor version of sm_8x, and compiles code for compute_89 or
    lower. Code for an architecture with a letter (sm_90a) runs only there. Found by the capability that CUDA reports
    for the rank's GPU, and by the list in torch's libtorch_python.so, which torch.cuda.get_arch_list() returns.

    Fix: install a torch whose build supports the GPU.
    See: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#binary-compatibility
    """
    yield from not_seen(job)
    wrong = []
    builds = {_architectures(job, kind.first) for kind in kinds(job)}
    without: dict[tuple[int, int], set[tuple[str, ...]]] = {(0, 0): set()}  # the builds that lack code for a capability
    suits: CudaView | None = None  # most ranks of a node share what they are shown
    for _, _, rank in should_start(job):
        view = rank.cuda
        if view is suits or not isinstance(view, CudaView):
            continue
        capabilities = {device.capability for device in view.devices}
        for has in capabilities.difference(without):
            without[has] = {build for build in builds if build and not any(runs(has, each) for each in build)}
        if not any(without[has] for has in capabilities):
            suits = view
        elif (device := _device(rank)) and (built_for := _architectures(job, rank)) in without[device.capability]:
            wrong.append((device.capability, built_for, rank))
    for (capability, architectures), items in grouped(wrong, lambda item: item[:2]).items():
        ranks = [rank for *_, rank in items]
        build = build_of(job, ranks[0])
        torch = f"torch {build.version}" if isinstance(build, TorchBuild) else "this torch"
        name = f"sm_{capability[0]}{capability[1]}"
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: the GPU is {name}; {torch} was built for {architectures[0]} to {architectures[-1]}",
            Fix(
                "Install a torch whose build supports this GPU.",
                ("python3 -c 'import torch; print(torch.cuda.get_arch_list())'", "pip install --upgrade torch"),
            ),
            evidence={"GPU": name, "torch's build": " ".join(architectures)},
        )


def _architectures(job: Job, rank: RankFacts) -> tuple[str, ...]:
    """Return the architectures that a rank's torch was built for; empty if unknown."""
    libraries = job.process_of(rank).libraries
    return libraries.architectures if isinstance(libraries, Libraries) else ()


def _device(rank: RankFacts) -> CudaDevice | None:
    """Return the device that a rank takes, the first visible one if that is not known."""
    devices = rank.cuda.devices if isinstance(rank.cuda, CudaView) and not rank.cuda.error else ()
    for device in devices:
        if device.uuid == rank.gpu:
            return device
    return devices[0] if devices else None


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
    """The job is to use NCCL on GPUs, and the installed torch is a build without GPU support.

    ``init_process_group("nccl")`` fails with ``Distributed package doesn't have NCCL built in``, and ``.cuda()`` with
    ``Torch not compiled with CUDA enabled``. Often another package's dependency replaced the CUDA build.

    Found with ``--backend nccl`` where NVML lists GPUs and torch's version.py names neither CUDA nor ROCm. Where only
    some of the ranks have such a build, sw-torch-version-differs reports it.

    Fix: install the build for GPUs: ``pip install --force-reinstall torch``, from the index of the driver's CUDA
    version.
    See: https://pytorch.org/get-started/locally/
    """
    if job.asked.backend != "nccl":
        return
    builds = [(build_of(job, rank), rank) for _, _, rank in should_start(job)]
    lacking = [(b.version, r) for b, r in builds if isinstance(b, TorchBuild) and b.cuda is None and b.hip is None]
    if len(lacking) < len(builds):
        return
    for version, items in grouped(lacking, lambda item: item[0]).items():
        ranks = [rank for _, rank in items]
        plain = version.partition("+")[0]
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: torch {version} is built without CUDA; --backend nccl needs a build with CUDA",
            Fix(
                "Install torch's build for CUDA in the job's environment.",
                (
                    "python3 -c 'import torch; print(torch.__version__, torch.version.cuda)'",
                    f"pip install --force-reinstall torch=={plain} --index-url https://download.pytorch.org/whl/cu126",
                ),
            ),
            evidence={"torch": version},
        )
