"""Runs whose ranks answer as NCCL's RAS does and print its diagnostics: Gloo stands for NCCL, since there is no GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ended import BEYOND_SECONDS

TESTS = Path(__file__).parents[1]
SMALL = ["--sizes", "1M:1M", "--op", "all_reduce", "--backend", "nccl", "--ignore", "gpu-none-visible"]
PARTIAL = "p2p: only 5/6 GPU-to-GPU peer accesses passed verification"

SITE = """
import builtins, ctypes, os, sys, time
sys.path.append({tests!r})
_real, _done = builtins.__import__, []
def _import(name, *args, **more):
    module = _real(name, *args, **more)
    worker = sys.modules.get("distcheck.collectives.worker")
    if not _done and hasattr(worker, "one_line"):
        _done.append(worker)
        _as_nccl(worker)
    return module
builtins.__import__ = _import
def _as_nccl(worker):
    import torch
    import torch.distributed as dist
    from distcheck.collectives.plan import Software
    from fake_ras import FakeRas, document
    join, reduce = dist.init_process_group, dist.all_reduce
    worker.lack_of = lambda backend: ""
    worker._take_device = lambda task: torch.device("cpu")
    worker.software = lambda device: Software(torch=str(torch.__version__), nccl="2.28.9", device="cpu")
    def init_process_group(backend, *, rank, world_size, **more):
        answers = {{"json": document(world_size, counts={{2: {{"AllReduce": 41}}}}), "text": b""}}
        port = int(os.environ["NCCL_RAS_ADDR"].removeprefix("127.0.0.1:"))
        _done.append(FakeRas(answers, port=port))
        me = f"node1:{{os.getpid()}}"
        with open(os.environ["NCCL_DEBUG_FILE"], "a") as log:
            log.write(f"{{me}}:1 [0] NCCL INFO NCCL version 2.31.2+cuda13.0\\n")
        if rank == 0:  # as NCCL prints it: through C's stdout, without a flush
            ctypes.CDLL(None).puts(f"{{me}} NCCL DIAG [INFO] {partial}".encode())
        join("gloo", rank=rank, world_size=world_size, **more)
    def all_reduce(tensor, *args, **more):
        time.sleep({seconds} if int(os.environ["RANK"]) == 2 else 0)
        return reduce(tensor, *args, **more)
    dist.init_process_group, dist.all_reduce = init_process_group, all_reduce
"""


def as_nccl(folder, seconds):
    """Return the variables with which Gloo stands for NCCL, and rank 2 sleeps before each all_reduce."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE.format(tests=str(TESTS), seconds=seconds, partial=PARTIAL))
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {"PYTHONPATH": path, "PYTHONUNBUFFERED": ""}  # with it, C's stdout would have no buffer either


def test_ras_names_the_rank_that_is_behind_in_a_stalled_collective(distcheck, tmp_path):
    env = as_nccl(tmp_path, 600)
    ended = distcheck("bandwidth", "--nproc", "3", "--timeout", "20", "--format", "json", *SMALL, env=env)
    (found,) = [f for f in ended.report["findings"] if f["rule"] == "collective-stalled"]
    assert (ended.code, found["ranks"]) == (20, []), "RAS blames no rank"
    assert found["message"].endswith("; NCCL's RAS: rank 2 launched 41 of 42 AllReduce operations")
    (said,) = [text for key, text in found["evidence"].items() if "behind in AllReduce" in key]
    assert said == "rank 2 launched 41 of 42 AllReduce operations"
    assert ended.seconds < 20 + BEYOND_SECONDS


def test_a_run_that_ends_does_not_ask_and_nccls_diagnostics_are_read_from_its_output(distcheck, tmp_path):
    saved = tmp_path / "job.json"
    env = as_nccl(tmp_path, 0)
    ended = distcheck("bandwidth", "--nproc", "3", "--timeout", "40", "--save", str(saved), *SMALL, env=env)
    collectives = json.loads(saved.read_text())["collectives"]
    assert collectives["measurements"], ended
    assert collectives["ras"] is None
    assert "NCCL's diagnostics could not verify peer-to-peer access" in " ".join(ended.out.split()), ended
    assert PARTIAL in " ".join(ended.out.split())
