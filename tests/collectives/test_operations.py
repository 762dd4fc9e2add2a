import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distcheck.collectives import operations
from distcheck.collectives.operations import check_elements, contribution, pattern, prepare, total
from distcheck.collectives.plan import OPERATIONS, bus_factor, moved_bytes

CPU = operations.torch.device("cpu")
EXACT = 2**24
"""Up to here float32 holds every whole number."""


@given(ranks=st.integers(1, 65536))
@settings(deadline=None)
def test_the_expected_sum_is_exact_for_every_world(ranks):
    weights = [1 + rank % 15 for rank in range(ranks)]
    expected = [sum(weights) * (1 + position % 17) for position in range(40)]
    assert max(expected) < EXACT
    assert total(ranks, 40, CPU).tolist() == expected


@given(rank=st.integers(0, 65535), count=st.integers(1, 300))
@settings(deadline=None)
def test_a_contribution_is_small_whole_and_never_zero(rank, count):
    values = contribution(rank, count, CPU).tolist()
    assert len(values) == count
    assert all(1 <= value <= 255 and value == int(value) for value in values)


@given(ranks=st.integers(2, 64), order=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=30)
def test_float32_adds_up_to_the_expected_sum_in_any_order(ranks, order):
    shuffled = list(range(ranks))
    order.shuffle(shuffled)
    added = contribution(shuffled[0], 100, CPU)
    for rank in shuffled[1:]:
        added += contribution(rank, 100, CPU)
    assert added.tolist() == total(ranks, 100, CPU).tolist()


@pytest.mark.parametrize("displaced", [1, 2, 4, 4096, 65536])
def test_displaced_data_is_seen_at_every_position(displaced):
    whole = pattern(0, 70_000, CPU)
    assert not (whole == pattern(displaced, 70_000, CPU)).any()
    sums = total(4, 70_000 + displaced, CPU)
    assert not (sums[displaced:] == sums[:70_000]).any()


def test_patterns_are_exact():
    assert pattern(0, 70_000, CPU).max().item() == 65521 < EXACT


@pytest.mark.parametrize("op", operations.OPERATIONS)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_call_must_overwrite_is_wrong_before_it(op, rank):
    exercise = prepare(op, rank, 2, 102, CPU)
    assert not exercise.received.any(), "the buffers of a timed burst hold zeros"
    exercise.load()
    wrong = int((exercise.received != exercise.expected()).sum())
    kept = {("broadcast", 0): 102, ("all_gather", rank): 51}.get((op, rank), 0)
    assert wrong == exercise.received.numel() - kept


@pytest.mark.parametrize("op", operations.OPERATIONS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 1000, 300_000])
def test_a_check_moves_equal_blocks_of_which_most_are_ragged(op, ranks):
    elements = check_elements(op, ranks)
    assert elements > 0
    assert elements % operations.blocks(op, ranks) == 0


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "send_recv"])
@pytest.mark.parametrize(("asked", "moved"), [(0, 4), (3, 4), (4, 4), (4099, 4096), (1 << 20, 1 << 20)])
def test_sizes_are_rounded_down_to_whole_elements(op, asked, moved):
    assert moved_bytes(op, asked, 8) == moved


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(("asked", "moved"), [(1, 12), (12, 12), (23, 12), (1 << 20, 1048572)])
def test_divided_payloads_are_rounded_down_to_whole_blocks(op, asked, moved):
    assert moved_bytes(op, asked, 3) == moved


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("broadcast", 1),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("send_recv", 1),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(op, factor):
    assert bus_factor(op, 8) == factor
    assert bus_factor(op, 1) is None


def test_every_operation_has_a_bus_factor_and_the_usual_ones_exist():
    assert set(OPERATIONS) <= set(operations.OPERATIONS)
    for op in operations.OPERATIONS:
        assert bus_factor(op, 2) is not None
