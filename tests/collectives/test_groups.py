"""What ranks do in the groups of a mesh."""

import pytest
from collectives.conftest import only

from distcheck.collectives import software

OLD = software.torch.__version__.startswith("2.1.")
"""Gloo has no all_gather and no reduce_scatter of whole tensors before torch 2.2 (pytorch #112144)."""
NOTHING = {"operations": ["broadcast"], "sizes_bytes": [], "group_bytes": 4096}


def timings(messages):
    return {(t["dimension"], t["op"]): t for t in only(messages, "GroupTiming")}


@pytest.mark.process
def test_each_dimension_is_checked_and_timed_alone_and_together(ranks_say):
    said, stderr = ranks_say(ranks=8, mesh={"pp": 2, "dp": 2, "tp": 2}, **NOTHING)
    assert stderr == ""
    for rank, messages in enumerate(said):
        assert messages[-1] == {"said": "Finished"}
        found = timings(messages)
        assert list(found) == [
            ("pp", "send_recv"), ("dp", "all_reduce"), ("tp", "reduce_scatter"), ("tp", "all_gather")
        ]  # fmt: skip
        first = {"pp": rank in (0, 4), "dp": rank in (0, 2), "tp": rank in (0, 1)}
        for (dimension, op), timing in found.items():
            if timing["lacks"]:
                assert (OLD, dimension) == (True, "tp"), timing
                continue
            assert timing["together"]["bytes"] == 4096
            assert (timing["alone"] is not None) == first[dimension], (rank, dimension, op)
        checked = {c["op"]: c["wrong"] for c in only(messages, "Checked")}
        assert checked.items() >= {"send_recv in pp": 0, "all_reduce in dp": 0}.items()
        assert set(checked.values()) == {0}
    assert all(
        len(t["together"]["waited"]) == len(t["together"]["bursts"])
        for messages in said
        for t in timings(messages).values()
        if t["together"]
    )
    (together,) = {tuple(t["together"]["iterations"] for t in timings(m).values() if t["together"]) for m in said}
    assert min(together) >= 3


@pytest.mark.process
def test_a_rank_that_waits_has_the_higher_place(ranks_say):
    said, _ = ranks_say(ranks=4, mesh={"dp": 2, "tp": 2}, **NOTHING)
    steps = [(s["text"], s["place"]) for s in only(said[1], "Step") if s["text"].startswith("dp")]
    assert [text for text, _ in steps][:3] == [
        "dp: form groups",
        "dp: check all_reduce",
        "dp: wait for the first group",
    ]
    places = dict(steps)
    assert places["dp: wait for the other groups"] > places["dp: all_reduce 4096 B in all groups"]
    of_first = {s["text"]: s["place"] for s in only(said[0], "Step")}
    assert places["dp: wait for the first group"] > of_first["dp: all_reduce 4096 B in the first group"]


@pytest.mark.process
def test_a_dimension_of_one_group_is_measured_once(ranks_say):
    said, _ = ranks_say(ranks=2, mesh={"dp": 2}, **NOTHING)
    for messages in said:
        (timing,) = only(messages, "GroupTiming")
        assert timing["together"]["bursts"]
        assert timing["alone"] is None


@pytest.mark.process
def test_a_wrong_sum_in_one_group_is_counted_where_it_is(ranks_say):
    said, _ = ranks_say(
        ranks=4,
        mesh={"dp": 2, "tp": 2},
        broken_rank=3,
        broken="wrong in a group",
        operations=["all_reduce"],
        sizes_bytes=[],
    )
    wrong = [{c["op"]: c["wrong"] for c in only(messages, "Checked") if c["wrong"]} for messages in said]
    assert wrong == [{}, {}, {}, {"all_reduce in dp": 3}]


@pytest.mark.process
def test_the_rank_that_does_not_come_to_its_group_is_named(ranks_say):
    said, _ = ranks_say(ranks=4, mesh={"dp": 2, "tp": 2}, broken_rank=2, broken="stays away", **NOTHING)
    assert said[0][-1] == {
        "said": "Failed",
        "error": "AbsentError: rank 2 did not come to form the dp group from rank 0",
        "unavailable": False,
        "absent": [2],
    }
    assert [messages[-1].get("absent", []) for messages in said[1:]] == [[], [], []]


@pytest.mark.process
def test_what_the_backend_lacks_is_said_and_the_rest_is_measured(ranks_say):
    said, _ = ranks_say(
        ranks=2, mesh={"dp": 2, "pp": 1}, broken_ranks=[0, 1], broken="lacks", operations=["broadcast"], sizes_bytes=[]
    )
    for messages in said:
        (timing,) = only(messages, "GroupTiming")
        assert timing["lacks"] == f"torch {software.torch.__version__}: Backend gloo does not support all_reduce"
        assert timing["together"] is None
        assert messages[-1] == {"said": "Finished"}


@pytest.mark.process
def test_an_error_of_the_device_is_no_operation_that_the_backend_lacks(ranks_say):
    said, _ = ranks_say(
        ranks=2, mesh={"dp": 2}, broken_ranks=[0, 1], broken="refuses", operations=["broadcast"], sizes_bytes=[]
    )
    assert [messages[-1]["said"] for messages in said] == ["Failed", "Failed"]
    assert not any(only(messages, "GroupTiming") for messages in said)
    # A rank that is still forming its group may lose its connection to the other, which has failed.
    assert "RuntimeError: CUDA error: operation not supported" in [messages[-1]["error"] for messages in said]


@pytest.mark.process
def test_without_time_no_group_is_formed(ranks_say):
    said, _ = ranks_say(ranks=2, mesh={"dp": 2}, deadline_seconds=5.0, **NOTHING)
    for messages in said:
        assert only(messages, "GroupTiming") == []
        assert messages[-1] == {"said": "Finished"}
