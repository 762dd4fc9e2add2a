"""Environments that describe a node or pod of a job, in which torchrun starts the ranks.

| platform | node rank | nodes | ranks per node | meeting place |
|---|---|---|---|---|
| Kubeflow PyTorchJob v1 | PET_NODE_RANK (RANK is the same number) | PET_NNODES | PET_NPROC_PER_NODE | MASTER_ADDR |
| Kubeflow Trainer v2 | PET_NODE_RANK | PET_NNODES | PET_NPROC_PER_NODE | PET_MASTER_ADDR |
| Indexed Job, JobSet | JOB_COMPLETION_INDEX | PET_NNODES, if set | | MASTER_ADDR |
| SageMaker | the place of SM_CURRENT_HOST in SM_HOSTS | SM_HOSTS | SM_NUM_GPUS | the first of SM_HOSTS |

PyTorchJob's WORLD_SIZE counts processes and its RANK counts pods, so the two do not match
(https://github.com/kubeflow/trainer/blob/release-1.9/pkg/controller.v1/pytorch/envvar.go).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from distcheck.facts.placement import Launcher, Placement
from distcheck.selection.placement import as_text, find_table, integer

_TORCHRUN_PORT = 29500
"""What torchrun takes where PET_MASTER_PORT is not set (torch/distributed/run.py)."""
_SAGEMAKER_PORT = 7777
"""Rank 0's port in SageMaker's own containers (sagemaker-pytorch-training-toolkit)."""


class NodeLevel(NamedTuple):
    """One node of a job as its environment describes it."""

    launcher: Launcher
    node_rank: int
    nodes: int | None
    """None if unknown."""
    nproc: str
    """Ranks per node as set: a number, auto, gpu or cpu; '' if unset."""
    master_addr: str | None
    master_port: int | None

    @property
    def needs_ranks(self) -> bool:
        """Return whether the node's ranks must still be started: this process is not a rank."""
        return self.nodes is not None and self.nproc not in {"", "1"}


def node_level(environ: Mapping[str, str] = os.environ) -> NodeLevel | None:
    """Return the node that the environment describes; None for a rank or without a node."""
    if "LOCAL_RANK" in environ or find_table(environ) is not None:
        return None
    if environ.get("SM_HOSTS") and environ.get("SM_CURRENT_HOST"):
        return _sagemaker(environ)
    in_pod = "KUBERNETES_SERVICE_HOST" in environ or "JOB_COMPLETION_INDEX" in environ
    names = ("PET_NODE_RANK", "JOB_COMPLETION_INDEX", *(("RANK",) if in_pod and "PET_NNODES" in environ else ()))
    node_rank = next((n for name in names if (n := integer(environ.get(name))) is not None), None)
    if node_rank is None:
        return None
    return NodeLevel(
        launcher="kubernetes",
        node_rank=node_rank,
        nodes=integer(environ.get("PET_NNODES")),  # None for an elastic 1:4
        nproc=environ.get("PET_NPROC_PER_NODE", ""),
        master_addr=as_text(environ.get("MASTER_ADDR") or environ.get("PET_MASTER_ADDR")) or None,
        master_port=integer(environ.get("MASTER_PORT") or environ.get("PET_MASTER_PORT"))
        or (_TORCHRUN_PORT if "PET_NNODES" in environ else None),
    )


def _sagemaker(environ: Mapping[str, str]) -> NodeLevel | None:
    try:
        hosts = sorted(msgspec.json.decode(environ["SM_HOSTS"], type=list[str]))
        node_rank = hosts.index(environ["SM_CURRENT_HOST"])
    except ValueError:  # no list, or one without this host; msgspec's errors are ValueErrors
        return None
    return NodeLevel(
        launcher="sagemaker",
        node_rank=node_rank,
        nodes=len(hosts),
        nproc=environ.get("SM_NUM_GPUS", "").strip("0 ") and environ["SM_NUM_GPUS"],
        master_addr=as_text(environ.get("MASTER_ADDR")) or hosts[0],
        master_port=integer(environ.get("MASTER_PORT")) or _SAGEMAKER_PORT,
    )


def placements(node: NodeLevel, number: int, given: Placement) -> tuple[Placement, ...]:
    """Return the `number` ranks of this node; `given` address and port take precedence."""
    nodes = node.nodes or 1
    return tuple(
        Placement(
            rank=node.node_rank * number + i,
            world_size=nodes * number,
            local_rank=i,
            local_world_size=number,
            node_rank=node.node_rank,
            master_addr=given.master_addr or node.master_addr or ("127.0.0.1" if nodes == 1 else None),
            master_port=given.master_port or node.master_port,
            launcher=node.launcher,
        )
        for i in range(number)
    )
