"""`distcheck gpu` on four nodes of eight GPUs, as NVML describes a DGX H100 on each: well, and with one odd node."""

from __future__ import annotations

import pytest
from cluster.inside import NODES, judged
from forms.sampled import sampled
from made.nvml_jobs import PROFILES

H100 = PROFILES["dgx_h100"]
NODE3 = list(range(16, 24))


@pytest.fixture
def gpu(cluster, tell_nvml):
    """Run ``distcheck gpu`` for eight ranks on each node, node3 being another than the others."""

    def gpu(node3=H100):
        for node in NODES:
            number = node.removeprefix("node")
            text = (node3 if node == "node3" else H100).replace("GPU-0", f"GPU-{number}")
            tell_nvml(node, text)
        look = ("gpu", "--nproc", "8", "--hosts", "node[1-4]", "--env", "LD_LIBRARY_PATH")
        return judged(cluster, *look, LD_LIBRARY_PATH="/shared")[1]

    return gpu


def told(report):
    return [(f["rule"], f["severity"], f["ranks"], f["nodes"]) for f in report["findings"] if f["severity"] != "info"]


@pytest.mark.parametrize(
    ("node3", "rule", "severity", "ranks"),
    sampled(
        {
            "one GPU fewer": (H100 + "count 7\n", "gpu-fewer-on-one-node", "error", [23]),
            "an older driver": (
                H100 + "driver 535.183.01\ncuda 12020\n",
                "sw-driver-differs-nodes",
                "warning",
                NODE3,
            ),
        },
        "one GPU fewer",
    ),
)
def test_the_odd_node_is_named_and_the_other_three_are_not(gpu, node3, rule, severity, ranks):
    report = gpu(node3)
    assert told(report) == [(rule, severity, ranks, ["node3"])], report["findings"]
    assert report["exclude"]["nodes"] == []
