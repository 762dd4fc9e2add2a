import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.collectives import operations
from distcheck.collectives.operations import EXACT, Group, check_elements, contribution, pattern, prepare, total
from distcheck.collectives.plan import OPERATIONS, bus_factor, moved_bytes

CPU = operations.torch.device("cpu")
TYPES = sorted(EXACT)


def group(ranks, rank=0, dtype="float32", **more):
    return Group(rank, ranks, CPU, EXACT[dtype], **more)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_type_holds_every_integer_up_to_its_limit(dtype):
    exact = EXACT[dtype]
    whole = operations.torch.arange(max(0, exact.limit - 4000), exact.limit + 1)
    assert (whole.to(exact.dtype).to(whole.dtype) == whole).all()
    assert exact.apart < exact.limit
    assert exact.apart % exact.positions, "moved data shows in a sum or in a copy"


@pytest.mark.long
@pytest.mark.parametrize("dtype", TYPES)
@given(ranks=st.integers(1, 65536))
def test_the_expected_sum_is_exact_for_every_world(dtype, ranks):
    exact, here = EXACT[dtype], group(ranks, dtype=dtype)
    turns = exact.turns(ranks)
    places = range(40)
    expected = [
        sum(1 + rank % exact.weights for rank in range(place % turns, ranks, turns)) * (1 + place % exact.positions)
        for place in places
    ]
    assert max(expected) <= exact.limit
    assert total(here, 40).tolist() == expected


@pytest.mark.parametrize("dtype", TYPES)
@given(rank=st.integers(0, 65535), count=st.integers(1, 300))
def test_a_contribution_is_small_and_whole_and_of_a_few_ranks_never_zero(dtype, rank, count):
    exact = EXACT[dtype]
    values = contribution(group(65536, rank, dtype), count).tolist()
    assert len(values) == count
    assert all(0 <= value <= exact.weights * exact.positions and value == int(value) for value in values)
    assert all(value > 0 for value in contribution(group(8, rank % 8, dtype), count).tolist())


@pytest.mark.parametrize("dtype", TYPES)
def test_every_rank_has_its_turn_however_many_there_are(dtype):
    ranks = 4096
    turns = EXACT[dtype].turns(ranks)
    for rank in (0, 1, turns - 1, turns, ranks - 1):
        assert any(contribution(group(ranks, rank, dtype), turns).tolist())


@pytest.mark.parametrize("dtype", TYPES)
@given(ranks=st.integers(2, 64), order=st.randoms(use_true_random=False))
def test_a_type_adds_up_to_the_expected_sum_in_any_order(dtype, ranks, order):
    shuffled = list(range(ranks))
    order.shuffle(shuffled)
    added = contribution(group(ranks, shuffled[0], dtype), 100)
    for rank in shuffled[1:]:
        added += contribution(group(ranks, rank, dtype), 100)
    assert added.tolist() == total(group(ranks, dtype=dtype), 100).tolist()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("displaced", [1, 2, 4, 4096, 65536])
def test_displaced_data_is_seen_at_every_position(dtype, displaced):
    here = group(4, dtype=dtype)
    whole = pattern(0, 70_000, here)
    assert not (whole == pattern(displaced, 70_000, here)).any()
    sums = total(here, 70_000 + displaced)
    assert not (sums[displaced:] == sums[:70_000]).any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", operations.OPERATIONS)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_call_must_overwrite_is_wrong_before_it(op, rank, dtype):
    exercise = prepare(op, group(2, rank, dtype), 102)
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
