"""What one more process costs, counted: file system calls, connections, bytes. docs/scale.md multiplies these."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.programs import HERE, one_rank, output_of
from benchmarks.ratio import Row, at_most, counted

PYTHON = sys.executable


def unit_costs() -> list[Row]:
    """Counts that do not depend on the machine; docs/scale.md multiplies them."""
    nodes, ranks = 1024, 8
    calls = calls_by_path([PYTHON, "-m", "distcheck", "env"]), calls_by_path([PYTHON, "-c", "import torch"])
    meeting, traffic = on_its_own_network([PYTHON, str(HERE / "roll_call.py"), "distcheck"])
    bandwidth = [PYTHON, "-m", "distcheck", "bandwidth", "--nproc", str(ranks), "--backend", "gloo", "--sizes", "1M"]
    made, _ = on_its_own_network(bandwidth)
    pairs = ranks * (ranks - 1) // 2
    of_calls = {"path_calls_per_process": calls[0], "torch_path_calls_per_process": calls[1]}
    of_store = {
        "store_connections_per_rank": (made - pairs) / ranks,
        "gloo_connections_per_pair": (made - ranks) / pairs,
    }
    each = meeting / (nodes - 1), traffic / (nodes - 1)
    expected = pairs + ranks
    name = f"roll call of {nodes} simulated nodes"
    return [
        counted("distcheck env: file system calls by path / import torch", *calls, calls[0] / calls[1], at_most(0.15),
                "calls", of_calls),
        counted(f"{name}: connections of a follower", each[0], None, each[0], at_most(1), "",
                {"roll_call_connections_per_process": each[0]}),
        counted(f"{name}: bytes of a follower with {ranks} ranks", each[1], None, each[1], at_most(1 << 14), "bytes",
                {"roll_call_bytes_per_node": each[1]}),
        counted(f"bandwidth --nproc {ranks}: connections / a Gloo mesh and a store", made, expected, made / expected,
                at_most(1.05), "", of_store),
    ]  # fmt: skip


def calls_by_path(command: list[str]) -> int:
    """Return how many system calls with a path a command makes, outside of /proc, /sys and /dev."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        output_of(["strace", "-f", "-qq", "-e", "trace=%file", "-o", str(trace), *command], **one_rank())
        lines = trace.read_text(errors="replace").splitlines()
    return sum(not any(f'"/{local}' in line for local in ("proc", "sys/", "dev/")) for line in lines)


def on_its_own_network(command: list[str]) -> tuple[int, int]:
    """Return the connections that a command's processes accepted, and the bytes that crossed its loopback device."""
    private = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c"]
    counters = "grep lo: /proc/net/dev && cat /proc/net/snmp"
    output = output_of([*private, f'ip link set lo up && "$@" >/dev/null && {counters}', "sh", *command])
    device, *lines = output.splitlines()
    names, values = (line.split() for line in lines if line.startswith("Tcp:"))
    return int(dict(zip(names, values, strict=True))["PassiveOpens"]), int(device.split()[1])
