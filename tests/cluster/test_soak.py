"""Healthy runs in a row, in every way that people start them: none has a finding above info, and nothing stays.

In every change these are 34 runs, and six more in tests/end_to_end/test_soak.py.
`python tests/soak/run.py --runs 1000` does as many as one wants.
"""

from __future__ import annotations

import pytest
from soak.healthy import complaint
from soak.ways import COMMANDS, WAYS


@pytest.mark.parametrize("way", WAYS)
def test_healthy_runs_in_a_row_find_nothing_and_leave_nothing(cluster, way):
    # A gate does what bandwidth does. Each run of torchrun imports torch once more for each agent.
    left_out = {"bandwidth", "net" if way == "torchrun" else "gpu"} if way.startswith("torchrun") else {"bandwidth"}
    commands = [command for command in COMMANDS if command[0] not in left_out]
    assert [complaint(cluster, way, command) for command in commands] == [""] * len(commands)
