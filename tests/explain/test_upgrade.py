"""What other releases of torch and NCCL change for a job: only what it meets, each with its source."""

from __future__ import annotations

import msgspec
import pytest
from made.jobs import change_environment, change_node, change_process, healthy_job

from distcheck.explain.upgrade import upgrade
from distcheck.facts.errors import UsageError
from distcheck.facts.node import TorchBuild

NEW_BACKEND = "torch 2.15: the backend nccl becomes a new implementation, ProcessGroupNCCL2"


@pytest.mark.parametrize(
    ("spec", "variables", "told", "not_told"),
    [
        (
            "torch=2.13..2.15",
            {},
            (NEW_BACKEND, "pull/192281", "brings CUDA 13.2, not 13.0", "NCCL 2.29.7 to 2.30.7"),
            ("TORCH_DIST_USE_NCCL2 unset", "NCCL 2.31", "issues/2346"),
        ),
        (
            "torch=2.14..2.15",
            {"TORCH_DIST_USE_NCCL2": "0", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1"},
            (
                "torch 2.15 does not read TORCH_NCCL_AVOID_RECORD_STREAMS any more; ranks 0-3",
                "docs/variables/torch.txt",
            ),
            (NEW_BACKEND, "NCCL 2."),
        ),
        (
            "nccl=2.29.7..2.31.2",
            {"NCCL_GIN_NCONTEXTS": "4", "NCCL_RUN_DIAGNOSTICS": "1"},
            (
                "NCCL 2.31.2 does not read NCCL_GIN_NCONTEXTS any more",
                "NCCL 2.31.2 reads NCCL_RUN_DIAGNOSTICS (since 2.31.2), unlike 2.29.7",
                "NCCL 2.31: NCCL_LAUNCH_ORDER_IMPLICIT is decided by NCCL",
                "NCCL 2.31.2 no longer has a known fault: RAS can crash",
            ),
            ("torch", "NCCL_MNNVL_RAIL_PER_HOST"),
        ),
        (
            "nccl=2.20.5..2.28.7",
            {"NCCL_ALGO": "Rnig", "NCCL_MNNVL": "1"},
            (
                "an unknown word in NCCL_ALGO",
                "NCCL 2.28.7 does not read NCCL_MNNVL any more",
                "use NCCL_MNNVL_ENABLE",
                "has a known fault: it can hang at large scale",
                "issues/1762",
                "port 28028",
            ),
            ("issues/2346",),
        ),
        (
            "torch=2.12..2.15,nccl=2.27..2.32",
            {"NCCL_PXN_C2C": "0", "TORCH_WATCHDOG_STUCK_ACTION": "log"},
            (NEW_BACKEND, "torch 2.12 to 2.15, NCCL 2.27 to 2.32", "torch 2.15 reads TORCH_WATCHDOG_STUCK_ACTION"),
            ("NCCL_PXN_C2C", "issues/2346"),
        ),
        ("torch=2.13..2.15", {"TORCH_DIST_USE_NCCL2": "1"}, (NEW_BACKEND,), ()),
        ("torch=2.14..2.15", {"TORCH_DIST_USE_NCCL2": "1"}, ("torch 2.14 to 2.15",), (NEW_BACKEND, "device_id")),
        ("torch=2.14..2.15", {"TORCH_DIST_USE_NCCL2": "yes"}, (NEW_BACKEND,), ()),
        ("nccl=2.20.5..2.27.2", {"NCCL_ALGO": "Ring"}, ("issues/1669", "port 28028"), ("an unknown word",)),
        (
            "nccl=2.20.5..2.27.2",
            {"NCCL_RAS_ENABLE": "0"},
            ("reads NCCL_RAS_ENABLE (since 2.24.3), unlike 2.20.5",),
            ("issues/1669", "port 28028"),
        ),
        ("torch=2.8..2.15", {}, ("NCCL 2.27.3 to 2.30.7", "brings CUDA 13.2, not 12.8"), ()),
    ],
)
def test_an_upgrade_tells_what_the_job_meets(spec, variables, told, not_told):
    job = change_environment(healthy_job(2, 2, gpus=2), None, **variables)
    text = upgrade(spec, job, "job.json")
    assert text.startswith(("torch ", "NCCL "))
    assert [words for words in told if words not in text] == []
    assert [words for words in not_told if words in text.partition(":")[2]] == []


def test_a_default_that_other_gpus_have_is_not_told():
    job = healthy_job(1, 2, gpus=2)
    assert "NCCL_PXN_C2C" not in upgrade("nccl=2.27..2.28", job, "job.json")
    gpus = msgspec.structs.replace(job.nodes[0].gpus.devices[0], name="NVIDIA GH200 480GB")
    grace = change_node(job, 0, gpus=msgspec.structs.replace(job.nodes[0].gpus, devices=(gpus,)))
    assert "NCCL_PXN_C2C is 1 by default" in upgrade("nccl=2.27..2.28", grace, "job.json")


def test_a_job_that_names_an_implementation_keeps_it():
    job = healthy_job(1, 2, gpus=2)
    legacy = msgspec.structs.replace(job, asked=msgspec.structs.replace(job.asked, backend_name="nccl-legacy"))
    assert NEW_BACKEND in upgrade("torch=2.13..2.15", job, "job.json")
    assert NEW_BACKEND not in upgrade("torch=2.13..2.15", legacy, "job.json")


def test_a_build_for_cpus_has_no_cuda():
    job = healthy_job(1, 2)
    build = TorchBuild(version="2.13.0+cpu", cuda=None, hip=None)
    job = change_process(job, None, installed=msgspec.structs.replace(job.processes[0].installed, torch=build))
    assert "brings CUDA" not in upgrade("torch=2.13..2.15", job, "job.json")


def test_the_limits_of_the_answer_are_noted():
    text = upgrade("torch=2.12..2.99", healthy_job(1, 2), "job.json")
    ran = healthy_job(1, 2).processes[0].installed.torch.version
    assert f"note: the job ran with torch {ran}, not 2.12\n" in text
    assert "note: torch 2.99 is not known here; what is told ends with 2.15\n" in text
    assert "note: " not in upgrade(f"torch={'.'.join(ran.split('.')[:2])}..2.15", healthy_job(1, 2), "job.json")


def test_a_job_that_meets_nothing_is_told_so():
    text = upgrade("torch=2.14..2.15", healthy_job(1, 2), "job.json")
    assert "nccl becomes" not in text, "Gloo"
    assert upgrade("nccl=2.29.3..2.29.7", healthy_job(1, 2), "job.json") == (
        "NCCL 2.29.3 to 2.29.7, for job.json: nothing that it sets or uses is known to change\n"
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("torch", "'torch': write torch=FROM..TO"),
        ("torch=2.15", "write torch=FROM..TO"),
        ("rccl=2.1..2.2", "'rccl=2.1..2.2'"),
        ("torch=2.15..2.13", "2.13 is no later release"),
        ("torch=2.13..2.15,", "''"),
    ],
)
def test_a_wrong_specification_is_named(spec, words):
    with pytest.raises(UsageError, match="--upgrade") as error:
        upgrade(spec, healthy_job(1, 2), "job.json")
    assert words in str(error.value)
