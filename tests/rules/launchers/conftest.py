"""Jobs whose ranks an agent of torchrun, torch.distributed.launch or accelerate started."""

from __future__ import annotations

import pytest

from distcheck.facts.placement import Variables
from distcheck.facts.rank import Agent


def agent(*arguments, program="torchrun", **exported):
    return Agent(program=program, pid=9, arguments=arguments, exported=Variables(exported))


@pytest.fixture
def under(job_of, change):
    """Build a healthy job under torchrun whose agents have these arguments."""

    def make(*arguments, nodes=2, per_node=2, program="torchrun", exported=None, looks=("environment", "meeting"),
             gpus=0, **variables):  # fmt: skip
        job = job_of(nodes, per_node, "torchrun", looks, gpus=gpus)
        job = change.process(job, None, agent=agent(*arguments, program=program, **(exported or {})))
        return change.environment(job, None, **({"TORCHELASTIC_RUN_ID": "7"} | variables))

    return make


@pytest.fixture
def one(judge):
    """Return the only finding of a job."""

    def of(job):
        (found,) = judge(job).findings
        return found

    return of
