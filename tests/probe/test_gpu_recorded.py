"""The fake libraries against a real one: they give the answers that a real H200 gave, and lead to the same facts.

tests/recorded/gpu/h200_vm holds what NVML and distcheck returned on a virtual machine with one H200 (driver
580.159.04). `calls.json` has NVML's answers on the idle and on the busy GPU, and the other files are what --save wrote.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
from pathlib import Path

import msgspec
import pytest
from made.nvml_jobs import PROFILES

from distcheck.facts import saved
from distcheck.probe import cuda, gpu

TESTS = Path(__file__).parents[1]
RECORDED = TESTS / "recorded" / "gpu" / "h200_vm"
CALLS = json.loads((RECORDED / "calls.json").read_text())
IDLE = PROFILES["h200_vm"]
AT_LOAD = """
reasons 0x4
clock 1470
temperature 62
memory.used 1570635776
processes 1158:916455424
"""
WHEN_SAVED = "temperature 43\nmemory.used 645070848\n"
"""What `distcheck gpu` found a minute after the calls."""


@pytest.fixture
def nvml(fake_nvml, monkeypatch):
    """Return the real nvidia-ml-py on the fake library, which answers from a text."""
    pynvml = pytest.importorskip("pynvml")

    def start(text):
        monkeypatch.setenv("DISTCHECK_FAKE_NVML", str(fake_nvml.facts))
        fake_nvml.write(text)
        ctypes.CDLL(str(fake_nvml.folder / "libnvidia-ml.so.1"))
        pynvml.nvmlInit()
        return pynvml

    return start


def answer(pynvml, call):
    """Return a call's answer on the only GPU, in the form that `calls.json` has."""
    stand_ins = {"gpu": pynvml.nvmlDeviceGetHandleByIndex(0), "fabric": ctypes.byref(pynvml.c_nvmlGpuFabricInfo_v3_t())}
    arguments = [stand_ins.get(word, word) if isinstance(word, str) else word for word in call["args"]]
    try:
        return {"value": plain(pynvml, getattr(pynvml, call["call"])(*arguments))}
    except pynvml.NVMLError as error:
        return {"error": error.value}


def plain(pynvml, value):
    if isinstance(value, ctypes.Array):
        fields = issubclass(value._type_, pynvml.c_nvmlFieldValue_t)
        return [[v.fieldId, v.valueType, v.nvmlReturn, v.value.ullVal] for v in value] if fields else list(value)
    if isinstance(value, ctypes._Pointer):
        return "gpu"
    if isinstance(value, (list, tuple)):
        return [plain(pynvml, item) for item in value]
    if isinstance(value, ctypes.Structure):
        return {name: getattr(value, name) for name, *_ in value._fields_}
    return vars(value) if hasattr(value, "__dict__") else value


def alike(call, found):
    """Return whether an answer is the recorded one; a list of CPUs was recorded without its end."""
    if "value" not in call or not isinstance(call["value"], list):
        return found == {key: call[key] for key in ("value", "error") if key in call}
    if call["call"] == "nvmlDeviceGetFieldValues":  # the type of a value that is refused means nothing
        known, now = ([(i, code, (kind, v) if code == 0 else ()) for i, kind, code, v in rows] for rows in (
            call["value"], found["value"]
        ))  # fmt: skip
        return known == now
    return call["value"] == found["value"][: len(call["value"]) or None]


@pytest.mark.parametrize(("text", "calls"), [(IDLE, CALLS["idle"]), (IDLE + AT_LOAD, CALLS["load"])], ids=list(CALLS))
def test_the_fake_library_answers_each_call_as_the_real_one(nvml, text, calls):
    pynvml = nvml(text)
    answers = [(call, answer(pynvml, call)) for call in calls]
    assert [(call, found) for call, found in answers if not alike(call, found)] == []


@pytest.fixture
def environ(fake_nvml, monkeypatch):
    found = fake_nvml.environ(IDLE + WHEN_SAVED)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def test_the_probe_returns_the_facts_that_were_saved_on_the_real_machine(environ):
    job = saved.load(RECORDED / "gpu.json")
    assert asyncio.run(gpu.gpus(30.0)) == job.nodes[0].gpus


def test_cuda_shows_the_device_that_was_saved_on_the_real_machine(environ):
    job = saved.load(RECORDED / "gpu.json")
    (view,) = asyncio.run(cuda.views([environ], 20.0))
    found = cuda.as_nvml_names(view, job.nodes[0].gpus.devices)
    assert msgspec.structs.replace(found, library="") == msgspec.structs.replace(job.ranks[0].cuda, library="")
