"""Judge a healthy job of RANKS ranks and render its report; prints seconds and peak memory as JSON."""

from __future__ import annotations

import importlib.util
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distcheck import report
from distcheck.diagnose import diagnose
from distcheck.facts import (
    Collectives,
    Job,
    Link,
    Measurement,
    NetworkFacts,
    NodeFacts,
    PeerTrial,
    RankRun,
    Resolution,
    Transfer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

PER_NODE = 8
REPEATS = 3


def fixtures() -> ModuleType:
    """Return the module that builds healthy jobs for the tests of the rules."""
    path = Path(__file__).parents[1] / "rules" / "conftest.py"
    spec = importlib.util.spec_from_file_location("rules_conftest", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def healthy_job(ranks: int) -> Job:
    looks = ("environment", "meeting", "peers", "gpu", "collectives")
    job: Job = fixtures().healthy_job(ranks // PER_NODE, PER_NODE, "slurm", looks, gpus=PER_NODE, command="gate")
    checked = {"all_reduce": 262_147, "broadcast": 262_147}
    run = RankRun(pid=4711, step="done", outcome="done", wrong=dict.fromkeys(checked, 0), checked=checked)
    rows = tuple(
        Measurement(op=op, bytes=1 << n, dtype="float32", iterations=20, seconds_by_rank=(1e-3,) * ranks)
        for op in checked
        for n in range(20, 29, 2)
    )
    return msgspec.structs.replace(
        job,
        nodes=tuple(map(with_network, job.nodes)),
        peers=tuple(trials(job)),
        ranks=tuple(msgspec.structs.replace(r, run=run) for r in job.ranks),
        collectives=Collectives(backend="nccl", backend_reason="there are GPUs", measurements=rows),
    )


def with_network(node: NodeFacts) -> NodeFacts:
    address = node.interfaces[0].address
    link = Link(name=node.interfaces[0].name, mac=node.key, kind="physical", running=True, mtu_bytes=1500)
    own = Resolution(name=node.name, addresses=(address,), seconds=0.001)
    return msgspec.structs.replace(node, network=NetworkFacts(links=(link,), own_name=own, own_name_binds=address))


def trials(job: Job) -> Iterator[PeerTrial]:
    """Yield what the nodes' first processes met with at those 1, 2, 4, 8, … nodes further on."""
    first = list({p.node: p for p in reversed(job.processes)}.values())
    addresses = {node.key: node.interfaces[0].address for node in job.nodes}
    sent = Transfer(bytes=1 << 21, seconds=0.001, stalled=False, segments=1500)
    for place, source in enumerate(first):
        for step in (1 << n for n in range(len(first).bit_length()) if 1 << n < len(first)):
            target = first[(place + step) % len(first)]
            yield PeerTrial(
                source.uid, target.uid, addresses[target.node], 40000, "met", 0.001,
                uses=("master", "nccl", "gloo"), transfer=sent, datagrams={256: True, 1500: True},
                round_trip_seconds=1e-4,
            )  # fmt: skip


def main() -> None:
    job = healthy_job(int(sys.argv[1]))
    took = []
    for _ in range(REPEATS):
        fresh = msgspec.structs.replace(job)  # without what the last round cached
        start = time.perf_counter()
        diagnosis = diagnose(fresh)
        text = report.render("text", fresh, diagnosis)
        took.append(time.perf_counter() - start)
        if diagnosis.verdict.exit_code != 0:
            raise SystemExit(f"the job is not healthy: {text}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": statistics.median(took), "GiB": peak / (1 << 20)}))


main()
