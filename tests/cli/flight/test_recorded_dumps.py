"""What `explain --flight` tells from dumps of real NCCL ranks with one fault each; tests/recorded/failed_jobs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from distcheck.explain.flight.answer import flight_explained
from distcheck.explain.flight.unpickling import unpickled

JOBS = Path(__file__).parents[2] / "recorded" / "failed_jobs"
DUMPS = sorted(JOBS.glob("*/nccl_trace_rank_*"))


def told(job):
    return flight_explained(sorted((JOBS / job).glob("nccl_trace_rank_*")), [])


def calls(cause):
    """Return the ranks, the collective, the elements, the state and the line of each call that is shown."""
    return [
        (call.ranks, call.name, call.collective, call.group, call.input_sizes, call.state, call.where)
        for call in cause.calls
    ]


def test_the_rank_that_sleeps_is_behind():
    found = told("sleeps")
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.collective, cause.about) == ("behind", (1,), 12, "application")
    assert found.text == (
        "rank 1 is behind: rank 0 waits in collective 12 of the default group (all_reduce), which it did not call"
    )
    size, main = ((1048576,),), "/job/train.py:{} in <module>"
    assert calls(cause) == [
        ((1,), "_all_gather_base", 1, "group 1", size, "completed", main.format(11)),
        ((0,), "all_reduce", 12, "the default group", size, "scheduled", main.format(20)),
    ]


@pytest.mark.parametrize(
    ("job", "what", "names", "elements", "line"),
    [
        ("other_collective", "collective", ("all_reduce", "broadcast"), (1048576, 1048576), 15),
        ("other_size", "size", ("all_reduce", "all_reduce"), (1048576, 1024), 16),
    ],
)
def test_ranks_that_call_different_collectives_or_sizes_are_shown_with_their_lines(job, what, names, elements, line):
    found = told(job)
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.collective, cause.about) == ("mismatch", (0, 1), 12, "application")
    assert found.text == f"ranks 0-1 did not call collective 12 of the default group with the same {what}"
    assert calls(cause) == [
        (
            (rank,),
            names[rank],
            12,
            "the default group",
            ((elements[rank],),),
            "scheduled",
            f"/job/train.py:{at} in <module>",
        )
        for rank, at in ((0, 20), (1, line))
    ]


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: f"{path.parent.name}_{path.name[-1]}")
def test_a_real_dump_is_loaded_as_python_loads_it(path):
    raw = path.read_bytes()
    assert unpickled(raw) == pickle.loads(raw)


@pytest.mark.parametrize("backend", ["gloo", "nccl2", "nccl-lazy", "xccl", "a:custom one"])
@pytest.mark.parametrize("absent", [None, 1])
def test_dumps_of_torch_2_15_are_read_under_any_backends_name(tmp_path, backend, absent):
    """Of three Gloo ranks, in 2.10 of the format; rank 0 has a receive from any rank, its profiling_name recv 0<-?.

    torch after 2.15 writes 2.11, with the split sizes of an all_to_all.
    """
    for rank in {0, 1, 2} - {absent}:
        dump = pickle.loads((JOBS.parent / "torch_2_15" / f"trace_{rank}").read_bytes())
        dump["version"] = "2.11"
        for entry in dump["entries"]:
            entry["profiling_name"] = f"{backend}:{entry['profiling_name'].partition(':')[2]}"
            entry["input_split_sizes"] = entry["output_split_sizes"] = [[1, 2]]
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(dump))
    found = flight_explained([tmp_path], [])
    assert found.unread == ()
    assert [(cause.kind, cause.ranks) for cause in found.causes] == [("behind", (2,))]
    others = "rank 0 waits" if absent else "ranks 0-1 wait"
    assert found.text.startswith(
        f"rank 2 is behind: {others} in collective 2 of the default group (all_reduce), which it did not call"
    )
