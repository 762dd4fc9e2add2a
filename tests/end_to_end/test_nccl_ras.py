"""Runs whose ranks answer as NCCL's RAS does and print its diagnostics: Gloo stands for NCCL, since there is no GPU."""

from __future__ import annotations

import json

import pytest
from fakes.gloo_as_nccl import PARTIAL, SMALL, as_nccl
from real.ended import BEYOND_SECONDS

pytestmark = pytest.mark.without_gpus


def test_ras_names_the_rank_that_is_behind_in_a_stalled_collective(distcheck, tmp_path):
    env = as_nccl(tmp_path, 'time.sleep(600 if os.environ["RANK"] == "2" else 0)')
    ended = distcheck("bandwidth", "--nproc", "3", "--timeout", "40", "--format", "json", *SMALL, env=env)
    found = ended.finding("collective-stalled")
    assert (ended.code, found["ranks"]) == (20, []), "RAS blames no rank"
    assert found["message"].endswith("; NCCL's RAS: rank 2 launched 41 of 42 AllReduce operations")
    (said,) = [text for key, text in found["evidence"].items() if "behind in AllReduce" in key]
    assert said == "rank 2 launched 41 of 42 AllReduce operations"
    assert ended.seconds < 40 + BEYOND_SECONDS


def test_a_run_that_ends_does_not_ask_and_nccls_diagnostics_are_read_from_its_output(distcheck, tmp_path):
    saved = tmp_path / "job.json"
    env = as_nccl(tmp_path, said=PARTIAL)
    ended = distcheck("bandwidth", "--nproc", "3", "--timeout", "40", "--save", str(saved), *SMALL, env=env)
    collectives = json.loads(saved.read_text())["collectives"]
    assert collectives["measurements"], ended
    assert collectives["ras"] is None
    assert "NCCL's diagnostics could not verify peer-to-peer access" in " ".join(ended.out.split()), ended
    assert PARTIAL in " ".join(ended.out.split())
