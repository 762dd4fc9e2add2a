"""Rules about the NCCL library that torch loads on each rank: its file and its version."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.libraries import Libraries
from distcheck.facts.rank import RankFacts
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix, NotChecked
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.job.versions import nccl_of, version_of
from distcheck.rules.wording import brief, found, listed, named, once, unread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.rules.finding import Fault, Severity


class Loaded(msgspec.Struct, frozen=True, gc=False):
    """What the torch of a rank would load."""

    rank: RankFacts
    libraries: Libraries


@once
def loaded(job: Job) -> list[Loaded]:
    """Return the ranks whose libraries are known, if the job uses NCCL."""
    if job.backend != "nccl":
        return []
    return [Loaded(rank, its.libraries) for rank, its, _ in job.placed if isinstance(its.libraries, Libraries)]


def unseen(job: Job) -> Iterator[NotChecked]:
    """Yield the ranks whose libraries could not be read; this never fails a run."""
    silent = {p.uid: p.libraries.reason for p in job.processes if isinstance(p.libraries, Missing)}
    if job.backend == "nccl":
        yield from unread(job, ((rank, silent[rank.process]) for rank in job.ranks if rank.process in silent))


@rule("gpu", scope="rank", unless=("sw-nccl-version-differs",))
def sw_nccl_shadowed(job: Job) -> Iterator[Outcome]:
    """Another NCCL takes the place of the one that torch was built with.

    ``import torch`` fails if the other one is older and lacks a function that torch calls: ``ImportError:
    libtorch_cuda.so: undefined symbol: ncclCommWindowRegister`` (or ncclCommRegister, ncclMemAlloc, ncclAlltoAll). If
    all functions exist, the job runs with an NCCL that this torch was not tested with. The usual causes are LD_PRELOAD,
    a system libnccl.so.2 whose folder is in LD_LIBRARY_PATH, and two distributions such as nvidia-nccl-cu12 and
    nvidia-nccl-cu13, which unpack to the same file.

    Found without importing torch: in a child process with the rank's variables, distcheck follows the dynamic linker's
    search for the libnccl.so.2 of libtorch_cuda.so, loads that file, calls ncclGetVersion, and looks up each function
    that libtorch_cuda.so calls. A missing function, or no NCCL at all, is an error; an older version than torch's own
    is a warning. An equal or newer one, as clouds provide it with their plugins, is an info finding. Silent where torch
    has no NCCL of its own, as in NVIDIA's containers, and where NCCL is linked into torch.

    Fix: ``unset LD_PRELOAD LD_LIBRARY_PATH``, or remove the folder of the other NCCL from it; uninstall the other
    distribution.
    See: https://github.com/pytorch/pytorch/issues/119072
    See: https://github.com/pytorch/pytorch/issues/186591
    """
    yield from unseen(job)
    for known, ranks in ranks_by(job, partial(_libraries, job)).items() if job.backend == "nccl" else ():
        if known.error and not known.nccl:
            yield _shadow(job, ranks, known, f"torch cannot load NCCL: {brief(known.error, 150)}", "error")
        elif known.error:
            yield _shadow(job, ranks, known, f"NCCL cannot be loaded: {brief(known.error, 150)}", "error")
        elif known.lacks:
            what = f"torch calls {listed(known.lacks, most=2)}, which {_file(known)} lacks; import torch fails"
            yield _shadow(job, ranks, known, what, "error")
        elif known.own_version and known.nccl != known.own:
            older = version_of(known.version) < version_of(known.own_version)
            what = f"{_file(known)} is loaded in place of torch's own NCCL {known.own_version}"
            yield _shadow(job, ranks, known, what, "warning" if older else "info")
        elif wheel := _overwritten(known):
            what = f"{listed(known.wheels)} are both installed; the file they share is NCCL {known.version}"
            yield _shadow(job, ranks, known, f"{what}, older than {wheel}", "warning")


def _libraries(job: Job, rank: RankFacts) -> Libraries | None:
    known = job.process_of(rank).libraries
    return known if isinstance(known, Libraries) else None


def _file(known: Libraries) -> str:
    via = f" from {known.found_by}" if known.found_by in {"LD_PRELOAD", "LD_LIBRARY_PATH"} else ""
    return f"{brief(known.nccl, 100)}{via} (NCCL {known.version or 'of unknown version'})"


def _overwritten(known: Libraries) -> str:
    """Return the newest NCCL distribution if another one replaced its file with an older version, '' if not."""
    versions = {version_of(wheel.rpartition(" ")[2]): wheel for wheel in known.wheels}
    newest = max(versions, default=())
    beside = "/site-packages/nvidia/" in known.nccl or "/nvidia/nccl/" in known.nccl
    return versions[newest] if len(known.wheels) > 1 and beside and version_of(known.version) < newest else ""


def _shadow(job: Job, ranks: list[RankFacts], known: Libraries, what: str, severity: Severity) -> Fault:
    if len(known.wheels) > 1 and known.found_by == "torch":
        newest = max(known.wheels, key=lambda wheel: version_of(wheel.rpartition(" ")[2]))
        others = [wheel.split()[0] for wheel in known.wheels if wheel != newest]
        name, _, version = newest.partition(" ")
        text = f"Uninstall {listed(others)} and install {name} again: both write the same file."
        commands: tuple[str, ...] = (
            f"pip uninstall -y {' '.join(others)}",
            f"pip install --force-reinstall --no-deps {name}=={version}",
        )
    elif known.found_by in {"LD_PRELOAD", "LD_LIBRARY_PATH"}:
        text = f"Remove the other NCCL from {known.found_by}, or install a torch that was built for it."
        commands = (f"unset {known.found_by}", "python3 -c 'import torch; print(torch.cuda.nccl.version())'")
    elif severity == "error":
        text = "Install the NCCL that this torch was built with."
        commands = ("pip install --force-reinstall torch", "pip check")
    else:
        text = "No action if intended; otherwise remove the other NCCL."
        commands = ("pip list | grep -i nccl", "ldconfig -p | grep libnccl")
    return found(
        job,
        ranks,
        f"{named(job, ranks)}: {what}",
        Fix(text, commands),
        severity=severity,
        evidence={
            "loaded": f"{known.nccl} (NCCL {known.version or 'unknown'})" if known.nccl else "nothing",
            "torch's own": f"{known.own} {known.own_version}".strip() or "none",
            "distributions": list(known.wheels),
            **({"functions missing": list(known.lacks)} if known.lacks else {}),
        },
    )


@rule("gpu", severity="info", scope="rank")
def sw_nccl_env_version_misleading(job: Job) -> Iterator[Outcome]:
    """NCCL_VERSION names another version than the NCCL that torch loads.

    Images set NCCL_VERSION to the NCCL package that they contain. NCCL does not read it, and torch's wheels bring
    their own NCCL: a bug report that quotes NCCL_VERSION names the wrong release. Harmless otherwise.

    Found by comparing the variable with what ncclGetVersion of the loaded library returns.

    Fix: no action. ``python3 -c 'import torch; print(torch.cuda.nccl.version())'`` shows the version in use.
    See: https://github.com/pytorch/pytorch/issues/122571
    """

    def versions(rank: RankFacts) -> tuple[str, str] | None:
        value, version = rank.environment.get("NCCL_VERSION", ""), nccl_of(job, rank)
        odd = value and version and value.partition("-")[0] != version and _libraries(job, rank)
        return (value, version) if odd else None

    for (value, version), ranks in ranks_by(job, versions).items() if job.backend == "nccl" else ():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: NCCL_VERSION is {brief(value, 40)}; torch loads NCCL {version}",
            Fix(
                "No action: NCCL does not read the variable. Quote the version that torch loads.",
                ("python3 -c 'import torch; print(torch.cuda.nccl.version())'",),
            ),
            evidence={"NCCL_VERSION": value, "loaded": version},
        )
