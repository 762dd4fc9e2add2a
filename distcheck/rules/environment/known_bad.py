"""Rules about releases of NCCL and torch with known faults that this job meets; each row names its source."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.cuda import CudaView
from distcheck.facts.job import Job
from distcheck.facts.libraries import Libraries
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.job.versions import installed_of, nccl_of, torch_of, version_of
from distcheck.rules.wording import found, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distcheck.rules.finding import Fault, Severity

Version = tuple[int, ...]
Concerned = list[RankFacts]


class Known(NamedTuple):
    """A fault of some releases."""

    first: Version
    """The first release that is known to have it."""
    fixed: Version
    """The first release without it."""
    happens: str
    meets: Callable[[Job, Concerned], Concerned]
    """Of the ranks with such a release, those that meet the fault's conditions."""
    workaround: tuple[str, ...]
    source: str
    severity: Severity = "warning"


def _launch_blocking(_job: Job, ranks: Concerned) -> Concerned:
    return [rank for rank in ranks if rank.environment.get("CUDA_LAUNCH_BLOCKING", "0") not in {"", "0"}]


def _several_nodes(job: Job, ranks: Concerned) -> Concerned:
    return ranks if len(job.nodes) > 1 else []


def _mixed_capabilities(job: Job, ranks: Concerned) -> Concerned:
    views = [rank.cuda for rank in job.ranks if isinstance(rank.cuda, CudaView)]
    capabilities = {device.capability for view in views for device in view.devices}
    return ranks if len(capabilities - {(0, 0)}) > 1 else []


def _arm(job: Job, ranks: Concerned) -> Concerned:
    machines = ((rank, job.process_of(rank).libraries) for rank in ranks)
    return [rank for rank, found in machines if isinstance(found, Libraries) and found.machine == "aarch64"]


def _nonblocking(_job: Job, ranks: Concerned) -> Concerned:
    return [rank for rank in ranks if rank.environment.get("TORCH_NCCL_USE_COMM_NONBLOCKING") != "0"]


def _c10d(job: Job, ranks: Concerned) -> Concerned:
    """Return the ranks on Python 3.12 or later that torchrun's c10d rendezvous starts, or will start."""
    modern = [rank for rank in ranks if version_of(_python(job, rank))[:2] >= (3, 12)]
    if job.asked.program == "torchrun":
        return modern
    if not modern:
        return []
    from distcheck.rules.job.agents import ElasticAgent  # only torchrun's jobs need it

    return [rank for rank in modern if ElasticAgent(job, rank).rendezvous == "c10d"]


def _python(job: Job, rank: RankFacts) -> str:
    return installed_of(job, rank).python


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


@rule("gpu", severity="warning", scope="rank")
def sw_nccl_known_bad(job: Job) -> Iterator[Outcome]:
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
    if job.backend == "nccl":
        yield from _known(job, "NCCL", NCCL, nccl_of, "pip install --upgrade torch")


@rule("peers", severity="warning", scope="rank")
def sw_torch_known_bad(job: Job) -> Iterator[Outcome]:
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
    table = tuple(known for known in TORCH if known.meets is not _nonblocking or job.backend == "nccl")
    yield from _known(job, "torch", table, torch_of, "pip install 'torch>={}'")


def _known(
    job: Job, what: str, table: tuple[Known, ...], of: Callable[[Job, RankFacts], str], install: str
) -> Iterator[Fault]:
    for text, ranks in ranks_by(job, partial(of, job)).items():
        version = version_of(text)
        for known in table:
            if not known.first <= version < known.fixed or not (concerned := known.meets(job, ranks)):
                continue
            fixed = ".".join(map(str, known.fixed))
            instead = ", or use the workaround" if known.workaround else ""
            yield found(
                job,
                concerned,
                f"{named(job, concerned)}: {what} {text} has a known fault: {known.happens}; fixed in {fixed}",
                Fix(f"Install {what} {fixed} or later{instead}.", (install.format(fixed), *known.workaround)),
                severity=known.severity,
                evidence={"release": f"{what} {text}", "fixed in": fixed, "source": known.source},
            )
