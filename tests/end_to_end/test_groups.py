"""The groups of a mesh in real runs: measured when all is well, and faults of one group named."""

from __future__ import annotations

import json

from real.ended import BEYOND_SECONDS
from real.spoiling import WRONG, spoiled

MESH = ("bandwidth", "--nproc", "4", "--mesh", "dp=2,tp=2", "--sizes", "64K:64K", "--op", "all_reduce")
IN_A_GROUP = """
    if sys._getframe(1).f_locals["more"].get("group") is None:
        return False
"""
STAY_AWAY = """
    import torch.distributed as dist
    if not hasattr(dist, "come"):
        dist.come = dist.PrefixStore.add
        def come(store, key, value):
            while key == os.environ["RANK"]:  # this is how a rank says that it is there
                time.sleep(60)
            return dist.come(store, key, value)
        dist.PrefixStore.add = come
"""


def run(distcheck, *words, **more):
    ended = distcheck(*MESH, "--format", "json", *words, **more)
    return ended, [f for f in ended.report["findings"] if f["severity"] != "info"]


def test_each_dimension_has_its_figures(distcheck, tmp_path):
    saved = tmp_path / "job.json"
    ended, findings = run(distcheck, "--save", str(saved))
    assert (ended.code, findings) == (0, []), ended
    rows = {(row["dimension"], row["op"]): row for row in ended.report["groups"]}
    assert ("dp", "all_reduce") in rows
    for (dimension, op), row in rows.items():
        if row["lacks"]:
            assert dimension == "tp", row
            continue
        assert (row["groups"], row["ranks"], row["bytes"], row["wrong"]) == (2, 2, 65536, 0), (dimension, op)
        assert all(speed > 0 for speed in (row["alone_busbw_GBps"], *row["busbw_GBps"]))
        assert row["slowest"] in ([[0, 2], [1, 3]] if dimension == "dp" else [[0, 1], [2, 3]])
    figures = json.loads(saved.read_text())["collectives"]["groups"]
    assert all(figure["bursts"] >= 6 for figure in figures if not figure.get("lacks"))


def test_a_wrong_sum_in_one_group_names_its_ranks(distcheck, tmp_path):
    ended, (found,) = run(distcheck, env=spoiled(tmp_path, (3,), IN_A_GROUP + WRONG))
    assert (ended.code, found["rule"], found["ranks"]) == (20, "collective-wrong-result", [3]), ended
    assert "3 of 262147 elements of all_reduce in dp" in found["message"]
    (row,) = [row for row in ended.report["groups"] if row["dimension"] == "dp"]
    assert row["wrong"] == 3


def test_the_rank_that_does_not_come_to_its_group_is_named(distcheck, tmp_path):
    ended, (found,) = run(distcheck, "--timeout", "50", env=spoiled(tmp_path, (3,), STAY_AWAY))
    assert (ended.code, found["rule"], found["ranks"]) == (20, "collective-group-incomplete", [3]), ended
    assert "did not come to form its dp group" in found["message"]
    assert ended.seconds < 50 + BEYOND_SECONDS
