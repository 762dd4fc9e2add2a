"""One release of torch, NCCL and Python for all ranks."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.nccl import NcclLog
from distcheck.facts.node import NO_TORCH, TorchBuild
from distcheck.facts.rank import Installed, RankRun

CPU, CU130, CU126 = (
    TorchBuild("2.13.0+cpu", None, None),
    TorchBuild("2.13.0+cu130", "13.0", None),
    TorchBuild("2.13.0+cu126", "12.6", None),
)
OLD = TorchBuild("2.11.0+cpu", None, None)
UNKNOWN = Missing(reason=NO_TORCH)


def having(torch=CPU, python="3.11.7", nccl=""):
    return Installed(python=python, prefix="/opt/venv", torch=torch, nccl=nccl)


@pytest.fixture
def job(job_of, change):
    """Four nodes with two ranks each; what the processes of some ranks have, by rank."""

    def make(*usual, gpus=0, **odd):
        made = job_of(4, 2, "slurm", gpus=gpus)
        made = change.process(made, None, installed=having(*usual))
        for rank, installed in odd.items():
            made = change.process(made, int(rank[1:]), installed=installed)
        return made

    return make


@pytest.fixture
def said(judge):
    def of(job):
        diagnosis = judge(job, "environment.software")
        return list(diagnosis.findings), diagnosis.verdict.exit_code

    return of


@pytest.mark.parametrize("gpus", [0, 2])
def test_ranks_with_the_same_software_are_silent(job, said, gpus):
    assert said(job(CU130, "3.11.7", "2.29.7", gpus=gpus)) == ([], 0)
    assert said(job(UNKNOWN, r3=having(CPU))) == ([], 0), "what is not known is not different"
    assert said(job(CPU, r3=having(python="3.11.9"))) == ([], 0), "patch levels of Python work together"


def test_a_node_with_another_release_of_torch_is_an_error_that_names_its_ranks(job, said):
    (found,), exit_code = said(job(r4=having(OLD), r5=having(OLD)))
    assert (found.rule, found.severity, exit_code) == ("sw-torch-version-differs", "error", 30)
    assert (found.ranks, found.nodes) == ((4, 5), ("node3",))
    assert found.message == "ranks 4-5 (node3) have torch 2.11.0+cpu; the other 6 have 2.13.0+cpu"
    assert found.evidence["torch 2.11.0+cpu"].endswith("/opt/venv")
    assert found.fix.commands[-1] == "pip install torch==2.13.0"
    (found,), _ = said(job(**{f"r{i}": having(OLD) for i in range(4)}))
    assert found.ranks == tuple(range(8)), "of two halves both are named"
    assert "2.11.0+cpu" in found.message
    assert "2.13.0+cpu" in found.message


@pytest.mark.parametrize(
    ("other", "gpus", "severity"),
    [
        (CU126, 2, "warning"),
        (CPU, 2, "error"),
        (CPU, 0, "warning"),
        (TorchBuild("2.13.1+cu130", "13.0", None), 2, "warning"),
    ],
)
def test_another_build_of_one_release_is_an_error_only_without_nccl(job, said, other, gpus, severity):
    (found,), exit_code = said(job(CU130, gpus=gpus, r7=having(other)))
    assert (found.rule, found.severity, found.ranks) == ("sw-torch-version-differs", severity, (7,))
    assert exit_code == (30 if severity == "error" else 0)


def test_another_nccl_is_an_error_only_in_an_nccl_job(job, said, change):
    odd = job(CU130, "3.11.7", "2.29.7", gpus=2, r2=having(CU130, "3.11.7", "2.27.3"))
    (found,), exit_code = said(odd)
    assert (found.rule, found.severity, found.ranks, exit_code) == ("sw-nccl-version-differs", "error", (2,), 30)
    assert "rank 2 (node2 pid 102) has NCCL 2.27.3; the other 7 have 2.29.7" in found.message
    assert said(change.asked(odd, backend="gloo")) == ([], 0)


def test_the_nccl_that_ran_counts_and_not_the_installed_one(job, said, change):
    def ran(version):
        return RankRun(pid=1, step="", outcome="done", nccl=NcclLog(version=version))

    alike = job(CU130, "3.11.7", "2.29.7", gpus=2, r2=having(CU130, "3.11.7", "2.27.3"))
    assert said(change.rank(alike, None, run=ran("2.29.7+cuda13.0"))) == ([], 0)
    shadowed = change.rank(job(CU130, "3.11.7", "2.29.7", gpus=2), 5, run=ran("2.20.5+cuda12.4"))
    (found,), _ = said(shadowed)
    assert (found.rule, found.ranks) == ("sw-nccl-version-differs", (5,))


def test_another_nccl_is_found_beside_another_torch_on_other_ranks(job, said):
    other = TorchBuild("2.12.0+cu130", "13.0", None)
    found, _ = said(
        job(CU130, "3.11.7", "2.29.7", gpus=2, r3=having(other, nccl="2.28.9"), r6=having(CU130, nccl="2.27.3"))
    )
    assert [(f.rule, f.ranks) for f in found] == [("sw-torch-version-differs", (3,)), ("sw-nccl-version-differs", (6,))]
    (found,), _ = said(job(CU130, "3.11.7", "2.29.7", gpus=2, r2=having(OLD, "3.11.7", "2.27.3")))
    assert found.rule == "sw-torch-version-differs", "one finding where both differ"


def test_another_minor_version_of_python_is_a_warning(job, said):
    (found,), exit_code = said(job(r6=having(python="3.12.1"), r7=having(python="3.12.3")))
    assert (found.rule, found.severity, found.ranks, exit_code) == ("sw-python-differs", "warning", (6, 7), 0)
    assert "ranks 6-7 (node4) have Python 3.12; the other 6 have 3.11" in found.message


@pytest.mark.parametrize(("command", "look"), [("gate", "collectives"), ("isolate", "isolation")])
def test_a_missing_torch_is_an_error_where_the_command_measures(job, said, change, command, look):
    lacking = having(UNKNOWN)
    measuring = change.asked(job(r2=lacking, r3=lacking), command=command, looks=("environment", "meeting", look))
    (found,), code = said(measuring)
    assert (found.rule, found.ranks, found.nodes, code) == ("sw-torch-missing", (2, 3), ("node2",), 30)
    assert found.message.endswith(f"torch is not installed in /opt/venv/bin/python, and {command} needs it")
    assert found.fix.commands == ("/opt/venv/bin/python -m pip install torch==2.13.0",)  # as the other ranks have


def test_a_torch_that_is_missing_everywhere_is_any_torch_and_env_needs_none(job, said, change):
    everywhere = job(UNKNOWN)
    assert said(everywhere) == ([], 0)
    (found,), _ = said(change.asked(everywhere, command="gate", looks=("environment", "meeting", "collectives")))
    assert (found.ranks, found.fix.commands) == (tuple(range(8)), ("/opt/venv/bin/python -m pip install torch",))
    unread = job(r0=having(Missing(reason="torch's version.py cannot be read: [Errno 13]")))
    assert said(change.asked(unread, command="gate", looks=("environment", "meeting", "collectives"))) == ([], 0)


NEW, BEFORE = TorchBuild("2.15.0+cu132", "13.2", None), TorchBuild("2.14.1+cu130", "13.0", None)


@pytest.mark.parametrize(
    ("build", "value", "message"),
    [
        (NEW, "0", "rank 3 (node2) has the NCCL backend ProcessGroupNCCL; the other 7 have ProcessGroupNCCL2"),
        (NEW, "1", ""),
        (BEFORE, "1", "rank 3 (node2) has the NCCL backend ProcessGroupNCCL2; the other 7 have ProcessGroupNCCL"),
        (BEFORE, "0", ""),
        (CU130, "1", ""),
    ],
)
def test_a_rank_whose_variable_selects_another_nccl_backend_is_an_error(job, change, said, build, value, message):
    made = change.environment(job(build, gpus=2), 3, TORCH_DIST_USE_NCCL2=value)
    findings, exit_code = said(made)
    assert [(f.rule, f.message.replace(" pid 103", ""), f.ranks) for f in findings] == (
        [("sw-nccl-backend-differs", message, (3,))] if message else []
    )
    assert exit_code == (30 if message else 0)
    gloo = msgspec.structs.replace(made, asked=msgspec.structs.replace(made.asked, backend="gloo"))
    assert said(gloo) == ([], 0)


def test_the_class_that_ran_counts_before_what_the_variable_says(job, change, said):
    made = change.environment(job(NEW, gpus=2), 3, TORCH_DIST_USE_NCCL2="0")
    ran = RankRun(pid=1, step="", outcome="done", implementation="ProcessGroupNCCL2")
    assert said(change.rank(made, None, run=ran)) == ([], 0)
    legacy = msgspec.structs.replace(ran, implementation="ProcessGroupNCCL")
    (found,), _ = said(change.rank(change.rank(made, None, run=ran), 5, run=legacy))
    assert (found.rule, found.ranks) == ("sw-nccl-backend-differs", (5,))


def test_a_plugins_backend_is_one_class_on_all_ranks(job, change, said):
    ran = RankRun(pid=1, step="", outcome="done", implementation="ProcessGroupOwn")
    made = change.rank(change.asked(job(NEW), backend="own"), None, run=ran)
    assert said(made) == ([], 0)
    (found,), _ = said(change.rank(made, 2, run=msgspec.structs.replace(ran, implementation="ProcessGroupGloo")))
    assert (found.rule, found.ranks) == ("sw-nccl-backend-differs", (2,))
    assert "has the backend own ProcessGroupGloo; the other 7 have ProcessGroupOwn" in found.message
