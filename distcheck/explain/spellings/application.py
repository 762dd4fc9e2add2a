"""Faults of the training script and of libraries that it uses; and what its other ranks then see."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_DDP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
_DISTRIBUTED = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/distributed_c10d.py"
_WATCHDOG = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
_WRAPPER = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp"
_GLOO = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"
_PYTHON = "https://docs.python.org/3/library/exceptions.html"
_BARRIER = "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier"
_app = partial(told, about="application")
_HUB = "https://huggingface.co/docs/huggingface_hub/package_reference/utilities#errors"
_DOWNLOAD = "The program cannot download a model or data. Download it before the job, and set HF_HUB_OFFLINE=1."
_STATE = "https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/module.py"
_STATES = "The checkpoint does not fit the model: its parameters have other names or shapes."
_LATE = (
    "A rank did not reach or finish a collective in time. Usually another rank prepares data or saves a file for longer"
    " than the timeout, calls another collective, or failed first."
)
_STUCK = (
    "A call of NCCL or CUDA on this rank does not return: it hangs, or waits for a rank that is late with its collectives,"
    " or another thread holds the GIL. See where the process is: py-spy dump --pid PID."
)

BARRIERS = tuple(
    _app(
        rf"{ranks} failed to pass monitoredBarrier in (?P<late_ms>\d{{1,12}}) ms",
        source=_GLOO,
        weight=CONSEQUENCE,
        says=_LATE,
    )
    for ranks in (r"Ranks (?P<late>\d{1,5}(?:, ?\d{1,5})*)", r"Rank (?P<late>\d{1,5})")
)
"""Rank 0 names the ranks of its group that came late: all of them in one line, or one in each."""

MISMATCH = _app(
    r"Detected mismatch between collectives on ranks",
    source=_WRAPPER,
    says="The ranks called different collectives, or the same with other shapes.",
    unless=r"sw-script",
)
"""The ranks have compared their collectives (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""

SPELLINGS = (
    _app(
        r"Expected to have finished reduction in the prior iteration",
        source=_DDP,
        says="Parameters of the model were not used in the loss: use find_unused_parameters=True, or remove them.",
    ),
    _app(
        r"Default process group has not been initialized",
        source=_DISTRIBUTED,
        says="The script uses a collective before init_process_group().",
    ),
    _app(
        r"trying to initialize the default process group twice",
        source=_DISTRIBUTED,
        says="The script calls init_process_group() twice.",
    ),
    MISMATCH,
    _app(
        r"DDP expects same model across all ranks",
        source=_DDP,
        says="The ranks built different models.",
        unless=r"has inconsistent 0 params",
    ),
    _app(
        r"appears not to match (?:sizes|strides) of the same param",
        source=_DDP,
        says="The ranks built different models.",
    ),
    _app(
        r"Expected to mark a variable ready only once",
        source=_DDP,
        says="A parameter of the model is used twice in one step of DistributedDataParallel.",
    ),
    _app(
        r"error: argument \S+: invalid",
        source="https://docs.python.org/3/library/argparse.html",
        says="The script was started with wrong arguments.",
    ),
    _app(
        r"error: the following arguments are required",
        source="https://docs.python.org/3/library/argparse.html",
        weight=LIKELY,
        says="The script was started without an argument that it requires.",
        unless=r"local[-_]rank",
    ),
    _app(
        r"error: unrecognized arguments: (?!.*--local[-_]rank)",
        source="https://docs.python.org/3/library/argparse.html",
        weight=LIKELY,
        says="The script was started with an argument that it does not know.",
    ),
    _app(r"FileNotFoundError: ", source=_PYTHON, weight=SYMPTOM, says="The script reads a file that does not exist."),
    _app(r"SyntaxError: ", source=_PYTHON, weight=LIKELY, says="The script is not valid Python for this interpreter."),
    _app(r"Watchdog caught collective operation timeout", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(r"WorkNCCL\(.*\bTIME(?:OUT|D OUT)\b", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(r"due to ProcessGroupNCCL watchdog hang", source=_WATCHDOG, weight=CONSEQUENCE, says=_STUCK),
    _app(r"got error: Socket Timeout", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(r"wait timeout after \d+ms", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(
        r"Timed out waiting .{1,12}ms for (?:recv|send) operation",
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/unbound_buffer.cc",
        weight=CONSEQUENCE,
        says=_LATE,
    ),
    *(
        _app(
            pattern,
            weight=LIKELY,
            source="https://github.com/triton-lang/triton/blob/main/python/triton/runtime/errors.py",
            says="A kernel needs more of the GPU's shared memory than this GPU has: use smaller blocks, or another kernel.",
        )
        for pattern in (r"uses too much shared data",)
    ),
    _app(
        r"No available shared memory broadcast block found",
        source="https://github.com/vllm-project/vllm/blob/main/vllm/distributed/device_communicators/shm_broadcast.py",
        weight=CONSEQUENCE,
        says="vLLM's workers do not take what the engine sends: a worker hangs, compiles or has ended.",
    ),
    _app(r"Some NCCL operations have failed or timed out", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(
        r"devices? used by this process (?:are|is) currently unknown",
        "gpu-barrier-guess",
        about="GPU",
        weight=HINT,
        source=_BARRIER,
    ),
    _app(r"Guessing device ID based on global rank", "gpu-barrier-guess", about="GPU", weight=HINT, source=_BARRIER),
    _app(r"dump signal due to a collective timeout", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(r"Timeout at NCCL work", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(r"watchdog got stuck", source=_WATCHDOG, weight=CONSEQUENCE, says=_STUCK),
    _app(r"watchdog thread terminated", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(
        r"terminate called after throwing an instance of .?c10::DistBackendError",
        source=_WATCHDOG,
        weight=HINT,  # the next line tells more
        says="A collective failed or timed out, and torch's watchdog ended the process.",
    ),
    *BARRIERS,
    *(
        _app(pattern, source=source, weight=CONSEQUENCE, says=_LATE)
        for pattern, source in (
            (r"successfully reached monitoredBarrier, but", _GLOO),
            (r"timed out in monitoredBarrier after", _GLOO),
            (r"Original exception: *$", _GLOO),
            (r"Monitored Barrier encountered error running collective", _WRAPPER),
        )
    ),
    _app(r"NCCL communicator was aborted", source=_WATCHDOG, weight=CONSEQUENCE, says=_LATE),
    _app(
        r"only (?:a )?subset of ranks is submitting tensors",
        source="https://horovod.readthedocs.io/en/stable/troubleshooting_include.html",
        weight=CONSEQUENCE,
        says=_LATE,
    ),
    _app(
        r"Shape mismatch in the collective",
        source="https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/common_runtime/collective_rma_local.cc",
        says="The ranks called a collective with tensors of different shapes.",
    ),
    _app(
        r"Check failed: ",
        source="https://github.com/google/glog",
        weight=SYMPTOM,
        says="A check in C++ failed.",
    ),
    _app(
        r"Stalled ranks",
        source="https://horovod.readthedocs.io/en/stable/troubleshooting_include.html",
        weight=CONSEQUENCE,
        says=_LATE,
    ),
    _app(
        r"Horovod has been shut down",
        source="https://horovod.readthedocs.io/en/stable/troubleshooting_include.html",
        weight=CONSEQUENCE,
        says=_LATE,
    ),
    _app(
        r"Check batch related parameters",
        source="https://www.deepspeed.ai/docs/config-json/",
        says="DeepSpeed's batch sizes do not fit the number of ranks.",
    ),
    _app(
        r"Tensors must be CUDA and dense",
        source=_DISTRIBUTED,
        says="The script gives NCCL a tensor that is not on the GPU.",
    ),
    _app(
        r"No backend type associated with device type",
        source=_DISTRIBUTED,
        says="The script uses a collective on a tensor of a device without a backend.",
    ),
    _app(
        r"pickle data was truncated",
        source=_PYTHON,
        weight=SYMPTOM,
        says="A process ended while it sent an object to another.",
    ),
    _app(
        r"HTTPS?ConnectionPool\(host=",
        source=_HUB,
        says="The program cannot reach a server on the internet, or its proxy. Download models and data before the job.",
    ),
    _app(r"couldn't connect to ['\"]?https?://", source=_HUB, says=_DOWNLOAD),
    _app(r"LocalEntryNotFoundError", source=_HUB, says=_DOWNLOAD),
    _app(r"OfflineModeIsEnabled", source=_HUB, says=_DOWNLOAD),
    _app(
        r"RepositoryNotFoundError",
        source=_HUB,
        says="The model hub refuses the model: check its name and the login.",
    ),
    _app(
        r"is not a local folder and is not a valid model identifier",
        source=_HUB,
        says="The model's name or path is wrong.",
    ),
    _app(r"urlopen error", source=_HUB, says=_DOWNLOAD),
    _app(
        r"wandb\.errors\.",
        source="https://docs.wandb.ai/",
        weight=LIKELY,
        says="Weights & Biases cannot be used: log in, or set WANDB_MODE=offline.",
    ),
    _app(
        r"Assertion `.+` failed",
        source="https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDADeviceAssertionHost.cpp",
        weight=LIKELY,
        says="A check in a kernel or in C++ failed, most often an index or a label out of range.",
    ),
    _app(
        r"support faster communication broadband via P2P or IB",
        about="start-up",
        source="https://github.com/huggingface/accelerate/blob/main/src/accelerate/state.py",
        says="Accelerate requires NCCL_P2P_DISABLE=1 and NCCL_IB_DISABLE=1 on GPUs without P2P, or accelerate launch.",
    ),
    _app(
        r"size of tensor a \(\d+\) must match",
        weight=LIKELY,
        source=_PYTHON,
        says="The script combines tensors of different shapes.",
    ),
    _app(
        r"shapes cannot be multiplied",
        weight=LIKELY,
        source=_PYTHON,
        says="The script combines tensors of different shapes.",
    ),
    _app(
        r"Expected all tensors to be on the same device",
        source=_PYTHON,
        says="The script combines tensors of different devices.",
    ),
    _app(r"size mismatch for \S+: copying a param", source=_STATE, says=_STATES),
    _app(r"\(s\) in loading state_dict for", source=_STATE, says=_STATES),
    _app(r"(?:Missing|Unexpected) key\(s\) in state_dict", source=_STATE, says=_STATES),
    _app(
        r"PytorchStreamReader failed",
        source="https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc",
        says="A checkpoint file is incomplete or broken: the job that wrote it may have ended early, or the disk was full.",
    ),
    _app(
        r"misaligned address", source=_PYTHON, says="A CUDA kernel of the program accessed memory at a wrong address."
    ),
    _app(
        r"Engine core initialization failed",
        source="https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
        weight=CONSEQUENCE,
        says="vLLM's engine failed to start. The cause is in the lines before.",
    ),
    _app(
        r"use_libuv was requested but PyTorch was buil[dt] without libuv",
        about="start-up",
        source=_DISTRIBUTED,
        says="This torch has no libuv: export USE_LIBUV=0.",
    ),
)
