"""`distcheck hang` in real jobs of four ranks: the answer, the rank and the line; and no job is disturbed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from forms.sampled import sampled
from hang.expected import CASES, HEALTHY, HUNG
from hang.started import LAUNCHERS
from made import amd
from made.nvml_jobs import PROFILES

pytestmark = pytest.mark.process

FORKABLE = {name: case for name, case in CASES.items() if case.needs <= {"no agent"} and name != "importing"}
EVERY_CHANGE = ("opposite_order", "fifo", "two_locks", "dead_before_init", "evaluation")
LAUNCHED = [
    (launcher, name)
    for launcher in LAUNCHERS[1:]
    for name, case in CASES.items()
    if case.needs.isdisjoint({"MOUNT", "LIBCUDA", "DUMPS"}) and not (case.missing and launcher != "by hand")
]


def right(case, seen):
    assert case.disagreements(seen.hang) == [], seen.shown()
    assert [place for place in case.cause if place not in json.dumps(seen.report)] == []
    assert seen.stopped == set()


@pytest.mark.parametrize("name", sampled({name: name for name in FORKABLE}, *EVERY_CHANGE))
def test_the_answer_has_the_right_ranks_and_lines(name, job, look):
    started = job("forked", CASES[name])
    right(CASES[name], look(started))


@pytest.mark.parametrize(("launcher", "name"), sampled(LAUNCHED, ("torchrun", "fifo"), ("spawn", "sleeping_rank")))
def test_the_answer_does_not_depend_on_the_launcher(launcher, name, job, look):
    started = job(launcher, CASES[name])
    right(CASES[name], look(started))


@pytest.mark.skipif(os.getuid() != 0, reason="another user's job needs root; the other tests are the own user's")
@pytest.mark.parametrize("name", sampled({name: name for name in FORKABLE}, "skipped_collective"))
def test_the_job_s_own_user_gets_the_same_answer(name, job, look):
    started = job("forked", CASES[name], other=True)
    right(CASES[name], look(started, other=True))


def test_a_rank_in_state_d_is_named_and_not_waited_for(frozen_mount, job, look):
    case = CASES["frozen_mount"]
    started = job("forked", case, MOUNT=str(frozen_mount))
    try:
        right(case, look(started))
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", frozen_mount], check=True)  # before its processes are ended


def test_a_rank_whose_gpu_is_lost_is_named(fake_nvml, monkeypatch, job, look):
    """NVML and CUDA's library are fakes; the ranks are real."""
    case = CASES["lost_gpu"]
    for name, value in fake_nvml.environ(f"{PROFILES['dgx_h100']}utilization 100\npower.usage 91000\n").items():
        monkeypatch.setenv(name, value)
    started = job("forked", case, LIBCUDA=str(fake_nvml.folder / "libcuda.so.1"))
    before = look(started)
    assert (before.code, before.hang["answer"]) == (20, "cannot tell"), before.shown()
    readings = [(gpu["index"], gpu["utilization_percent"]) for row in before.hang["ranks"] for gpu in row["gpus"]]
    assert readings == [(rank, [100, 100]) for rank in range(4)]
    fake_nvml.write(f"{fake_nvml.facts.read_text()}2.lost yes\n")
    seen = look(started)
    right(case, seen)
    assert seen.code == 40


AT_WORK = amd.MI300X._replace(gpus=tuple(gpu._replace(busy=100) for gpu in amd.MI300X.gpus[:4]))
FAILED_RESET = "3,1,{},-;amdgpu 0000:1e:00.0: amdgpu: GPU Recovery Failed: -110\n"


@pytest.mark.parametrize(
    "fields", [{"in_kfd": False, "driver": ""}, {"busy": 0}], ids=["lost", "a failed reset since it started"]
)
def test_a_rank_whose_amd_gpu_failed_is_named(fake_nvml, job, look, tmp_path, fields):
    """The files of the driver are made up, HIP's library is another one; the ranks are real."""
    hip = shutil.copy(fake_nvml.folder / "libcuda.so.1", tmp_path / "libamdhip64.so.6")
    started = job("forked", CASES["lost_gpu"], LIBCUDA=str(hip))
    healthy = amd.write(tmp_path / "healthy", AT_WORK, seen_at=Path("/"))
    before = look(started, inside=amd.inside(healthy))
    assert (before.code, before.hang["answer"]) == (20, "cannot tell"), before.shown()
    readings = [
        (g["index"], g["utilization_percent"], g["power_watts"]) for r in before.hang["ranks"] for g in r["gpus"]
    ]
    assert readings == [(rank, [100, 100], [140.0, 140.0]) for rank in range(4)]
    failed = amd.write(tmp_path / "failed", amd.change(AT_WORK, 2, **fields), seen_at=Path("/"))
    if "busy" in fields:
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        (failed / "dev/kmsg").write_text(FAILED_RESET.format(int(now * 1e6)))
    seen = look(started, inside=amd.inside(failed))
    right(CASES["lost_gpu"], seen)
    assert seen.code == 40


def test_on_request_the_functions_of_libraries_are_shown(job, look):
    case = CASES["async_wait"]
    seen = look(job("forked", case), "--native", "--timeout", "300")
    assert case.disagreements(seen.hang) == [], seen.shown()
    functions = {row["rank"]: " ".join(row["native"]) for row in seen.hang["ranks"] if row["rank"] not in case.odd}
    assert all("c10d::" in text for text in functions.values()), seen.shown()


def test_dumps_of_the_flight_recorder_name_a_rank_that_waits_at_the_others_line(job, look, tmp_path):
    case = CASES["opposite_order_in_a_helper"]
    right(case, look(job("forked", case, TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/trace_")))


@pytest.mark.parametrize("name", sampled({name: name for name in HEALTHY}))
def test_a_healthy_job_goes_on(name, job, look):
    started = job("torchrun", CASES[name])
    before = started.steps()
    assert look(started).hang["answer"] != "hung"
    if before:
        assert started.steps() > before


def test_every_fault_marks_its_line():
    assert [name for name, case in HUNG.items() if not case.here and not case.missing] == []
    assert [
        name for name, case in HUNG.items() if not case.waits and len(case.odd) < 4 and not case.needs & {"DUMPS"}
    ] == []
