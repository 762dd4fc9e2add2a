"""What torch's watchdog lines of several ranks prove, in the formats of torch 1.7 to 2.13."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from explain.answered import rules_of
from typer.testing import CliRunner

from distcheck.cli.main import app
from distcheck.explain.answer import explained
from distcheck.explain.hang import hang
from distcheck.explain.places import NOWHERE, Place
from distcheck.explain.reading import Piece
from distcheck.explain.watchdog import WatchdogLines

DEFAULT = "PG ID 0 PG GUID 0(default_pg)"


def late(rank, number=9, what="ALLREDUCE", sizes=(4, 4), *, own=None, clock="10:01:11.221", prefix=True):
    """Return the line of a time-out of recent torch."""
    head = f"[rank{rank}]:[E1120 {clock} ProcessGroupNCCL.cpp:632] " if prefix else f"[E1120 {clock} x.cpp:1] "
    return (
        f"{head}[Rank {rank if own is None else own}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum="
        f"{number}, OpType={what}, NumelIn={sizes[0]}, NumelOut={sizes[1]}, Timeout(ms)=600000) ran for 600021"
        " milliseconds before timing out.\n"
    )


def failed(rank, number=9, what="ALLREDUCE", sizes=(4, 4), *, clock="10:01:05.000"):
    """Return what a rank writes when NCCL fails in a collective, before its timeout."""
    return (
        f"[rank{rank}]:[E1120 {clock} ProcessGroupNCCL.cpp:612] [Rank {rank}] Collective WorkNCCL(SeqNum={number},"
        f" OpType={what}, NumelIn={sizes[0]}, NumelOut={sizes[1]}, Timeout(ms)=600000) raised the following async"
        " exception: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
    )


def status(rank, number=9, group=DEFAULT, *, own=None, enqueued=None):
    """Return the line that follows it in recent torch."""
    return (
        f"[rank{rank}]:[E1120 10:01:11.221 ProcessGroupNCCL.cpp:2271] [{group} Rank {rank if own is None else own}] "
        f" failure detected by watchdog at work sequence id: {number} PG status: last enqueued work:"
        f" {number if enqueued is None else enqueued}, last completed work: {number - 1}\n"
    )


def signal(rank, enqueued, completed=None, group=DEFAULT, by=" rank 0"):
    """Return what a rank writes when another one timed out."""
    return (
        f"[rank{rank}]:[E1120 10:01:11.300 ProcessGroupNCCL.cpp:1746] [{group} Rank {rank}] Received a dump signal due"
        f" to a collective timeout from {by} and we will try our best to dump the debug info. Last enqueued NCCL work:"
        f" {enqueued}, last completed NCCL work: {enqueued if completed is None else completed}.This is most likely\n"
    )


def told(*lines, of_file=NOWHERE):
    watchdog = WatchdogLines()
    data = "".join(lines).encode()
    assert list(watchdog.watched([Piece(1, data)], of_file)) == [Piece(1, data)]
    return hang(watchdog.seen())


TP = "PG ID 1 PG GUID 5(tp)"
IF_ONE = "this holds if it is one group for all of them"
MANY = [late(rank) + status(rank) for rank in range(4)]
CASES = {
    "different collectives under one number": (
        [late(0, sizes=(1, 1)), late(2, what="ALLGATHER", sizes=(1024, 4096)), status(0), status(2)],
        "mismatch", (0, 2),
        ("^ranks 0,2 call different collectives: rank 0 ALLREDUCE (1 element) and rank 2 ALLGATHER (1024 elements in"
        " and 4096 out), each as number 9 of the default process group$"),
    ),
    "one rank in another collective than the others": (
        [MANY[0], MANY[1], MANY[3], late(2, what="BROADCAST"), status(2)], "mismatch", (2,), "",
    ),
    "a mismatch of a group without a name is conditional": (
        [late(0), late(1, what="BROADCAST")], "mismatch", (0, 1),
        f"number 9 of a process group that the lines do not name; {IF_ONE}$",
    ),
    "a line without a group is compared with the default group, on condition": (
        [late(7, what="BROADCAST"), status(7, group="PG 0 (default_pg)"), late(3)], "mismatch", (3, 7),
        f"number 9 of the default process group; {IF_ONE}$",
    ),
    "different sizes of one collective": (
        [*map(late, (0, 1, 2)), late(3, sizes=(1, 1))], "mismatch", (3,),
        "call ALLREDUCE with different sizes: rank 3 with 1 element and ranks 0-2 with 4 elements",
    ),
    "a rank on which NCCL failed is compared with those that time out": (
        [failed(3, sizes=(1, 1)), status(3), *MANY[:3]], "mismatch", (3,),
        "rank 3 with 1 element and ranks 0-2 with 4 elements, as number 9 of the default",
    ),
    "a rank on which NCCL failed is in no hang": ([failed(3), status(3), *MANY[:3]], "missing", (3,), ""),
    "an error of NCCL in a later attempt": (
        [failed(3, sizes=(1, 1), clock="10:25:00.000"), *MANY[:3]], "missing", (3,), "",
    ),
    "an error of NCCL in an earlier attempt hides no mismatch": (
        [failed(2, clock="09:01:00.000"), MANY[0], late(1, what="BROADCAST"), status(1)], "mismatch", (0, 1), "",
    ),
    "a time-out that the watchdog sees late": (
        [late(0), late(1, sizes=(1, 1), clock="10:11:12.900")], "mismatch", (0, 1), "",
    ),
    "a time-out of a later attempt": ([late(0), late(1, sizes=(1, 1), clock="10:11:20.000")], "missing", (1,), ""),
    "a send beside a receive": ([late(0, what="SEND"), late(1, what="RECV")], "unclear", (), ""),
    "a rank in an earlier collective": (
        [late(0, 105), late(1, 105), late(2, 100), *(status(r, n) for r, n in ((0, 105), (1, 105), (2, 100)))],
        "behind", (2,),
        ("^rank 2 is behind in the default process group: it waits in ALLREDUCE number 100, ranks 0-1 in ALLREDUCE"
        " number 105$"),
    ),
    "a rank that has not called the collective": (
        [MANY[0], MANY[1], MANY[3], signal(2, 8)], "behind", (2,),
        ("^rank 2 is behind: it did not call collective 9 of the default process group; ranks 0-1,3 wait in ALLREDUCE"
        " number 9$"),
    ),
    "a line of a group without a name": ([late(0, 9), late(1, 30), status(1, 30), signal(2, 8)], "behind", (0,), ""),
    "a rank that never called a collective": ([late(0, 1), status(0, 1), signal(1, -1)], "behind", (1,), ""),
    "a rank that waits in another group": (
        [MANY[0], MANY[1], late(2, 70), status(2, 70, TP, own=0), signal(2, 8)], "unclear", (),
        "rank 2 waits in ALLREDUCE number 70 of process group 5 (tp)",
    ),
    "all ranks in one collective": (
        ["world_size=4\n", *MANY], "together", (),
        ("^ranks 0-3 wait in ALLREDUCE number 9 of the default process group; all 4 ranks are in the same collective,"
        " so none is behind: a GPU or the network may not finish it$"),
    ),
    "all ranks in one collective, one of them without a group": (
        ["world_size=2\n", late(0), status(0), late(1)], "together", (),
        "^ranks 0-1 wait in ALLREDUCE number 9 of the default process group; all 2 ranks",
    ),
    "the condition that they are of one group": (["world_size=2\n", MANY[0], late(1)], "together", (), f"; {IF_ONE}$"),
    "no world size": ([*map(late, range(4))], "together", (), "; these ranks are in the same collective"),
    "a rank that writes but does not time out, and ranks without a line": (
        ["world_size=8\n[rank1]: epoch 3\n", *map(late, (0, 2, 3))], "missing", (1,), "rank 1 reports no time-out",
    ),
    "ranks without a line": (
        ["world_size=8\n[rank1]: epoch 3\n", *map(late, (0, 2, 3))], "missing", (1,), "no line of ranks 4-7",
    ),
    "of a subgroup no rank is missing": (
        ["world_size=4\n[rank0]: epoch 3\n", *(late(r) + status(r, group=TP, own=r - 2) for r in (2, 3))],
        "together", (), "",
    ),
    "a single rank": ([late(0)], "unclear", (), ""),
    "a later attempt is not compared with the first": (
        [late(0), late(1), *(late(rank, 3, clock="10:31:00.000") for rank in (0, 1, 2))], "missing", (2,),
        "^ranks 0-1 wait in ALLREDUCE number 9",
    ),
    "a rank that times out in a later attempt": (
        [late(0), late(1), *(late(rank, 3, clock="10:31:00.000") for rank in (0, 1, 2))], "missing", (2,),
        "rank 2 reports no time-out in this attempt",
    ),
}  # fmt: skip
"""What the lines of several ranks show: the lines, the kind, the ranks, and words between ^ and $."""
OWN = [late(r, 9, own=r) + status(r, 9, "PG 1", own=r) for r in (0, 1)]
OTHERS = [late(r, 7, "BROADCAST", own=r - 2) + status(r, 7, "PG 1", own=r - 2) for r in (2, 3)]
NOT_COMPARED = {
    "ranks on which NCCL failed, and none that timed out": [
        failed(0, what="BROADCAST"), status(0), failed(1), status(1), failed(2), status(2),
    ],
    "groups that only share their local number": [*OWN, *OTHERS],
    "ranks of groups that only share their local number": [OWN[0], OTHERS[1]],
    "a rank in two groups without a name": [late(0, 9), late(0, 20), late(1, 9)],
    "attempts without times": [
        line.replace("E1120 10:01:11.221", "E") for line in (late(0), late(1), late(0, 3), late(1, 3))
    ],
}  # fmt: skip


@pytest.mark.parametrize(("lines", "kind", "ranks", "words"), CASES.values(), ids=list(CASES))
def test_what_the_lines_prove_is_said(lines, kind, ranks, words):
    found = told(*lines)
    assert (found.kind, found.ranks) == (kind, ranks)
    assert words in f"^{found.says}$"


@pytest.mark.parametrize("lines", NOT_COMPARED.values(), ids=list(NOT_COMPARED))
def test_lines_that_may_be_of_several_groups_or_attempts_are_not_compared(lines):
    assert told(*lines) is None


def test_ranks_of_another_group_are_no_mismatch():
    found = told(late(7, what="BROADCAST"), status(7, group=TP), late(3))
    assert (found.kind, found.ranks) != ("mismatch", (3, 7))


@pytest.mark.parametrize(
    ("what", "sizes"),
    [("ALLTOALL_BASE", (1, 9)), ("GATHER", (4, 0)), ("REDUCE", (4, 0)), ("SCATTER", (0, 4)), ("COALESCED", (0, 0))],
)
def test_sizes_that_may_differ_are_no_mismatch(what, sizes):
    assert told(late(0, what=what), late(1, what=what, sizes=sizes)).kind == "together"


@pytest.mark.parametrize(
    "line",
    [
        signal(2, 9, 8),  # it called the collective too
        signal(2, 8, group="PG ID 1 PG GUID 5(tp)"),  # the count of another group
        signal(2, 8, 792),  # counts that contradict themselves, as torch writes after batched sends
        signal(2, 3),  # another count than that of collectives: the others could not have finished 8 without it
        signal(2, 8).replace("Received a dump signal due to", "NCCL Work update periodically"),
    ],
)
def test_no_rank_is_behind_by_a_count_that_does_not_show_it(line):
    found = told(*(late(rank) + status(rank) for rank in (0, 1, 3)), line)
    assert found.kind == "missing"
    assert "rank 2 reports no time-out: not in this collective, dead, stuck elsewhere, or ended" in found.says


@pytest.mark.parametrize("world", ["WORLD_SIZE: 4", "world_size=4", "comm 0x1 rank 0 nranks 4 cudaDev 0"])
def test_a_rank_without_any_line_may_be_logged_elsewhere(world):
    found = told(f"{world}\n", *map(late, range(3)))
    assert (found.kind, found.ranks) == ("missing", (3,))
    assert found.says.endswith(
        "; the log has no line of rank 3: not in this collective, dead or stuck elsewhere, or logged elsewhere"
    )


@pytest.mark.parametrize(
    "line",
    [
        "[E ProcessGroupNCCL.cpp:485] [Rank {0}] TIMEOUT(OpType=ALLREDUCE, TensorShape=[4, 2], Timeout(ms)=1800000)",
        "[E ProcessGroupNCCL.cpp:821] [Rank {0}] TIMEOUT(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=1800000)",
        "RuntimeError: [Rank {0}] TIMEOUT(SeqNum=9, OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=1800000)",
        "[rank{0}]:[E626 06:24:44.9 x.cpp:1] [PG 0 (default_pg) Rank {0}] ended: TIMEOUT(SeqNum=9, OpType=ALLREDUCE)",
    ],
)
def test_every_versions_line_names_rank_and_collective(line):
    line = line.replace("TIMEOUT", "Watchdog caught collective operation timeout: WorkNCCL")
    line += " ran for 1802246 milliseconds before timing out.\n"
    found = told("world_size=3\n", line.format(0), line.format(2))
    assert (found.kind, found.ranks) == ("missing", (1,))
    assert found.says.startswith("ranks 0,2 wait in ALLREDUCE")


@pytest.mark.parametrize(
    ("group", "label"),
    [
        ("PG 0 (default_pg)", "the default process group"),
        ("PG 0", "the default process group"),
        ("PG ID 0 PG GUID 0", "the default process group"),
        ("PG ID 2 PG GUID 3", "process group 3"),
        ("PG ID 2 PG GUID 3(mesh_tp)", "process group 3 (mesh_tp)"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        "Exception (either an error or timeout) detected by watchdog at work: 9",
        "Timeout at NCCL work: 9",
    ],
)
def test_a_later_line_names_the_group_in_every_version(group, label, words):
    rest = "last enqueued NCCL work: 9, last completed NCCL work: 8."
    found = told(
        *(late(r) + f"[rank{r}]:[E1120 10:01:11.2 x.cpp:1] [{group} Rank {r}] {words}, {rest}\n" for r in (0, 1))
    )
    assert f"wait in ALLREDUCE number 9 of {label}; " in found.says


def test_operations_without_numbers_are_not_called_different():
    line = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(OpType={}, Timeout(ms)=1)\n"
    found = told(line.format(0, "ALLREDUCE"), line.format(1, "BROADCAST"))
    assert (found.kind, found.ranks) == ("unclear", ())


def test_the_rank_of_a_file_counts_where_a_line_has_only_that_of_its_group():
    later = status(6, group="PG ID 1 PG GUID 5(tp)", own=0).replace("[rank6]:", "")
    assert told(late(6, own=0, prefix=False), later, of_file=Place(rank=6)).says.startswith("rank 6 waits")


def test_an_error_of_nccl_is_no_time_out():
    line = late(0).replace("Watchdog caught collective operation timeout:", "Collective").replace("ran for", "raised")
    assert told(line) is None


@pytest.mark.long
def test_ten_thousand_ranks_are_compared_in_one_sentence():
    world = 10_000
    data = "".join(late(r, 8 if r == 7777 else 9) + status(r, 8 if r == 7777 else 9) for r in range(world))
    found = told(data)
    assert (found.kind, found.ranks) == ("behind", (7777,))
    odd = told("".join(late(r, what="BROADCAST" if r % 2 else "ALLREDUCE") for r in range(2000)))
    assert (odd.kind, len(odd.ranks)) == ("mismatch", 2000)
    assert len(odd.says) < 600


def test_lines_of_one_rank_without_end_take_bounded_memory():
    watchdog = WatchdogLines()
    data = "".join(late(0, n) + status(0, n) for n in range(5000)).encode()
    list(watchdog.watched([Piece(1, data)]))
    assert len(watchdog.seen().time_outs) <= 16


@pytest.mark.parametrize("rank", ["9" * 12, "9" * 900])
def test_a_number_that_is_no_rank_takes_no_memory(rank):
    line = late("RANK").replace("RANK", rank)
    assert told(line, signal("RANK", 8).replace("RANK", rank), f"world_size={rank}\n", of_file=Place(10**12)) is None
    assert told(late(0), line, f"[rank{rank}] world_size={rank}\n").kind == "unclear"


def test_the_answer_leads_with_what_the_lines_prove(tmp_path):
    path = tmp_path / "job.log"
    terminate = "[rank0]:[E1120 10:01:11.300 x.cpp:1] terminate called after throwing an instance of"
    path.write_text(late(0) + late(2, what="ALLGATHER") + f"{terminate} 'c10::DistBackendError'\n")
    found = explained([path])
    assert (rules_of(found), found.about, found.telling.line, found.hang.kind) == ([], "application", 1, "mismatch")
    outputs = {
        form: CliRunner().invoke(app(["explain"]), ["explain", "--format", form, "--log", str(path)]).stdout
        for form in ("text", "markdown", "json")
    }
    assert outputs["text"].startswith("Ranks 0,2 call different collectives: rank 0 ALLREDUCE (4 elem")
    assert "**Ranks 0,2 call different collectives: " in outputs["markdown"]
    assert json.loads(outputs["json"])["hang"]["ranks"] == [0, 2]
    assert "Usually another rank prepares data" not in outputs["text"]


@pytest.mark.parametrize(
    "what",
    ["'c10::DistBackendError'", "'std::runtime_error'\n  what():  Watchdog caught collective operation"],
)
def test_that_the_watchdog_ended_the_process_is_a_consequence(tmp_path, what):
    path = tmp_path / "job.log"
    path.write_text(f"terminate called after throwing an instance of {what}\n{late(0)}")
    assert explained([path]).telling.says.startswith("A ")
    path.write_text(f"terminate called after throwing an instance of {what}\n[rank1]: KeyError: 'loss'\n")
    assert "KeyError" in explained([path]).telling.text


def test_a_real_log_names_the_rank_that_prepared_the_data():
    log = Path(__file__).parent / "logs" / "llamafactory-tokenizing-longer-than-timeout.log"
    found = explained([log]).hang
    assert (found.kind, found.ranks) == ("missing", (0,))
    assert found.says.startswith("ranks 1-3 wait in ALLREDUCE number 2 of ")


def test_another_error_of_a_rank_explains_the_hang(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(late(0) + late(2) + "[rank1]: torch.cuda.OutOfMemoryError: CUDA out of memory.\n")
    found = explained([path])
    assert found.hang is None
    assert "out of memory" in found.telling.text


REACHED = (
    "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for"
    " send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
)


@pytest.mark.parametrize(
    ("lines", "ranks", "says"),
    [
        (["[rank0]: RuntimeError: Rank 3 failed to pass monitoredBarrier in 30000 ms\n"], (3,), "rank 3 is behind: it"),
        (
            [
                "[E x.cpp:1] Rank 3 failed to pass monitoredBarrier in 500 ms\n",
                "[rank0]:  Original exception: \n",
                "[rank0]: [unbound_buffer.cc:81] Timed out waiting 500ms for recv operation to complete\n",
            ],
            (3,),
            "within 0.5 s",
        ),
        (["[rank0]: [Rank 0]: Ranks 4 failed to pass monitoredBarrier in 30000 ms\n"], (4,), "within 30 s"),
        (
            [
                "[Rank 0]: Rank 5 failed to pass monitoredBarrier in 30000 ms\n",
                "[Rank 0]: Rank 3 failed to pass monitoredBarrier in 30000 ms\n",
                "RuntimeError: ProcessGroupWrapper: Monitored Barrier encountered error running collective: x. Err: \n",
                "[Rank 0]: Ranks 3, 5 failed to pass monitoredBarrier in 30000 ms\n",
            ],
            (3, 5),
            "ranks 3,5 are behind: they did not reach monitored_barrier()",
        ),
    ],
)
@pytest.mark.parametrize("before", ["", REACHED, "[rank2]: [c.cc:81] Connection closed by peer [10.0.0.2]:41\n"])
def test_the_ranks_that_a_monitored_barrier_waited_for_are_behind_and_not_the_one_that_reports(
    tmp_path, before, lines, ranks, says
):
    path = tmp_path / "job.log"
    path.write_text(before + "".join(lines))
    found = explained([path])
    assert (rules_of(found), found.about, found.hang.kind, found.hang.ranks) == ([], "application", "behind", ranks)
    assert says in found.hang.says
    assert found.telling.rank not in ranks


def test_a_barrier_that_names_no_rank_or_whose_late_rank_failed_has_no_rank_behind(tmp_path):
    path = tmp_path / "job.log"
    for text in (REACHED, "[rank0]: RuntimeError: Rank 0 timed out in monitoredBarrier after 30000 ms.\n"):
        path.write_text(text)
        assert (explained([path]).hang, explained([path]).about) == (None, "application")
    path.write_text("[rank0]: Rank 3 failed to pass monitoredBarrier in 30000 ms\n[rank3]: KeyError: 'loss'\n")
    found = explained([path])
    assert (found.hang, found.telling.rank) == (None, 3)


@pytest.mark.parametrize(
    "line",
    [
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in enqueued collectives.",
        "Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
    ],
)
def test_a_watchdog_that_is_stuck_is_a_call_that_does_not_return_and_not_only_a_late_rank(tmp_path, line):
    path = tmp_path / "job.log"
    path.write_text(f"[rank0]:[E1127 10:18:00.000 ProcessGroupNCCL.cpp:1664] {line}\n")
    found = explained([path])
    assert found.telling.says.startswith("A call of NCCL or CUDA on this rank does not return")
    assert found.next[-1].startswith("distcheck explain --flight")
