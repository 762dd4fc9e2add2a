"""Write docs/scale.md's tables: what a job of many GPUs costs, from the unit costs that the benchmarks measured.

``python tests/benchmarks/run.py --write`` keeps what it measured in tests/benchmarks/costs.json and calls this.
To add a line, give a benchmark's row its cost (``costs={"outside_seconds_per_host": ...}``) and add it to `LINES`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import measured

ROOT = Path(__file__).resolve().parent.parent
PAGE, COSTS = "docs/scale.md", "tests/benchmarks/costs.json"
COMMAND = "python docs/build_scale.py"

GPUS = (1_000, 10_000, 100_000)
NODE = 8
"""GPUs, and so ranks, of a node."""
_MOST_GPUS = 1 << 30
_OPEN_FILES = 1 << 19
"""The hard limit of a process under systemd (https://0pointer.net/blog/file-descriptor-limits.html)."""


class Line(NamedTuple):
    """What grows with the job, and where it ends."""

    what: str
    cost: str
    """The name of the unit cost."""
    units: Callable[[float], float]
    """How many of these a job of so many GPUs takes."""
    unit: str
    limit: float = math.inf
    """In `unit`."""
    reason: str = ""
    """Where the limit comes from."""


def _per_rank(gpus: float) -> float:
    return gpus


def _per_node(gpus: float) -> float:
    return gpus / NODE


LINES = (
    Line(
        "roll call, CPU of the leader, one process per node",
        "leader_cpu_seconds_per_node",
        _per_node,
        "s",
        20,
        "`--join-timeout`",
    ),
    Line(
        "roll call, CPU of the leader, one process per rank",
        "leader_cpu_seconds_per_process",
        _per_rank,
        "s",
        20,
        "`--join-timeout`",
    ),
    Line(
        "roll call, memory of the leader, one process per rank",
        "leader_bytes_per_process",
        lambda gpus: gpus / (1 << 30),
        "GiB",
        16,
        "assumed for one rank",
    ),
    Line(
        "roll call, memory of the leader, one process per node",
        "leader_bytes_per_node",
        lambda gpus: gpus / NODE / (1 << 30),
        "GiB",
        16,
        "assumed for one rank",
    ),
    Line(
        "connections of the leader, one process per rank",
        "roll_call_connections_per_process",
        _per_rank,
        "connections",
        _OPEN_FILES,
        "hard limit of open files",
    ),
    Line(
        "roll call, bytes on the leader's network",
        "roll_call_bytes_per_node",
        lambda gpus: gpus / NODE / (1 << 20),
        "MiB",
    ),
    Line(
        "`--hosts`: open files of the starting machine",
        "outside_files_per_host",
        _per_node,
        "files",
        _OPEN_FILES,
        "hard limit of open files",
    ),
    Line("`--hosts`: CPU of the starting machine", "outside_cpu_seconds_per_host", _per_node, "s", 60, "`--timeout`"),
    Line("peer round, CPU of the leader", "peer_leader_cpu_seconds_per_node", _per_node, "s", 15, "its deadline"),
    Line(
        "peer round, bytes on the leader's network",
        "peer_leader_bytes_per_node",
        lambda gpus: gpus / NODE / (1 << 20),
        "MiB",
    ),
    Line("judging and rendering, CPU", "judge_seconds_per_rank", _per_rank, "s", 60, "`--timeout`"),
    Line(
        "memory of the facts on the leader",
        "job_bytes_per_rank",
        lambda gpus: gpus / (1 << 30),
        "GiB",
        16,
        "assumed for one rank",
    ),
    Line(
        "memory for judging and rendering",
        "judge_bytes_per_rank",
        lambda gpus: gpus / (1 << 30),
        "GiB",
        16,
        "assumed for one rank",
    ),
    Line(
        "torch's store at rank 0: a connection of each rank",
        "store_connections_per_rank",
        _per_rank,
        "connections",
        _OPEN_FILES,
        "hard limit of open files",
    ),
    Line("torch's store: each rank sets a key", "store_seconds_per_client", _per_rank, "s", 60, "`--timeout`"),
    Line(
        "Gloo: connections of a rank, one to each other",
        "gloo_connections_per_pair",
        lambda gpus: gpus - 1,
        "connections",
        _OPEN_FILES,
        "hard limit of open files",
    ),
    Line("file system calls of `env`, one process per rank", "path_calls_per_process", _per_rank, "calls"),
    Line("file system calls of `import torch`, in the job itself", "torch_path_calls_per_process", _per_rank, "calls"),
    Line("rounds to find the bad nodes, up to 10 % of them bad", "isolation_rounds", lambda _gpus: 1.0, "rounds"),
)


def reached(line: Line, cost: float) -> float:
    """Return the fewest GPUs, in whole nodes, at which a line exceeds its limit; infinite beyond a billion."""
    if math.isinf(line.limit):
        return math.inf
    low, high = 0, NODE
    while cost * line.units(high) <= line.limit:
        low, high = high, 2 * high
        if high > _MOST_GPUS:
            return math.inf
    while high - low > NODE:
        middle = (low + high) // 2 // NODE * NODE
        if cost * line.units(middle) > line.limit:
            high = middle
        else:
            low = middle
    return high


def page(kept: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the page's lines from what each benchmark measured, as it is in costs.json."""
    costs = {name: value for of_one in kept.values() for name, value in of_one["costs"].items()}
    known = sorted((line for line in LINES if line.cost in costs), key=lambda line: reached(line, costs[line.cost]))
    lines: list[str] = []
    if known and known[0].reason:
        first = known[0]
        where = f"from {_gpus(reached(first, costs[first.cost]))} GPUs on"
        lines += [
            f"**The first limit:** {first.what}, {where} ({_value(first.limit, first.unit)}, {first.reason}).",
            "",
        ]
    lines += [
        "| what | " + " | ".join(f"{gpus:,} GPUs" for gpus in GPUS) + " | limit | reached at |",
        "|---|" + "---:|" * len(GPUS) + "---|---:|",
    ]
    for line in known:
        cost = costs[line.cost]
        values = " | ".join(_value(cost * line.units(gpus), line.unit) for gpus in GPUS)
        limit = f"{_value(line.limit, line.unit)}: {line.reason} | {_gpus(reached(line, cost))} GPUs"
        lines.append(f"| {line.what} | {values} | {limit if line.reason else '- | -'} |")
    if missing := sorted({line.what for line in LINES} - {line.what for line in known}):
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    lines += ["", "| unit cost | measured | by | on |", "|---|---:|---|---|"]
    for of_one in kept.values():
        source = f"`{of_one['command']}` | {of_one['date']}, {of_one['machine']}"
        lines += [
            f"| {name.replace('_', ' ')} | {_value(value, '').strip()} | {source} |"
            for name, value in of_one["costs"].items()
        ]
    return lines


def _value(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _gpus(number: float) -> str:
    return f"{number:,.0f}" if math.isfinite(number) else f"more than {_MOST_GPUS:,}"


def keep(benchmark: str, command: str, costs: Mapping[str, float], root: Path = ROOT) -> None:
    """Keep the unit costs of a benchmark with what measured them, and write the page."""
    kept = _kept(root)
    kept[benchmark] = {
        "command": command,
        "date": measured.today(),
        "machine": measured.machine(),
        "costs": dict(costs),
    }
    (root / COSTS).write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    write(root)


def write(root: Path = ROOT) -> None:
    """Write the page from the unit costs that are kept."""
    measured.put(PAGE, "scale", page(_kept(root)), command=COMMAND, root=root)


def stale(root: Path = ROOT) -> bool:
    """Return whether the page has other figures than the unit costs that are kept."""
    kept = _kept(root)
    return bool(kept) and "\n".join(page(kept)) not in (root / PAGE).read_text(encoding="utf-8")


def _kept(root: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((root / COSTS).read_text(encoding="utf-8"))
    return kept


if __name__ == "__main__":
    write()
