"""`distcheck node --diagnose` with a fake NVML, CUDA and NCCL: what NCCL prints is a finding, and no fault hangs it."""

from __future__ import annotations

import shutil

import pytest
from made.nvml_jobs import PROFILES
from real.ended import BEYOND_SECONDS

H100 = PROFILES["dgx_h100"]
OK = "node1:7 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)"
PARTIAL = "node1:7 NCCL DIAG [INFO] p2p: only 54/56 GPU-to-GPU peer accesses passed verification"
PAIR = (
    "node1:7 NCCL DIAG [INFO] p2p: write mismatch srcRank=1 srcCudaDev=1 srcNvmlDev=1 dstRank=3 dstCudaDev=3 "
    "dstNvmlDev=3 path=NVL handle=IPC"
)


@pytest.fixture
def node(distcheck, fake_nvml, fake_torch):
    """Return the end of `distcheck node` on eight H100 whose NCCL prints this, and why NCCL was not asked."""

    def of(*args, says=OK, nccl="diagnoses", text=""):
        own = fake_torch.site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        shutil.copy(fake_torch.libraries / nccl / "libnccl.so.2", own)
        env = fake_torch.environ(**fake_nvml.variables(H100 + text), DISTCHECK_FAKE_NCCL=says)
        ended = distcheck("node", *args, "--format", "json", env=env)
        gaps = [gap["reason"] for gap in ended.report["not_checked"] if "NCCL" in gap["reason"]]
        return ended, gaps

    return of


def test_a_healthy_node_passes(node):
    ended, gaps = node("--diagnose")
    assert (ended.code, ended.rules, gaps) == (0, [], []), ended


def test_a_pair_that_fails_is_named(node):
    ended, gaps = node("--diagnose", says=f"{PAIR}\n{PARTIAL}")
    found = ended.finding("nccl-node-diagnostics-report")
    assert (found["severity"], len(found["nodes"]), gaps, ended.code) == ("warning", 1, [], 0)
    assert found["message"].endswith(
        "NCCL 2.32.3: no peer-to-peer access between all 8 GPUs; 54 of 56 accesses passed; failed: GPU 1 to 3"
    )


def test_nobody_is_asked_without_the_option(node):
    ended, gaps = node(says=PARTIAL)
    assert (ended.code, ended.rules, gaps) == (0, [], [])


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"nccl": "new"}, "NCCL 2.27.3 cannot; 2.31 and later can"),
        ({"says": "fail"}, "NCCL: unhandled cuda error: fail"),
        ({"says": "crash"}, "crashed the process that queried it: SIGABRT"),
        ({"text": "0.processes 4711:1024\n"}, "process 4711 uses GPU 0"),
        ({"text": "2.mig 1\n"}, "GPU 2 is in MIG mode"),
    ],
)
def test_what_was_not_asked_is_told_with_its_reason(node, told, reason):
    ended, gaps = node("--diagnose", **told)
    assert [gap.removeprefix("NCCL's diagnostics: ").endswith(reason) for gap in gaps] == [True], gaps
    assert "nccl-node-diagnostics-report" not in ended.rules


def test_diagnostics_that_hang_are_ended_in_time(node):
    ended, (gap,) = node("--diagnose", "--timeout", "15", says="hang")
    assert "did not answer within" in gap
    assert "raise --timeout" in gap
    assert (ended.code, ended.rules) == (0, [])
    assert ended.seconds < 15 + BEYOND_SECONDS
