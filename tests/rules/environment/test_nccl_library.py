"""The NCCL that each rank loads."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.libraries import Libraries

OWN = "/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
WELL = Libraries(
    nccl=OWN, version="2.27.3", found_by="torch", own=OWN, wheels=("nvidia-nccl-cu12 2.27.3",), machine="x86_64"
)


@pytest.fixture
def said(job_of, change, judge, replace):
    """Judge four nodes of two ranks, on some of which the libraries differ from WELL in these fields."""

    def of(ranks=(4, 5), usual=WELL, asked=None, environment=None, **fields):
        job = change.process(job_of(4, 2, "slurm", looks=("environment", "gpu"), gpus=2), None, libraries=usual)
        job = change.environment(job, None, **(environment or {}))
        odd = fields.pop("missing", None) or replace(usual, **fields)
        job = change.asked(change.process(job, ranks, libraries=odd), **(asked or {}))
        return judge(job, "environment.nccl_library")

    return of


@pytest.fixture
def replace(change):
    return change.job


def brought(said):
    return [(f.rule, f.severity, f.ranks, f.nodes) for f in said.findings]


def test_the_nccl_of_torch_itself_is_silent(said):
    assert said()[:2] == ((), ())
    assert said(usual=Libraries(version="", nccl=""))[:2] == ((), ()), "linked into torch"
    system = Libraries(nccl="/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.3", version="2.27.3", found_by="system")
    assert said(usual=system)[:2] == ((), ()), "NVIDIA's container: torch has none of its own"


def test_a_missing_function_is_an_error_that_names_the_file_and_the_way(said):
    other = {"nccl": "/usr/lib/libnccl.so.2.18.1", "version": "2.18.1", "own_version": "2.27.3"}
    made = said(found_by="LD_PRELOAD", lacks=("ncclCommWindowRegister",), **other)
    assert brought(made) == [("sw-nccl-shadowed", "error", (4, 5), ("node3",))]
    (finding,) = made.findings
    assert finding.message == (
        "ranks 4-5 (node3): torch calls ncclCommWindowRegister, which /usr/lib/libnccl.so.2.18.1 from LD_PRELOAD"
        " (NCCL 2.18.1) lacks; import torch fails"
    )
    assert finding.fix.commands[0] == "unset LD_PRELOAD"
    assert made.verdict.exit_code == 30
    assert said(asked={"backend": "gloo"}, found_by="LD_PRELOAD", lacks=("ncclX",), **other)[:2] == ((), ())


@pytest.mark.parametrize(("version", "severity"), [("2.26.2", "warning"), ("2.27.3", "info"), ("2.28.9", "info")])
def test_another_nccl_is_a_warning_only_if_it_is_older(said, version, severity):
    made = said(nccl="/opt/nccl/libnccl.so.2", version=version, own_version="2.27.3", found_by="LD_LIBRARY_PATH")
    assert brought(made) == [("sw-nccl-shadowed", severity, (4, 5), ("node3",))]


def test_two_wheels_are_a_warning_if_the_older_one_wrote_the_file(said):
    both = ("nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.29.7")
    made = said(wheels=both)
    assert brought(made) == [("sw-nccl-shadowed", "warning", (4, 5), ("node3",))]
    assert made.findings[0].fix.commands == (
        "pip uninstall -y nvidia-nccl-cu12",
        "pip install --force-reinstall --no-deps nvidia-nccl-cu13==2.29.7",
    )
    assert said(wheels=both, version="2.29.7")[:2] == ((), ())


def test_an_nccl_that_cannot_be_loaded_is_an_error(said):
    made = said(
        nccl="", version="", own="", error="libnccl.so.2: cannot open shared object file: No such file or directory"
    )
    assert brought(made) == [("sw-nccl-shadowed", "error", (4, 5), ("node3",))]
    assert "cannot open shared object file" in made.findings[0].message


def test_libraries_that_could_not_be_read_are_not_checked_and_not_required(said):
    made = said(missing=Missing(reason="NCCL's library did not answer within 10 s"))
    assert made.findings == ()
    assert {(n.rule, n.ranks, n.required) for n in made.not_checked} == {
        ("sw-nccl-shadowed", (4, 5), False),
    }
