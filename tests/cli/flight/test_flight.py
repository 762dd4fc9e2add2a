"""What `explain --flight` tells from dumps that are built as torch 2.5 to 2.13 writes those of NCCL's groups.

Those of test_recorded_dumps.py are of real NCCL ranks, those of test_gloo_dumps.py of real Gloo ranks.
"""

from __future__ import annotations

import io
import json
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import real_job
from typer.testing import CliRunner

from distcheck.cli.main import app
from distcheck.explain.flight import loading
from distcheck.explain.flight.answer import flight_explained
from distcheck.explain.flight.rendering import FLIGHT_RENDERERS
from distcheck.explain.flight.unpickling import unpickled
from distcheck.facts import saved
from distcheck.facts.errors import UsageError

SECOND = 10**9


def call(seq, name="all_reduce", sizes=(8,), state="completed", group=("0", "default_pg"), **changes):
    """Return an entry as FlightRecorderDetail.hpp writes it."""
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/v/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
            {"name": "main", "filename": "train.py", "line": 40},
        ],
        "record_id": seq - 1,
        "pg_id": 0 if group[1] == "default_pg" else 1,
        "process_group": group,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_700_000_000 * SECOND + seq * SECOND,
        "input_sizes": [list(sizes)],
        "input_dtypes": ["Float"],
        "output_sizes": [list(sizes)],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        **changes,
    }


def waiting(seq, **changes):
    return call(seq, state="started", **changes)


def dump(*entries, ranks="[0, 1, 2, 3]", version="2.10", **groups):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    config |= {name: {"name": name, "desc": name, "ranks": members} for name, members in groups.items()}
    return {"version": version, "pg_config": config, "pg_status": {}, "entries": list(entries)}


def numbered(*entries):
    return [entry | {"record_id": number} for number, entry in enumerate(entries)]


def told(folder, dumps, jobs=()):
    for rank, content in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return flight_explained([folder], jobs)


def run(*words):
    return CliRunner().invoke(app(["explain"]), ["explain", *map(str, words)])


def test_the_rank_that_did_not_call_what_the_others_wait_in_is_behind(tmp_path):
    others = dump(call(1), call(2), waiting(3))
    found = told(tmp_path, {0: others, 1: others, 2: dump(call(1), call(2)), 3: others})
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.collective, cause.about) == ("behind", (2,), 3, "application")
    assert found.text == (
        "rank 2 is behind: ranks 0-1,3 wait in collective 3 of the default group (all_reduce), which it did not call"
    )
    assert [(alike.ranks, alike.state, alike.where) for alike in cause.calls] == [
        ((2,), "completed", "train.py:40 in main"),
        ((0, 1, 3), "started", "train.py:40 in main"),
    ]


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (waiting(2, name="broadcast"), "rank 3 called broadcast where ranks 0-2 called all_reduce: collective 2"),
        (waiting(2, sizes=(4, 4)), "rank 3 called collective 2 of the default group (all_reduce) with another size"),
        (waiting(2, input_dtypes=["Half"]), "(all_reduce) with another type of data than ranks 0-2"),
    ],
)
def test_the_rank_that_called_another_collective_size_or_type_is_named(tmp_path, odd, text):
    usual = dump(call(1), waiting(2))
    found = told(tmp_path, {0: usual, 1: usual, 2: usual, 3: dump(call(1), odd)})
    assert [(cause.kind, cause.ranks) for cause in found.causes] == [("mismatch", (3,))]
    assert text in found.text


def test_shapes_of_as_many_elements_and_roles_with_other_sizes_are_no_mismatch(tmp_path):
    first = dump(call(1, sizes=(2, 4)), call(2, name="scatter", input_sizes=[[8]] * 4), call(3, name="all_to_all"))
    second = dump(call(1), call(2, name="scatter", input_sizes=[]), call(3, name="all_to_all", sizes=(99,)))
    found = told(tmp_path, {0: first, 1: second, 2: second, 3: second})
    assert (found.causes, found.exit_code) == ((), 20)
    assert found.text == "no rank holds up the others: every rank completed its last call"


def test_two_ranks_that_disagree_are_both_named_and_neither_is_blamed(tmp_path):
    one, other = dump(waiting(1), ranks="[0, 1]"), dump(waiting(1, name="broadcast"), ranks="[0, 1]")
    (cause,) = told(tmp_path, {0: one, 1: other}).causes
    assert (cause.ranks, cause.text) == (
        (0, 1),
        "ranks 0-1 did not call collective 1 of the default group with the same collective",
    )


def test_a_rank_without_a_dump_is_missing_where_all_others_wait(tmp_path):
    there = dump(call(1), waiting(2))
    found = told(tmp_path, {0: there, 1: there, 3: there})
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, found.missing_ranks, cause.about) == ("missing", (2,), (2,), "process killed")
    assert "dmesg" in cause.fix.commands[0]


def test_most_ranks_without_a_dump_are_no_cause(tmp_path):
    found = told(tmp_path, {0: dump(waiting(1))})
    assert (found.causes, found.exit_code, found.missing_ranks) == ((), 20, (1, 2, 3))
    assert "3 of 4 ranks have no dump" in found.text


def test_a_rank_that_waits_in_another_group_is_not_blamed(tmp_path):
    """Rank 1 waits in tp for rank 3, so it cannot join rank 0 in dp; rank 3 is in nothing."""
    groups = {"dp": "[0, 1]", "tp": "[1, 3]"}
    dp, tp = ("dp", "dp"), ("tp", "tp")
    found = told(
        tmp_path,
        {
            0: dump(*numbered(call(1, group=dp), waiting(2, group=dp)), **groups),
            1: dump(*numbered(call(1, group=dp), call(1, group=tp), waiting(2, group=tp)), **groups),
            2: dump(**groups),
            3: dump(*numbered(call(1, group=tp)), **groups),
        },
    )
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.group) == ("behind", (3,), "group tp")


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_deadlock(tmp_path):
    groups = {"a": "[0, 1]", "b": "[0, 1]"}
    a, b = waiting(1, group=("a", "a")), waiting(1, group=("b", "b"))
    found = told(tmp_path, {0: dump(a, ranks="[0, 1]", **groups), 1: dump(b, ranks="[0, 1]", **groups)})
    assert {(cause.kind, cause.text) for cause in found.causes} == {
        ("deadlock", "rank 0 waits in collective 1 of group a for rank 1, which waits in b"),
        ("deadlock", "rank 1 waits in collective 1 of group b for rank 0, which waits in a"),
    }


def test_a_group_without_a_description_is_called_by_its_name(tmp_path):
    """Torch writes "undefined" for what new_group got no description for."""
    groups = {"7": "[0, 1]", "8": "[0, 1]"}
    one, other = waiting(1, group=("7", "undefined")), waiting(1, group=("8", "undefined"))
    found = told(tmp_path, {0: dump(one, ranks="[0, 1]", **groups), 1: dump(other, ranks="[0, 1]", **groups)})
    assert [cause.text for cause in found.causes] == [
        "rank 0 waits in collective 1 of group 7 for rank 1, which waits in group 8",
        "rank 1 waits in collective 1 of group 8 for rank 0, which waits in group 7",
    ]


def test_a_rank_that_waits_in_a_receive_is_not_blamed_and_is_no_deadlock(tmp_path):
    receives = dump(*numbered(call(1), waiting(1, name="recv 1<-2", is_p2p=True)), ranks="[0, 1]")
    found = told(tmp_path, {0: dump(call(1), waiting(2), ranks="[0, 1]"), 1: receives})
    assert (found.causes, found.exit_code) == ((), 20)
    assert found.text == "rank 1 waits in a send or receive; these are not compared between ranks"


def test_a_gpu_that_has_not_started_what_others_are_in_is_named(tmp_path):
    others = dump(call(1), waiting(2))
    found = told(tmp_path, {0: others, 1: dump(call(1), call(2, state="scheduled")), 2: others, 3: others})
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.about) == ("not-started", (1,), "GPU")


def test_a_collective_that_all_called_and_none_ended_blames_no_rank(tmp_path):
    found = told(tmp_path, dict.fromkeys(range(4), dump(call(1), waiting(2))))
    assert (found.causes, found.about, found.exit_code) == ((), "network", 20)
    assert "the collective itself hangs" in found.text
    assert found.next[0].startswith("distcheck gate")


def test_batched_sends_count_differently_on_healthy_ranks_and_are_not_compared(tmp_path):
    batch = [
        call(1, name="send 0->1", is_p2p=True),
        call(1, name="coalesced"),
        waiting(2),
    ]
    found = told(tmp_path, {0: dump(*numbered(*batch)), 1: dump(waiting(1)), 2: dump(waiting(1)), 3: dump(waiting(1))})
    assert (found.causes, found.exit_code) == ((), 20)
    assert found.notes == ("the default group: sends and receives in batches; its collectives were not compared",)


def test_two_groups_of_one_name_are_not_mixed(tmp_path):
    """split_group and meshes give groups of different ranks the same name."""
    tp = ("7", "tp")
    first = dump(call(1, group=tp), waiting(2, group=tp), **{"7": "[0, 1]"})
    second = dump(call(1, group=tp, sizes=(99,)), call(2, group=tp, name="broadcast"), **{"7": "[2, 3]"})
    found = told(tmp_path, {0: first, 1: first, 2: second, 3: second})
    assert (found.causes, found.about) == ((), "network")
    assert "all ranks called collective 2 of group tp (7) (all_reduce)" in found.text


def test_a_dump_of_torch_2_5_is_read(tmp_path):
    """Version 2.2 has no threads and no status of groups; is_p2p came later than send and receive."""
    newer = ("is_p2p", "input_dtypes", "output_dtypes", "timeout_ms")

    def older(*entries):
        old = [{key: value for key, value in entry.items() if key not in newer} for entry in entries]
        return {key: value for key, value in dump(*old, ranks="[0, 1]", version="2.2").items() if key != "pg_status"}

    send = call(1, name="send 0->1") | {"record_id": 5}
    found = told(tmp_path, {0: older(call(1), waiting(2), send), 1: older(call(1))})
    assert [(cause.kind, cause.ranks) for cause in found.causes] == [("behind", (1,))]


def test_a_group_that_was_made_again_is_judged_by_its_new_calls(tmp_path):
    before = [call(seq) for seq in range(1, 9)]
    others = dump(*numbered(*before, call(1), waiting(2)), ranks="[0, 1, 2]")
    found = told(tmp_path, {0: others, 1: others, 2: dump(*numbered(*before, call(1)), ranks="[0, 1, 2]")})
    assert [(cause.kind, cause.ranks, cause.collective) for cause in found.causes] == [("behind", (2,), 2)]


def test_a_rank_whose_dump_does_not_name_the_groups_ranks_is_not_blamed(tmp_path):
    there = dump(call(1), waiting(2), ranks="[0, 1, 2]")
    found = told(tmp_path, {0: there, 1: there, 2: dump(call(1), waiting(2), ranks="[]")})
    assert (found.causes, found.exit_code) == ((), 20)


def test_batches_that_differ_after_their_first_collective_are_named(tmp_path):
    def batch(name):
        return dump(*numbered(call(1, name="all_gather"), call(1, name=name), call(1, name="coalesced")))

    found = told(tmp_path, {0: batch("broadcast"), 1: batch("broadcast"), 2: batch("broadcast"), 3: batch("reduce")})
    assert [(cause.kind, cause.ranks) for cause in found.causes] == [("mismatch", (3,))]
    assert "with another batch than ranks 0-2" in found.text


def test_a_buffer_that_was_overwritten_is_compared_where_it_overlaps(tmp_path):
    late = dump(*(call(seq) for seq in range(50, 60)))
    found = told(tmp_path, {0: late, 1: dump(*(call(seq) for seq in range(55, 60)), waiting(60)), 2: late, 3: late})
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.collective) == ("behind", (0, 2, 3), 60)


def test_a_dump_of_active_calls_only_knows_the_last_collective_by_the_status(tmp_path):
    active = dump(waiting(7))
    done = dump() | {"pg_status": {"0": {"last_enqueued_collective": 7}}}
    assert told(tmp_path, {0: active, 1: active, 2: active, 3: done}).causes == ()
    behind = dump() | {"pg_status": {"0": {"last_enqueued_collective": 6}}}
    (cause,) = told(tmp_path, {0: active, 1: active, 2: active, 3: behind}).causes
    assert (cause.kind, cause.ranks) == ("behind", (3,))


def test_a_saved_job_names_nodes_and_ranks_without_a_dump(tmp_path):
    job = tmp_path / "job.json"
    saved.save(real_job.healthy(2, 2), job)
    folder = tmp_path / "dumps"
    folder.mkdir()
    there = dump(call(1), waiting(2), ranks="[]")
    found = told(folder, {0: there, 1: there, 2: there}, [job])
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.nodes) == ("missing", (3,), found.missing_nodes)
    assert cause.nodes[0] in cause.text
    assert f"# on {cause.nodes[0]}" in cause.fix.commands[0]


@pytest.mark.parametrize(
    ("late", "who"),
    [
        ((4,), "rank 4 (node unknown) is behind: ranks 0-3 (node1 and node2) wait"),
        ((3, 4, 5), "ranks 3-5 (node2 and unknown for ranks 4-5) are behind: ranks 0-2 (node1 and node2) wait"),
    ],
)
def test_of_a_rank_that_the_saved_job_lacks_the_node_is_unknown_and_no_other_is_named(tmp_path, late, who):
    job, folder = tmp_path / "job.json", tmp_path / "dumps"
    saved.save(real_job.healthy(2, 2), job)
    folder.mkdir()
    world = "[0, 1, 2, 3, 4, 5]"
    dumps = {rank: dump(call(1), *([waiting(2)] * (rank not in late)), ranks=world) for rank in range(max(late) + 1)}
    found = told(folder, dumps, [job])
    assert found.text.startswith(who)
    assert all(4 not in calls.ranks or calls.nodes == () for calls in found.causes[0].calls)
    assert "\nnode unknown: ranks 4-5, not in the saved job\n" in FLIGHT_RENDERERS["text"](found)
    assert "unknown" not in FLIGHT_RENDERERS["text"](told(folder, dumps))


def test_json_and_pickle_give_the_same_answer(tmp_path):
    contents = {0: dump(call(1), waiting(2), ranks="[0, 1]"), 1: dump(call(1), ranks="[0, 1]")}
    as_json, as_pickle = tmp_path / "json", tmp_path / "pickle"
    as_json.mkdir(), as_pickle.mkdir()
    for rank, content in contents.items():
        (as_json / f"trace_{rank}.json").write_text(json.dumps(content))
    assert flight_explained([as_json], []).causes == told(as_pickle, contents).causes


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_every_format_names_the_rank_and_exits_with_0(tmp_path, form):
    told(tmp_path, {0: dump(waiting(1), ranks="[0, 1]"), 1: dump(ranks="[0, 1]")})
    result = run("--flight", tmp_path, "--format", form)
    assert result.exit_code == 0
    if form == "json":
        document = json.loads(result.stdout)
        assert (document["schema"], document["class"]) == (1, "application")
        assert (document["causes"][0]["ranks"], document["causes"][0]["kind"]) == ([1], "behind")
        assert result.stdout.count("\n") == 1
    else:
        assert (
            "rank 1 is behind: rank 0 waits in collective 1 of the default group (all_reduce)"
            in result.stdout.replace("\\", "")
        )
        assert "py-spy dump" in result.stdout.replace("\\", "")
        assert "^RANK=1$" in result.stdout.replace("\\", "")


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_pickle_that_names_a_function_is_not_read_and_runs_nothing(tmp_path):
    trap = tmp_path / "sprung"
    content = dump(waiting(1), ranks="[0]") | {"extra": Evil(io.open, str(trap), "w")}
    (tmp_path / "trace_0").write_bytes(pickle.dumps(content))
    with pytest.raises(UsageError, match="names a class or function; a dump has plain values only"):
        flight_explained([tmp_path / "trace_0"], [])
    assert not trap.exists()


def shared(depth):
    value = []
    for _ in range(depth):
        value = [value] * 10
    return value


BOMBS = {
    "an index of 4 billion": b"\x80\x02}r\xf0\xff\xff\xff.",
    "a list of itself": b"\x80\x02]q\x00h\x00a.",
    "a billion references": pickle.dumps(dump(input_sizes=shared(9)) | {"entries": shared(9)}),
    "a set": pickle.dumps(dump() | {"entries": [{1}]}, protocol=4),
    "a key that takes years to hash": b"\x80\x02})" + b"q\x00h\x00h\x00\x87" * 60 + b"K\x01s.",
    "a stack that is empty": b"\x80\x02(u.",
    "an item without a list": b"\x80\x02K\x01K\x02a.",
    "a persistent object": b"\x80\x02K\x01Q.",
    "code of a registry": b"\x80\x02\x82\x01.",
    "nested": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a huge number": pickle.dumps(dump(call(10**5000))),
    "a text for a number": pickle.dumps(dump(call(1) | {"collective_seq_id": "1"})),
    "a list for a dump": pickle.dumps([1]),
    "nested JSON": b'{"version":"2.1","x":' + b"[" * 100_000,
    "a Python literal": b"{'version': '2.10'}",
}


@pytest.mark.parametrize("raw", BOMBS.values(), ids=BOMBS.keys())
def test_a_dump_that_is_built_to_harm_is_not_read_and_costs_no_answer(tmp_path, raw):
    (tmp_path / "nccl_trace_rank_4").write_bytes(raw)
    found = told(tmp_path, {0: dump(waiting(1)), 1: dump(waiting(1)), 2: dump(waiting(1)), 3: dump()})
    assert [(cause.kind, cause.ranks) for cause in found.causes] == [("behind", (3,))]
    assert [reason.partition(": ")[0] for reason in found.unread] == [str(tmp_path / "nccl_trace_rank_4")]
    assert all(len(reason) < 300 for reason in found.unread)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@pytest.mark.long
@given(VALUES, st.sampled_from([2, 3, 4, 5]))
def test_what_python_pickles_is_loaded_as_python_loads_it(value, protocol):
    assert unpickled(pickle.dumps([value], protocol)) == [value]


def test_a_dump_cut_anywhere_is_not_read(tmp_path):
    whole = pickle.dumps(dump(call(1), waiting(2)), protocol=2)
    unread = []
    for end in range(0, len(whole), 7):
        (tmp_path / "trace_0").write_bytes(whole[:end])
        assert list(loading.dumps([tmp_path], unread)) == []
    assert len(unread) == len(range(0, len(whole), 7))
    (tmp_path / "trace_0").write_bytes(whole)
    assert len(list(loading.dumps([tmp_path], []))) == 1


@pytest.mark.long
@pytest.mark.parametrize("write", [lambda content: pickle.dumps(content, protocol=2), lambda c: json.dumps(c).encode()])
def test_a_dump_with_any_byte_changed_gives_an_answer_or_a_usage_error(tmp_path, write):
    generator = random.Random(7)
    whole = write(dump(call(1), waiting(2), ranks="[0, 1]"))
    (tmp_path / "trace_1").write_bytes(write(dump(call(1), ranks="[0, 1]")))
    read = 0
    for _ in range(300):
        changed = bytearray(whole)
        changed[generator.randrange(len(changed))] = generator.randrange(256)
        (tmp_path / "trace_0").write_bytes(changed)
        found = flight_explained([tmp_path], [])
        read += not found.unread
        for render in FLIGHT_RENDERERS.values():
            shown = render(found)
            assert all(c.isprintable() or c == "\n" for c in shown)
    assert read > 20


def test_other_versions_and_other_files_are_listed_as_not_read(tmp_path):
    (tmp_path / "README.md").write_text("dumps of Monday")
    (tmp_path / "train_1.log").write_text("step 1")
    (tmp_path / "trace_5").write_bytes(pickle.dumps(dump(version="1.4")))
    (tmp_path / "trace_6").write_bytes(b"")
    found = told(tmp_path, {0: dump(waiting(1), ranks="[0]")})
    assert len(found.unread) == 4
    shown = run("--flight", tmp_path).stdout
    assert "trace_5: version 1.4 of the format; distcheck reads 2.x" in shown
    assert "trace_6: empty" in shown


def test_of_two_dumps_of_a_rank_the_later_is_read(tmp_path):
    (tmp_path / "trace_0.json").write_text(json.dumps(dump(call(1), ranks="[0, 1]")))
    found = told(tmp_path, {0: dump(call(1), waiting(2), ranks="[0, 1]"), 1: dump(call(1), ranks="[0, 1]")})
    assert [cause.ranks for cause in found.causes] == [(1,)]
    assert "a later dump of rank 0" in found.unread[0]


def test_names_in_a_dump_do_not_reach_the_terminal_raw(tmp_path):
    evil = waiting(1, name="all_reduce\x1b]0;owned\x07\x1b[2J" + "x" * 9999)
    told(tmp_path, {0: dump(evil, ranks="[0, 1]"), 1: dump(ranks="[0, 1]")})
    for form in ("text", "json", "markdown"):
        output = run("--flight", tmp_path, "--format", form).stdout
        assert all(c.isprintable() or c == "\n" for c in output)
        assert "xxx" in output
        assert "x" * 200 not in output


def test_wrong_usage_is_said_before_anything_is_read(tmp_path):
    for words in (["--flight", tmp_path, "--log", tmp_path], ["--job", tmp_path]):
        with pytest.raises(UsageError):
            CliRunner().invoke(app(["explain"]), ["explain", *map(str, words)], catch_exceptions=False)
    with pytest.raises(UsageError, match="no dumps"):
        flight_explained([tmp_path], [])
    with pytest.raises(UsageError, match="No such file"):
        flight_explained([tmp_path / "none"], [])
