"""NCCL's warnings at start-up: sockets of the bootstrap, devices, versions, settings, NVLS."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_INIT = "https://github.com/NVIDIA/nccl/blob/master/src/init.cc"
_BOOTSTRAP = "https://github.com/NVIDIA/nccl/blob/master/src/bootstrap.cc"
_SOCKET = "https://github.com/NVIDIA/nccl/blob/master/src/misc/socket.cc"
_IPC = "https://github.com/NVIDIA/nccl/blob/master/src/misc/ipcsocket.cc"
_NVLS = "https://github.com/NVIDIA/nccl/blob/master/src/transport/nvls.cc"
_TUNING = "https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc"
_TOPOLOGY = "https://github.com/NVIDIA/nccl/blob/master/src/graph/xml.cc"
_ENVIRONMENT = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_ERRORS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_start = partial(told, about="start-up")
_net = partial(told, about="network")
_WRONG = "net-nccl-picks-loopback-or-docker net-nccl-auto-wrong-iface"
_PRIVATE = r"(?:127\.|172\.1[78]\.|192\.168\.122\.)"
_NOT_DUPLICATE = r"is not a valid pointer|mismatchs with NCCL device|invalid (?:root|type|reduction)|without a matching"
"""Other wrong calls of NCCL, which `nccl_calls` has."""

SPELLINGS = (
    _start(r"Duplicate GPU detected", "gpu-mig-with-nccl gpu-duplicate", source=_INIT, near=r"\bMIG-|\bMIG \d+g\."),
    _start(r"Duplicate GPU detected", "gpu-duplicate env-local-rank-unset env-local-rank-duplicate", source=_INIT),
    _net(
        r"no (?:usable listening |socket |IP )?interface found(?! in the same)",
        "net-nccl-ifname-no-match net-nccl-ifname-syntax",
        source=_BOOTSTRAP,
    ),
    _net(
        r"no device found (?:matching|after excluding) \S*, verify NCCL_OOB",
        "net-nccl-ifname-no-match",
        source=_BOOTSTRAP,
    ),
    _net(r"No interface found in the same subnet as remote address", "net-subnet-mismatch", source=_SOCKET),
    _net(r"socketFinalizeAccept.*: wrong (?:magic|type)", "net-nccl-socket-port-scan", weight=LIKELY, source=_SOCKET),
    _net(
        r"No valid (?:<IPv4_or_hostname>|\[IPv6\]):(?:<port>|port) pair found",
        "nccl-comm-id-set",
        source=_SOCKET,
    ),
    _net(r"Net : error encountered when getting address info", "nccl-comm-id-set", weight=LIKELY, source=_SOCKET),
    _start(
        r"improper usage of ncclCommInitRank: nId = .*, nranks=",
        "env-world-size-mismatch env-rank-out-of-range",
        weight=LIKELY,
        source=_INIT,
    ),
    _start(
        r"Failed to determine (?:local|intra \w+) ranks rank \d+ hostHash",
        "net-duplicate-hostname nccl-hostid-split",
        weight=LIKELY,
        source=_INIT,
    ),
    _start(r"CC On, Multi-GPU CC Off", "gpu-confidential-compute", weight=LIKELY, source=_INIT),
    # a peer sent an empty address: its message has another layout, or it found no interface (nccl issue 1267)
    _net(
        r"with family 0 is neither AF_INET\(\d+\) nor AF_INET6",
        "sw-nccl-version-differs net-nccl-ifname-no-match",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        r"with family 1 is neither AF_INET\(\d+\) nor AF_INET6",
        weight=LIKELY,
        source="https://github.com/NVIDIA/nccl/issues/2057",
        says="NCCL took the address of a local socket for one of the network, as some versions do without P2P and SHM.",
    ),
    _net(
        r"with family \d\d+ is neither AF_INET\(\d+\) nor AF_INET6",
        "net-nccl-ifname-no-match net-gloo-ifname-wrong",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(rf"connect to {_PRIVATE}\S* (?:failed|returned)(?!.*, retrying \()", _WRONG, source=_SOCKET),
    _net(
        r"connect to (?:\[?fe80:|\S*%)\S* (?:failed|returned)(?!.*, retrying \()", "net-ipv6-link-local", source=_SOCKET
    ),
    _net(
        rf"connect to (?!{_PRIVATE}|\[?fe80)(?P<host>\S+?)<(?P<port>\d+)> (?:failed|returned)(?!.*, retrying \().*(?:No route|unreachable|timed out)",
        "net-firewall-ephemeral net-nccl-auto-wrong-iface net-subnet-mismatch",
        source=_SOCKET,
    ),
    _net(
        rf"connect to (?!{_PRIVATE}|\[?fe80)\S+ (?:failed|returned)(?!.*, retrying \().*refused",
        "net-nccl-auto-wrong-iface net-firewall-ephemeral",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        r"Call to connect (?:returned|failed|timeout).*refused",
        _WRONG,
        source=_SOCKET,
        near=r"Using (?:interface |\[0\])?(?:lo:127|docker|virbr)",
    ),
    _net(  # NCCL also took an interface that has only a link-local address, as a container's veth
        r"Call to connect (?:returned|failed|timeout).*(?:timed out|No route|unreachable)",
        "net-ipv6-link-local net-nccl-auto-wrong-iface",
        source=_SOCKET,
        near=r"Using .*\[\d+\]\w+:fe80:",
    ),
    _net(
        r"Call to connect (?:returned|failed|timeout).*(?:timed out|No route|unreachable)",
        "net-firewall-ephemeral net-nccl-auto-wrong-iface net-nccl-picks-loopback-or-docker",
        source=_SOCKET,
    ),
    _net(
        r"Call to connect (?:returned|failed|timeout).*refused",
        "net-nccl-picks-loopback-or-docker net-nccl-auto-wrong-iface",
        weight=LIKELY,
        source=_SOCKET,
    ),
    # a connection that NCCL started without waiting for it fails at the first transfer
    _net(
        r"Call to (?:recv|send)\S* .*failed : Connection refused",
        "net-nccl-auto-wrong-iface net-firewall-ephemeral",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        r"Call to (?:recv|send)\S* .*failed : (?:Connection timed out|No route to host)",
        "net-firewall-ephemeral net-nccl-auto-wrong-iface",
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
    _start(
        r"undefined symbol:? `?nccl[A-Z]",
        "sw-nccl-shadowed",
        source="https://man7.org/linux/man-pages/man8/ld.so.8.html",
    ),
    _start(
        r"no algorithm/protocol available",
        "nccl-algo-proto-invalid",
        source="https://github.com/NVIDIA/nccl/blob/master/src/enqueue.cc",
    ),
    _start(r"Unrecognized (?:element|prefix) token .* when parsing", "nccl-algo-proto-invalid", source=_TUNING),
    _start(r"All entries except the first must have a prefix", "nccl-algo-proto-invalid", source=_TUNING),
    _start(r"^(?!.*NCCL INFO).*Could not open XML (?:topology|graph) file", "nccl-topo-file-stale", source=_TOPOLOGY),
    _start(r"XML (?:Topology|Graph) has wrong version", "nccl-topo-file-stale", source=_TOPOLOGY),
    _start(
        r"XML Parse(?: error)? : (?:unterminated|unexpected|expect)",
        "nccl-topo-file-stale",
        weight=LIKELY,
        source=_TOPOLOGY,
    ),
    _start(r"Attribute \S+ of node \S+ not found", "nccl-topo-file-stale", weight=SYMPTOM, source=_TOPOLOGY),
    _net(r"XML (?:Import|Export) Channel : (?:dev|rank) ", "nccl-topo-file-stale", weight=LIKELY, source=_TOPOLOGY),
    _start(r"Invalid NCCL_COMM_ID", "nccl-comm-id-set", source=_BOOTSTRAP),
    _start(r"ncclCommGetUniqueId should not be called when NCCL_COMM_ID is set", "nccl-comm-id-set", source=_INIT),
    _start(r"nccl-socket-\S+ failed", "nccl-ipc-abstract-socket", source=_IPC),
    _start(
        r"UDS: (?:Binding|Sending|Receiving|Socket) .*(?:failed|error)",
        "nccl-ipc-abstract-socket",
        weight=LIKELY,
        source=_IPC,
    ),
    _start(
        r"cuMem host allocations do not appear to be working",
        "nccl-cumem-host-docker",
        weight=HINT,
        source=_ENVIRONMENT,
    ),
    _start(r"set_mempolicy", "nccl-cumem-host-docker", weight=LIKELY, source=_ENVIRONMENT),
    _start(r"MNNVL .*not (?:working|supported) on this system", "gpu-mnnvl-imex", source=_INIT),
    _start(
        r"Cuda failure \d* ?'?operation not permitted(?! when| on an)",
        "gpu-mnnvl-imex nccl-cumem-host-docker",
        weight=LIKELY,
        source=_ENVIRONMENT,
    ),
    _start(
        r"NVLink SHARP \(NVLS\) Multicast memory(?!.*Proceeding without)",
        "gpu-nvls-multicast-broken gpu-fabric-manager-down",
        source=_NVLS,
    ),
    _start(
        r"transport/nvls\.cc.*WARN.*invalid argument",
        "gpu-nvls-multicast-broken gpu-fabric-manager-down sw-driver-too-old",
        source="https://github.com/pytorch/pytorch/issues/150852",
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
    _start(
        r"ncclInvalidUsage", "gpu-duplicate env-local-rank-unset", weight=SYMPTOM, source=_ERRORS, unless=_NOT_DUPLICATE
    ),
    _start(
        r"NCCL error.*\binvalid usage",
        "gpu-duplicate env-local-rank-unset",
        weight=SYMPTOM,
        source=_ERRORS,
        unless=_NOT_DUPLICATE,
    ),
    _net(
        r"NCCL error.*(?:remote process exited|internal error)",
        weight=CONSEQUENCE,
        source=_ERRORS,
        says="NCCL failed. Repeat with NCCL_DEBUG=WARN: NCCL then writes where, and why.",
    ),
    _start(
        r"invalid usage \(run with NCCL_DEBUG",
        "gpu-duplicate env-local-rank-unset",
        weight=SYMPTOM,
        source=_INIT,
        unless=_NOT_DUPLICATE,
    ),
    _net(
        r"remote process exited or there was a network error",
        weight=CONSEQUENCE,
        source=_INIT,
        says="NCCL lost its connection to another rank, which ended first. The cause is in the log of the other rank.",
    ),
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
        rf"connect to (?!{_PRIVATE}|\[?fe80)\S+ (?:failed|returned)(?!.*, retrying \()",
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
