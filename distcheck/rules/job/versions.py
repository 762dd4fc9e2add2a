"""The versions of the software that the ranks of a job use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.libraries import Libraries
from distcheck.facts.nccl import NcclLog
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import RankFacts

if TYPE_CHECKING:
    from distcheck.facts.base import Missing
    from distcheck.facts.rank import Installed


def installed_of(job: Job, rank: RankFacts) -> Installed:
    """Return the software of the process that reports for a rank."""
    return job.process_of(rank).installed


def build_of(job: Job, rank: RankFacts) -> TorchBuild | Missing:
    """Return the torch that is installed for a rank."""
    return installed_of(job, rank).torch


def torch_of(job: Job, rank: RankFacts) -> str:
    """Return a rank's torch version with its build, such as 2.13.0+cu130; '' if unknown."""
    build = installed_of(job, rank).torch
    return build.version if isinstance(build, TorchBuild) else ""


def nccl_of(job: Job, rank: RankFacts) -> str:
    """Return a rank's NCCL version: the one that ran, else the one that torch loads, else the installed one."""
    ran = rank.run.nccl if rank.run else None
    if isinstance(ran, NcclLog) and ran.version:
        return ran.version.partition("+")[0]
    loads = job.process_of(rank).libraries
    return (loads.version if isinstance(loads, Libraries) else "") or installed_of(job, rank).nccl


def implementation_of(job: Job, rank: RankFacts) -> str:
    """Return the class behind a rank's backend nccl: the one that ran, else what its torch selects; '' if unknown.

    Source: torch/distributed/distributed_c10d.py, _register_builtin_nccl_backend of 2.14.1 and 2.15.0
    """
    if rank.run and rank.run.implementation:
        return rank.run.implementation
    release, wanted = version_of(torch_of(job, rank))[:2], rank.environment.get("TORCH_DIST_USE_NCCL2")
    if job.backend != "nccl" or job.asked.backend_name or not release:
        return ""
    return "ProcessGroupNCCL2" if selects_new(release, wanted) else "ProcessGroupNCCL"


def selects_new(torch: tuple[int, ...], wanted: str | None) -> bool:
    """Return whether a release of torch makes nccl ProcessGroupNCCL2 with this TORCH_DIST_USE_NCCL2."""
    return wanted == "1" if torch[:2] == (2, 14) else torch[:2] > (2, 14) and wanted != "0"


def version_of(text: str) -> tuple[int, ...]:
    """Return a version as numbers: (2, 27, 3) of 2.27.3+cuda12.9; empty for another text."""
    parts = text.partition("+")[0].split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()
