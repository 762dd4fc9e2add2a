import json

import pytest
from benchmarks import rows


def told(slow=8.0, dear=0.05):
    """What judge_and_render.py prints, of a healthy job and of faults; `dear` is the share of a rule."""
    growth = {
        kind: [[its * noise, 8.0] for noise in (1.0, 1.001, 0.999)] for kind, its in (("healthy", 8.0), ("slow", slow))
    }
    named = {"gpu-duplicate": dear} if dear > 0.1 else {}
    healthy = {"seconds": [0.8, 0.801, 0.799], "dear": named, "dearest": dear, "job_GiB": 1.0, "GiB": 0.25}
    printed = {False: healthy | {"growth": {"healthy": growth["healthy"]}}, True: {"growth": {"slow": growth["slow"]}}}
    return lambda _name, *arguments: json.dumps(printed["faults" in arguments])


@pytest.mark.parametrize(("slow", "met"), [(8.0, "yes"), (16.0, "NO")])
def test_a_fault_whose_judging_grows_faster_than_the_ranks_is_no_pass(monkeypatch, slow, met):
    monkeypatch.setattr(rows, "output_of_script", told(slow))
    found = rows.judging_and_rendering()
    met_by = {part: [row.met for row in found if part in row.name] for part in ("healthy: growth", "slow: growth")}
    assert met_by == {"healthy: growth": ["yes"], "slow: growth": [met]}
    assert [row.met for row in found if "largest exponent" in row.name] == [met]
    assert {name: cost for row in found for name, cost in row.costs.items()} == {
        "judge_seconds_per_rank": pytest.approx(0.8 / 65536),
        "judge_bytes_per_rank": (1 << 28) / 65536,
        "job_bytes_per_rank": (1 << 30) / 65536,
    }


@pytest.mark.parametrize(
    ("dear", "met", "named"), [(0.05, "yes", "none takes a tenth"), (0.3, "NO", "gpu-duplicate 0.30")]
)
def test_a_rule_that_takes_more_than_a_tenth_of_the_judging_is_named(monkeypatch, dear, met, named):
    monkeypatch.setattr(rows, "output_of_script", told(dear=dear))
    (row,) = (row for row in rows.judging_and_rendering() if "share of a rule" in row.name)
    assert (row.met, named in row.name) == (met, True)
