"""Other transports than NCCL and Gloo: gRPC with its coordination service, TensorPipe, oneCCL, UCX over TCP, Mooncake, NIXL.

Words: grpc's src/core, xla/tsl/distributed_runtime/coordination, tensorpipe/transport, oneCCL's src/atl, ucx/src, Mooncake's rdma_transport.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_PROXY = "https://github.com/grpc/grpc/blob/master/src/core/handshaker/http_connect/http_connect_handshaker.cc"
_GRPC = "https://github.com/grpc/grpc/blob/master/src/core/ext/transport/chttp2/transport/chttp2_transport.cc"
_SERVER = "https://github.com/grpc/grpc/blob/master/src/core/ext/transport/chttp2/server/chttp2_server.cc"
_COORDINATION = "https://github.com/openxla/xla/tree/main/xla/tsl/distributed_runtime/coordination"
_REQUESTS = "https://github.com/urllib3/urllib3/blob/main/src/urllib3/exceptions.py"
_TENSORPIPE = "https://github.com/pytorch/tensorpipe/tree/main/tensorpipe/transport"
_AGENT = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/rpc/tensorpipe_agent.cpp"
_RPC = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/rpc/api.py"
_ONECCL = "https://github.com/uxlfoundation/oneCCL/tree/master/src/atl"
_UCX_TCP = "https://github.com/openucx/ucx/tree/master/src/uct/tcp"
_UCX_IB = "https://github.com/openucx/ucx/blob/master/src/uct/ib/base/ib_iface.c"
_UCP = "https://github.com/openucx/ucx/blob/master/src/ucp/core/ucp_context.c"
_MOONCAKE = "https://github.com/kvcache-ai/Mooncake/blob/main/mooncake-transfer-engine/src/transport/rdma_transport"
_VERBS = "https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html"
_NCCL_SOCKET = "https://github.com/NVIDIA/nccl/blob/master/src/misc/socket.cc"
_ADDRESSES = "https://man7.org/linux/man-pages/man7/ipv6.7.html"
_GLOO_STORE = "https://github.com/horovod/horovod/blob/master/horovod/common/gloo/http_store.cc"
_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp"
_DEVICES = "https://github.com/linux-rdma/rdma-core/blob/master/Documentation/udev.md"
_PEERMEM = "https://docs.nvidia.com/cuda/gpudirect-rdma/index.html"
_PLUGIN = "https://github.com/NVIDIA/nccl/blob/v2.18.3-1/src/net.cc"
_VLLM = "https://github.com/vllm-project/vllm/blob/main/vllm/utils/network_utils.py"
_net = partial(told, about="network", weight=LIKELY)
_start = partial(told, about="start-up", weight=LIKELY)
_INSIDE = r"(?:127\.\d|localhost|10\.\d|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|0\.0\.0\.0)"
"""Hosts of a cluster's own network."""
_UV = r".*originated at tensorpipe/transport"
_CLOSED = "net-firewall-ephemeral net-hostname-wrong-nic"
_BRIDGES = r"(?:br-[0-9a-f]{6,}|veth|cni\d|cali|flannel|cilium|weave|kube-|tailscale|tun\d|tap\d|wg\d|zt\w|podman|lxcbr|virbr|docker\d)"
_NCCL_FAILED = (
    r"ncclSystemError|unhandled system error|ncclRemoteError|remote process exited|Connection (?:refused|timed)"
)
_COORDINATED = r"\bjax|tsl/|\bxla|tensorflow|coordination"
_CLOUD = r"\bEFA\b|libfabric|FI_PROVIDER|p[45]d?e?\.\d+xlarge|NET/OFI|TCPX|gVNIC"
_NONE = "ib-no-device-in-container ib-hca-no-match ib-port-down"
_REGISTERING = r"(?:regist|reg_mr|mr_reg|\bMR\b|memory region|ibv_)\w*.{0,100}"
_GONE = "Another process ended first, or was lost. The cause is in the log of that process."
_NO_TRANSPORT = (
    "UCX finds none of the transports or devices that UCX_TLS and UCX_NET_DEVICES name. Compare them with ucx_info -d."
)

SPELLINGS = (
    # A proxy in the way, or a server of another protocol.
    _net(r"HTTP proxy returned response code", "env-proxy-vars", weight=CAUSE, source=_PROXY),
    _net(r"HTTP proxy handshake with \S+ failed", "env-proxy-vars", weight=CAUSE, source=_PROXY),
    _net(r"Trying to connect an http1\.x server", "env-proxy-vars env-port-speaks-http", weight=CAUSE, source=_GRPC),
    _net(r"Received http2 header with status: (?:403|407|50[234])", "env-proxy-vars", weight=CAUSE, source=_GRPC),
    _net(rf"host='{_INSIDE}.*\bProxyError\(", "env-proxy-vars", weight=CAUSE, source=_REQUESTS),
    _net(rf"\bCONNECT tunnel failed.*{_INSIDE}", "env-proxy-vars", source=_REQUESTS),
    _net(r"BadStatusLine: (?:SSH-|\W{0,3}SSH-)", "env-port-speaks-http", source=_REQUESTS),
    # gRPC's servers.
    _net(r"No address added out of total \d+ resolved", "net-port-in-use net-bind-failed", source=_SERVER),
    _net(r"Failed to add port to server", "net-port-in-use net-bind-failed", weight=SYMPTOM, source=_SERVER),
    _net(
        r"Name resolution failed for target dns:",
        "env-master-addr-unresolvable k8s-dns-not-ready",
        source=_GRPC,
        unless=r"googleapis|metadata\.google|amazonaws|azure",
    ),
    # JAX and TensorFlow: tasks with one number, or with none of the cluster.
    *(
        _start(words, "env-rank-duplicate net-port-in-use-by-peer-job", weight=SYMPTOM, source=_COORDINATION)
        for words in (
            r"Duplicate task registration with task_name",
            r"tried to connect with a different incarnation",
            r"Aborted connect attempt as there is a request from a newer incarnation",
        )
    ),
    *(
        _start(words, "env-rank-out-of-range env-world-size-mismatch", source=_COORDINATION)
        for words in (
            r"Unexpected task registered with task_name",
            r"\bTask \d+ was not defined in job\b",
            r"\bprocess_id\b.{0,40}\b(?:less|smaller|range|between)\b.{0,30}\bnum_processes\b",
            r"\bnode_id\b.{0,40}\b(?:less|smaller|range|between|out of)\b.{0,30}\bnum_nodes\b",
        )
    ),
    _start(r"Mismatched number of (?:nodes|processes|tasks)\b", "env-world-size-mismatch", source=_COORDINATION),
    _start(r"RPC worker name \S+ is not unique", "env-rank-duplicate", source=_RPC),
    # TensorPipe, beneath torch's RPC: every worker listens at its host name's address.
    _net(rf"ETIMEDOUT{_UV}", _CLOSED, source=_TENSORPIPE),
    _net(rf"EHOSTUNREACH{_UV}", _CLOSED, source=_TENSORPIPE),
    _net(rf"ENETUNREACH{_UV}", _CLOSED, source=_TENSORPIPE),
    _net(rf"ECONNREFUSED{_UV}", "net-hostname-loopback net-firewall-ephemeral", source=_TENSORPIPE),
    _net(rf"EADDRNOTAVAIL{_UV}", "net-hostname-wrong-nic host-own-name-unresolvable", source=_TENSORPIPE),
    _net(
        rf"\b(?:eof|ECONNRESET|EPIPE)\b{_UV}",
        about="application",
        weight=CONSEQUENCE,
        source=_TENSORPIPE,
        says=_GONE,
    ),
    _net(
        r"Failed to look up the IP address for interface",
        "net-gloo-ifname-wrong net-nccl-ifname-no-match",
        source=_AGENT,
    ),
    # Serving: the address that a process announces.
    _net(
        r"Failed to get the IP address, using 0\.0\.0\.0",
        "net-hostname-loopback host-own-name-unresolvable",
        weight=HINT,
        source=_VLLM,
    ),
    # oneCCL.
    _net(
        r"can't find interface to get host IP",
        source=_ONECCL,
        says="oneCCL finds no interface with an address, or not the one that CCL_KVS_IFACE (FI_TCP_IFACE) names.",
    ),
    # UCX.
    _net(
        r"UCX +\w+ +.*\bconnect\w*\b.{0,80}(?:Connection timed out|No route to host|Network is unreachable)",
        "net-firewall-ephemeral net-subnet-mismatch",
        weight=CAUSE,
        source=_UCX_TCP,
    ),
    _net(
        r"UCX +\w+ +.*\bconnect\w*\b.{0,80}Connection refused",
        "net-firewall-ephemeral net-subnet-mismatch",
        source=_UCX_TCP,
    ),
    _net(
        r"no usable transports/devices",
        source=_UCP,
        weight=SYMPTOM,
        says=_NO_TRANSPORT,
        unless=r"asked \S*(?:rc|dc|ud|ib)",
    ),
    _net(r"no usable transports/devices.*asked \S*(?:rc|dc|ud|ib)", _NONE, weight=SYMPTOM, source=_UCP),
    *(
        _net(words, "ib-pkey", source=_UCX_IB, near=r"UCX|mlx\d|ibv_|\bIB\b|verbs")
        for words in (
            r"\bno valid pkey\b",
            r"\bno pkey with\b",
            r"\bpkey\b.{0,40}\bnot found\b",
            r"\binvalid pkey\b(?! parameter)",
            r"find specified pkey",
            r"ibv_query_pkey\S* failed",
        )
    ),
    # RDMA in serving and by hand: Mooncake, NIXL, MORI, DeepEP.
    _net(rf"{_REGISTERING}Bad address", "gdr-module-missing gdr-on-some-nodes", source=_VERBS),
    _net(r"RegisterRdma\w* failed\W+errno:? ?14\b", "gdr-module-missing gdr-on-some-nodes", source=_VERBS),
    _net(r"RegisterRdma\w* failed\W+errno:? ?12\b", "ib-fork-or-memlock", source=_VERBS),
    _net(rf"{_REGISTERING}Cannot allocate memory", "ib-fork-or-memlock", weight=CAUSE, source=_VERBS),
    _net(r"set max locked memory \(ulimit -l\)", "ib-fork-or-memlock", weight=CAUSE, source=_UCX_IB),
    _net(r"DMA.BUF support\w* required for GPU RDMA without nvidia", "gdr-module-missing", source=_MOONCAKE),
    _net(r"RdmaTransport: No available RNIC", _NONE, weight=SYMPTOM, source=_MOONCAKE),
    _net(
        r"Failed to open device \S+ on port",
        "roce-gid-index-wrong ib-port-down ib-device-not-openable",
        weight=SYMPTOM,
        source=_MOONCAKE,
    ),
    _net(r"\bNo RDMA devices? (?:found|available|detected)", _NONE, source=_VERBS, unless=r"librdmacm|CMA: "),
    _net(r"\b(?:mlx\d_\w+|RDMA|IB|HCA)\b.{0,40}\bport\b.{0,20}\bnot active\b", "ib-port-down", source=_VERBS),
    _net(r"ibv_open_device\([^()]*\) failed", "ib-device-not-openable", source=_VERBS),
    _net(
        r"Failed to connect to remote host: (?:Connection refused|connect: Connection refused)",
        "net-master-refused net-master-unreachable",
        weight=SYMPTOM,
        source=_GRPC,
        near=_COORDINATED,
    ),
    _net(
        r"Failed to connect to remote host: (?:Timeout|.*No route|.*timed out|.*unreachable)",
        "net-master-unreachable net-firewall-ephemeral",
        weight=SYMPTOM,
        source=_GRPC,
        near=_COORDINATED,
    ),
    # Locked memory and device files, in anyone's words.
    *(
        _net(words, "ib-fork-or-memlock", weight=SYMPTOM, source=_VERBS)
        for words in (
            r"\bmax(?:imum)? locked memory\b(?!.*unlimited)",
            r"\bulimit -l\b(?!.{0,3}unlimited)",
            r"\b(?:Couldn't|Failed to|Unable to|Could not|Cannot) create (?:the |a )?(?:CQ|QP|SRQ|completion queue|queue pair)\b",
            r"\b(?:Couldn't|Failed to|Unable to|Could not|Cannot) allocate (?:PD|protection domain)\b",
        )
    ),
    _net(r"/dev/infiniband\b.{0,40}no such file", "ib-no-device-in-container", source=_DEVICES),
    _net(r"No such file or directory:? .{0,3}/dev/infiniband", "ib-no-device-in-container", source=_DEVICES),
    _net(
        r"\blib(?:ibverbs|rdmacm|mlx[45]|efa)\S*: cannot open shared object",
        "ib-no-device-in-container",
        weight=SYMPTOM,
        source=_DEVICES,
        unless=r"NET/Plugin|NCCL INFO",
    ),
    # GPUDirect RDMA, in anyone's words.
    *(
        _net(
            rf"{module}\b.{{0,50}}\b(?:not (?:been )?(?:loaded|found|available|installed|enabled|present|running)|missing|(?:is|be) required)",
            "gdr-module-missing gdr-not-used",
            weight=SYMPTOM,
            source=_PEERMEM,
            unless=r"nvshmem",
        )
        for module in (r"nvidia[-_]peermem", r"nv_peer_mem")
    ),
    _net(
        r"\bGPU ?Direct(?: |-)?RDMA\b.{0,20}\bnot (?:supported|available|enabled)",
        "gdr-module-missing gdr-not-used",
        weight=HINT,
        source=_PEERMEM,
    ),
    # NCCL before 2.19 says of its plugin what later ones say as "Could not find".
    *(
        _net(words, "nccl-efa-plugin-missing nccl-net-plugin-missing", weight=HINT, source=_PLUGIN, near=_CLOUD)
        for words in (r"NET/Plugin ?: No plugin found \(libnccl-net", r"Plugin load \(libnccl-net\S*\) returned 2")
    ),
    # NCCL took bridges and tunnels as well, and then failed.
    *(
        _net(
            rf"{words}{_BRIDGES}\S*:\S",
            "net-nccl-auto-wrong-iface net-nccl-picks-loopback-or-docker",
            weight=SYMPTOM,
            source=_NCCL_SOCKET,
            near=_NCCL_FAILED,
        )
        for words in (r"NET/Socket : Using .*\[\d+\]", r"(?:Bootstrap|NET/Socket) ?: Using (?:\[0\])?")
    ),
    # Addresses that are valid on one link only.
    *(
        _net(rf"^(?!.*NCCL (?:WARN|INFO)).*\bfe80:\S*.{{0,60}}{words}", "net-ipv6-link-local", source=_ADDRESSES)
        for words in (
            "Invalid argument",
            "Network is unreachable",
            "Connection timed out",
            "No route to host",
            "Connection refused",
        )
    ),
    # Horovod and Gloo wait for what another rank writes.
    _start(
        r"Wait timeout (?:after [\d.]+ \w+ )?for key\(s\)",
        "env-rank-missing net-master-unreachable net-file-rendezvous-nfs",
        weight=SYMPTOM,
        source=_GLOO_STORE,
    ),
    # The store of torch 2.4 and later, which asks whether it is one.
    _net(
        r"failed to connect/validate to host (?:localhost|127\.|\[?::1)",
        "net-master-refused env-master-addr-localhost-multinode",
        weight=SYMPTOM,
        source=_STORE,
    ),
    _net(
        r"failed to connect/validate to host (?!localhost|127\.|\[?::1)",
        "net-master-unreachable net-master-refused net-master-silent",
        weight=SYMPTOM,
        source=_STORE,
    ),
    # Ray and Open MPI.
    _net(
        r"This node has an IP address of \S+, (?:while|but) we can ?not find",
        "net-hostname-wrong-nic net-duplicate-ip",
        source="https://github.com/ray-project/ray/blob/master/python/ray/_private/services.py",
    ),
    _net(
        r"Did not find interface matching this subnet",
        "net-subnet-mismatch",
        weight=CAUSE,
        source="https://github.com/open-mpi/ompi/blob/v4.1.x/orte/mca/oob/tcp/help-oob-tcp.txt",
    ),
)
