import json

import pytest
from benchmarks import rows


def told(monkeypatch, growth=1.0, dear=0.05):
    """Let judge_and_render.py print pairs of jobs whose fault `slow` grows with this exponent, and a rule's share."""

    def output_of_script(name, which, _ranks=None):
        if name == "judging_memory.py":
            return "0.25\n"
        linear = [[0.8, 0.8], [0.81, 0.8], [0.79, 0.8]]
        if which == "faulty":
            return json.dumps({"pairs": {"slow": [[large * 8 ** (growth - 1), small] for large, small in linear]}})
        named = {"gpu-duplicate": dear} if dear > 0.1 else {}
        found = {"seconds": [[1.6, 2.0], [0.81, 1.0], [1.58, 2.0]], "job_GiB": 1.0, "dear": named, "dearest": dear}
        return json.dumps({"pairs": {"healthy": linear}, **found})

    monkeypatch.setattr(rows, "output_of_script", output_of_script)


@pytest.mark.parametrize(("growth", "met"), [(1.0, "yes"), (1.05, "undecided"), (1.1, "NO")])
def test_a_fault_whose_judging_grows_faster_than_the_ranks_is_no_pass(monkeypatch, growth, met):
    told(monkeypatch, growth)
    found = rows.judging_and_rendering()
    assert [(row.name, row.met) for row in found if "exponent" in row.name] == [
        ("judge and render 65536 ranks, healthy: exponent of the growth from 8192", "yes"),
        ("judge and render 8192 ranks, slow: exponent of the growth from 1024", met),
    ]
    assert {name: cost for row in found for name, cost in row.costs.items()} == {
        "judge_seconds_per_rank": pytest.approx(0.8 / 65536),
        "judge_bytes_per_rank": (1 << 28) / 8192,
        "job_bytes_per_rank": (1 << 30) / 65536,
    }


@pytest.mark.parametrize(
    ("dear", "met", "named"), [(0.05, "yes", "none takes a tenth"), (0.3, "NO", "gpu-duplicate 0.30")]
)
def test_a_rule_that_takes_more_than_a_tenth_of_the_judging_is_named(monkeypatch, dear, met, named):
    told(monkeypatch, dear=dear)
    (row,) = (row for row in rows.judging_and_rendering() if "share of a rule" in row.name)
    assert (row.met, named in row.name) == (met, True)
