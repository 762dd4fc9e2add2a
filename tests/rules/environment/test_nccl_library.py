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


def test_the_nccl_of_torch_itself_is_silent(said):
    assert said()[:2] == ((), ())
    assert said(usual=Libraries(version="", nccl=""))[:2] == ((), ()), "linked into torch"
    system = Libraries(nccl="/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.3", version="2.27.3", found_by="system")
    assert said(usual=system)[:2] == ((), ()), "NVIDIA's container: torch has none of its own"
    assert said(wheels=BOTH, version="2.29.7")[:2] == ((), ()), "the newer one wrote the file"
    assert said(asked={"backend": "gloo"}, **LACKING)[:2] == ((), ())


BOTH = ("nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.29.7")
OTHER = {"nccl": "/opt/nccl/libnccl.so.2", "own_version": "2.27.3", "found_by": "LD_LIBRARY_PATH"}
LACKING = OTHER | {"version": "2.18.1", "found_by": "LD_PRELOAD", "lacks": ("ncclCommWindowRegister",)}
UNLOADED = {"nccl": "", "version": "", "own": "", "error": "libnccl.so.2: cannot open shared object file"}


@pytest.mark.parametrize(
    ("fields", "severity", "words", "command"),
    [
        (LACKING, "error", "libnccl.so.2 from LD_PRELOAD (NCCL 2.18.1) lacks; import torch fails", "unset LD_PRELOAD"),
        (UNLOADED, "error", "cannot open shared object file", "pip install --force-reinstall torch"),
        (OTHER | {"version": "2.26.2"}, "warning", "in place of torch's own NCCL 2.27.3", "unset LD_LIBRARY_PATH"),
        (OTHER | {"version": "2.27.3"}, "info", "", "unset LD_LIBRARY_PATH"),
        (OTHER | {"version": "2.28.9"}, "info", "", "unset LD_LIBRARY_PATH"),
        ({"wheels": BOTH}, "warning", "are both installed", "pip uninstall -y nvidia-nccl-cu12"),
    ],
)
def test_another_nccl_is_named_at_its_ranks_with_the_way_by_which_it_is_found(said, fields, severity, words, command):
    made = said(**fields)
    assert [(f.rule, f.severity, f.ranks, f.nodes) for f in made.findings] == [
        ("sw-nccl-shadowed", severity, (4, 5), ("node3",))
    ]
    assert words in made.findings[0].message
    assert made.findings[0].fix.commands[0] == command
    assert made.verdict.exit_code == (30 if severity == "error" else 0)


def test_libraries_that_could_not_be_read_are_not_checked_and_not_required(said):
    made = said(missing=Missing(reason="NCCL's library did not answer within 10 s"))
    assert made.findings == ()
    assert {(n.rule, n.ranks, n.required) for n in made.not_checked} == {
        ("sw-nccl-shadowed", (4, 5), False),
    }
