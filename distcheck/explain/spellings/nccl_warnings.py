"""NCCL's rarer warnings: settings, rings, versions of NCCL, adapters' events, and wrong calls of the program.

The messages are those of NCCL 2.4 to 2.30.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, SYMPTOM, Spelling, told

_SRC = "https://github.com/NVIDIA/nccl/blob/master/src"
_gpu = partial(told, about="GPU", weight=LIKELY)
_net = partial(told, about="network", weight=LIKELY)
_start = partial(told, about="start-up", weight=LIKELY)
_WRONG_CALL = "The program calls NCCL with wrong arguments, or in an order that NCCL does not allow."
_MISMATCH = "The ranks called different collectives, or the same with other sizes."
_ADAPTER = "The RDMA adapter reported a fatal error. Look at its port and at the kernel log."
_ADDRESSES = "The port of an RDMA adapter went down and came back, or its addresses changed."
_NO_INTERFACE = (
    "NCCL found no network interface with an address that it can use, as in a container without a network of its own."
    " NCCL_DEBUG=INFO shows what it selects."
)
_MERGED = "NCCL cannot join adapters as NCCL_NET_FORCE_MERGE or NCCL_NET_MERGE_LEVEL asks. Unset both."
_CONTEXT = "NCCL cannot use the GPU from one of its threads. The line before it tells why."
_GIN = "The program asks for NCCL's device API over the network (GIN), which not all ranks support."

_BRIDGES = "net-nccl-auto-wrong-iface net-nccl-picks-loopback-or-docker"
_SEVERAL = r"NET/Socket : Using .*\](?:br-[0-9a-f]{12}|docker\d|veth\w{7}|virbr\d|cni\d|podman\d|lxcbr\d|lxdbr\d):"
"""NCCL uses all interfaces, those of Docker too: the other node has the same addresses."""
_ONE_HOST = r"Rank +0 .{0,40}on +(\S+) device.*\n(?:# +Rank +\d+ .{0,40}on +\1 device.*\n)+(?!# +Rank)"
"""nccl-tests' list of devices, if it names one host."""


def _call(pattern: str, file: str, says: str = _WRONG_CALL) -> Spelling:
    return told(pattern, about="application", weight=LIKELY, source=f"{_SRC}/{file}", says=says)


SPELLINGS = (
    # rings, as ranks see the job in different ways
    _start(
        r"Error : ring \d+ does not (?:loop back to start|contain rank)",
        "nccl-hostid-split nccl-env-differs sw-nccl-version-differs",
        source=f"{_SRC}/graph/rings.cc",
    ),
    _start(r"localHostHash = \w+ not found in the list", "nccl-hostid-split", source=f"{_SRC}/graph/topo.cc"),
    # versions of NCCL
    _start(r"NCCL version mismatch with remote peer", "sw-nccl-version-differs", source=f"{_SRC}/ras/ras.cc"),
    _start(
        r"NCCL library is (?:too old|not backwards compatible)", "sw-nccl-shadowed", source=f"{_SRC}/dev_runtime.cc"
    ),
    _gpu(r"CUDA some PFN functions not found in the library", "sw-driver-too-old", source=f"{_SRC}/misc/cudawrap.cc"),
    _start(r"NCCL_DEVICE_UNPACK plugin has incompatible version", "sw-plugin-abi", source=f"{_SRC}/init.cc"),
    _start(
        r"NCCL (?:error|failure).*unknown result code",
        source=f"{_SRC}/init.cc",
        says="The program was built for a newer NCCL than the one it loads. Compare LD_LIBRARY_PATH with what pip installed.",
    ),
    # interfaces and adapters
    _net(
        r"(?:Net : |ncclSocketInit: |WARN )Socket creation failed",
        source=f"{_SRC}/misc/socket.cc",
        says=_NO_INTERFACE,
        unless=r"Too many open files",
    ),
    _net(  # a healthy job on one node writes it too
        r"Bootstrap : Using .*\[\d+\]veth\w+:fe80:",
        weight=HINT,
        source=f"{_SRC}/misc/socket.cc",
        says="NCCL also takes a container's veth interface, over which no other node can be reached. Set NCCL_SOCKET_IFNAME.",
    ),
    _net(r"Error : Network returned 0 device", source=f"{_SRC}/transport/net.cc", says=_NO_INTERFACE),
    _start(
        r"TOPO/NET : (?:Could not force merge|Tried to merge|Only matched)",
        source=f"{_SRC}/graph/topo.cc",
        says=_MERGED,
    ),
    _start(r"Specified fused NIC \S+ which has too many devices", source=f"{_SRC}/graph/topo.cc", says=_MERGED),
    _net(
        r"Got async (?:error )?event ?: .*(?:catastrophic|fatal|CQ error|invalid request local work queue)",
        source=f"{_SRC}/transport/net_ib",
        says=_ADAPTER,
    ),
    _net(
        r"Got async (?:error )?event ?: (?:port active|LID change|P_Key change|SM change|client rereg|GID table change)",
        weight=HINT,
        source=f"{_SRC}/transport/net_ib",
        says=_ADDRESSES,
    ),
    told(
        r"Out of bounds values : [1-9]",
        "collective-wrong-result",
        about="GPU",
        weight=LIKELY,
        source="https://github.com/NVIDIA/nccl-tests/blob/master/src/common.cu",
    ),
    # memory, GPUs
    told(
        r"\bmalloc(?: of |\(size=)\d+(?: bytes failed|\) returned null)",
        "host-memory-low",
        about="process killed",
        weight=SYMPTOM,
        source=f"{_SRC}/include/alloc.h",
    ),
    _gpu(r"Failed to (?:create|set) CUDA (?:context|device)", weight=SYMPTOM, source=f"{_SRC}/proxy.cc", says=_CONTEXT),
    # the program's calls
    _call(r"Mismatched collective detected", "init.cc", _MISMATCH),
    _call(r"may be caused by a collective mismatch around rank", "init.cc", _MISMATCH),
    _call(r"posted incorrect receive info: size", "transport/net_ib", _MISMATCH),
    *(
        told(words, about="application", weight=SYMPTOM, source=f"{_SRC}/init.cc", says=_WRONG_CALL)
        for words in (r"ncclInvalidArgument", r"invalid argument \(run with NCCL_DEBUG")
    ),
    told(
        r"Invalid value .{0,30}for environment variable:? (?:TORCH_)?NCCL_",
        "torch-nccl-var-invalid",
        about="start-up",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/Utils.hpp",
    ),
    *(  # windows, RMA and growing communicators, of NCCL 2.27 and later
        _call(words, "dev_runtime.cc")
        for words in (
            r"\bncclCommGrow: ",
            r"\bncclPutSignal\b",
            r"\bncclWaitSignal: ",
            r"\bncclRedOpDestroy : ",
            r"symmetric registration check failed on rank",
            r"argument (?:must be|not) initialized via NCCL_\w+_INITIALIZER",
            r": communicator was revoked",
            r"Invalid device \d+ \(totalnDev=",
            r"communicators in (?:a ncclGroup\(\) can be CUDA graph captured|graph mode while others not)",
        )
    ),
    _call(r"\S+ : \S+ argument is NULL", "misc/argcheck.cc"),
    _call(r"comm \S+ has already been destroyed", "init.cc"),
    _call(r"Attempt to use communicator before the previous operation", "init.cc"),
    _call(r"Blocking and nonblocking communicators are not allowed", "group.cc"),
    _call(r"ncclGroupEnd: not in a group call", "group.cc"),
    _call(r"Invalid config .{1,30} attribute value", "init.cc"),
    _call(r"ncclConfig_t argument not initialized", "init.cc"),
    _call(r"Streams given to a communicator within a NCCL group must", "enqueue.cc"),
    _call(r"Data type supplied to user-created ncclRedOp_t", "enqueue.cc"),
    _call(r"reduction operation \d+ unknown to this communicator", "misc/argcheck.cc"),
    _call(r"FP8 reduction support begins with sm90", "enqueue.cc"),
    _call(r"(?:NCCL WARN |failed: )invalid device count", "init.cc"),
    _call(r"rank \d+ exceeds ndev=", "init.cc"),
    _call(r"User requested GIN", "dev_runtime.cc", _GIN),
    _call(r"does not satisfy symmetric registration requirements", "register"),
    # a system call failed, which is not named
    *(
        _net(words, _BRIDGES, source=f"{_SRC}/misc/socket.cc", near=_SEVERAL)
        for words in (r"unhandled system error", r"ncclSystemError", r"socket.*Connection (?:refused|timed out)")
    ),
    _net(  # all ranks are on one host, where NCCL connects them by shared memory
        r"unhandled system error",
        "host-shm-too-small net-nccl-ifname-no-match",
        weight=SYMPTOM,
        source="https://github.com/NVIDIA/nccl-tests/blob/master/src/common.cu",
        near=_ONE_HOST,
    ),
)
