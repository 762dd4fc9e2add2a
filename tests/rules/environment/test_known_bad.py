"""Releases with known faults: only for ranks that meet the fault's conditions."""

from __future__ import annotations

import re

import pytest

from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.libraries import Libraries
from distcheck.facts.node import TorchBuild
from distcheck.facts.placement import Variables
from distcheck.facts.rank import Agent, Installed
from distcheck.rules.environment.known_bad import NCCL, TORCH


@pytest.fixture
def said(job_of, change, judge):
    """Judge a job whose processes have these versions; `of` changes it first."""

    def said(*, nodes=2, nccl="2.27.3", torch="2.8.0+cu128", python="3.11.7", asked=None, of=lambda job: job, **more):
        job = job_of(nodes, 2, more.pop("launcher", "by hand"), looks=("environment", "gpu", "peers"), gpus=2)
        build = Installed(python=python, prefix="/venv", torch=TorchBuild(torch, "12.8", None), nccl=nccl)
        job = change.process(
            job, None, installed=build, libraries=Libraries(version=nccl, machine=more.pop("machine", ""))
        )
        job = change.environment(job, None, **more)
        made = judge(of(change.asked(job, **(asked or {}))), "environment.known_bad")
        return [(f.rule, f.severity, f.ranks) for f in made.findings]

    return said


ALL = (0, 1, 2, 3)


def test_a_release_without_a_known_fault_is_silent(said):
    assert said() == []
    assert said(nccl="", torch="2.15.0a0+git1234567") == [], "a version that is no release"


@pytest.mark.parametrize(
    ("version", "conditions", "severity"),
    [
        ("2.14.3", {"CUDA_LAUNCH_BLOCKING": "1"}, "warning"),
        ("2.14.3", {"CUDA_LAUNCH_BLOCKING": "0"}, None),
        ("2.17.1", {"CUDA_LAUNCH_BLOCKING": "1"}, None),
        ("2.18.1", {}, "warning"),
        ("2.18.1", {"nodes": 1}, None),
        ("2.18.3", {}, None),
        ("2.28.3", {}, "info"),
        ("2.28.9", {}, None),
        ("2.29.2", {"machine": "aarch64"}, "warning"),
        ("2.29.2", {"machine": "x86_64"}, None),
        ("2.29.3", {"machine": "aarch64"}, None),
    ],
)
def test_a_release_of_nccl_is_named_where_its_conditions_hold(said, version, conditions, severity):
    found = said(nccl=version, **conditions)
    assert found == ([("sw-nccl-known-bad", severity, ALL)] if severity else [])
    assert said(nccl=version, asked={"backend": "gloo"}, **conditions) == []


@pytest.mark.parametrize(("version", "bad"), [("2.19.3", True), ("2.21.5", False)])
def test_gpus_of_different_capability_meet_the_fault_of_2_18_to_2_20(said, change, version, bad):
    def view(*capability):
        return CudaView((CudaDevice("GPU-x", capability=capability),), version=12080)

    def mixed(job):
        return change.rank(change.rank(job, None, cuda=view(9, 0)), (2, 3), cuda=view(8, 0))

    assert said(nccl=version, of=mixed) == ([("sw-nccl-known-bad", "warning", ALL)] if bad else [])
    assert said(nccl=version, of=lambda job: change.rank(job, None, cuda=view(9, 0))) == []


@pytest.mark.parametrize(
    ("torch", "python", "backend", "bad"),
    [
        ("2.2.1", "3.12.2", "c10d", True),
        ("2.3.1+cu121", "3.12.2", "c10d", True),
        ("2.3.1", "3.11.7", "c10d", False),
        ("2.3.1", "3.12.2", "static", False),
        ("2.4.0", "3.12.2", "c10d", False),
    ],
)
def test_torchruns_c10d_on_python_3_12_is_named_for_torch_2_2_and_2_3(said, change, torch, python, backend, bad):
    def under_torchrun(job):
        agent = Agent("torchrun", 7, (f"--rdzv-backend={backend}", "train.py"), Variables({}))
        return change.process(job, None, agent=agent)

    found = said(torch=torch, python=python, launcher="torchrun", of=under_torchrun)
    assert found == ([("sw-torch-known-bad", "warning", ALL)] if bad else [])


def test_a_torchrun_that_the_gate_will_start_counts(said):
    assert said(torch="2.3.0", python="3.12.1", asked={"program": "torchrun"}) == [
        ("sw-torch-known-bad", "warning", ALL)
    ]
    assert said(torch="2.3.0", python="3.12.1", asked={"program": "python"}) == []


def test_torch_2_7_0_is_info_with_nccl_unless_the_workaround_is_set(said):
    assert said(torch="2.7.0+cu126") == [("sw-torch-known-bad", "info", ALL)]
    assert said(torch="2.7.0+cu126", TORCH_NCCL_USE_COMM_NONBLOCKING="0") == []
    assert said(torch="2.7.0+cpu", asked={"backend": "gloo"}) == []
    assert said(torch="2.7.1+cu126") == []


@pytest.mark.parametrize("known", [*NCCL, *TORCH], ids=lambda known: known.happens[:30])
def test_every_row_names_its_source_and_ends_before_it_is_fixed(known):
    assert re.fullmatch(
        r"https://github.com/(NVIDIA/nccl|pytorch/pytorch)/(issues/\d+|commit/[0-9a-f]{40})", known.source
    )
    assert known.first < known.fixed
