"""Rules about CUDA itself: whether it starts for each rank, and with which library."""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaView
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix, NotChecked
from distcheck.rules.gpu.cuda_view import (
    FABRIC_NOT_READY,
    LIBRARY,
    NO_DEVICE,
    WRONG_LIBRARY,
    error_of,
    not_started,
    remedy,
)
from distcheck.rules.gpu.nodes import VARIABLE, not_seen
from distcheck.rules.gpu.nvml_errors import without_folder
from distcheck.rules.wording import brief, found, grouped, named, numbers_of
from distcheck.selection.visible_devices import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BORROWED = re.compile(r"/[^/]*(compat|stubs)[^/]*/")
"""Folders whose libcuda is not the driver's own: forward compatibility packages and link-time stubs."""


@rule("gpu", "nccl-uvm-missing", scope=("rank", "node"))
def gpu_cuda_init_failed(job: Job) -> Iterator[Outcome]:
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
    yield from not_seen(job)
    silent: list[tuple[str, RankFacts]] = []
    failed: list[tuple[int, str, RankFacts]] = []
    for node, gpus, rank in not_started(job):
        if isinstance(rank.cuda, CudaView) and _starts_badly(rank.cuda, rank, gpus):
            failed.append((rank.cuda.error, rank.cuda.words, rank))
        elif isinstance(rank.cuda, Missing) and not (_not_loaded(rank.cuda) and _needs_no_cuda(job, node)):
            silent.append((rank.cuda.reason, rank))
    for (error, words), group in grouped(failed, lambda item: item[:2]).items():
        yield _not_started(job, [rank for *_, rank in group], f"error {error} ({words})", error)
    for reason, members in grouped(silent, lambda item: item[0]).items():
        ranks = [rank for _, rank in members]
        if reason.startswith(LIBRARY):
            yield _no_library(job, ranks, reason)
        elif reason.startswith("CUDA"):
            yield _not_started(job, ranks, reason, 0)
        else:
            nodes = tuple(dict.fromkeys(job.node_of(rank).name for rank in ranks))
            yield NotChecked(reason=reason, nodes=nodes, ranks=numbers_of(ranks), required=False)


def _starts_badly(view: CudaView, rank: RankFacts, gpus: Gpus) -> bool:
    if view.error in {0, FABRIC_NOT_READY, *WRONG_LIBRARY}:
        return False
    # A CUDA_VISIBLE_DEVICES that hides every GPU also gives this error; other rules report it.
    return view.error != NO_DEVICE or bool(visible(rank.environment.get(VARIABLE), gpus.devices).uuids)


def _not_loaded(why: Missing) -> bool:
    return why.reason.startswith(LIBRARY)


def _needs_no_cuda(job: Job, node: NodeFacts) -> bool:
    return job.asked.backend == "auto" and isinstance(node.torch, TorchBuild) and node.torch.cuda is None


def _count(job: Job, ranks: Sequence[RankFacts]) -> str:
    gpus = job.node_of(ranks[0]).gpus
    count = len(gpus.devices) if isinstance(gpus, Gpus) else 0
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _not_started(job: Job, ranks: list[RankFacts], words: str, error: int) -> Outcome:
    advice = remedy(error)
    what = f"CUDA does not start: {words}" if error else words
    return found(
        job,
        ranks,
        f"{named(job, ranks)}: {brief(what, 150)}; NVML works and counts {_count(job, ranks)}",
        advice.fix,
        scope="node",
        owner=advice.owner,
        confirmed=False,
        evidence={"cuda": words, **_library_of(ranks[0])},
    )


def _library_of(rank: RankFacts) -> dict[str, str]:
    return {"library": rank.cuda.library} if isinstance(rank.cuda, CudaView) and rank.cuda.library else {}


def _no_library(job: Job, ranks: list[RankFacts], reason: str) -> Outcome:
    return found(
        job,
        ranks,
        f"{named(job, ranks)}: NVML counts {_count(job, ranks)}, but {brief(reason, 150)}",
        Fix(
            "Start the container with the `compute` capability; outside containers install the driver's CUDA library.",
            (
                "# add to docker run: --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                "export NVIDIA_DRIVER_CAPABILITIES=compute,utility  # enroot, before the container starts",
                "ldconfig -p | grep libcuda.so.1",
            ),
        ),
        evidence={"cuda": reason},
    )


@rule("gpu", scope=("rank", "node"))
def sw_compat_libcuda(job: Job) -> Iterator[Outcome]:
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
    yield from not_seen(job)
    wrong = [(gpus, rank) for _, gpus, rank in not_started(job) if error_of(rank) in WRONG_LIBRARY]
    for (view, _), group in grouped(wrong, lambda item: (item[1].cuda, item[0].driver)).items():
        if isinstance(view, CudaView):
            yield _wrong_library(job, [rank for _, rank in group], view, group[0][0])


def _wrong_library(job: Job, ranks: list[RankFacts], view: CudaView, gpus: Gpus) -> Outcome:
    folder = _BORROWED.search(view.library)
    own = folder is None and view.error == 803
    if own:
        fix = Fix(
            "The driver was upgraded while its old kernel module stayed loaded, or the container brings its own"
            " driver library: reboot the node or restart the container.",
            (
                "cat /proc/driver/nvidia/version",
                f"ls -l {quote(view.library) if view.library else '/usr/lib/*/libcuda.so*'}",
                "sudo reboot",
            ),
        )
    else:
        word = folder[1] if folder else "stubs" if view.error == 34 else "compat"
        fix = Fix(
            f"Remove the {word} folder from LD_LIBRARY_PATH so that the driver's own library is loaded, or use an"
            " image whose CUDA this driver supports.",
            (
                without_folder(word),
                "ldconfig -p | grep libcuda.so.1",
            ),
        )
    driver = gpus.driver if isinstance(gpus.driver, str) else "unknown"
    return found(
        job,
        ranks,
        f"{named(job, ranks)}: CUDA does not start: error {view.error} ({view.words});"
        f" {brief(view.library or LIBRARY, 100)} does not match driver {driver}",
        fix,
        scope="node" if own else "rank",
        owner="admin" if own else "user",
        evidence={"cuda": f"error {view.error} ({view.words})", "library": view.library, "driver": driver},
    )
