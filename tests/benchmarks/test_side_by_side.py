"""What the accuracy of the figures is judged by: bursts of distcheck and of a bare loop, side by side."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.side_by_side import Told, noise, ratios

HURRIED = """
import sys
from benchmarks import side_by_side
side_by_side.SIZES = (1 << 16,)
side_by_side.OF_MANY_ROWS = side_by_side.OF_FEW_ROWS = side_by_side.Patience(0.002, 4, 0.5)
sys.argv[1:] = {arguments!r}
side_by_side.main()
"""
ONE_BUFFER_IS_FASTER = [0.9, 0.9, 1.0, 1.0] * 2
"""Bursts of a bare loop, which takes each of its two buffers twice."""


def told(ours, theirs):
    return [Told("all_reduce", 1 << 20, [ours] * len(theirs), theirs)]


def test_a_ratio_is_that_of_bursts_beside_each_other():
    assert ratios(told(2.0, [1.0, 2.0, 4.0, 1.0])) == [2.0, 1.0, 0.5, 2.0]


def test_a_machine_that_becomes_slower_changes_no_ratio():
    slower = [Told("broadcast", 1, [1.0, 1.1, 1.2, 1.3], [1.0, 1.1, 1.2, 1.3])]
    assert ratios(slower) == [1.0] * 4


def test_the_noise_is_that_of_the_bare_loop_with_one_buffer_over_the_other():
    assert noise(told(1.0, ONE_BUFFER_IS_FASTER)) == pytest.approx([0.9] * 3)
    assert noise(told(1.0, [1.0] * 8)) == [1.0] * 3


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "operations"), [(["2"], ["all_reduce", "broadcast"]), (["4", "2"], ["all_reduce"])]
)
def test_both_sides_are_measured_on_the_same_ranks(arguments, operations):
    code = HURRIED.format(arguments=arguments)
    folder = Path(__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row["op"] for row in rows] == operations, ran.stderr
    for row in rows:
        middle, low, high = row["ratio"]
        assert 0.05 < low <= middle <= high < 20
        assert row["bursts"] >= 4
        assert 0 < row["ours"] < 1
        assert 0 < row["theirs"] < 1
