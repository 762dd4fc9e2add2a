"""distcheck's figures beside those of nccl-tests, on a machine with several GPUs and these programs in its PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from benchmarks.programs import NotMeasuredError, output_of
from benchmarks.ratio import Row, compared, until_decided

PROGRAMS = {"all_reduce": "all_reduce_perf", "broadcast": "broadcast_perf"}
"""By distcheck's name of the operation."""
SIZES = tuple(1 << bits for bits in range(20, 29, 2))
"""In bytes."""
GOAL = (0.98, 1.02)
Seconds = dict[tuple[str, int], float]
"""The seconds of a call, by operation and size in bytes."""


def gpus() -> int:
    """Return how many GPUs nvidia-smi lists, 0 without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def possible() -> bool:
    """Return whether there is something to compare with: a collective on one GPU moves nothing."""
    return all(map(shutil.which, PROGRAMS.values())) and gpus() > 1


def figures_against_nccl_tests() -> list[Row]:
    ranks = gpus()
    if not possible():
        raise NotMeasuredError(f"needs {' and '.join(PROGRAMS.values())} in PATH and two GPUs; there are {ranks}")

    def once(number: int) -> tuple[Seconds, Seconds]:
        if number % 2:
            theirs = of_nccl_tests(ranks)
            return of_distcheck(ranks), theirs
        return of_distcheck(ranks), of_nccl_tests(ranks)

    def rows(runs: list[tuple[Seconds, Seconds]]) -> list[Row]:
        return [
            compared(
                f"{op}, {size >> 20} MiB, {ranks} GPUs / {program}",
                [(ours[op, size], theirs[op, size]) for ours, theirs in runs],
                GOAL,
            )
            for op, program in PROGRAMS.items()
            for size in SIZES
        ]

    return until_decided(once, rows, 3, 12)


def of_distcheck(ranks: int, backend: str = "nccl") -> Seconds:
    sizes, operations = f"{SIZES[0]}:{SIZES[-1]}:x4", ",".join(PROGRAMS)
    command = ["bandwidth", "--nproc", str(ranks), "--backend", backend, "--op", operations, "--sizes", sizes]
    report = json.loads(output_of([sys.executable, "-m", "distcheck", *command, "--format", "json"]))
    return {(row["op"], row["bytes"]): row["seconds"]["mean"] for row in report["bandwidth"]}


def of_nccl_tests(ranks: int) -> Seconds:
    sizes = ["-b", str(SIZES[0]), "-e", str(SIZES[-1]), "-f", "4"]
    return {
        (op, size): seconds
        for op, program in PROGRAMS.items()
        for size, seconds in in_place(output_of([program, "-g", str(ranks), *sizes])).items()
    }


def in_place(output: str) -> dict[int, float]:
    """Return the seconds of a call in place by size in bytes, as a program of nccl-tests prints them.

    A line has the size, four words about the operation, and twice the time in microseconds, two bandwidths and the
    number of wrong values: out of place and in place. distcheck's operations are in place.
    Source: https://github.com/NVIDIA/nccl-tests (README.md, doc/PERFORMANCE.md)
    """
    lines = [line.split() for line in output.splitlines() if line.strip()[:1].isdigit()]
    found = {int(words[0]): float(words[-4]) / 1e6 for words in lines if len(words) >= 13}
    if missing := [size for size in SIZES if size not in found]:
        raise NotMeasuredError(f"nccl-tests printed no line for {missing[0]} bytes: {output.strip()[-300:]}")
    return found
