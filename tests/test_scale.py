import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import build_scale
import measured
from build_scale import LINES, Line

ROLL_CALL = Line("roll call", "seconds_per_node", lambda gpus: gpus / 8, "s", 20, "`--join-timeout`")
JUDGING = Line("judging", "seconds_per_rank", lambda gpus: gpus, "s", 60, "`--timeout`")


def kept(**costs):
    return {"bench": {"command": "python run.py", "date": "2026-01-01", "machine": "2 cores", "costs": costs}}


@pytest.fixture(autouse=True)
def two_lines(monkeypatch):
    monkeypatch.setattr(build_scale, "LINES", (ROLL_CALL, JUDGING))


@pytest.mark.parametrize(
    ("line", "cost", "gpus"),
    [(ROLL_CALL, 0.001, 160_008), (ROLL_CALL, 20.0, 16), (ROLL_CALL, 21.0, 8), (JUDGING, 0.001, 60_008)],
)
def test_a_limit_is_reached_at_the_first_node_beyond_it(line, cost, gpus):
    assert build_scale.reached(line, cost) == gpus
    assert cost * line.units(gpus) > line.limit >= cost * line.units(gpus - 8)


def test_what_never_reaches_its_limit_says_so():
    assert build_scale.reached(ROLL_CALL, 1e-12) == math.inf
    assert "| more than 1,073,741,824 GPUs |" in "\n".join(build_scale.page(kept(seconds_per_node=1e-12)))


def test_the_first_limit_leads_and_every_figure_is_the_unit_cost_times_its_number():
    lines = build_scale.page(kept(seconds_per_node=0.001, seconds_per_rank=0.0001))
    assert lines[0] == "**The first limit:** roll call, from 160,008 GPUs on (20 s, `--join-timeout`)."
    assert "| roll call | 0.125 s | 1.25 s | 12.5 s | 20 s: `--join-timeout` | 160,008 GPUs |" in lines
    assert "| judging | 0.1 s | 1 s | 10 s | 60 s: `--timeout` | 600,008 GPUs |" in lines
    assert "| seconds per node | 0.001 | `python run.py` | 2026-01-01, 2 cores |" in lines
    slow_judging = build_scale.page(kept(seconds_per_node=0.001, seconds_per_rank=0.01))
    assert slow_judging[0].startswith("**The first limit:** judging, from 6,008 GPUs on")


def test_what_has_no_limit_comes_last_and_is_never_the_first_limit(monkeypatch):
    rounds = Line("rounds", "rounds", lambda _gpus: 1.0, "rounds")
    monkeypatch.setattr(build_scale, "LINES", (rounds, JUDGING))
    lines = build_scale.page(kept(rounds=4, seconds_per_rank=0.001))
    assert lines[0].startswith("**The first limit:** judging")
    assert lines[5] == "| rounds | 4 rounds | 4 rounds | 4 rounds | - | - |"
    assert not any("first limit" in line for line in build_scale.page(kept(rounds=4)))


def test_what_was_not_measured_is_named_and_has_no_figure():
    lines = build_scale.page(kept(seconds_per_rank=0.0001))
    assert "Not measured: roll call." in lines
    assert not any(line.startswith("| roll call") for line in lines)
    assert not any("first limit" in line for line in build_scale.page({}))


def test_a_benchmark_that_ran_again_replaces_its_own_costs_and_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "_commit", lambda _root: "c0ffee")
    for name in ("docs", "tests/benchmarks"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / build_scale.COSTS).write_text("{}\n")
    (tmp_path / "docs/build_scale.py").write_text("")
    (tmp_path / build_scale.PAGE).write_text("<!-- measured: scale -->\n<!-- end of scale -->\n")
    build_scale.keep("roll", "run.py --only roll", {"seconds_per_node": 0.1}, tmp_path)
    build_scale.keep("judge", "run.py --only judge", {"seconds_per_rank": 0.001}, tmp_path)
    build_scale.keep("roll", "run.py --only roll", {"seconds_per_node": 0.2}, tmp_path)
    costs = json.loads((tmp_path / build_scale.COSTS).read_text())
    assert costs["roll"]["costs"] == {"seconds_per_node": 0.2}
    assert costs["judge"]["command"] == "run.py --only judge"
    page = (tmp_path / build_scale.PAGE).read_text()
    assert "| roll call | 25 s |" in page
    assert "| judging | 1 s |" in page
    assert not build_scale.stale(tmp_path)
    (tmp_path / build_scale.COSTS).write_text(json.dumps(kept(seconds_per_node=0.3)))
    assert build_scale.stale(tmp_path)


def test_the_page_has_the_unit_costs_that_are_kept(monkeypatch):
    monkeypatch.setattr(build_scale, "LINES", LINES)
    assert not build_scale.stale(), "run python docs/build_scale.py"


def test_every_line_of_the_page_has_a_benchmark_that_measures_its_cost():
    source = "".join(path.read_text() for path in (Path(__file__).parent / "benchmarks").glob("*.py"))
    assert [line.cost for line in LINES if f'"{line.cost}"' not in source] == []
