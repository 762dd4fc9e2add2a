"""Jobs whose nodes have the RDMA adapters of made-up trees of /sys, read by the real collector."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from made import hcas
from made.nvml_jobs import told as told_of

from distcheck.facts.infiniband import Infiniband
from distcheck.probe import infiniband

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distcheck.facts.job import Job
    from distcheck.rules.finding import Finding

FAMILIES = ("fabric.ports", "fabric.hcas", "fabric.addresses", "fabric.access", "fabric.gdr", "fabric.counters")


@pytest.fixture(scope="session")
def collected() -> Callable[[Sequence[hcas.Adapter]], Infiniband]:
    """Collect adapters once in a session, in memory: each has forty files, which take a disk 20 ms."""
    known: dict[str, Infiniband] = {}

    def collected(adapters: Sequence[hcas.Adapter]) -> Infiniband:
        if (key := repr(adapters)) not in known:
            with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="distcheck-test-") as root:
                known[key] = infiniband.collect(hcas.write(Path(root), adapters), {})
        return known[key]

    return collected


@pytest.fixture
def read(collected) -> Callable[..., Infiniband]:
    """Return a node's adapters; libibverbs and GPUDirect RDMA are there unless a field says otherwise."""

    def read(adapters: Sequence[hcas.Adapter], **fields: Any) -> Infiniband:
        found = collected(adapters)
        well = {"libibverbs": "", "peer_memory": ("nvidia_peermem",), "virtual": False}
        return msgspec.structs.replace(found, **{**well, **fields})

    return read


@pytest.fixture
def fabric(job_of, change, read) -> Callable[..., Job]:
    """Build a job of two ranks per node; each argument is a node's adapters, its facts, or a function of `read`."""

    def fabric(*nodes: Any, looks: Sequence[str] = ("environment", "meeting", "peers"), **variables: str) -> Job:
        job = job_of(len(nodes), 2, looks=(*looks,), gpus=2, command="net")
        for number, node in enumerate(nodes):
            facts = node if isinstance(node, Infiniband) else node(read) if callable(node) else read(node)
            job = change.node(job, number, infiniband=facts)
        return change.environment(job, None, **variables) if variables else job

    return fabric


@pytest.fixture
def told(judge) -> Callable[[Job], list[tuple[Any, ...]]]:
    """Return what the rules of the fabric find: rule, severity, ranks, nodes."""
    return told_of(judge, *FAMILIES)


@pytest.fixture
def finding(judge) -> Callable[[Job], Finding]:
    """Return the one finding."""

    def finding(job: Job) -> Finding:
        (found,) = judge(job, *FAMILIES).findings
        return found

    return finding


@pytest.fixture
def message(finding) -> Callable[[Job], str]:
    """Return the message of the one finding."""
    return lambda job: finding(job).message
