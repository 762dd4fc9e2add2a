"""Healthy runs in a row, in every way that people start them: none has a finding above info, and nothing stays.

In every change each way that no other test takes gates once; with --slow every command runs in every way.
`python tests/soak/run.py --runs 1000` does as many as one wants.
"""

from __future__ import annotations

import pytest
from forms.sampled import sampled
from soak.healthy import complaint
from soak.ways import COMMANDS, WAYS

_CASES = {f"{command[0]} {way}": (way, command) for way in WAYS for command in COMMANDS}
_IN_EVERY_CHANGE = [f"gate {way}" for way in ("torchrun c10d", "mpiexec (MPICH)")]


@pytest.mark.parametrize(("way", "command"), sampled(_CASES, *_IN_EVERY_CHANGE))
def test_healthy_runs_in_a_row_find_nothing_and_leave_nothing(cluster, way, command):
    assert complaint(cluster, way, command) == ""
