"""What NCCL's own diagnostics report is a finding; a job that does not run them, or passes, is silent."""

from __future__ import annotations

import pytest

from distcheck.facts.nccl import NcclLog
from distcheck.facts.rank import RankRun

FAMILY = "collectives.nccl_diagnostics"
PARTIAL = "p2p: only 52/56 GPU-to-GPU peer accesses passed verification"
PAIR = "p2p: write mismatch srcRank=1 srcCudaDev=1 srcNvmlDev=1 dstRank=3 dstCudaDev=3 dstNvmlDev=3 path=NVL handle=X"
OUTLIER = "net bw: cross-nic rank 3 (node0): 265.1 Gbit/s, >30% off median 391.5 Gbit/s in comm 0x7a3f"


@pytest.fixture
def found(job_of, change, judge):
    """Return the findings of a job of 4 ranks whose rank 0 printed these lines."""

    def judged(*lines, ranks=4):
        job = job_of(2, 2, looks=("environment", "meeting", "collectives"))
        for rank in range(4):
            log = NcclLog(version="2.31.2", ranks=ranks, diagnostics=lines if rank == 0 else ())
            job = change.rank(job, rank, run=RankRun(pid=1, step="done", outcome="done", nccl=log))
        return judge(job, FAMILY).findings

    return judged


def test_failed_peer_access_is_a_warning_about_the_ranks_that_nccl_names(found):
    (finding,) = found(PAIR, PARTIAL)
    assert (finding.rule, finding.severity, finding.ranks) == ("nccl-diagnostics-report", "warning", (1, 3))
    assert finding.message.endswith("between all GPUs; 52 of 56 accesses passed")
    assert finding.evidence == {"line 1": PAIR, "line 2": PARTIAL}
    (finding,) = found(PARTIAL)
    assert (finding.severity, finding.ranks) == ("warning", ())


def test_other_results_are_only_shown(found):
    line = "net bw: bootstrap failure, aborting check in comm 0x1"
    (finding,) = found(line)
    assert (finding.severity, finding.ranks) == ("info", ())
    assert finding.message == f"NCCL's diagnostics report on rank 0: {line}"


def test_a_slow_network_names_its_rank(found):
    (finding,) = found(OUTLIER)
    assert (finding.severity, finding.ranks, finding.nodes) == ("warning", (3,), ("node2",))
    assert "265.1 Gbit/s of cross-nic bandwidth; the median rank has 391.5" in finding.message


def test_no_results_and_those_of_another_communicator_are_silent(found):
    assert found() == ()
    assert found(PAIR, PARTIAL, ranks=2) == ()
