import json

import pytest
from benchmarks import nccl_tests, programs
from benchmarks.nccl_tests import (
    PROGRAMS,
    SIZES,
    figures_against_nccl_tests,
    in_place,
    of_distcheck,
    of_distcheck_on_one_gpu,
    possible,
)
from benchmarks.programs import NotMeasuredError
from benchmarks.run import chosen

HEAD = """\
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 268435456 step: 4(factor) warmup iters: 5 iters: 20 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   5092 on  node1 device  0 [0x1b] NVIDIA H100 80GB HBM3
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
TAIL = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 201.4\n"


def line(size, microseconds, *, redop="sum", root="-1"):
    out_of_place, in_place = "99.99   17.80   31.15      0", f"{microseconds:>7}   17.99   31.48      0"
    return f"{size:12d} {size // 4:12d}     float  {redop:>6}  {root:>6}  {out_of_place}  {in_place}\n"


def output(microseconds=50.0, sizes=SIZES, **words):
    return HEAD + "".join(line(size, microseconds, **words) for size in sizes) + TAIL


@pytest.fixture
def machine(monkeypatch):
    """Give this machine GPUs and the programs; return a function that says how many, and what both sides take."""
    commands = []

    def take(gpus, ours, theirs, nccl="2.28.9"):
        monkeypatch.setattr(nccl_tests, "gpus", lambda: gpus)
        monkeypatch.setattr(nccl_tests.shutil, "which", lambda name: f"/usr/bin/{name}")

        def output_of(command, **variables):
            commands.append((command, variables))
            if not {*PROGRAMS.values()}.isdisjoint(command):
                return output(theirs)
            if "nccl_version" in command[-1]:
                return f"{nccl}\n"
            assert command[command.index("--sizes") + 1] == f"{SIZES[0]}:{SIZES[-1]}:x4"
            rows = [
                {"op": op, "bytes": size, "seconds": {"mean": ours / 1e6}}
                for op in command[command.index("--op") + 1].split(",")
                for size in SIZES
            ]
            return json.dumps({"bandwidth": rows})

        monkeypatch.setattr(nccl_tests, "output_of", output_of)
        monkeypatch.setattr(programs, "output_of", output_of)
        return commands

    return take


def test_the_times_in_place_are_read_for_operations_with_and_without_a_reduction():
    assert in_place(output(58.29))[1 << 20] == pytest.approx(58.29e-6)
    assert in_place(output("1445.2", redop="none", root="0")) == dict.fromkeys(SIZES, pytest.approx(1445.2e-6))


@pytest.mark.process
@pytest.mark.parametrize("started", [lambda: of_distcheck(2, "gloo"), lambda: of_distcheck_on_one_gpu(backend="gloo")])
def test_the_times_of_distcheck_are_read_from_a_real_run_as_they_would_be_on_gpus(started, monkeypatch):
    monkeypatch.setattr(nccl_tests, "SIZES", (1 << 10, 1 << 12))
    found = started()
    assert found.keys() == {(op, size) for op in PROGRAMS for size in (1 << 10, 1 << 12)}
    assert all(0 < seconds < 10 for seconds in found.values())


def test_a_size_without_a_line_is_an_error_that_shows_the_end_of_the_output():
    with pytest.raises(NotMeasuredError, match=r"(?s)no line for 268435456 bytes: .*201\.4"):
        in_place(output(sizes=SIZES[:-1]))


@pytest.mark.parametrize(("ours", "met"), [(50.0, "yes"), (50.9, "yes"), (52.0, "NO"), (48.0, "NO")])
def test_figures_within_two_per_cent_of_nccl_tests_are_met(machine, ours, met):
    machine(8, ours, 50.0)
    rows = figures_against_nccl_tests()
    assert {row.met for row in rows} == {met}
    assert [row.name for row in rows][:2] == [f"all_reduce, {size} MiB, 8 GPUs / all_reduce_perf" for size in (1, 4)]
    assert len(rows) == 2 * len(SIZES)


def test_two_processes_share_the_only_gpu_as_nccl_allows_it_from_2_30_on(machine):
    commands = machine(1, 50.0, 50.0, nccl="2.30.7")
    rows = figures_against_nccl_tests()
    assert rows[0].name == "all_reduce, 1 MiB, 2 ranks on one GPU / all_reduce_perf"
    assert {row.met for row in rows} == {"yes"}
    ours = [variables for command, variables in commands if "bandwidth" in command]
    assert {(v["RANK"], v["LOCAL_RANK"], v["NCCL_MULTI_RANK_GPU_ENABLE"]) for v in ours} == {
        ("0", "0", "1"),
        ("1", "0", "1"),
    }
    for command in (" ".join(command) for command, _ in commands if command[0] == "mpiexec"):
        assert [part.count("-env NCCL_MULTI_RANK_GPU_ENABLE 1") for part in command.split(" : ")] == [1, 1]
        assert "NCCL_HOSTID" not in command


def test_two_processes_share_the_only_gpu_as_two_hosts_with_an_earlier_nccl(machine):
    commands = machine(1, 50.0, 50.0)
    rows = figures_against_nccl_tests()
    assert rows[0].name == "all_reduce, 1 MiB, 2 ranks on one GPU, sockets / all_reduce_perf"
    assert {row.met for row in rows} == {"yes"}
    ours = [variables for command, variables in commands if "bandwidth" in command]
    assert {(v["RANK"], v["LOCAL_RANK"], v["NCCL_HOSTID"]) for v in ours} == {("0", "0", "host0"), ("1", "0", "host1")}
    theirs = [command for command, _ in commands if command[0] == "mpiexec"]
    for command in theirs:
        first, second = " ".join(command).split(" : ")
        assert "-env NCCL_HOSTID host0" in first
        assert "-env NCCL_HOSTID host1" in second
        assert first.split("_perf")[1] == second.split("_perf")[1] == " -g 1 -b 1048576 -e 268435456 -f 4"


def test_a_whole_run_has_these_rows_only_where_there_is_something_to_compare_with(machine, monkeypatch):
    machine(8, 50.0, 50.0)
    assert "figures_against_nccl_tests" in chosen(None)
    monkeypatch.setattr(nccl_tests.shutil, "which", lambda name: None if name == "mpiexec" else f"/usr/bin/{name}")
    monkeypatch.setattr(nccl_tests, "gpus", lambda: 1)
    assert not possible()
    assert "figures_against_nccl_tests" not in chosen(None)
    with pytest.raises(NotMeasuredError, match="there are 1"):
        figures_against_nccl_tests()
