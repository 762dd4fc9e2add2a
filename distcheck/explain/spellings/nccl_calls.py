"""NCCL's warnings about its caller, the driver, the machine's topology, and its own proxy threads.

The messages are those of all releases from 2.7 to 2.30; torch repeats them after `Last error:` without `NCCL WARN`.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_SRC = "https://github.com/NVIDIA/nccl/blob/master/src"
_gpu = partial(told, about="GPU")
_start = partial(told, about="start-up")
_app = partial(told, about="application")
_topology = partial(
    told,
    about="GPU",
    weight=LIKELY,
    source=f"{_SRC}/graph/paths.cc",
    says="NCCL does not understand how the GPUs of this machine are connected. Try a newer NCCL.",
)
_proxy = partial(
    told,
    about="network",
    weight=CONSEQUENCE,
    source=f"{_SRC}/proxy.cc",
    says="A proxy thread of NCCL failed to connect or to transfer. The cause is in NCCL's lines before.",
)
_POINTER = (
    "The script passes NCCL a tensor that is not on the GPU of this rank: call torch.cuda.set_device(LOCAL_RANK)."
)
_WRONG_CALL = "The script calls a collective of NCCL with wrong arguments."
_IPC = "host-ptrace-pidns collective-transport-fails"

SPELLINGS = (
    # misc/argcheck.cc, enqueue.cc, group.cc: the caller
    _app(r"\S+ : \S+ (?:\S+ )?is not a valid pointer", source=f"{_SRC}/misc/argcheck.cc", says=_POINTER),
    _app(r"allocated on device \d+ mismatchs with NCCL device", source=f"{_SRC}/misc/argcheck.cc", says=_POINTER),
    _app(r": invalid root \d+ \(root should be", source=f"{_SRC}/misc/argcheck.cc", says=_WRONG_CALL),
    _app(r": invalid (?:type|reduction operation) \d+", source=f"{_SRC}/misc/argcheck.cc", says=_WRONG_CALL),
    _app(r"to self without a matching (?:recv|send)", source=f"{_SRC}/group.cc", says=_WRONG_CALL),
    _app(r"mixing different streams within a group call", source=f"{_SRC}/enqueue.cc", says=_WRONG_CALL),
    _app(
        r"corrupted comm object detected",
        source=f"{_SRC}/misc/argcheck.cc",
        weight=LIKELY,
        says="A communicator was used after it was destroyed.",
    ),
    # misc/cudawrap.cc, misc/nvmlwrap.cc, misc/strongstream.cc: the driver
    _gpu(
        r"CUDA driver is older than the minimum version",
        "sw-driver-too-old",
        weight=LIKELY,
        source=f"{_SRC}/enqueue.cc",
    ),
    _gpu(
        r"CUDA Driver version found is \d+\. Minimum requirement",
        "sw-driver-too-old",
        source=f"{_SRC}/misc/cudawrap.cc",
    ),
    _gpu(
        r"NCCL cannot be captured in a graph if .*driver <",
        "sw-driver-too-old",
        weight=LIKELY,
        source=f"{_SRC}/misc/strongstream.cc",
    ),
    _gpu(r"RMA requires CUDA driver \d", "sw-driver-too-old", source=f"{_SRC}/enqueue.cc"),
    _gpu(
        r"Failed to find CUDA library",
        "gpu-cuda-init-failed gpu-none-visible",
        weight=LIKELY,
        source=f"{_SRC}/misc/cudawrap.cc",
    ),
    _start(
        r"Unable to load NCCL library",
        source="https://github.com/openxla/xla/blob/main/third_party/nccl",
        says="libnccl.so.2 is not found. Install NCCL for this CUDA version, or set LD_LIBRARY_PATH.",
    ),
    _gpu(
        r"Failed to open libnvidia-ml\.so",
        "gpu-nvml-init-failed gpu-none-visible",
        weight=LIKELY,
        source=f"{_SRC}/misc/nvmlwrap.cc",
    ),
    _gpu(r"nvmlInit\w*\(\) failed", "gpu-nvml-init-failed", source=f"{_SRC}/misc/nvmlwrap.cc"),
    # another rank of "this host" tells a GPU that this process cannot see: two containers taken for one host
    _gpu(
        r"nvmlDeviceGetHandleByPciBusId\w*\([^()]*\) failed: Not Found",
        "k8s-pod-host-confusion nccl-hostid-split",
        weight=LIKELY,
        source="https://github.com/NVIDIA/nccl/issues/1529",
    ),
    _gpu(
        r"nvmlDeviceGetHandleBy\w+\([^()]*\) failed(?!: Not Found)",
        "gpu-nvml-init-failed gpu-fell-off-bus",
        weight=LIKELY,
        source=f"{_SRC}/misc/nvmlwrap.cc",
    ),
    _gpu(
        r"nvmlDevice(?!GetHandleBy|GetNvLink|GetP2P)\w+(?:\([^()]*\))? failed(?!: Not Supported)",
        "gpu-nvml-init-failed gpu-fell-off-bus",
        weight=LIKELY,
        source=f"{_SRC}/misc/nvmlwrap.cc",
    ),
    _gpu(
        r"NVML failure '", "gpu-nvml-init-failed gpu-fell-off-bus", weight=LIKELY, source=f"{_SRC}/include/nvmlwrap.h"
    ),
    _gpu(r"Retrieve cu\w+ (?:version \d+ )?failed with \d", "sw-driver-too-old", source=f"{_SRC}/misc/cudawrap.cc"),
    _gpu(r"Failed to load CUDA missing symbol cu", "sw-driver-too-old", source=f"{_SRC}/misc/cudawrap.cc"),
    _gpu(
        r"exceeds device/fn maxSharedMem",
        weight=LIKELY,
        source=f"{_SRC}/enqueue.cc",
        says="NCCL's kernels need more shared memory than this GPU gives. Install an NCCL that knows this GPU.",
    ),
    # transport/p2p.cc, transport/shm.cc, transport.cc: between the GPUs of a host
    _gpu(r"failed to (?:open|get) CUDA IPC handle", _IPC, weight=LIKELY, source=f"{_SRC}/transport/p2p.cc"),
    _gpu(r"cudaIpc(?:Get|Open)MemHandle failed", _IPC, weight=LIKELY, source=f"{_SRC}/transport/p2p.cc"),
    _gpu(
        r"failed to peer with device \d+",
        "collective-transport-fails perf-p2p-not-nvlink",
        weight=LIKELY,
        source=f"{_SRC}/transport/p2p.cc",
    ),
    _start(
        r"No transport found for rank",
        weight=LIKELY,
        source=f"{_SRC}/transport.cc",
        says="No transport is left between two ranks: NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_NET leave none.",
    ),
    # graph/: the machine
    _topology(r"Failed to find reverse path from "),
    _topology(r"Could not find (?:rev link for|node of type|intermediate GPU|a path for pattern(?!.*falling back))"),
    _topology(r"No path computed to go from"),
    _topology(r"could not find CPU close to GPU"),
    _topology(r"Set CPU affinity : unable to find GPU/CPU for rank"),
    _topology(r"Add (?:NVLink|C2c|PCI Link) error : could not find"),
    _topology(r"Could not find local GPU with rank", about="start-up"),
    _topology(
        r"Could not find (?:NET with id|net id|NIC for rank)",
        about="start-up",
        says="NCCL lost a network adapter in its own topology. Try a newer NCCL, or the same adapters on all nodes.",
    ),
    _topology(r"but that NIC is not available for rank", "ib-hcas-differ", about="network", says=""),
    _topology(r"Could not find any local path from gpu \d+ to net", about="start-up"),
    _topology(r"tried to create too many nodes of type", about="start-up"),
    # proxy.cc, misc/socket.cc: what other faults lead to
    _proxy(r"\[Proxy Service\S* ?\d*\] Failed to execute operation"),
    _proxy(r"Proxy Call to rank \d+ failed"),
    _proxy(r"\[Service thread\] (?:Could not receive type|Accept failed|Error encountered)"),
    _proxy(r"Socket recv failed while polling for opId"),
    _proxy(r"ncclProxy\w+ call to (?:tp)?Rank \S+ .*failed"),
    _proxy(r"Net : Connection closed by remote peer"),
    _proxy(r"Call to (?:recv|send) from \S+ failed : (?:Connection reset|Broken pipe)"),
    _proxy(r"socketProgress\w*: Call to (?:recv|send) \S+ .*failed : (?:Connection reset|Broken pipe)"),
    _proxy(r"NET/Socket : socket progress error"),
    _proxy(r"communicator encountered a fatal error"),
    _start(r"Thread creation failed: Resource temporarily", "host-nproc-pids", source=f"{_SRC}/include/checks.h"),
    _start(
        r"Failed to (?:malloc|calloc) \d+ bytes",
        "host-memory-low",
        weight=SYMPTOM,
        about="process killed",
        source=f"{_SRC}/include/alloc.h",
    ),
)
