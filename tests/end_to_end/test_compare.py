"""distcheck report NEW --baseline OLD."""

import msgspec
from made import reported

from distcheck.facts import saved
from distcheck.facts.asked import Asked

LOOKS = ("environment", "collectives")


def job(torch, factor):
    """Return a run with a version of torch, whose operations take so many times as long."""
    made = reported.build(2, 8)
    ranks = tuple(msgspec.structs.replace(r, environment=r.environment | {"NCCL_IB_HCA": torch}) for r in made.ranks)
    rows = tuple(
        msgspec.structs.replace(m, seconds_by_rank=tuple(s * factor for s in m.seconds_by_rank), uncertainty=0.01)
        for m in made.collectives.measurements
    )
    ran = msgspec.structs.replace(made.collectives, measurements=rows)
    return msgspec.structs.replace(made, asked=Asked("bandwidth", LOOKS), ranks=ranks, collectives=ran)


def test_report_compares_two_saved_jobs_and_exits_as_the_new_one(distcheck, tmp_path):
    saved.save(job("mlx5_0", 1), tmp_path / "old.json")
    saved.save(job("mlx5_1", 1.5), tmp_path / "new.json")
    ended = distcheck("report", "new.json", "--baseline", "old.json", "--format", "json")
    found = ended.report["comparison"]
    assert ended.code == ended.report["exit_code"] == 20
    assert [f["rule"] for f in found["new"]] == ["perf-below-baseline"] * 2
    assert found["exit_code"] == 0
    text = distcheck("report", "new.json", "--baseline", "old.json")
    assert text.code == 20
    assert "variable: NCCL_IB_HCA: mlx5_0 -> mlx5_1" in text.out
    assert distcheck("report", "new.json", "--baseline", "none.json").code == 2
