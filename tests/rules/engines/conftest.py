"""Jobs of two nodes in front of an inference engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from distcheck.facts.engine import Engine
from distcheck.facts.launch_command import Stated

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import SimpleNamespace

    from distcheck.facts.job import Job


def engine(name: str = "vLLM", **fields: Any) -> Engine:
    return Engine(name, **fields)  # type: ignore[arg-type]


@pytest.fixture
def in_front(job_of: Callable[..., Job], change: SimpleNamespace) -> Callable[..., Job]:
    """Build a job of two nodes (or one) with two ranks each, whose commands start these engines."""

    def make(*each: Engine, nodes: int = 2, **stated: Any) -> Job:
        job = job_of(nodes, 2, "distcheck", told="placement from vllm's arguments: …")
        for node in range(nodes):
            found = each[node % len(each)]
            rest = {"mesh": "tp=4"} | {k: v[node] if isinstance(v, list) else v for k, v in stated.items()}
            said = Stated(found.name.lower(), "2", nodes, 0, node, "node1", 29500, engine=found, **rest)
            job = change.process(job, 2 * node, launch=said)
        return job

    return make


@pytest.fixture
def on_one_node(in_front: Callable[..., Job]) -> Callable[..., Job]:
    """Build a job of two engines on one node."""

    def make(first: Engine, second: Engine) -> Job:
        job = in_front(first, second)
        second_process = replace(job.processes[1], node=job.nodes[0].key)
        return replace(job, processes=(job.processes[0], second_process), nodes=job.nodes[:1])

    return make
