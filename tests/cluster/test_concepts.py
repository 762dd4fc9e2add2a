"""The commands of docs/concepts.md on two nodes; tests/end_to_end/test_concepts.py has those on one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cluster import simulated
from cluster.inside import blocks, placed

PAGE = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
AGENTS = re.findall(r"(?m)^\$ (torchrun --nnodes 2 .*)$", PAGE)


@pytest.mark.slow  # test_inside_torchrun.py has static agents on two nodes in every change
def test_each_rank_of_two_nodes_has_the_gpu_of_its_local_rank(cluster):
    simulated.give_gpus(cluster)
    looks = [line for line in AGENTS if "distcheck gpu" in line]
    ended = simulated.run(cluster, "\n".join(looks), DISTCHECK_FORMAT="json")
    assert [e.code for e in ended] == [0, 0], ended
    (report,) = [json.loads(line) for e in ended for line in e.out.splitlines() if line.startswith('{"schema"')]
    assert placed(report) == blocks(4, 4)
    assert [row["gpu"]["index"] for row in report["ranks"]] == [0, 1, 2, 3] * 2
    assert len({row["gpu"]["uuid"] for row in report["ranks"]}) == 8


@pytest.mark.slow
def test_the_script_runs_on_two_nodes(cluster):
    script = re.search(r"(?s)<!-- train.py -->\n```python\n(.*?)```", PAGE)[1]
    for node in ("node1", "node2"):
        cluster.write(node, "/tmp/train.py", script)
    ended = simulated.run(cluster, "\n".join(line for line in AGENTS if "train.py" in line))
    assert [e.code for e in ended] == [0, 0], ended
    lines = sorted(line for e in ended for line in re.findall(r"rank \d of 8, [\w :]*\d+", e.out))
    assert lines == re.findall(r"(?m)^rank \d of 8, .*$", PAGE)
