"""`distcheck gpu` on four nodes of eight GPUs, as NVML describes a DGX H100 on each: well, and with one odd node."""

from __future__ import annotations

import time

import pytest
from cluster.inside import NODES, judged
from forms.sampled import sampled
from made.nvml_jobs import PROFILES

H100 = PROFILES["dgx_h100"]
MIG = PROFILES["dgx_h100_mig"]
NODE3 = list(range(16, 24))


@pytest.fixture
def gpu(cluster, tell_nvml):
    """Run ``distcheck gpu`` for eight ranks on each node, node3 being another than the others."""

    def gpu(node3=H100):
        for node in NODES:
            number = node.removeprefix("node")
            text = (
                (node3 if node == "node3" else H100).replace("GPU-0", f"GPU-{number}").replace("MIG-0", f"MIG-{number}")
            )
            tell_nvml(node, text)
        look = ("gpu", "--nproc", "8", "--hosts", "node[1-4]", "--env", "LD_LIBRARY_PATH")
        return judged(cluster, *look, LD_LIBRARY_PATH="/shared")[1]

    return gpu


def told(report):
    return [(f["rule"], f["severity"], f["ranks"], f["nodes"]) for f in report["findings"] if f["severity"] != "info"]


@pytest.mark.parametrize(
    ("node3", "rule", "severity", "ranks", "excluded"),
    sampled(
        {
            "one GPU fewer": (H100 + "count 7\n", "gpu-fewer-on-one-node", "error", [23], []),
            "another model": (
                H100.replace("H100 80GB HBM3", "A100-SXM4-80GB"),
                "gpu-mixed-models",
                "warning",
                NODE3,
                [],
            ),
            "an older driver": (
                H100 + "driver 535.183.01\ncuda 12020\n",
                "sw-driver-differs-nodes",
                "warning",
                NODE3,
                [],
            ),
            "MIG mode": (MIG, "gpu-mig-partial", "error", NODE3, ["node3"]),
        },
        "one GPU fewer",
    ),
)
def test_the_odd_node_is_named_and_the_other_three_are_not(gpu, node3, rule, severity, ranks, excluded):
    report = gpu(node3)
    assert told(report) == [(rule, severity, ranks, ["node3"])], report["findings"]
    assert report["exclude"]["nodes"] == excluded


def test_an_xid_in_one_nodes_kernel_log_is_reported_with_its_gpu_and_rank(cluster, gpu):
    """The nodes have no /dev/kmsg of their own: a file stands in for node2's.

    The line is a minute old, because the log's clock begins when the machine does, which may have been just now.
    """
    microseconds = int((time.clock_gettime(time.CLOCK_MONOTONIC) - 60) * 1e6)
    line = f"3,99,{microseconds},-;NVRM: Xid (PCI:0000:61:00): 119, pid=7, name=python3, Timeout after 6s of waiting"
    cluster.write("node2", "/dev/kmsg", f"6,98,{microseconds},-;eth0: link up\n{line}\n")
    try:
        report = gpu()
    finally:
        assert cluster.run("node2", "rm", "/dev/kmsg").code == 0
    assert told(report) == [("gpu-xid-recent", "error", [11], ["node2"])], report["findings"]
    assert "GPU 3 (0000:61:00.0): Xid 119 1 min ago" in report["findings"][0]["message"]
    (unseen,) = [n for n in report["not_checked"] if n["rule"] == "gpu-xid-recent"]
    assert (unseen["nodes"], unseen["reason"]) == (
        ["node1", "node3", "node4"],
        "/dev/kmsg does not exist here, as in containers",
    )
    assert report["exit_code"] == 20
