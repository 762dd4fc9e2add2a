"""Healthy runs in a row, in every way that people start them: none has a finding above info, and nothing stays.

In every change these are 36 runs, and four more in tests/end_to_end/test_soak.py.
`python tests/soak/run.py --runs 1000` does as many as one wants.
"""

from __future__ import annotations

import pytest
from soak.healthy import complaint
from soak.ways import COMMANDS, WAYS


@pytest.mark.parametrize("way", WAYS)
def test_healthy_runs_in_a_row_find_nothing_and_leave_nothing(cluster, way):
    # A gate does what bandwidth does.
    commands = [command for command in COMMANDS if command[0] != "bandwidth"]
    assert [complaint(cluster, way, command) for command in commands] == [""] * len(commands)
