"""The device test in real ranks on CPUs: wrong products and a rank with a CPU limit are named at their rank."""

import pytest
from real.spoiling import planted

SMALL = ("bandwidth", "--nproc", "2", "--sizes", "1M:1M", "--op", "all_reduce", "--format", "json")
SITE = """
import builtins, os, sys
_real, _done = builtins.__import__, []
def _import(name, *args, **more):
    module = _real(name, *args, **more)
    if not _done and hasattr(sys.modules.get("distcheck.collectives.worker"), "one_line"):
        _done.append(1)
        import torch
        matmul = torch.matmul
        def faulty(left, right, out=None):
            made = matmul(left, right) if out is None else matmul(left, right, out=out)
            _done.append(1)
            if os.environ["RANK"] == "1" and len(_done) % 50 == 0:
                made.view(torch.int32)[7, 3] ^= 1  # the lowest bit of one element
            return made
        torch.matmul = faulty
    return module
builtins.__import__ = _import
"""


@pytest.fixture
def throttled(cgroups):
    """Give a process a twenty-fifth of a CPU, in a cgroup of its own; needs root and the CPU controller.

    On a busy machine, the other ranks do not have a whole one either.
    """

    def throttled(pid):
        first, second = {"cpu": {"cpu.cfs_quota_us": 4000}}, {"cpu.max": "4000 100000"}
        (folder,) = cgroups(first, second)
        (folder / "cgroup.procs").write_text(str(pid))

    return throttled


@pytest.mark.process
def test_a_rank_whose_products_differ_is_named(start, tmp_path):
    ended = start(*SMALL, "--burn", "1.5", env=planted(tmp_path, SITE)).wait()
    found = [(f["rule"], f["ranks"], f["confirmed"]) for f in ended.report["findings"]]
    assert (ended.code, found) == (40, [("gpu-wrong-product", [1], True)]), ended
    healthy, faulty = ended.report["devices"]
    assert (healthy["different"], healthy["device"], healthy["dtype"]) == (0, "cpu", "float32")
    assert 0 < faulty["different"] <= faulty["products"] / 40
    assert all(1.5 <= row["burn"]["seconds"] < 10 for row in (healthy, faulty))
    assert all(row["matmul_TFLOPS"] > 0 < row["memory_GBps"] for row in (healthy, faulty))


@pytest.mark.process
def test_a_rank_with_a_cpu_limit_is_named(start, throttled):
    running = start(*SMALL)
    throttled(running.ranks(2)[1].pid)
    ended = running.wait()
    assert (ended.code, [(f["rule"], f["ranks"]) for f in ended.report["findings"]]) == (
        0,
        [("perf-slow-rank", [1])],
    ), ended
