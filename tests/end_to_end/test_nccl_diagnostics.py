"""A gate has NCCL 2.31 and later diagnose its ranks: Gloo stands for NCCL, since there is no GPU."""

from __future__ import annotations

import json

import pytest
from fakes.gloo_as_nccl import PARTIAL, SMALL, as_nccl
from real.ended import BEYOND_SECONDS

pytestmark = pytest.mark.without_gpus
HANGS = 'time.sleep(600 if os.environ.get("NCCL_RUN_DIAGNOSTICS") else 0)'


@pytest.fixture
def gate(distcheck, tmp_path):
    """Return the end of a gate whose ranks' NCCL is of this version, and what it saved about the collectives."""

    def of(nccl="2.32.3", *, fault="pass", **variables):
        saved = tmp_path / "job.json"
        env = {**as_nccl(tmp_path, fault, said=PARTIAL, nccl=nccl, asked=True), **variables}
        words = ("gate", "--nproc", "3", "--timeout", "60", "--save", str(saved), "--format", "json", *SMALL)
        ended = distcheck(*words, env=env)
        return ended, json.loads(saved.read_text())["collectives"]

    return of


def test_what_they_print_is_a_finding(gate):
    ended, collectives = gate()
    assert collectives["diagnosed"] > 0, ended
    found = ended.finding("nccl-diagnostics-report")
    assert (found["severity"], found["evidence"]) == ("warning", {"line 1": PARTIAL})
    assert ended.code == 0


def test_an_older_nccl_is_not_asked(gate):
    ended, collectives = gate("2.30.7")
    assert (collectives["diagnosed"], ended.code) == (None, 0)
    assert PARTIAL not in ended.out


def test_diagnostics_that_hang_are_ended_and_the_measured_figures_stay(gate):
    ended, collectives = gate(fault=HANGS)
    assert collectives["measurements"]
    assert collectives["diagnosed"]["reason"].startswith("they hung and were ended after"), collectives["diagnosed"]
    assert ended.code == 0, "the job itself is healthy"
    assert any("NCCL's own diagnostics: they hung" in told["reason"] for told in ended.report["not_checked"])
    assert ended.seconds < 60 + BEYOND_SECONDS
