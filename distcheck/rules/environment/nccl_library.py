"""Rules about the NCCL library that torch loads on each rank: its file and its version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.libraries import Libraries
from distcheck.facts.rank import RankFacts
from distcheck.rules import Answer, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.kinds import each_rank
from distcheck.rules.job.versions import version_of
from distcheck.rules.wording import brief, listed, once, unread

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


@rule("gpu", scope="rank", unless=("sw-nccl-version-differs",), of=each_rank)
def sw_nccl_shadowed(job: Job, rank: RankFacts) -> Answer:
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
    known = job.process_of(rank).libraries if job.backend == "nccl" else None
    if known is None or isinstance(known, Missing):
        return known
    if known.error:
        what = "NCCL cannot be loaded" if known.nccl else "torch cannot load NCCL"
        return _shadow(known, f"{what}: {brief(known.error, 150)}", "error")
    if known.lacks:
        missing = listed(known.lacks, most=2)
        return _shadow(known, f"torch calls {missing}, which {_file(known)} lacks; import torch fails", "error")
    if known.own_version and known.nccl != known.own:
        older = version_of(known.version) < version_of(known.own_version)
        what = f"{_file(known)} is loaded in place of torch's own NCCL {known.own_version}"
        return _shadow(known, what, "warning" if older else "info")
    if wheel := _overwritten(known):
        what = f"{listed(known.wheels)} are both installed; the file they share is NCCL {known.version}"
        return _shadow(known, f"{what}, older than {wheel}", "warning")
    return None


def _file(known: Libraries) -> str:
    via = f" from {known.found_by}" if known.found_by in {"LD_PRELOAD", "LD_LIBRARY_PATH"} else ""
    return f"{brief(known.nccl, 100)}{via} (NCCL {known.version or 'of unknown version'})"


def _overwritten(known: Libraries) -> str:
    """Return the newest NCCL distribution if another one replaced its file with an older version, '' if not."""
    versions = {version_of(wheel.rpartition(" ")[2]): wheel for wheel in known.wheels}
    newest = max(versions, default=())
    beside = "/site-packages/nvidia/" in known.nccl or "/nvidia/nccl/" in known.nccl
    return versions[newest] if len(known.wheels) > 1 and beside and version_of(known.version) < newest else ""


def _shadow(known: Libraries, what: str, severity: Severity) -> Fault:
    text = "No action if intended; otherwise remove the other NCCL."
    commands: tuple[str, ...] = ("pip list | grep -i nccl", "ldconfig -p | grep libnccl")
    if len(known.wheels) > 1 and known.found_by == "torch":
        newest = max(known.wheels, key=lambda wheel: version_of(wheel.rpartition(" ")[2]))
        others = [wheel.split()[0] for wheel in known.wheels if wheel != newest]
        name, _, version = newest.partition(" ")
        text = f"Uninstall {listed(others)} and install {name} again: both write the same file."
        install = f"pip install --force-reinstall --no-deps {name}=={version}"
        commands = (f"pip uninstall -y {' '.join(others)}", install)
    elif known.found_by in {"LD_PRELOAD", "LD_LIBRARY_PATH"}:
        text = f"Remove the other NCCL from {known.found_by}, or install a torch that was built for it."
        commands = (f"unset {known.found_by}", "python3 -c 'import torch; print(torch.cuda.nccl.version())'")
    elif severity == "error":
        text = "Install the NCCL that this torch was built with."
        commands = ("pip install --force-reinstall torch", "pip check")
    evidence = {
        "loaded": f"{known.nccl} (NCCL {known.version or 'unknown'})" if known.nccl else "nothing",
        "torch's own": f"{known.own} {known.own_version}".strip() or "none",
        "distributions": list(known.wheels),
    }
    lacks = {"functions missing": list(known.lacks)} if known.lacks else {}
    return Fault(what, Fix(text, commands), evidence | lacks, severity)
