import os
import subprocess
import sys
import time

import pytest
from collectives.conftest import only

from distcheck.collectives import figure, software, timing, worker
from distcheck.collectives.plan import Plan
from distcheck.facts.libraries import dotted

GLOO_LACKS = ("all_gather", "reduce_scatter") if software.torch.__version__.startswith("2.1.") else ()
"""Tensors as one, and bfloat16, which Gloo can since torch 2.2 (pytorch #112144); a job fails with the same words."""
DTYPES = ["float16", "int32"] if GLOO_LACKS else ["bfloat16", "float16", "int32"]
OTHERS = [op for op in ("all_gather", "reduce_scatter", "all_to_all", "send_recv") if op not in GLOO_LACKS]


@pytest.mark.process
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_checks_and_times_everything_in_silence(ranks_say, ranks):
    said, stderr = ranks_say(ranks=ranks, sizes_bytes=[4099, 65536])
    assert stderr == ""
    assert len(said) == ranks
    for messages in said:
        assert messages[-1] == {"said": "Finished"}
        checked = only(messages, "Checked")
        assert [(c["op"], c["wrong"]) for c in checked] == [("all_reduce", 0), ("broadcast", 0)]
        assert {c["elements"] for c in checked} == {262_147}
        timings = only(messages, "Timing")
        assert [(t["op"], t["bytes"]) for t in timings] == [
            ("all_reduce", 4096),
            ("all_reduce", 65536),
            ("broadcast", 4096),
            ("broadcast", 65536),
        ]
        assert all(min(t["bursts"]) > 0 and 3 <= t["iterations"] <= 1000 for t in timings)
        assert all(len(t["bursts"]) == 1 and t["ended"] == "asked" for t in timings)
        assert len(only(messages, "Joined")) == 1
        assert only(messages, "FirstBurst") == []  # the only burst is the figure
        assert all(c["seconds"] > 0 for c in checked)
    agreed = {tuple(t["iterations"] for t in only(messages, "Timing")) for messages in said}
    assert len(agreed) == 1


@pytest.mark.process
def test_the_steps_are_reported_in_order(ranks_say):
    said, _ = ranks_say(ranks=2, operations=["broadcast"], sizes_bytes=[1024])
    assert [s["text"] for s in only(said[1], "Step")] == [
        "process group",
        "check broadcast",
        "broadcast 1024 B",
    ]
    assert len(only(said[0], "StoreOpen")) == 1
    assert only(said[1], "StoreOpen") == []
    assert only(said[1], "Software")[0]["device"] == "cpu"


@pytest.mark.process
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_data_types_are_exact_and_sized_in_bytes(ranks_say, dtype):
    operations = ["all_reduce", "broadcast", *OTHERS]
    said, stderr = ranks_say(ranks=2, operations=operations, sizes_bytes=[4096], dtypes=["float32", dtype])
    assert stderr == ""
    for messages in said:
        assert messages[-1] == {"said": "Finished"}
        assert [c["dtype"] for c in only(messages, "Checked")] == ["float32", dtype] * len(operations)
        assert {c["wrong"] for c in only(messages, "Checked")} == {0}
        assert {t["bytes"] for t in only(messages, "Timing")} == {4096}
    assert f"broadcast {dtype} 4096 B" in [s["text"] for s in only(said[1], "Step")]


@pytest.mark.process
def test_bursts_are_repeated_on_all_ranks_alike_until_their_time_is_over(ranks_say):
    said, _ = ranks_say(ranks=2, operations=["all_reduce"], sizes_bytes=[65536], size_seconds=4.0)
    (first,), (second,) = (only(messages, "Timing") for messages in said)
    assert len(first["bursts"]) == len(second["bursts"]) > 1
    assert first["ended"] == second["ended"]
    (told,) = only(said[0], "FirstBurst")
    assert (told["bytes"], told["seconds"]) == (first["bytes"], first["bursts"][0])
    assert only(said[1], "FirstBurst") == []
    assert first["ended"] in {"steady", "time"}


@pytest.mark.process
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_other_operations_are_exact_too(ranks_say, ranks):
    said, stderr = ranks_say(ranks=ranks, operations=OTHERS, sizes_bytes=[1001])
    assert stderr == ""
    for messages in said:
        assert [(c["op"], c["wrong"]) for c in only(messages, "Checked")] == [(op, 0) for op in OTHERS]
        whole = 1001 // (4 * ranks) * 4 * ranks
        assert [t["bytes"] for t in only(messages, "Timing")] == [whole] * (len(OTHERS) - 1) + [1000]


@pytest.mark.process
def test_ranks_send_to_the_one_that_faces_them(ranks_say):
    said, stderr = ranks_say(ranks=4, operations=["send_recv"], sizes_bytes=[4096], stride=2)
    assert stderr == ""
    assert [(c["op"], c["wrong"]) for messages in said for c in only(messages, "Checked")] == [("send_recv", 0)] * 4


@pytest.mark.process
def test_the_number_of_iterations_can_be_asked_for(ranks_say):
    said, _ = ranks_say(ranks=2, iterations=7)
    assert {t["iterations"] for messages in said for t in only(messages, "Timing")} == {7}


@pytest.mark.process
def test_wrong_elements_are_counted_on_the_rank_that_has_them(ranks_say):
    said, _ = ranks_say(ranks=2, broken_rank=1, broken="wrong", wrong_elements=17)
    wrong = [{c["op"]: c["wrong"] for c in only(messages, "Checked")} for messages in said]
    assert wrong == [{"all_reduce": 0, "broadcast": 0}, {"all_reduce": 17, "broadcast": 0}]
    assert [messages[-1]["said"] for messages in said] == ["Finished", "Finished"]


@pytest.mark.process
def test_an_exception_is_reported_on_one_line_and_the_other_rank_gets_it(ranks_say):
    said, _ = ranks_say(ranks=2, broken_rank=1, broken="raises")
    assert said[1][-1] == {
        "said": "Failed",
        "error": "RuntimeError: CUDA error: an illegal memory access",
        "unavailable": False,
        "absent": [],
    }
    assert only(said[1], "Step")[-1]["text"] == "check all_reduce"
    assert said[0][-1]["said"] == "Failed"
    assert not said[0][-1]["unavailable"]


@pytest.mark.process
def test_a_waiting_rank_reports_that_it_is_alive(ranks_say):
    said, _ = ranks_say(ranks=2, broken_rank=1, broken="sleeps", operations=["all_reduce"], sizes_bytes=[])
    assert len(only(said[0], "Alive")) >= 2
    assert said[0][-1]["said"] == "Finished"


@pytest.mark.process
@pytest.mark.skipif("nccl" in software.backends(), reason="this torch has NCCL and a GPU")
def test_a_backend_that_torch_lacks_is_unavailable_on_every_rank(ranks_say):
    said, _ = ranks_say(ranks=2, backend="nccl")
    for messages in said:
        assert messages[-1]["said"] == "Failed"
        assert messages[-1]["unavailable"]
        assert software.torch.__version__ in messages[-1]["error"]
        assert "it has gloo" in messages[-1]["error"]


@pytest.mark.process
def test_a_single_rank_sends_to_no_other(ranks_say):
    said, _ = ranks_say(ranks=1, operations=["send_recv"])
    assert said[0][-1]["error"] == "ValueError: send_recv needs at least 2 ranks"


@pytest.mark.parametrize(
    ("built", "error"),
    [
        ({"nccl": False, "gloo": True}, "this torch {} has no NCCL; it has gloo"),
        ({"nccl": True, "gloo": True}, "this torch {} has NCCL but finds no GPU; without one it has gloo"),
        ({"nccl": False, "gloo": False}, "this torch {} has no NCCL; it has no backend at all"),
    ],
)
def test_missing_and_present_backends_of_torch_are_reported(monkeypatch, built, error):
    dist = software.dist
    monkeypatch.setattr(software.torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: built["nccl"])
    monkeypatch.setattr(dist, "is_gloo_available", lambda: built["gloo"])
    monkeypatch.setattr(dist, "is_mpi_available", lambda: False)
    assert software.lack_of("nccl") == error.format(software.torch.__version__)


def test_a_torch_without_distributed_has_no_backend(monkeypatch):
    monkeypatch.setattr(software.dist, "is_available", lambda: False)
    assert software.lack_of("gloo").endswith("has no Gloo; it has no backend at all")


@pytest.mark.parametrize(("code", "version"), [(2804, "2.8.4"), (21805, "2.18.5"), (23007, "2.30.7")])
def test_nccl_version_codes_are_spelt_out(code, version):
    assert dotted(code) == version


def test_a_process_without_nccl_has_no_nccl_version(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00 00:00 0 \n7f02-7f03 r-xp 00 08:01 12  /usr/lib/libc.so.6\n")
    assert software.nccl_version(maps) == ""
    maps.write_text("7f02-7f03 r-xp 00 08:01 12  /no/such/libnccl.so.2\n")
    assert software.nccl_version(maps) == ""
    assert software.nccl_version(tmp_path / "none") == ""


def test_the_nccl_that_torch_calls_is_the_preloaded_one(fake_torch):
    """As torch 2.11 does it, the one of its wheel is loaded, too. A torch with CUDA cannot load beside a fake NCCL."""
    own, preloaded = (fake_torch.libraries / folder / "libnccl.so.2" for folder in ("new", "newer"))
    program = f"""if True:
        import ctypes, sys
        from unittest.mock import MagicMock
        sys.modules |= {{"torch": MagicMock(), "torch.distributed": MagicMock()}}
        ctypes.CDLL({str(own)!r})
        from distcheck.collectives.software import nccl_version
        print(nccl_version())"""
    for variables, version in ({}, "2.27.3"), ({"LD_PRELOAD": str(preloaded)}, "2.28.9"):
        command = [sys.executable, "-c", program]
        assert subprocess.check_output(command, env=os.environ | variables, text=True) == f"{version}\n"


@pytest.mark.parametrize(("seconds", "iterations"), [(0.0, 1000), (1e-6, 1000), (0.01, 25), (0.2, 3), (100.0, 3)])
def test_a_burst_is_filled_within_bounds(seconds, iterations):
    assert timing.iterations_for(seconds, burst_seconds=0.25) == iterations


@pytest.mark.parametrize(("seconds", "calls"), [(0.001, 50), (0.02, 3), (0.03, 2), (1.0, 2)])
def test_two_slow_calls_are_enough_for_a_rough_figure(seconds, calls):
    plan = Plan("gloo", ("all_reduce",), (1 << 20,), 60.0, burst_seconds=0.05, rough=True)
    assert figure._calls(plan, seconds) == calls


def test_a_broken_pipe_ends_the_breathing_thread_quietly(monkeypatch):
    monkeypatch.setattr(worker, "ALIVE_SECONDS", 0.001)

    def tell(message):
        raise BrokenPipeError

    with worker._breathing(tell):
        time.sleep(0.05)
