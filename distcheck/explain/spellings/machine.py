"""What the kernel and the tools of a machine write: PCIe, links, stuck tasks, clocks, MIG and versions of the driver."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, HINT, LIKELY, SYMPTOM, told

_AER = "https://github.com/torvalds/linux/blob/master/drivers/pci/pcie/aer.c"
_HUNG = "https://github.com/torvalds/linux/blob/master/kernel/hung_task.c"
_FAULT = "https://github.com/torvalds/linux/blob/master/arch/x86/mm/fault.c"
_CONNTRACK = "https://github.com/torvalds/linux/blob/master/net/netfilter/nf_conntrack_core.c"
_MLX5 = "https://github.com/torvalds/linux/blob/master/drivers/net/ethernet/mellanox/mlx5/core/en_main.c"
_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
_PARAMETERS = "https://github.com/NVIDIA/nccl/blob/master/src/misc/param.cc"
_TENSORFLOW = "https://github.com/openxla/xla/blob/main/xla/stream_executor/cuda/cuda_diagnostics.cc"
_LOADER = "https://sourceware.org/git/?p=glibc.git;a=blob;f=elf/dl-lookup.c"
_VLLM = "https://github.com/vllm-project/vllm/blob/main/csrc/custom_all_reduce.cuh"
_IMEX = "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/overview.html"
_MUNGE = "https://github.com/dun/munge/wiki/Man-3-munge"
_S3 = "https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html"
_TLS = "https://docs.openssl.org/master/man1/openssl-verification-options/"
_gpu = partial(told, about="GPU")
_net = partial(told, about="network")

SPELLINGS = (
    # the kernel's log
    _gpu(
        r"PCIe Bus Error: severity=Uncorrect",
        "gpu-fell-off-bus gpu-pcie-replay",
        weight=SYMPTOM,
        source=_AER,
        near=r"nvidia|NVRM",
    ),
    _gpu(r"PCIe Bus Error: severity=Correct", "gpu-pcie-replay", weight=HINT, source=_AER),
    _net(r"nf_conntrack: table full", "net-conntrack-full", source=_CONNTRACK),
    _net(r"mlx5_core \S+ \S+ Link down", "ib-port-down", weight=HINT, source=_MLX5),
    told(
        r"blocked for more than \d+ seconds",
        "host-stuck-processes storage-hangs",
        about="process killed",
        weight=LIKELY,
        source=_HUNG,
    ),
    told(
        r": segfault at [\da-f]+ ip ",
        about="application",
        weight=SYMPTOM,
        source=_FAULT,
        says="A process touched memory that is not its own. The library after `in` is where it happened.",
    ),
    # nvidia-smi
    _gpu(r"HW (?:Thermal )?Slowdown\s+: Active", "gpu-thermal-throttle", weight=LIKELY, source=_SMI),
    _gpu(r"No MIG devices found", "gpu-mig-without-device", weight=LIKELY, source=_SMI),
    _gpu(r"\bPending\s+: Yes", "gpu-row-remap-pending", weight=LIKELY, source=_SMI, near=r"Remapped Rows"),
    _gpu(r"Pending Page Blacklist\s+: Yes", "gpu-retired-pages", weight=LIKELY, source=_SMI),
    _gpu(
        r"nvidia-caps-imex-channels/channel\d+\W.{0,40}(?:No such|denied|not permitted)", "gpu-mnnvl-imex", source=_IMEX
    ),
    _gpu(r"nvidia-imex\.service: (?:Failed|Main process exited)", "gpu-mnnvl-imex", weight=LIKELY, source=_IMEX),
    # the clock
    *(
        told(words, "host-clock-skew", about="start-up", weight=weight, source=source)
        for words, weight, source in (
            (r"Munge decode failed: (?:Expired|Rewound) credential", CAUSE, _MUNGE),
            (r"Check for out of sync clocks", LIKELY, _MUNGE),
            (r"RequestTimeTooSkewed", CAUSE, _S3),
            (r"certificate is not yet valid", LIKELY, _TLS),
            (r"Clock skew detected", HINT, _MUNGE),
        )
    ),
    # versions
    _gpu(r"does not match DSO version", "gpu-nvml-init-failed", source=_TENSORFLOW),
    _gpu(
        r"failed call to cuInit: UNKNOWN ERROR \(303\)",
        "gpu-none-visible gpu-cuda-init-failed",
        weight=SYMPTOM,
        source=_TENSORFLOW,
    ),
    told(
        r"NCCL error .*unknown result code",
        about="start-up",
        weight=LIKELY,
        source="https://github.com/NVIDIA/nccl/blob/master/src/misc/utils.cc",
        says="NCCL returned a code that it does not name itself: the program was built for another NCCL than it loads.",
    ),
    told(
        r"version \S+ not defined in file",
        about="start-up",
        source=_LOADER,
        says="Libraries of different versions are mixed. Look at LD_LIBRARY_PATH and at what pip and conda installed.",
    ),
    # others
    told(
        r"Invalid value \S+ for NCCL_\w+, using default",
        "nccl-int-suffix",
        about="start-up",
        weight=HINT,
        source=_PARAMETERS,
    ),
    _gpu(
        r"custom_all_reduce\.cuh:\d+ '",
        weight=LIKELY,
        source=_VLLM,
        says="The all-reduce of vLLM or SGLang failed, mostly as the GPUs cannot reach each other. It can be switched off"
        " with --disable-custom-all-reduce.",
    ),
    told(
        r"NCCL operation .*failed: invalid usage",
        "gpu-duplicate env-local-rank-unset",
        about="start-up",
        weight=SYMPTOM,
        source="https://github.com/openxla/xla/blob/main/xla/backends/gpu/collectives/nccl_errors.h",
    ),
)
