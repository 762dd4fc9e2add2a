"""The accuracy in docs/reliability.md holds at sizes that are quick to test."""

from __future__ import annotations

import pytest
from benchmarks.isolation_accuracy import KINDS, scores

NOT_PROMISED = {"2% flaky nodes, passing 30%"}
TOO_FEW_FIGURES = {("5% nodes at 0.6 of the speed", 4)}
"""Of four nodes a loss of 40 % is not told from noise."""


@pytest.mark.parametrize("n", [4, 16, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_bad_nodes_are_named_at_least_as_well_as_by_testing_all_twice(kind, n):
    ours, theirs = scores(kind, n, 12)
    assert ours.innocent == 0
    assert ours.exact >= theirs.exact
    if kind not in NOT_PROMISED and (kind, n) not in TOO_FEW_FIGURES:
        assert ours.exact == 1
    if "29%" not in kind and "of any names" not in kind:
        assert ours.rounds <= 4
