"""Rules about software versions: the same torch, NCCL and Python on all ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.libraries import Libraries
from distcheck.facts.node import NO_TORCH, TorchBuild
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.kinds import each_rank, ranks_by
from distcheck.rules.job.versions import build_of, implementation_of, installed_of, nccl_of, torch_of
from distcheck.rules.wording import found, grouped, listed, majority, named, nodes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts
    from distcheck.rules.finding import Severity

_LOOK = "python3 -c 'import sys, torch; print(sys.prefix, torch.__version__, torch.version.cuda)'"


def _release(version: str) -> str:
    """Return major and minor number: 2.13 of 2.13.0+cu130."""
    return ".".join(version.split(".")[:2])


def _apart(groups: Mapping[str, list[RankFacts]]) -> dict[str, list[RankFacts]]:
    """Return the ranks by version, the most common first; empty if all known ones are equal."""
    known = {version: ranks for version, ranks in groups.items() if version}
    return dict(sorted(known.items(), key=lambda item: -len(item[1]))) if len(known) > 1 else {}


def _differs(
    job: Job, what: str, groups: Mapping[str, list[RankFacts]], fix: Fix | None = None, severity: Severity | None = None
) -> Fault:
    usual = majority(groups)
    odd = [r for version, ranks in groups.items() if version != usual for r in ranks]
    few = [version for version in groups if version != usual][:3]
    words = "; ".join(f"{named(job, groups[v])} {'has' if len(groups[v]) == 1 else 'have'} {what} {v}" for v in few)
    rest = f"; the other {len(groups[usual])} have {usual}" if usual is not None else ""
    where = {f"{what} {v}": f"{named(job, ranks)}, {_where(job, ranks, what)}" for v, ranks in groups.items()}
    return found(job, odd, f"{words}{rest}", fix, severity=severity, evidence=where)


def _within_a_torch(job: Job, what: str, of: Callable[[Job, RankFacts], str]) -> Iterator[Fault]:
    """Yield what differs among ranks with the same version of torch."""
    both = ranks_by(job, lambda r: (torch_of(job, r), of(job, r)))
    for same_torch in grouped(both.items(), lambda item: item[0][0]).values():
        if groups := _apart({version: ranks for (_, version), ranks in same_torch}):
            yield _differs(job, what, groups)


def _where(job: Job, ranks: list[RankFacts], what: str) -> str:
    """Return the Python environments of ranks; of NCCL the files that they load, if known."""
    if what == "NCCL":
        loads = [known for r in ranks if isinstance(known := job.process_of(r).libraries, Libraries) and known.nccl]
        if files := sorted({f"{known.nccl} (found by {known.found_by})" for known in loads}):
            return listed(files, most=2)
    return listed(sorted({installed_of(job, rank).prefix for rank in ranks}), most=2)


def _torch_severity(job: Job, groups: Mapping[str, list[RankFacts]]) -> Severity:
    builds = [build for ranks in groups.values() if isinstance(build := build_of(job, ranks[0]), TorchBuild)]
    lacks = {build.cuda is None and build.hip is None for build in builds}
    releases = {_release(version) for version in groups}
    return "error" if len(releases) > 1 or (len(lacks) > 1 and job.backend == "nccl") else "warning"


@rule("environment", scope="rank", of=each_rank)
def sw_torch_missing(job: Job, rank: RankFacts) -> Fault | None:
    """The Python that runs distcheck has no torch, and the command measures with it.

    distcheck does not install torch, so that it never replaces one. ``distcheck env``, ``net``, ``gpu`` and ``node``
    need none; ``bandwidth``, ``isolate`` and ``gate`` do. The job would fail with ``ModuleNotFoundError: No module
    named 'torch'``, unless it uses another Python, in which distcheck then belongs.

    Found by looking for the package, without importing it. Silent where the command does not measure.

    Fix: Run distcheck with the Python of the job, or install torch here.

        {python|python3} -m pip install {torch|torch}

    See: https://pytorch.org/get-started/locally/
    """
    build, python = build_of(job, rank), f"{installed_of(job, rank).prefix}/bin/python"
    if not job.asked.measures or not isinstance(build, Missing) or build.reason != NO_TORCH:
        return None
    others = {version.partition("+")[0] for version in ranks_by(job, partial(torch_of, job)) if version}
    version = f"=={others.pop()}" if len(others) == 1 else ""
    return Fault(
        f"torch is not installed in {python}, and {job.asked.command} needs it",
        evidence={"python": python, "needs no torch": "distcheck env, net, gpu, node"},
        values={"python": (python,), "torch": (f"torch{version}",)},
    )


@rule("environment", scope="rank")
def sw_torch_version_differs(job: Job) -> Iterator[Outcome]:
    """The ranks use different versions of torch.

    torch.distributed expects one version in all processes and does not check it: the store's, Gloo's and NCCL's
    handshakes, what collectives of objects pickle, and when DDP and FSDP synchronise all change between releases.
    Such a job hangs (``wait timeout after 600000ms``), fails later, or works by chance. With NCCL it stops at once if
    the releases contain different NCCL versions. A CPU build among CUDA builds reports ``Distributed package doesn't
    have NCCL built in``.

    Different releases (2.11 and 2.13) are an error, and so are builds with and without GPU support in a GPU job.
    Different patch levels or CUDA versions of one release are a warning. Found in torch's version.py, without
    importing it.

    Fix: install the same version on all nodes, or use one shared environment or image.
    See: https://github.com/pytorch/pytorch/issues/174917
    """
    groups = _apart(ranks_by(job, partial(torch_of, job)))
    if groups:
        usual = majority(groups) or next(iter(groups))
        odd = [r for version, ranks in groups.items() if version != usual for r in ranks]
        text = f"Install torch {usual} on {listed(nodes_of(job, odd))} in the job's environment, or use one image."
        fix = Fix(text, (_LOOK, f"pip install torch=={usual.partition('+')[0]}"))
        yield _differs(job, "torch", groups, fix, _torch_severity(job, groups))


def _importable_nccl(job: Job, rank: RankFacts) -> str:
    """Return a rank's NCCL version, '' if its torch cannot be imported with it: sw-nccl-shadowed reports that."""
    loads = job.process_of(rank).libraries
    return "" if isinstance(loads, Libraries) and (loads.lacks or loads.error) else nccl_of(job, rank)


@rule("environment", scope="rank")
def sw_nccl_version_differs(job: Job) -> Iterator[Outcome]:
    """The ranks use different versions of NCCL.

    NCCL compares the versions when it creates a communicator: ``Mismatched NCCL version detected : rank 1 version 22304
    rank 0 version 22703``, ``ncclInvalidUsage``; older versions hang. The usual causes are two environments, and a
    system libnccl.so.2 that comes first in LD_LIBRARY_PATH on one node. Found in NCCL's own log if NCCL ran, otherwise
    by ncclGetVersion of the file that torch would load (with ``distcheck gpu`` and ``gate``), otherwise by the package
    installed beside torch. Silent with Gloo. Ranks with different versions of torch are not compared:
    sw-torch-version-differs reports them.

    Fix: Use the same NCCL on all nodes.

        python3 -c 'import torch; print(torch.cuda.nccl.version())'
        env | grep -E '^LD_(LIBRARY_PATH|PRELOAD)='

    See: https://github.com/NVIDIA/nccl/issues/354
    """
    if job.backend == "nccl":
        yield from _within_a_torch(job, "NCCL", _importable_nccl)


@rule("environment", scope="rank")
def sw_nccl_backend_differs(job: Job) -> Iterator[Outcome]:
    """The backend is another implementation on some ranks.

    torch 2.15 made ``nccl`` a new implementation, ProcessGroupNCCL2, unless TORCH_DIST_USE_NCCL2 is 0; in 2.14 it is
    the new one only if the variable is 1. The two exchange NCCL's unique id under different keys of the store, so that
    the ranks wait for each other in the first collective or at init_process_group. The usual cause is a launcher that
    forwards the variable to some nodes only. A backend of a plugin can be another class where the plugin is another
    release.

    Found by the class that ran the collectives, else for nccl by the version of torch and the variable on each rank.
    Ranks with different versions of torch are not compared: sw-torch-version-differs reports them.

    Fix: give all ranks the same value, or ask for one implementation: ``init_process_group("nccl-legacy")``.

        unset TORCH_DIST_USE_NCCL2

    See: https://github.com/pytorch/pytorch/pull/192281
    """
    name = "the NCCL backend" if job.backend == "nccl" else f"the backend {job.backend}"
    yield from _within_a_torch(job, name, implementation_of)


@rule("environment", severity="warning", scope="rank")
def sw_python_differs(job: Job) -> Iterator[Outcome]:
    """The ranks use different versions of Python.

    Objects that ranks send to each other are pickled, and code objects and some classes of one minor version cannot be
    read by another. Packages are installed per version: ``ModuleNotFoundError`` on one node. Found by
    comparing the minor versions (3.11, 3.12).

    Fix: Start all ranks with the Python of one environment.

        command -v python3; python3 --version
    """
    if groups := _apart(ranks_by(job, lambda r: _release(installed_of(job, r).python))):
        yield _differs(job, "Python", groups)
