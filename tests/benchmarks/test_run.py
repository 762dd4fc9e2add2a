import math
from pathlib import Path

import pytest
from benchmarks.ratio import Estimate, Row, alone, at_most, counted
from benchmarks.rows import BENCHMARKS
from benchmarks.run import WHOLE_RUN, Measured, as_text, chosen, exit_code, measure, of_benchmarks

ROOT = Path(__file__).parents[2]

YES, NO, OPEN = (counted("counted", 1, 2, 0.5, at_most(bound)) for bound in (1, 0.1, 0.5))
OPEN = alone("alone", [1.0, 2.0, 3.0], at_most(2))
BROKEN = Row("broken", None, None, None, at_most(1), error="OSError: no srun")


@pytest.mark.parametrize(
    ("rows", "code"), [([YES], 0), ([YES, OPEN], 20), ([YES, OPEN, NO], 1), ([YES, BROKEN], 1), ([OPEN], 20)]
)
def test_a_run_passes_if_every_row_is_met(rows, code):
    assert exit_code(rows) == code


def test_the_table_has_a_spread_for_every_row_and_the_noise_where_it_was_measured():
    noisy = Row("noisy", 1.0, 1.0, Estimate(1.0, 0.98, 1.02), (0.97, 1.03), noise=Estimate(1.001, 0.99, 1.01))
    text = as_text([YES, OPEN, noisy, alone("once", [1.0], at_most(math.pi)), BROKEN])
    lines = {line.split()[0]: line for line in text.splitlines()[2:]}
    assert lines["noisy"].split()[-8:] == ["0.02", "1.001", "+-", "0.011", "0.97", "to", "1.03", "yes"]
    assert "undecided" in lines["alone"]
    assert "unknown" in lines["once"]
    assert "no srun" in lines["broken"]
    assert "theirs / theirs" not in as_text([YES])


def test_a_benchmark_that_fails_is_a_row_with_its_error_and_the_others_go_on(monkeypatch, capsys):
    monkeypatch.setitem(BENCHMARKS, "broken", [].pop)
    (row,) = measure("broken").rows
    assert (row.met, row.error) == ("NO", "IndexError: pop from empty list")
    assert "broken: 0 s, met: 1 NO" in capsys.readouterr().err


def test_a_benchmark_that_takes_too_long_for_a_whole_run_is_measured_by_its_name():
    group, huge = "figures_of_a_group_against_a_bare_loop", "judging_half_a_million_ranks"
    others = {"figures_against_a_bare_loop", "hang_beside_a_running_job", "checks_by_slurm"}
    assert set(BENCHMARKS) - set(chosen(None)) == {group, huge, *others}
    assert chosen("of_a_group") == [group]


def test_every_benchmark_has_its_code_and_its_place_in_the_page():
    import measured  # benchmarks.run knows where it is

    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert {table.name for table in measured.tables(page)} == {WHOLE_RUN, *BENCHMARKS}


def test_the_table_of_all_benchmarks_has_their_seconds_and_how_many_rows_are_met():
    lines = of_benchmarks({"start": Measured([YES, YES, OPEN], 12.4), "broken": Measured([BROKEN], 0.2)})
    assert [line.split("|")[1:4] for line in lines[2:]] == [
        [" start       ", "        12 ", " 2 yes, 1 undecided "],
        [" broken      ", "         0 ", " 1 NO               "],
    ]
