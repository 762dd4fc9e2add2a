"""Numbers that do not fit each other, in the words of scripts; and sentences alike that are harmless."""

from __future__ import annotations

import pytest
from explain.answered import found
from explain.test_shapes import first_rule

from distcheck.explain.spelling import SHAPE
from distcheck.explain.spellings import counts
from distcheck.rules import find_rule


def test_a_shape_of_counts_is_as_light_as_the_other_shapes():
    for spelling in counts.SPELLINGS:
        assert spelling.fallback
        assert spelling.weight == SHAPE
        assert all(find_rule(name) for name in spelling.rules)


@pytest.mark.parametrize(
    ("fault", "rule", "harmless"),
    [
        ("ValueError: rank 8 is out of range for world size 8", "env-rank-out-of-range", "rank 7 of world size 8"),
        ("AssertionError: rank (4) must be less than world_size", "env-rank-out-of-range", "rank 4 is less busy"),
        ("AssertionError: Invalid rank 2, world_size 2", "env-rank-out-of-range", "valid rank 2, world_size 4"),
        ("node_rank 2 must be below nnodes 2", "torchrun-node-rank-duplicated", "node_rank 1, nnodes 2"),
        ("ValueError: duplicate rank 3 detected", "env-rank-duplicate", "no duplicates; rank 3 detected"),
        ("RuntimeError: rank 1 is already registered", "env-rank-duplicate", "rank 1 registered"),
        ("RuntimeError: world size mismatch: expected 16", "env-world-size-mismatch", "world size: 16, as expected"),
        ("Number of processes (4) does not match 8", "env-world-size-mismatch", "number of processes: 4"),
        ("ValueError: Expected world size 8 but got 1", "env-world-size-1-everywhere", "world size 1"),
        ("ValueError: Expected world size 8 but got 4", "env-world-size-mismatch", "world size 4"),
        ("TimeoutError: not all ranks joined", "env-rank-missing", "WARNING: not all ranks log at this level"),
        ("Waiting for 3 more workers: timed out", "env-rank-missing", "waiting for 3 more workers"),
        ("ValueError: Requested 8 GPUs but only 4 are available", "gpu-fewer-than-needed", "requested 8 GPUs: granted"),
        ("AssertionError: num_gpus (8) > torch.cuda.device_count() (4)", "gpu-fewer-than-needed", "num_gpus: 8"),
        ("RuntimeError: not enough GPUs: need 8, have 4", "gpu-fewer-than-needed", "enough GPUs: need 8, have 8"),
    ],
)
def test_a_count_that_does_not_fit_is_named_and_one_that_does_is_not(fault, rule, harmless):
    assert first_rule(f"step 1\n[rank3]: {fault}\n") == rule
    assert first_rule(f"step 1\n[rank3]: {harmless}\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: The checkpoint was saved with a world size of 8, which does not match the current world size of 4",
        "RuntimeError: All tensors must have the same rank, and the same shape",
        "RuntimeError: local rank 3 is out of range",
        "IndexError: index out of range in self",
    ],
)
def test_a_checkpoint_of_another_size_and_the_rank_of_a_tensor_are_no_fault_of_the_start(line):
    assert found(f"{line}\n").about == "application"
    assert first_rule(f"{line}\n") is None
