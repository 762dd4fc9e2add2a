"""Jobs on nodes with AMD GPUs: what the probes read in trees of /sys, judged by the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from made import amd, nvml_jobs

from distcheck.facts.gpu import Gpus
from distcheck.facts.node import TorchBuild
from distcheck.facts.pci import Pci
from distcheck.facts.rank import Installed
from distcheck.probe import amdgpu, amdgpu_health, pci
from distcheck.probe.own import rank_facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from distcheck.facts.job import Job

ROCM = TorchBuild(version="2.9.0+rocm6.4", cuda=None, hip="6.4.43482")
_read: dict[str, tuple[Gpus, Pci]] = {}


def read(folder: Path, machine: amd.Machine) -> tuple[Gpus, Pci]:
    """Return what the probes read on a machine; each is written and read once."""
    if repr(machine) not in _read:
        root = amd.write(folder.resolve(), machine)
        gpus, tree = amdgpu.collect(root), pci.collect(root)
        assert isinstance(gpus, Gpus), gpus
        assert isinstance(tree, Pci), tree
        gpus = amdgpu_health.examine(gpus, root)
        _read[repr(machine)] = msgspec.json.decode(msgspec.json.encode(gpus), type=Gpus), tree
    return _read[repr(machine)]


def of_node(machine: amd.Machine, number: int) -> amd.Machine:
    """Return the machine with unique ids of its own."""
    gpus = tuple(gpu._replace(unique_id=gpu.unique_id + (number << 24)) for gpu in machine.gpus)
    return machine._replace(gpus=gpus)


def jobs(new_folder: Callable[[], Path], job_of: Callable[..., Job], change: Any) -> Callable[..., Job]:
    """Return what builds a job whose nodes are these machines, with the variables of all ranks or of each."""

    def job(
        *shapes: amd.Machine,
        per_node: int = 8,
        each: Callable[[int], dict[str, str]] = lambda _: {},
        looks: Any = nvml_jobs.LOOKS,
        **variables: str,
    ) -> Job:
        job = job_of(len(shapes), per_node, looks=looks, gpus=8)
        job = change.environment(job, None, **variables)
        for n, machine in enumerate(shapes):
            gpus, tree = read(new_folder(), of_node(machine, n))
            job = change.node(job, n, accelerator="amd", gpus=gpus, pci=tree, torch=ROCM, cpus=224)
        job = change.process(job, None, installed=Installed("3.11.7", "/usr", torch=ROCM))
        for i, rank in enumerate(job.ranks):
            job = change.environment(job, i, **each(rank.placement.local_rank or 0))
            one = job.ranks[i]
            seen = rank_facts(one.process, job.node_of(one), one.placement, dict(one.environment))
            job = change.rank(job, i, visible_gpus=seen.visible_gpus, gpu=seen.gpu, cpu_list="0-223", cpus=224)
        return job

    return job
