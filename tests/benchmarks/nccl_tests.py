"""distcheck's figures beside those of nccl-tests, on a machine with GPUs and these programs in its PATH.

On a machine with one GPU, two processes share it. NCCL 2.30 and later allow this (NCCL_MULTI_RANK_GPU_ENABLE) and move
the data through the GPU's memory; earlier ones must take the processes for two hosts (NCCL_HOSTID), with sockets of the
loopback interface between them. Either way the figures show whether both programs time the same thing, not what a link
reaches. This needs nccl-tests built with MPI, and mpiexec of MPICH. Without NVIDIA's Multi-Process Service the
processes take turns on the GPU, milliseconds each.

An NCCL that is newer than torch's goes into LD_PRELOAD, for both programs. Built for one kind of GPU, and with only the
functions that are compared, it has a few megabytes: ``make src.build NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90
ONLY_FUNCS="AllReduce Sum (f32|u8|u32|u64) * *|AllReduce MinMax * RING *|Broadcast * *|AllGather RING *|SendRecv"``
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks.programs import NotMeasuredError, free_port, output_of, outputs_of
from benchmarks.ratio import Row, compared, in_turn

PROGRAMS = {"all_reduce": "all_reduce_perf", "broadcast": "broadcast_perf"}
"""By distcheck's name of the operation."""
SIZES = tuple(1 << bits for bits in range(20, 29, 2))
"""In bytes."""
GOAL = (0.98, 1.02)
_HOSTS = tuple({"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo"} for rank in range(2))
"""What makes NCCL take two processes of one machine for two hosts."""
_SHARING = ({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_SOCKET_IFNAME": "lo"},) * 2
"""What makes NCCL let two processes share a GPU."""
_LOADED = "from distcheck.collectives.software import nccl_version; print(nccl_version())"
Seconds = dict[tuple[str, int], float]
"""The seconds of a call, by operation and size in bytes."""


def gpus() -> int:
    """Return how many GPUs nvidia-smi lists, 0 without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def possible() -> bool:
    """Return whether there is something to compare with: a collective of one rank moves nothing."""
    return all(map(shutil.which, PROGRAMS.values())) and (gpus() > 1 or _on_one_gpu())


def _on_one_gpu() -> bool:
    return gpus() == 1 and shutil.which("mpiexec") is not None


def figures_against_nccl_tests() -> list[Row]:
    ranks = gpus()
    if not possible():
        raise NotMeasuredError(
            f"needs {' and '.join(PROGRAMS.values())} in PATH and two GPUs, or one and mpiexec; there are {ranks}"
        )
    processes, where, times = _shared() if _on_one_gpu() else ((), f"{ranks} GPUs", 12)

    def ours() -> Seconds:
        return of_distcheck_on_one_gpu(processes) if processes else of_distcheck(ranks)

    runs = in_turn(ours, lambda: of_nccl_tests(ranks, processes), times, warm_up=lambda: None)
    return [
        compared(f"{op}, {size >> 20} MiB, {where} / {program}", [(a[op, size], b[op, size]) for a, b in runs], GOAL)
        for op, program in PROGRAMS.items()
        for size in SIZES
    ]


def may_share() -> bool:
    """Return whether the NCCL that torch loads knows NCCL_MULTI_RANK_GPU_ENABLE."""
    version = output_of([sys.executable, "-c", _LOADED]).strip()
    return tuple(map(int, version.split("."))) >= (2, 30)


def _shared() -> tuple[Sequence[Mapping[str, str]], str, int]:
    """Return the variables of two processes that share a GPU, the name of this, and how often it is worth repeating."""
    if may_share():
        return _SHARING, "2 ranks on one GPU", 6
    return _HOSTS, "2 ranks on one GPU, sockets", 4


def of_distcheck(ranks: int, backend: str = "nccl") -> Seconds:
    return _figures(output_of([*_bandwidth(backend), "--nproc", str(ranks)]))


def of_distcheck_on_one_gpu(processes: Sequence[Mapping[str, str]] = _HOSTS, backend: str = "nccl") -> Seconds:
    """Return the seconds of two ranks, started by hand."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    # The local rank is the number of the GPU.
    ranks = [
        {**job, **variables, "RANK": str(rank), "LOCAL_RANK": "0" if backend == "nccl" else str(rank)}
        for rank, variables in enumerate(processes)
    ]
    return _figures(outputs_of(_bandwidth(backend), ranks)[0])


def _bandwidth(backend: str) -> list[str]:
    sizes = f"{SIZES[0]}:{SIZES[-1]}:x4"
    words = ["bandwidth", "--backend", backend, "--op", ",".join(PROGRAMS), "--sizes", sizes, "--format", "json"]
    return [sys.executable, "-m", "distcheck", *words]


def _figures(report: str) -> Seconds:
    return {(row["op"], row["bytes"]): row["seconds"]["mean"] for row in json.loads(report)["bandwidth"]}


def of_nccl_tests(ranks: int, processes: Sequence[Mapping[str, str]] = ()) -> Seconds:
    """Return the seconds of one process with all GPUs, or of some that share one."""
    sizes = ["-b", str(SIZES[0]), "-e", str(SIZES[-1]), "-f", "4"]
    return {
        (op, size): seconds
        for op, program in PROGRAMS.items()
        for size, seconds in in_place(output_of(_started([program, "-g", str(ranks), *sizes], processes))).items()
    }


def _started(program: Sequence[str], processes: Sequence[Mapping[str, str]]) -> list[str]:
    if not processes:
        return [*program]
    command = ["mpiexec", "-genv", "NCCL_TESTS_DEVICE", "0", "-genv", "PATH", os.environ["PATH"]]
    for rank, variables in enumerate(processes):
        options = [word for name, value in variables.items() for word in ("-env", name, value)]
        command += [*([":"] if rank else []), "-n", "1", *options, *program]
    return command


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
