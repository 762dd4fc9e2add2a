"""Training steps between real nodes: a node whose ranks train wrongly is excluded."""

from __future__ import annotations

import pytest
from cluster.inside import findings, judged
from real.spoiling import SITE, hooked

pytestmark = pytest.mark.without_slurm

SKIPS = """
    import torch
    torch.optim.SGD.step = lambda *_: None
"""


def test_a_node_that_skips_updates_is_excluded(cluster):
    cluster.write("node2", SITE, hooked("distcheck.collectives.training.steps", "train", SKIPS))
    look = "bandwidth --hosts node[1-2] --nproc 1 --op all_reduce --sizes 64K:64K --iters 1 --step"
    ended, report = judged(cluster, *look.split(), timeout=100)
    assert set(findings(report)) == {"step-parameters-differ"}, report["findings"]
    assert {tuple(f["nodes"]) for f in report["findings"]} == {("node2",)}
    assert (ended.code, report["exclude"]["nodes"]) == (40, ["node2"])
