"""Frames of torch's C++ stack: what is left of an error where the log begins in the middle of it."""

from __future__ import annotations

from distcheck.explain.spelling import CONSEQUENCE, HINT, told

_NCCL = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
_LATE = "A collective timed out: another rank failed, stopped or did something else."

SPELLINGS = (
    told(r"WorkNCCL::checkTimeout\(", about="application", weight=CONSEQUENCE, source=_NCCL, says=_LATE),
    told(r"ProcessGroupNCCL::heartbeatMonitor\(", about="application", weight=CONSEQUENCE, source=_NCCL, says=_LATE),
    told(
        r"(?:ProcessGroupNCCL|WorkNCCL)::checkForNCCLErrorsInternal\(",
        about="network",
        weight=HINT,
        source=_NCCL,
        says="NCCL failed in a collective. Repeat with NCCL_DEBUG=WARN: NCCL then writes where, and why.",
    ),
    told(
        r"WorkNCCL::(?:finished|started)GPUExecutionInternal\(",
        about="GPU",
        weight=HINT,
        source=_NCCL,
        says="torch's watchdog saw an error of CUDA, which an earlier kernel or the GPU made.",
    ),
)
