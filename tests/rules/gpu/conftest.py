"""Jobs on machines as NVML describes them, and what is found there."""

from __future__ import annotations

import pytest
from made import amd_jobs
from made.nvml_jobs import machines, replace, told


@pytest.fixture
def on(fake_nvml, job_of, change):
    """Build a job whose nodes the texts describe: see `machines`."""
    return machines(fake_nvml, job_of, change)


@pytest.fixture
def says(judge, ours):
    """Return what the families of a module find, as rule, severity, ranks, nodes; nothing remains unchecked."""
    return told(judge, *ours)


@pytest.fixture
def gpus(change):
    """Change what NVML says of a node's GPUs, of all nodes if none is given; `each` returns the fields of one GPU."""

    def gpus(job, where=None, each=lambda _: {}, **fields):
        for n in range(len(job.nodes)) if where is None else [where]:
            own = job.nodes[n].gpus
            devices = tuple(replace(gpu, **each(gpu)) for gpu in own.devices)
            job = change.node(job, n, gpus=replace(own, devices=devices, **fields))
        return job

    return gpus


@pytest.fixture
def rocm(tmp_path_factory, job_of, change):
    """Build a job on machines with AMD GPUs: see `made.amd_jobs.jobs`."""
    return amd_jobs.jobs(lambda: tmp_path_factory.mktemp("amd"), job_of, change)
