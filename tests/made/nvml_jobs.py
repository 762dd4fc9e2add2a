"""Jobs on machines as NVML's library describes them: the real nvidia-ml-py reads what a text says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.selection.visible_devices import device_of, visible

if TYPE_CHECKING:
    from collections.abc import Callable

_NVML = Path(__file__).parents[1] / "nvml"
LOOKS = ("environment", "meeting", "gpu")
_known: dict[str, Gpus] = {}
replace = msgspec.structs.replace


def _lines(name: str) -> dict[str, str]:
    """Return what NVML says on a machine of tests/nvml.

    With a line ``like OTHER without KEY KEY ...`` that is what it says on another one, but for these keys and the rest.
    """
    found: dict[str, str] = {}
    for line in (_NVML / f"{name}.txt").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == "like":
            other, _, without = value.partition(" without ")
            found = {key: value for key, value in _lines(other).items() if key not in without.split()}
        elif key != "#":
            found[key] = value
    return found


PROFILES = {
    path.stem: "".join(f"{key} {value}\n" for key, value in _lines(path.stem).items())
    for path in sorted(_NVML.glob("*.txt"))
}


def machines(fake_nvml: Any, job_of: Callable[..., Job], change: Any) -> Callable[..., Job]:
    """Return what builds a job whose nodes are as texts describe them; each node's GPUs have UUIDs of their own.

    Rank i of a node takes GPU i, unless `values` (one for each rank of a node) are its CUDA_VISIBLE_DEVICES, in which
    {node} stands for the number of the node.
    """

    def read(text: str) -> Gpus:
        if text not in _known:
            _known[text] = fake_nvml.read(text)
        return _known[text]

    def job(
        *texts: str,
        per_node: int | tuple[int, ...] = 8,
        values: tuple[str | None, ...] = (),
        looks: Any = LOOKS,
        **variables: str,
    ) -> Job:
        job = job_of(len(texts), per_node, looks=looks, gpus=8)
        job = change.environment(job, None, **variables)
        for n, text in enumerate(texts):
            found = read(text)
            devices = tuple(
                replace(g, uuid=f"GPU-{n}{g.index}", mig_uuids=tuple(f"MIG-{n}{u[4:]}" for u in g.mig_uuids))
                for g in found.devices
            )
            job = change.node(job, n, gpus=replace(found, devices=devices))
            here = [i for i, rank in enumerate(job.ranks) if job.node_of(rank) is job.nodes[n]]
            for place, i in enumerate(here):
                value = values[place] if values else None
                value = value and value.format(node=n)
                job = change.environment(job, i, CUDA_VISIBLE_DEVICES=value)
                shown = visible(value, devices)
                own = device_of(job.ranks[i].placement.local_rank, shown.uuids)
                job = change.rank(job, i, visible_gpus=shown.uuids, gpu=own)
        return job

    return job


def but_guesses(judge: Callable[..., Any]) -> Callable[..., Any]:
    """Return what judges without the remark about scripts that guess their device, which many shapes of jobs get."""

    def judged(job: Job, *families: str) -> Any:
        said = judge(job, *families)
        return said._replace(findings=tuple(f for f in said.findings if f.rule != "gpu-barrier-guess"))

    return judged


def told(judge: Callable[..., Any], *families: str) -> Callable[[Job], list[tuple[Any, ...]]]:
    """Return what says what the rules of these families find: rule, severity, ranks, nodes."""
    return partial(_told, judge, families)


def _told(judge: Callable[..., Any], families: tuple[str, ...], job: Job) -> list[tuple[Any, ...]]:
    said = judge(job, *families)
    assert not said.not_checked, said.not_checked
    return [(f.rule, f.severity, f.ranks, f.nodes) for f in said.findings]
