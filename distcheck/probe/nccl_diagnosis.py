"""Have NCCL diagnose the GPUs of this node, without ranks and without torch: one process makes one communicator of all.

NCCL runs its diagnostics as it makes a communicator (NCCL 2.31 and later). ``ncclCommInitAll`` makes one of all GPUs in
one process, so that the node needs no ranks. It takes seconds, and a context and memory on every GPU; therefore it is
done only where the user asks for it, no process uses the GPUs, and in a child that is killed at the limit.

Source: ncclCommInitAll and the diagnostics' page of NCCL's user guide; it links CUDA's runtime statically.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.nccl import NodeDiagnosis
from distcheck.probe import libraries
from distcheck.probe.child import Question, ask
from distcheck.probe.memory_file import memory_file
from distcheck.selection.alternatives import DIAGNOSTICS, DIAGNOSTICS_SINCE

if TYPE_CHECKING:
    from distcheck.facts.node import NodeFacts

_LEAST_SECONDS = 2.0
_LONGEST = 64 << 10


async def diagnosis(node: NodeFacts, environ: Mapping[str, str], seconds: float) -> NodeDiagnosis | Missing:
    """Return what NCCL reports of the node's GPUs, within `seconds`, or why it was not asked."""
    until = time.monotonic() + seconds
    if not isinstance(node.gpus, Gpus) or node.accelerator != "nvidia":
        return Missing(reason="it is for NVIDIA GPUs, and none was found")
    if reason := _in_use(node.gpus):
        return Missing(reason=reason)
    found = await libraries.libraries(environ, seconds)
    if isinstance(found, Missing) or not found.nccl:
        why = found.reason if isinstance(found, Missing) else found.error or "its torch uses no NCCL"
        return Missing(reason=f"the Python of distcheck has no NCCL to ask: {why}")
    version = tuple(int(part) for part in found.version.split(".")[:2] if part.isdecimal())
    if version < DIAGNOSTICS_SINCE:
        return Missing(reason=f"NCCL {found.version} cannot; 2.31 and later can")
    left = until - time.monotonic()
    if left < _LEAST_SECONDS:
        return Missing(reason=f"{left:.1f} s of --timeout were left")
    why = f"{len(node.gpus.devices)} GPUs take long to initialize, or one hangs; raise --timeout"
    question = Question(__name__, "NCCL's diagnostics", why, (found.nccl, found.version))
    return await ask(question, NodeDiagnosis, left, environ={**environ, **DIAGNOSTICS})


def _in_use(gpus: Gpus) -> str:
    """Return why the GPUs may not be used now, empty if they may."""
    for gpu in gpus.devices:
        if gpu.mig is True:
            return f"GPU {gpu.index} is in MIG mode"
        if gpu.health is None or isinstance(gpu.health.processes, Missing):
            return f"it is unknown whether a process uses GPU {gpu.index}"
        if gpu.health.processes:
            return f"process {gpu.health.processes[0].pid} uses GPU {gpu.index}"
    return "" if len(gpus.devices) > 1 else "the node has one GPU, and they are about pairs"


def collect(library: str, version: str) -> NodeDiagnosis | Missing:
    """Make a communicator of all GPUs in this process, and return what NCCL printed. It can hang or crash."""
    number, start = ctypes.c_int(), time.monotonic()
    cuda = ctypes.CDLL("libcuda.so.1")
    if (code := cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(number))) != 0:
        return Missing(reason=f"CUDA error {code}")
    nccl, printed, own = ctypes.CDLL(library), memory_file("distcheck-nccl"), os.dup(1)
    sys.stdout.flush()
    os.dup2(printed, 1)
    try:
        code = nccl.ncclCommInitAll((ctypes.c_void_p * number.value)(), number, None)
        ctypes.CDLL(None).fflush(None)  # NCCL does not
    finally:
        os.dup2(own, 1)
    text = os.pread(printed, _LONGEST, 0).decode("utf-8", "replace")
    if code != 0:
        nccl.ncclGetErrorString.restype = ctypes.c_char_p
        last = (text.strip().splitlines() or [""])[-1][-200:]
        return Missing(reason=f"NCCL: {nccl.ncclGetErrorString(code).decode()}{last and f': {last}'}")
    lines = tuple(line.partition(" NCCL DIAG ")[2] for line in text.splitlines() if " NCCL DIAG [" in line)
    return NodeDiagnosis(version, number.value, lines[:64], time.monotonic() - start)
