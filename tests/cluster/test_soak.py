"""Healthy runs in a row, in every way that people start them: none has a finding above info, and nothing stays.

`python tests/soak/run.py --runs 1000` does as many as one wants.
"""

from __future__ import annotations

import pytest
from soak.healthy import complaint
from soak.ways import COMMANDS, WAYS

_RUNS_PER_WAY = 5
"""Together 45: a false alarm that one run in ten has is missed once in a hundred times."""


@pytest.mark.parametrize("way", WAYS)
def test_healthy_runs_in_a_row_find_nothing_and_leave_nothing(cluster, way):
    complaints = [complaint(cluster, way, command) for command in COMMANDS[:_RUNS_PER_WAY]]
    assert complaints == [""] * _RUNS_PER_WAY
