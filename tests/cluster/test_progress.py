"""What stderr shows of a run from outside."""

from __future__ import annotations

import re


def test_a_run_from_outside_shows_its_launch_and_the_stages_of_its_leader(cluster):
    words = ("net", "--hosts", "node[1-2]", "--nproc", "1", "--format", "json")
    ended = cluster.run("head", "distcheck", *words, timeout=120)
    assert ended.code == 0, ended
    launch, *stages = ended.err.splitlines()
    assert launch == "distcheck: launch: starting distcheck on 2 nodes through ssh"
    if len(stages) == 2:  # else the other node was there before rank 0 began to wait
        assert re.fullmatch(
            r"distcheck: roll call: 1 of 2 ranks joined, waiting [\d.]+ s at most for the others", stages[0]
        )
    assert re.fullmatch(r"distcheck: peers: 2 processes test the ports between them, [\d.]+ s at most", stages[-1])
