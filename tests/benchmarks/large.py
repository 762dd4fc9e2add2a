"""The rows of what is done once for each node of a large job, with simulated nodes."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from benchmarks.pace import against_a_walk, usual
from benchmarks.programs import output_of_script
from benchmarks.ratio import Pair, Row, alone, at_least, at_most, counted

HOSTS = 1024
NODES = 4096
NODES_OF_PROCESSES = 512
TIMES = 3
Run = dict[str, Any]
"""What a script printed about one run."""


def starting_by_ssh() -> list[Row]:
    """What starting probes on many hosts costs the starting machine, one of which hangs."""
    many = [json.loads(output_of_script("outside.py", str(HOSTS))) for _ in range(TIMES)]
    name = f"env --hosts of {HOSTS} hosts, a login takes 0.3 s, one hangs"
    files = median(run["files"] for run in many)
    costs = {
        "outside_cpu_seconds_per_host": median(run["cpu_seconds"] for run in many) / HOSTS,
        "outside_bytes_per_host": median(run["mib"] for run in many) * (1 << 20) / HOSTS,
        "outside_files_per_host": files / HOSTS,
    }
    return [
        alone(f"{name}: until all others are logged in", [run["last_login"] for run in many], at_most(15), costs=costs),
        alone(f"{name}: CPU of distcheck", [run["cpu_seconds"] for run in many], at_most(10)),
        alone(f"{name}: peak memory", [run["mib"] for run in many], at_most(200), "MiB"),
        counted(f"{name}: open files of distcheck", files, None, files, at_most(4 * HOSTS)),
    ]


def roll_call_of_many_nodes() -> list[Row]:
    """What the roll call of a very large job costs its leader; some nodes are late, slow, silent or missing."""
    return [
        *_of_nodes([json.loads(output_of_script("many_nodes.py")) for _ in range(TIMES)]),
        *_of_processes([_one_of_processes() for _ in range(TIMES)]),
    ]


def _of_nodes(runs: list[Run]) -> list[Row]:
    nodes, ranks = runs[0]["nodes"], runs[0]["ranks"]
    name = f"roll call of {ranks} ranks on {nodes} simulated nodes, some late, slow, silent or missing"
    cpu = _paced(runs, "merged_cpu_seconds", 1e3 / nodes)
    costs = {
        "leader_cpu_seconds_per_node": usual(cpu) / 1e3,
        "leader_bytes_per_node": median(run["GiB"] - run["GiB_before"] for run in runs) * (1 << 30) / nodes,
        "leader_received_bytes_per_node": runs[0]["bytes_from_a_follower"],
    }
    return [
        # Not beside a walk: much of it is the kernel's work, which is as fast on machines that walk at half the speed.
        alone(f"{name}: seconds to the merged job", [run["seconds"] for run in runs], at_most(10), costs=costs),
        alone(f"{name}: seconds to the last goodbye", [run["dismissed_seconds"] for run in runs], at_most(15)),
        against_a_walk(f"{name}: CPU of the leader for a node, merged", cpu, 1, "ms"),
        alone(f"{name}: peak memory of the leader", [run["GiB"] for run in runs], at_most(2), "GiB"),
    ]


def _paced(runs: list[Run], figure: str, factor: float = 1) -> list[Pair]:
    """Return a figure of each run beside the slowness of the machine."""
    return [(run[figure] * factor, run["slowness"]) for run in runs]


def _one_of_processes() -> Run:
    """Every rank is a process of its own; as many as a limit of 20,000 open files allows."""
    run: Run = json.loads(output_of_script("many_nodes.py", str(NODES_OF_PROCESSES), "each"))
    return run


def _of_processes(runs: list[Run]) -> list[Row]:
    """What each of them costs the leader."""
    processes = runs[0]["processes"]
    cpu = _paced(runs, "merged_cpu_seconds", 1e3 / processes)
    memory = [(run["GiB"] - run["GiB_before"]) * (1 << 20) / processes for run in runs]
    costs = {
        "leader_cpu_seconds_per_process": usual(cpu) / 1e3,
        "leader_bytes_per_process": median(memory) * (1 << 10),
        "leader_received_bytes_per_process": runs[0]["bytes_from_a_follower"],
    }
    name = f"the same of {processes} processes of one rank each: for a process, merged"
    in_time = 20e3 / 131072
    return [
        against_a_walk(f"{name}: CPU of the leader", cpu, in_time, "ms", costs),
        alone(f"{name}: memory of the leader", memory, at_most(32), "KiB"),
    ]


def peer_round() -> list[Row]:
    """What the peer round costs a node and the leader, from 64 nodes, which all test each other, to 4,096."""
    runs = {
        nodes: [json.loads(output_of_script("peer_round.py", str(nodes))) for _ in range(TIMES)]
        for nodes in (64, NODES)
    }
    rows = []
    for nodes, its in runs.items():
        name = f"peer round of {nodes} simulated nodes"
        fewest, sent = its[0]["fewest_tests"], median(run["bytes"] for run in its)
        rows += [
            counted(f"{name}: the fewest tests of any node", fewest, None, fewest, at_least(6)),
            alone(f"{name}: a node's tests", [run["seconds"] for run in its], at_most(5.0)),
            counted(f"{name}: MB that a node sends", sent / 1e6, None, sent / 1e6, at_most(200), "MB"),
        ]
    of_leader = [run["leader_cpu_seconds"] for run in runs[NODES]]
    costs = {
        "peer_leader_cpu_seconds_per_node": median(of_leader) / NODES,
        "peer_leader_bytes_per_node": median(run["leader_bytes"] for run in runs[NODES]),
    }
    name = f"peer round of {NODES} simulated nodes: CPU of the leader"
    return [*rows, alone(name, of_leader, at_most(2.0), costs=costs)]


def _accuracy(*arguments: str) -> list[dict[str, Any]]:
    return list(json.loads(output_of_script("isolation_accuracy.py", *arguments)))


def _decided(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row, or one of five times as many clusters where another side leads: few of them may be its luck."""
    if row["ours"]["exact"] >= max(row[side]["exact"] for side in ("dlrover", "twice")):
        return row
    (again,) = _accuracy("--trials", "100", "--only", row["kind"], "--nodes", str(row["nodes"]))
    return again


def isolation_against_everybody_twice() -> list[Row]:
    """How often exactly the bad nodes are named, on simulated clusters of each kind of fault, the same each time."""
    found = [_decided(row) for row in _accuracy("--trials", "20")]
    trials = sum(r["trials"] for r in found)

    def mean(side: str, figure: str) -> float:
        return float(sum(r[side][figure] * r["trials"] for r in found)) / trials

    name = f"the bad node out of 4 to 12,500, {trials} simulated clusters"
    rows = []
    for side, what in (("dlrover", "dlrover's two rounds"), ("twice", "testing everybody twice")):
        exact = mean("ours", "exact"), mean(side, "exact")
        worst = min(found, key=lambda r: r["ours"]["exact"] - r[side]["exact"])
        least = worst["ours"]["exact"], worst[side]["exact"]
        rows += [
            counted(f"{name}: exact verdicts / {what}", *exact, exact[0] / exact[1], at_least(1)),
            counted(f"{name}: the same, least lead in one kind and size", *least, least[0] - least[1], at_least(0)),
        ]
    blamed = mean("ours", "innocent"), mean("dlrover", "innocent")
    # One bad node of four is more than 10 % of them.
    few = [r for r in found if r["nodes"] > 10 and "29%" not in r["kind"] and "of any names" not in r["kind"]]
    rounds = [max(r[side]["rounds"] for r in few) for side in ("ours", "dlrover")]
    rounds_name = f"{name}: rounds of pairs up to 10 % bad, at most"
    return [
        *rows,
        counted(f"{name}: good nodes that are blamed, each time", *blamed, blamed[0], at_most(0.001)),
        counted(rounds_name, *rounds, rounds[0], at_most(4), "rounds", {"isolation_rounds": rounds[0]}),
    ]
