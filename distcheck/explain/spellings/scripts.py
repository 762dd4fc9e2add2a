"""Faults of training scripts and their libraries, in the words of torch, model code, trainers and glibc."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_REDUCER = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp"
_LLAMA = "https://github.com/meta-llama/llama/blob/main/llama/generation.py"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/v2.5/megatron/initialize.py"
_SPAWN = "https://github.com/pytorch/pytorch/blob/main/torch/multiprocessing/spawn.py"
_LAUNCH = "https://github.com/pytorch/pytorch/blob/v1.8.0/torch/distributed/launch.py"
_ELASTIC = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/multiprocessing/api.py"
_MALLOC = "https://sourceware.org/git/?p=glibc.git;a=blob;f=malloc/malloc.c"
_SIGNAL = "https://man7.org/linux/man-pages/man7/signal.7.html"
_TRITON = "https://github.com/triton-lang/triton/blob/main/python/triton/runtime/errors.py"
_RAY = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/tasks.html"
_DYNAMO = "https://github.com/pytorch/pytorch/blob/main/torch/_dynamo/exc.py"
_ASSERT = "https://man7.org/linux/man-pages/man3/assert.3.html"
_DETECTION = "https://github.com/pytorch/vision/blob/main/references/detection/engine.py"
_STALL = "https://github.com/horovod/horovod/blob/master/horovod/common/stall_inspector.cc"
_RECORDER = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
_app = partial(told, about="application")
_HEAP = (
    "A library in C or C++ corrupted the memory of the process, often because two versions of it are loaded."
    " Run the script with python -X faulthandler."
)
_LATE = (
    "A rank did not reach or finish a collective in time. Usually another rank prepares data or saves a file for longer"
    " than the timeout, calls another collective, or failed first."
)
_FAILED = "A rank failed. The cause is in the lines of that rank before this report."
_RAISED = "A task of Ray raised an error, which is in the lines around this one."

SPELLINGS = (
    # How the script was started.
    _app(
        r"Loading a checkpoint for MP=[1-9]\d* but world size is",
        about="start-up",
        source=_LLAMA,
        says="The weights are split for another number of processes than torchrun starts: --nproc-per-node must be MP.",
    ),
    _app(
        r"expected local-rank to be the same as rank % device-count",
        about="start-up",
        source=_MEGATRON,
        says="Megatron takes RANK modulo the number of visible GPUs for LOCAL_RANK: all nodes must have as many GPUs as ranks.",
    ),
    # What the ranks tell one another about the model. A model without parameters is refused before.
    _app(
        r"while rank \d+ has inconsistent 0 params",
        about="GPU",
        source=_REDUCER,
        says="A rank received zeros for what another one sent: the GPUs exchange wrong data. Repeat with NCCL_P2P_DISABLE=1.",
    ),
    _app(
        r"INTERNAL ASSERT FAILED at",
        weight=SYMPTOM,
        source=_REDUCER,
        says="A check within torch failed.",
    ),
    # Kernels.
    _app(
        r"out of resource: (?:shared memory|threads|registers|tensor memory)",
        about="GPU",
        weight=LIKELY,
        source=_TRITON,
        says="A Triton kernel needs more of the GPU's shared memory or registers than this GPU has. Use smaller blocks.",
    ),
    _app(
        r"BackendCompilerFailed",
        weight=SYMPTOM,
        source=_DYNAMO,
        says="torch.compile could not compile the model. Repeat without it.",
    ),
    # Memory that a library corrupts.
    *(
        _app(words, weight=SYMPTOM, source=_MALLOC, says=_HEAP)
        for words in (
            r"free\(\): (?:invalid|corrupted|double)",
            r"malloc\(\): (?:invalid|corrupted|memory|unaligned|unsorted|mismatching)",
            r"realloc\(\): invalid",
            r"double free or corruption",
            r"munmap_chunk\(\): invalid",
            r"corrupted (?:size vs\. prev_size|double-linked list)",
            r"stack smashing detected",
            r"\*\*\* buffer overflow detected",
            r"sysmalloc: Assertion",
            r"pure virtual method called",
        )
    ),
    _app(
        r"Floating point exception",
        weight=SYMPTOM,
        source=_SIGNAL,
        says="A library divided by zero (SIGFPE). Run the script with python -X faulthandler, and compare the versions.",
    ),
    _app(
        r"Assertion `[^'`]+' failed",
        weight=SYMPTOM,
        source=_ASSERT,
        says="A check in C or C++ failed. The line names the file and what it expected.",
        unless=r"sysmalloc",
    ),
    # What the script checks itself.
    *(
        _app(words, weight=SYMPTOM, source=_DETECTION, says="The loss became infinite or undefined (NaN).")
        for words in (
            r"\bloss is (?:nan|inf)\b",
            r"\bnon-finite loss\b",
            r"scale already at minimum - cannot decrease",
            r"Minimum loss scale reached",
        )
    ),
    # Ranks that wait for others: Horovod's stall inspector, torch's flight recorder.
    *(
        _app(words, weight=CONSEQUENCE, source=_STALL, says=_LATE)
        for words in (
            r"waiting for (?:the )?remainder of ranks",
            r"^.{0,200}\bMissing ranks: ",
            r"\bStalled ops: ",
        )
    ),
    *(
        _app(words, weight=CONSEQUENCE, source=_RECORDER, says=_LATE)
        for words in (
            r"Received a (?:global )?(?:dump signal|timeout signal)",
            r"\] Timeout at collective: ",
            r"stuck in a previous collective",
            r"First PG on this rank (?:to signal|that detected)",
        )
    ),
    # What others report of a rank that failed.
    _app(r"ProcessRaisedException", weight=CONSEQUENCE, source=_SPAWN, says=_FAILED),
    _app(
        r"CalledProcessError: .*python[\d.]*'?,? .*\.py\b.*(?:returned non-zero exit status (?!255\b)\d|died with)",
        weight=CONSEQUENCE,
        source=_LAUNCH,
        says=_FAILED,
    ),
    _app(r"RayTaskError", weight=CONSEQUENCE, source=_RAY, says=_RAISED),
)
