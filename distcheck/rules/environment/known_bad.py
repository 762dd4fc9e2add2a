"""Rules about releases of NCCL and torch with known faults that this job meets; each row names its source."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.cuda import CudaView
from distcheck.facts.job import Job
from distcheck.facts.libraries import Libraries
from distcheck.facts.rank import RankFacts
from distcheck.rules import rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.kinds import each_rank
from distcheck.rules.job.versions import installed_of, nccl_of, torch_of, version_of
from distcheck.rules.wording import once

if TYPE_CHECKING:
    from collections.abc import Callable

    from distcheck.rules.finding import Severity

Version = tuple[int, ...]


class Known(NamedTuple):
    """A fault of some releases."""

    first: Version
    """The first release that is known to have it."""
    fixed: Version
    """The first release without it."""
    happens: str
    meets: Callable[[Job, RankFacts], bool]
    """Whether a rank with such a release meets the fault's conditions."""
    workaround: tuple[str, ...]
    source: str
    severity: Severity = "warning"


def _launch_blocking(_: Job, rank: RankFacts) -> bool:
    return rank.environment.get("CUDA_LAUNCH_BLOCKING", "0") not in {"", "0"}


def _several_nodes(job: Job, _: RankFacts) -> bool:
    return len(job.nodes) > 1


@once
def _capabilities(job: Job) -> set[tuple[int, int]]:
    views = [rank.cuda for rank in job.ranks if isinstance(rank.cuda, CudaView)]
    return {device.capability for view in views for device in view.devices} - {(0, 0)}


def _mixed_capabilities(job: Job, _: RankFacts) -> bool:
    return len(_capabilities(job)) > 1


def _arm(job: Job, rank: RankFacts) -> bool:
    libraries = job.process_of(rank).libraries
    return isinstance(libraries, Libraries) and libraries.machine == "aarch64"


def _nonblocking(job: Job, rank: RankFacts) -> bool:
    return job.backend == "nccl" and rank.environment.get("TORCH_NCCL_USE_COMM_NONBLOCKING") != "0"


def _c10d(job: Job, rank: RankFacts) -> bool:
    """Whether torchrun's c10d rendezvous starts the rank on Python 3.12 or later, or will start it."""
    modern = version_of(installed_of(job, rank).python)[:2] >= (3, 12)
    if not modern or job.asked.program == "torchrun":
        return modern
    from distcheck.rules.job.agents import ElasticAgent  # only torchrun's jobs need it

    return ElasticAgent(job, rank).rendezvous == "c10d"


NCCL: tuple[Known, ...] = (
    Known(
        (2, 14), (2, 17, 1), "it hangs with CUDA_LAUNCH_BLOCKING=1", _launch_blocking,
        ("unset CUDA_LAUNCH_BLOCKING",), "https://github.com/NVIDIA/nccl/issues/750",
    ),
    Known(
        (2, 18, 1), (2, 18, 3), "it can corrupt data in the Tree algorithm where each GPU has its own adapter",
        _several_nodes, ("export NCCL_PROTO=^LL128",),
        "https://github.com/NVIDIA/nccl/commit/ea38312273e5b9a19a224c9ff4c10b7fcf441eaf",
    ),
    Known(
        (2, 18, 3), (2, 21, 5), "it hangs or returns wrong sums between GPUs of different compute capability",
        _mixed_capabilities, (), "https://github.com/NVIDIA/nccl/issues/1184",
    ),
    Known(
        (2, 28, 3), (2, 28, 9), "it can hang at large scale", _several_nodes, (),
        "https://github.com/NVIDIA/nccl/commit/dbc86fd06e8b0c4517b95d8958a09ccacf9520c9", "info",
    ),
    Known(
        (2, 29, 2), (2, 29, 3), "it can hang on Arm CPUs", _arm, (),
        "https://github.com/NVIDIA/nccl/commit/25368a7f78bae866f29e46938af94fa586c84484",
    ),
)  # fmt: skip
TORCH: tuple[Known, ...] = (
    Known(
        (2, 2), (2, 4), "torchrun's c10d rendezvous crashes with SIGSEGV on Python 3.12", _c10d,
        (), "https://github.com/pytorch/pytorch/issues/125990",
    ),
    Known(
        (2, 7), (2, 7, 1), "with NCCL it hangs at random if init_process_group is given a device_id", _nonblocking,
        ("export TORCH_NCCL_USE_COMM_NONBLOCKING=0",), "https://github.com/pytorch/pytorch/issues/153960", "info",
    ),
)  # fmt: skip


@rule("gpu", severity="warning", scope="rank", of=each_rank)
def sw_nccl_known_bad(job: Job, rank: RankFacts) -> Fault | None:
    """This release of NCCL has a known fault, and the job meets its conditions.

    You would see a hang without a message, or wrong results. The releases, each with the change or issue
    that describes it: 2.14 to 2.16 hang with CUDA_LAUNCH_BLOCKING=1; 2.18.1 can corrupt data in Tree with LL128 between
    nodes; 2.18.3 to 2.20 hang or compute wrong sums between GPUs of different compute capability; 2.28.3 and 2.28.7 can
    hang at large scale (info); 2.29.2 can hang on Arm CPUs.

    Found by the version of NCCL: the one that ran, else the one that torch loads, else the one installed beside torch.
    Silent with Gloo, and for ranks that do not meet the conditions.

    Fix: install the release with the fix, or a torch that brings it; the finding has a workaround if there is one.
    See: https://github.com/NVIDIA/nccl/issues/750
    See: https://github.com/NVIDIA/nccl/issues/1184
    """
    install = "pip install --upgrade torch"
    return _known(job, rank, "NCCL", nccl_of(job, rank), NCCL, install) if job.backend == "nccl" else None


@rule("peers", severity="warning", scope="rank", of=each_rank)
def sw_torch_known_bad(job: Job, rank: RankFacts) -> Fault | None:
    """This release of torch has a known fault, and the job meets its conditions.

    torchrun of torch 2.2 and 2.3 on Python 3.12 crashes in the c10d rendezvous (``Signal 11 (SIGSEGV)``), because it
    allocates Python objects without the interpreter's lock; 2.4 has the fix. torch 2.7.0 hangs at random with NCCL if
    ``init_process_group`` is given a ``device_id``; 2.7.1 has the fix. Because distcheck does not see that argument,
    the second one is an info finding.

    Found by the installed version of torch, the Python version, torchrun's options and the variables.

    Fix: install the release with the fix, or use the workaround in the finding.
    See: https://github.com/pytorch/pytorch/issues/125990
    See: https://github.com/pytorch/pytorch/issues/153960
    """
    return _known(job, rank, "torch", torch_of(job, rank), TORCH, "pip install 'torch>={}'")


def _known(job: Job, rank: RankFacts, what: str, text: str, table: tuple[Known, ...], install: str) -> Fault | None:
    for known in table:
        if known.first <= version_of(text) < known.fixed and known.meets(job, rank):
            fixed = ".".join(map(str, known.fixed))
            instead = ", or use the workaround" if known.workaround else ""
            return Fault(
                f"{what} {text} has a known fault: {known.happens}; fixed in {fixed}",
                Fix(f"Install {what} {fixed} or later{instead}.", (install.format(fixed), *known.workaround)),
                {"source": known.source},
                known.severity,
            )
    return None
