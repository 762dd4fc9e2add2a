"""A collective that fails or is slow with one of NCCL's transports is repeated; Gloo stands for NCCL."""

from __future__ import annotations

import pytest
from fakes.gloo_as_nccl import SMALL, as_nccl

pytestmark = pytest.mark.without_gpus

FAILS = 'if "NCCL_P2P_DISABLE" not in os.environ: raise RuntimeError("NCCL error: unhandled cuda error")'
SLOW = 'time.sleep(0 if "NCCL_SHM_DISABLE" in os.environ else 0.1)'
LOOK = ("bandwidth", "--nproc", "2", "--iters", "3", "--timeout", "60", "--format", "json", *SMALL)


@pytest.mark.parametrize(
    ("fault", "more", "first", "way", "setting"),
    [
        (
            FAILS,
            (),
            "collective-failed",
            "all_reduce on {} fails with direct access between GPUs",
            "NCCL_P2P_DISABLE=1",
        ),
        pytest.param(
            SLOW,
            ("--min-busbw", "0.012"),
            "perf-below-min-busbw",
            "all_reduce on {} reaches 0.0",
            "NCCL_SHM_DISABLE=1",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["fails", "is slow"],
)
def test_the_transport_is_named_without_which_it_works(distcheck, tmp_path, fault, more, first, way, setting):
    ended = distcheck(*LOOK, *more, env=as_nccl(tmp_path, fault))
    assert (ended.code, [f["rule"] for f in ended.report["findings"]]) == (20, [first, "collective-transport-fails"])
    found = ended.report["findings"][-1]
    assert found["message"].startswith(way.format(*found["nodes"]))
    assert found["message"].endswith(f" with {setting}")
    assert found["fix"]["commands"][0] == f"export {setting}"
    assert "NCCL_CUMEM_ENABLE=0" in found["evidence"], "what costs a job less speed was tried before"


def test_a_fault_that_no_setting_changes_names_no_transport(distcheck, tmp_path):
    ended = distcheck(*LOOK, env=as_nccl(tmp_path, 'raise RuntimeError("NCCL error: internal error")'))
    assert [f["rule"] for f in ended.report["findings"]] == ["collective-failed"]
    (gap,) = [n for n in ended.report["not_checked"] if n["rule"] == "collective-transport-fails"]
    assert "one at a time: no transport alone is at fault" in gap["reason"]
