"""What the lines of Gloo's ranks prove, as torch 2.13 writes them, and what is run next."""

from __future__ import annotations

import pytest

from distcheck.explain.answer import explained


@pytest.fixture
def found(tmp_path):
    """Return the answer to a log."""

    def found(text):
        path = tmp_path / "job.log"
        path.write_text(text)
        return explained([path])

    return found


SOURCE = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"


def late(rank, operation="recv"):
    return f"[rank{rank}]: {SOURCE}/unbound_buffer.cc:78] Timed out waiting 10000ms for {operation} operation\n"


def lost(rank, how="pair.cc:553] Connection closed by peer [127.0.0.1]:39097"):
    return f"[rank{rank}]: {SOURCE}/{how}. This is typically caused by a remote worker crashing.\n"


def compared(rank, other, own=("ALLREDUCE", 1000, "Float"), its=("ALLREDUCE", 999, "Float"), *, group_rank=None):
    """Return what a rank writes when torch compares its collective with that of another one."""

    def print_of(operation, size, dtype):
        return (
            f"CollectiveFingerPrint(SequenceNumber=7, OpType={operation}, TensorShape=[{size}], TensorDtypes={dtype},"
            " TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, layout=Strided (default),"
            " requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt)))"
        )

    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. Rank"
        f" {rank if group_rank is None else group_rank} is running collective: {print_of(*own)}, but Rank {other} is"
        f" running collective: {print_of(*its)}.Collectives differ in the following aspects: \t Tensor shapes\n"
    )


def report(*failed, first):
    """Return the report of torchrun's agent: the ranks that failed, and the one that it saw fail first."""

    def record(number, rank):
        return (
            f"[{number}]:\n  time      : 2026-11-27_18:58:44\n  host      : n1\n"
            f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : 1 (pid: 29)\n"
        )

    others = "".join(record(n, rank) for n, rank in enumerate(failed, 1))
    return f"Failures:\n{others}Root Cause (first observed failure):\n{record(0, first)}"


@pytest.mark.parametrize("operation", ["recv", "send"])
def test_the_rank_that_the_others_waited_for_is_named(found, operation):
    answer = found(late(0) + late(1, operation) + late(3) + report(1, 2, 3, first=0))
    assert (answer.hang.kind, answer.hang.ranks) == ("missing", (2,))
    assert answer.hang.says.startswith("ranks 0-1,3 wait in a collective of Gloo; rank 2 reports no error: not in this")
    assert "^RANK=2$" in answer.next[0]


def test_the_rank_that_ended_without_an_error_is_named_and_not_the_one_that_the_agent_saw_fail_first(found):
    answer = found(lost(1) + lost(3) + lost(0) + report(3, 0, first=1))
    assert (answer.hang.kind, answer.hang.ranks) == ("missing", (2,))
    assert (
        answer.hang.says == "ranks 0-1,3 lost the connection to another rank; rank 2 reports no error: it ended first"
    )
    assert "Connection closed by peer" in answer.telling.text


def test_the_agents_first_failure_is_the_cause_if_its_rank_lost_no_connection(found):
    answer = found(lost(1, "pair.cc:537] Read error [127.0.0.1]:2: Connection reset by peer") + report(1, first=2))
    assert (answer.hang, answer.telling.rank) == (None, 2)
    assert answer.telling.text.startswith("Root Cause")


def test_a_rank_with_an_error_of_its_own_is_the_cause(found):
    answer = found(late(0) + late(1) + "[rank2]: KeyError: 'lr'\n" + late(3))
    assert (answer.hang, answer.telling.rank) == (None, 2)


@pytest.mark.parametrize(
    "lines",
    [
        late(0) + report(1, 2, 3, first=0),  # the agent ended the others before they could report
        late(0) + late(1) + late(2) + late(3),
        f"{SOURCE}/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete\n",
        "".join(f"{n}: {SOURCE}/unbound_buffer.cc:78] Timed out waiting 10ms for recv operation\n" for n in (0, 2, 3)),
    ],
)
def test_no_rank_is_named_where_the_lines_do_not_show_one(found, lines):
    answer = found(lines)
    assert (answer.hang, answer.about) == (None, "application")


def test_the_last_rank_is_missed_where_the_log_has_the_number_of_ranks(found):
    lines = late(0) + late(1) + late(2)
    assert found(lines).hang is None
    peers = "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
    assert found(peers + lines).hang.ranks == (3,)


def test_ranks_that_compare_their_collectives_name_the_one_that_differs(found):
    lines = compared(3, 2) + compared(2, 0, ("ALLREDUCE", 999, "Float"), ("ALLREDUCE", 1000, "Float"))
    answer = found(lines + compared(1, 2) + compared(0, 2))
    assert (answer.hang.kind, answer.hang.ranks) == ("mismatch", (2,))
    assert (
        "sizes: rank 2 with 999 Float elements and ranks 0-1,3 with 1000 Float elements, as number 7"
        in answer.hang.says
    )
    assert answer.next[0].startswith("grep ")


def test_one_line_names_the_collectives_of_both_ranks(found):
    answer = found(compared(1, 0, ("BROADCAST", 8, "Long"), ("ALLREDUCE", 8, "Float")))
    assert "different collectives: rank 0 ALLREDUCE (8 Float elements) and rank 1 BROADCAST (8" in answer.hang.says


def test_another_type_of_data_is_named(found):
    answer = found(compared(1, 0, ("ALLREDUCE", "2, 4", "Double"), ("ALLREDUCE", "2, 4", "Float")))
    assert "with different types: rank 0 with 8 Float elements and rank 1 with 8 Double elements" in answer.hang.says


def test_numbers_in_a_smaller_group_are_not_taken_for_ranks(found):
    assert found(compared(5, 0, group_rank=1)).hang is None


@pytest.mark.parametrize(
    "line",
    [
        late(0),
        lost(0),
        f"what():  [enforce fail at {SOURCE}/pair.cc:456] op.preamble.length <= op.nbytes. 500 vs 496\n",
    ],
)
def test_the_flight_recorder_of_nccl_is_not_what_is_run_next(found, line):
    assert [command.split(" ")[0] for command in found(line).next] == ["TORCH_DISTRIBUTED_DEBUG=DETAIL"]


def test_a_script_that_names_the_backend_is_no_failure_in_it(found):
    answer = found('[rank0]:     dist.init_process_group("gloo"); raise FloatingPointError("Loss is nan")\n')
    assert not any("compare every collective" in command for command in answer.next)


def test_a_mistake_at_a_collective_is_no_hang(found):
    answer = found(
        "[rank0]: ValueError: Default process group has not been initialized, please make sure to call it.\n"
    )
    assert not any("flight" in command for command in answer.next)


def test_the_rank_that_did_not_come_to_the_start_is_in_the_command(found):
    line = "[rank0]: torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//cpu//0/2\n"
    (command,) = found(line).causes[0].fix.commands
    assert command.endswith("  # on the node of rank 2")
    (command,) = (
        found("TimeoutError: Timed out after 9 seconds waiting for clients. 3/4 clients joined.\n")
        .causes[0]
        .fix.commands
    )
    assert command.endswith("  # on the node of rank N, for each missing N")
