"""Jobs that measure, with the state of their hosts."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.host import HostFacts, Limits

GIB = 1 << 30
LOOKS = ("environment", "meeting", "collectives")
HEALTHY = HostFacts(
    memory_bytes=64 * GIB,
    available_bytes=60 * GIB,
    load=0.5,
    uptime_seconds=1e6,
    tasks=400,
    most_tasks=32768,
    zombies=0,
    oom_kills=3,
    settings={"numa_balancing": "0"},
    throttled_seconds=1.0,
)
NAMESPACES = {"ipc": "ipc:[1]", "pid": "pid:[1]"}


@pytest.fixture
def on_hosts(job_of, change):
    """Build a job of some shape on healthy nodes of 64 CPUs; `states` changes the hosts of some nodes."""

    def built(nodes=3, per_node=4, *, states=(), cpus=64, masks=("0-63",), **options):
        job = job_of(nodes, per_node, looks=LOOKS, **options)
        for n in range(len(job.nodes)):
            fields = dict(states).get(n, {})
            host = msgspec.structs.replace(HEALTHY, **fields) if isinstance(fields, dict) else fields
            job = change.node(job, n, host=host, cpus=cpus)
        job = change.process(job, None, limits=Limits(stack_bytes=8 << 20, namespaces=NAMESPACES))
        for n in range(len(job.ranks)):
            mask = masks[job.ranks[n].placement.local_rank % len(masks)]
            job = change.rank(job, n, cpu_list=mask)
        return job

    return built


@pytest.fixture
def said(judge):
    """Return (rule, severity, ranks, nodes) of every finding of some families."""

    def of(job, *families):
        return [(f.rule, f.severity, f.ranks, f.nodes) for f in judge(job, *families).findings]

    return of
