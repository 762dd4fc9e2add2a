"""Training steps between real nodes: a node whose ranks train wrongly is excluded."""

from __future__ import annotations

import sysconfig

import pytest
from cluster.inside import findings, reports

pytestmark = pytest.mark.without_slurm

SITE = """
import builtins, os, sys
_real, _done = builtins.__import__, []
def _import(name, *args, **more):
    module = _real(name, *args, **more)
    steps = sys.modules.get("distcheck.collectives.training.steps")
    if not _done and hasattr(steps, "train"):
        _done.append(1)
        import torch
        torch.optim.SGD.step = lambda *_: None
    return module
builtins.__import__ = _import
"""


def test_a_node_that_skips_updates_is_excluded(cluster):
    cluster.write("node2", f"{sysconfig.get_paths()['purelib']}/sitecustomize.py", SITE)
    look = (
        "distcheck bandwidth --hosts node[1-2] --nproc 1 --op all_reduce --sizes 64K:64K --iters 1 --step --format json"
    )
    ended = cluster.run("head", *look.split(), timeout=100)
    (report,) = reports(ended)
    assert set(findings(report)) == {"step-parameters-differ"}, report["findings"]
    assert {tuple(f["nodes"]) for f in report["findings"]} == {("node2",)}
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node2"])
