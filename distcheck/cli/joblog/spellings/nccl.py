"""NCCL's warnings at start-up: sockets of the bootstrap, devices, versions, settings, NVLS."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_INIT = "https://github.com/NVIDIA/nccl/blob/master/src/init.cc"
_BOOTSTRAP = "https://github.com/NVIDIA/nccl/blob/master/src/bootstrap.cc"
_SOCKET = "https://github.com/NVIDIA/nccl/blob/master/src/misc/socket.cc"
_IPC = "https://github.com/NVIDIA/nccl/blob/master/src/misc/ipcsocket.cc"
_NVLS = "https://github.com/NVIDIA/nccl/blob/master/src/transport/nvls.cc"
_TOPOLOGY = "https://github.com/NVIDIA/nccl/blob/master/src/graph/xml.cc"
_ENVIRONMENT = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_ERRORS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_start = partial(told, about="start-up")
_net = partial(told, about="network")
_WRONG = "net-nccl-picks-loopback-or-docker net-nccl-auto-wrong-iface"
_PRIVATE = r"(?:127\.|172\.1[78]\.|192\.168\.122\.)"

SPELLINGS = (
    _start(r"Duplicate GPU detected", "gpu-duplicate env-local-rank-unset env-local-rank-duplicate", source=_INIT),
    _net(r"no (?:socket )?interface found", "net-nccl-ifname-no-match net-nccl-ifname-syntax", source=_BOOTSTRAP),
    _net(
        r"is neither AF_INET\(\d+\) nor AF_INET6",
        "net-nccl-ifname-no-match net-gloo-ifname-wrong",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(rf"connect to {_PRIVATE}\S* (?:failed|returned)", _WRONG, source=_SOCKET),
    _net(r"connect to (?:\[?fe80:|\S*%)\S* (?:failed|returned)", "net-ipv6-link-local", source=_SOCKET),
    _net(
        rf"connect to (?!{_PRIVATE}|\[?fe80)(?P<host>\S+?)<(?P<port>\d+)> (?:failed|returned).*(?:No route|unreachable|timed out)",
        "net-firewall-ephemeral net-nccl-auto-wrong-iface net-subnet-mismatch",
        source=_SOCKET,
    ),
    _net(
        rf"connect to (?!{_PRIVATE}|\[?fe80)\S+ (?:failed|returned).*refused",
        "net-nccl-auto-wrong-iface net-firewall-ephemeral",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        r"Call to connect (?:returned|failed).*(?:timed out|No route|unreachable)",
        "net-firewall-ephemeral net-nccl-auto-wrong-iface net-nccl-picks-loopback-or-docker",
        source=_SOCKET,
    ),
    _net(
        r"Call to connect (?:returned|failed).*refused",
        "net-nccl-picks-loopback-or-docker net-nccl-auto-wrong-iface",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        r"exceeded (?:error )?(?:retry|retries)",
        "net-firewall-ephemeral net-nccl-auto-wrong-iface",
        weight=SYMPTOM,
        source=_SOCKET,
    ),
    _start(r"Mismatched NCCL version detected", "sw-nccl-version-differs", source=_INIT),
    _start(r"undefined symbol: nccl", "sw-nccl-shadowed", source="https://man7.org/linux/man-pages/man8/ld.so.8.html"),
    _start(
        r"No algorithm/protocol available",
        "nccl-algo-proto-invalid",
        source="https://github.com/NVIDIA/nccl/blob/master/src/enqueue.cc",
    ),
    _start(r"Could not open XML topology file", "nccl-topo-file-stale", source=_TOPOLOGY),
    _start(r"XML Parse error", "nccl-topo-file-stale", weight=LIKELY, source=_TOPOLOGY),
    _start(r"Invalid NCCL_COMM_ID", "nccl-comm-id-set", source=_BOOTSTRAP),
    _start(r"ncclCommGetUniqueId should not be called when NCCL_COMM_ID is set", "nccl-comm-id-set", source=_INIT),
    _start(r"nccl-socket-\S+ failed", "nccl-ipc-abstract-socket", source=_IPC),
    _start(r"UDS: .*failed", "nccl-ipc-abstract-socket", weight=LIKELY, source=_IPC),
    _start(
        r"cuMem host allocations do not appear to be working",
        "nccl-cumem-host-docker",
        weight=SYMPTOM,
        source=_ENVIRONMENT,
    ),
    _start(r"set_mempolicy", "nccl-cumem-host-docker", weight=LIKELY, source=_ENVIRONMENT),
    _start(r"MNNVL .*not working on this system", "gpu-mnnvl-imex", source=_INIT),
    _start(
        r"Cuda failure \d* ?'?operation not permitted",
        "gpu-mnnvl-imex nccl-cumem-host-docker",
        weight=LIKELY,
        source=_ENVIRONMENT,
    ),
    _start(
        r"NVLink SHARP \(NVLS\) Multicast memory", "gpu-nvls-multicast-broken gpu-fabric-manager-down", source=_NVLS
    ),
    _start(r"transport/nvls\.cc.*WARN", "gpu-nvls-multicast-broken gpu-fabric-manager-down", source=_NVLS),
    _start(
        r"Cuda failure.*",
        "gpu-nvls-multicast-broken gpu-fabric-manager-down",
        source=_NVLS,
        near=r"nvls\.cc:\d+ (?:->|NCCL WARN)",
        unless=r"out of memory",
    ),
    _start(r"P2P is disabled between NVLINK connected GPUs", "gpu-nvlink-down", source=_INIT),
    _start(
        r"peer access is not supported between these two devices",
        "collective-transport-fails perf-p2p-not-nvlink",
        weight=LIKELY,
        about="GPU",
        source="https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html",
    ),
    _start(r"Message truncated : received", "nccl-env-differs sw-nccl-version-differs", weight=SYMPTOM, source=_SOCKET),
    _start(r"ncclInvalidUsage", "gpu-duplicate env-local-rank-unset", weight=SYMPTOM, source=_ERRORS),
    _net(
        r"ncclRemoteError",
        weight=CONSEQUENCE,
        source=_ERRORS,
        says="NCCL lost its connection to another rank, which ended first. The cause is in the log of the other rank.",
    ),
    _net(
        r"Connection closed by remote peer",
        weight=CONSEQUENCE,
        source=_SOCKET,
        says="NCCL lost its connection to another rank, which ended first. The cause is in the log of the other rank.",
    ),
    _start(
        r"unhandled system error",
        about="network",
        weight=CONSEQUENCE,
        source=_ERRORS,
        says="A system call of NCCL failed. Repeat with NCCL_DEBUG=WARN: NCCL then writes which one, and why.",
    ),
    _start(
        r"unhandled cuda error",
        about="GPU",
        weight=CONSEQUENCE,
        source=_ERRORS,
        says="A CUDA call of NCCL failed. Repeat with NCCL_DEBUG=WARN: NCCL then writes which one, and why.",
    ),
    _net(
        rf"connect to (?!{_PRIVATE}|\[?fe80)\S+ (?:failed|returned)",
        "net-nccl-auto-wrong-iface net-firewall-ephemeral",
        weight=SYMPTOM,
        source=_SOCKET,
    ),
    _net(r"Error while attaching to shared memory segment", "k8s-pod-host-confusion host-shm-too-small", source=_INIT),
    _net(
        r"open of /dev/shm/nccl-\S+ failed",
        "k8s-pod-host-confusion host-shm-too-small",
        source=_INIT,
        unless="No space left",
    ),
    _start(
        r"ncclInternalError",
        about="network",
        weight=CONSEQUENCE,
        source=_ERRORS,
        says="NCCL failed. Repeat with NCCL_DEBUG=WARN: NCCL then writes where, and why.",
    ),
    _net(
        r"ncclSystemError",
        weight=CONSEQUENCE,
        source=_ERRORS,
        says="A system call of NCCL failed. Repeat with NCCL_DEBUG=WARN: NCCL then writes which one, and why.",
    ),
)
