import json

import pytest
from benchmarks import rows


def judged(healthy, slow, plain=1.0, dear=0.05):
    """What judge_and_render.py prints of one number of ranks; `dear` is the share of a rule."""
    seconds = {kind: [its, its * 1.001, its * 0.999] for kind, its in (("healthy", healthy), ("slow", slow))}
    named = {"gpu-duplicate": dear} if dear > 0.1 else {}
    printed = {"seconds": seconds, "plain": [plain, plain, plain], "dear": named, "dearest": dear}
    return json.dumps(printed | {"job_GiB": 1.0, "GiB": 0.25})


@pytest.mark.parametrize(("slow", "met"), [(0.8, "yes"), (1.6, "NO")])
def test_a_fault_whose_judging_grows_faster_than_the_ranks_is_no_pass(monkeypatch, slow, met):
    told = {"8192": judged(0.1, 0.1, 0.001), "65536": judged(0.8, slow, 0.008)}
    monkeypatch.setattr(rows, "output_of_script", lambda _name, ranks: told[ranks])
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
    told = {"8192": judged(0.1, 0.1, 0.001), "65536": judged(0.8, 0.8, 0.008, dear)}
    monkeypatch.setattr(rows, "output_of_script", lambda _name, ranks: told[ranks])
    (row,) = (row for row in rows.judging_and_rendering() if "share of a rule" in row.name)
    assert (row.met, named in row.name) == (met, True)
