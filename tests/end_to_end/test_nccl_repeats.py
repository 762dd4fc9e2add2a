"""A collective that fails with one of NCCL's transports is repeated; Gloo stands for NCCL."""

from __future__ import annotations

import pytest
from fakes.gloo_as_nccl import SMALL, as_nccl

pytestmark = pytest.mark.without_gpus

FAILS = 'if "NCCL_P2P_DISABLE" not in os.environ: raise RuntimeError("NCCL error: unhandled cuda error")'
LOOK = ("bandwidth", "--nproc", "2", "--iters", "3", "--timeout", "60", "--format", "json", *SMALL)


def test_the_transport_is_named_without_which_it_works(distcheck, tmp_path):
    ended = distcheck(*LOOK, env=as_nccl(tmp_path, FAILS))
    rules = ["collective-failed", "collective-transport-fails"]
    assert (ended.code, [f["rule"] for f in ended.report["findings"]]) == (20, rules)
    found = ended.report["findings"][-1]
    (node,) = found["nodes"]
    assert found["message"].startswith(f"all_reduce on {node} fails with direct access between GPUs")
    assert found["message"].endswith(" with NCCL_P2P_DISABLE=1")
    assert found["fix"]["commands"][0] == "export NCCL_P2P_DISABLE=1"
    assert "NCCL_CUMEM_ENABLE=0" in found["evidence"], "what costs a job less speed was tried before"
