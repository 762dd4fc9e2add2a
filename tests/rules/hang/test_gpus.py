"""What GPUs add to the answer: a broken one holds up the others, and kernels that wait are no progress."""

from __future__ import annotations

import pytest
from made.running import busy, rank, running, sleeper, spinning, waiter
from msgspec.structs import replace

from distcheck.facts.base import Missing
from distcheck.facts.gpu import DriverError, Xid
from distcheck.rules.hang.gpus import readings
from distcheck.rules.hang.judging import answer

SYNCHRONIZE = "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:9 synchronize"
FELL_OFF, DOUBLE_BIT, INDEX = (Xid(n, "0000:1b:00.0", 60.0, "") for n in (79, 48, 13))
FAILED, TIMEOUT = (DriverError(kind, "0000:69:00.0", 60.0, "") for kind in ("reset failed", "hang"))
WAIT = tuple(spinning(n, 100, 99) for n in (0, 1, 3))


def seen(*ranks):
    found = answer(running(*ranks))
    return found.word, [s.process.rank for s in found.odd]


BROKEN = {
    "lost": {"lost": "NVML error 15: a GPU is lost"},
    "fell off the bus": {"xids": (FELL_OFF,), "utilization_percent": ()},
    "a memory error, and nothing runs since": {"xids": (DOUBLE_BIT,), "utilization_percent": (0, 0)},
    "it left KFD's list": {"lost": "amdgpu: no driver is bound to it"},
    "a reset that failed": {"driver_errors": (FAILED,), "utilization_percent": ()},
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("others", [WAIT, [waiter(n) for n in (0, 1, 3)], [sleeper(0), *WAIT[1:]]])
def test_a_rank_with_a_broken_gpu_holds_up_the_others(name, others):
    broken = spinning(2, 100, 100, gpu=BROKEN[name])
    word, odd = seen(*others, broken)
    assert (word, odd[0]) == ("hung", 2)
    assert answer(running(*others, broken)).odd[0].kind == "gpu"


def test_a_rank_that_goes_on_is_not_stuck_whatever_its_gpu_reported():
    assert seen(*(waiter(n, after={"switches": 9}) for n in (0, 1, 3)), spinning(2, 90, 100))[0] == "cannot tell"
    works = spinning(2, 90, 100, gpu={"xids": (DOUBLE_BIT,)})
    first, last = works.moments
    works = replace(works, moments=(first, replace(last, others_seconds=1.5)))
    assert seen(*(waiter(n, after={"switches": 9}) for n in (0, 1, 3)), works) == ("not hung", [])


@pytest.mark.parametrize(
    ("errors", "percent"),
    [
        ({"xids": (INDEX,)}, 0),
        ({"xids": (DOUBLE_BIT,)}, 100),
        ({"driver_errors": (TIMEOUT,)}, 0),
        ({"driver_errors": (FAILED,)}, 100),
    ],
)
def test_an_application_s_error_and_one_after_which_kernels_run_are_no_broken_gpu(errors, percent):
    assert seen(*WAIT, spinning(2, percent, percent, gpu=errors))[0] == "cannot tell"


def test_while_a_rank_works_the_others_wait_on_their_gpus():
    evaluates = busy(2, cuda=True)
    first, last = evaluates.moments
    evaluates = replace(evaluates, moments=(first, replace(last, others_seconds=1.5)))
    assert seen(*WAIT, evaluates) == ("slow", [2])
    computing = (spinning(n, 100, 100, watts=600.0) for n in (0, 1, 3))
    assert seen(*computing, evaluates)[0] == "cannot tell"


def test_a_sleeping_rank_is_named_whatever_the_gpus_of_the_others_do():
    assert seen(*WAIT, sleeper(2)) == ("hung", [2])


def test_the_rank_whose_gpu_alone_is_idle_is_a_suspect():
    found = answer(running(*WAIT, spinning(2, 0, 0, line="/home/me/data.py:41 shuffle")))
    assert (found.word, [s.process.rank for s in found.odd], found.longer) == ("cannot tell", [2], True)
    assert found.reason == (
        "GPU idle and no progress: rank 2, data.py:41; "
        "others: GPUs at 99-100 %, 90 of 700 W, as in NCCL kernels that wait"
    )


CANNOT_TELL = {
    "all spin at one line": [spinning(n, 100, 100) for n in range(3)],
    "all spin at two lines": [*WAIT, spinning(2, 100, 100, line="/home/me/train.py:92 step")],
    "all synchronize at two lines": [
        rank(n, SYNCHRONIZE, f"/home/me/train.py:{n}{n} step", state="R", after={"run_seconds": 2.0}) for n in range(3)
    ],
    "all GPUs are idle": [spinning(n, 0, 0) for n in range(3)],
    "small kernels": [spinning(n, 97, 98, watts=120.0) for n in range(3)],
    "NVML gave no answer": [replace(spinning(n), gpus=Missing(reason="NVML did not answer")) for n in range(3)],
    "one sample": [spinning(n, 100) for n in range(3)],
    "no reading": [spinning(n) for n in range(3)],
}


@pytest.mark.parametrize("name", CANNOT_TELL)
def test_what_gpus_show_alone_makes_no_job_hung(name):
    assert seen(*CANNOT_TELL[name])[0] == "cannot tell"


def test_why_nvml_gave_no_answer_is_the_reason():
    found = answer(running(*CANNOT_TELL["NVML gave no answer"]))
    assert found.reason == "NVML did not answer"


def test_readings_of_several_gpus_are_a_range():
    assert readings(WAIT) == "99-100 %, 90 of 700 W"
    assert readings([spinning(0, 3, 8, watts=71.2), spinning(1, 5, 5)]) == "3-8 %, 71-90 of 700 W"
    assert readings([spinning(0, gpu={"lost": "NVML error 15"})]) == "lost"
    assert readings([sleeper(0)]) == ""
