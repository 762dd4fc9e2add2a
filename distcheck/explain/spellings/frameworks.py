"""Frameworks other than torch, whose processes meet in their own way: TensorFlow, JAX, Paddle, MXNet, MLX, Ascend, oneCCL, Spark."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_TENSORFLOW = (
    "https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc"
)
_COORDINATION = "https://github.com/openxla/xla/tree/main/xla/tsl/distributed_runtime/coordination"
_GRPC = "https://github.com/grpc/grpc/tree/master/src/core/resolver/dns"
_PADDLE = "https://github.com/PaddlePaddle/Paddle/blob/develop/paddle/phi/core/distributed/store/tcp_utils.cc"
_PS = "https://github.com/dmlc/ps-lite/blob/master/src/van.cc"
_MLX = "https://github.com/ml-explore/mlx/blob/main/mlx/distributed/ring/ring.cpp"
_ASCEND = "https://www.hiascend.com/document/detail/en/canncommercial/800/troubleshooting"
_ONECCL = "https://github.com/uxlfoundation/oneCCL/tree/master/src/atl"
_LIGHTGBM = "https://github.com/microsoft/LightGBM/blob/master/src/network/linkers_socket.cpp"
_RABIT = "https://github.com/dmlc/xgboost/tree/master/src/collective"
_MINDSPORE = "https://gitee.com/mindspore/mindspore/tree/master/mindspore/ccsrc/distributed/cluster"
_SPARK = "https://github.com/apache/spark/blob/master/core/src/main/scala/org/apache/spark/util/Utils.scala"
_JAVA = "https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/net/InetAddress.html"
_HIVEMIND = "https://github.com/learning-at-home/hivemind/blob/master/hivemind/p2p/p2p_daemon.py"
_net = partial(told, about="network")
_CLOUD = r"googleapis\.com|metadata\.google|amazonaws\.com|azure|https?://"
"""Servers beside the job."""
_TAKEN = "net-port-in-use net-bind-failed"
_MISSING = "env-rank-missing net-master-unreachable torchrun-nnodes-mismatch"
_UNRESOLVED = "env-master-addr-unresolvable k8s-dns-not-ready"
_OWN_NAME = "host-own-name-unresolvable net-hostname-loopback"
_GONE = "Another process ended first, or was lost. The cause is in the log of that process."
_NO_PEER = (
    "A process of the ring cannot reach its neighbour: it has not started, or its address or port is wrong or closed."
)
_NPUS = (
    "NPUs cannot connect to one another: a rank ended or came late, or their network or HCCL_IF_IP is wrong."
    " Look for the first error of any rank."
)

SPELLINGS = (
    # TensorFlow, JAX and the gRPC beneath them.
    _net(r"UnknownError: Could not start gRPC server", _TAKEN, weight=SYMPTOM, source=_TENSORFLOW),
    _net(
        r"DNS resolution failed for (?P<host>[\w.-]+)",
        _UNRESOLVED,
        weight=LIKELY,
        source=_GRPC,
        unless=_CLOUD,
    ),
    _net(
        r"DNS resolution failed for ",
        about="application",
        weight=LIKELY,
        source=_GRPC,
        near=_CLOUD,
        says="The program cannot reach a service on the internet: the node may have no way to it.",
    ),
    _net(r"C-ares status is not ARES_SUCCESS", _UNRESOLVED, weight=LIKELY, source=_GRPC, unless=_CLOUD),
    _net(
        r"heartbeat timeout\. This indicates that the",
        about="application",
        weight=CONSEQUENCE,
        source=_COORDINATION,
        says=_GONE,
    ),
    _net(
        r"(?:Polled an error|error polled) from (?:the )?coordination service",
        about="application",
        weight=CONSEQUENCE,
        source=_COORDINATION,
        says=_GONE,
    ),
    _net(
        r"distributed service detected fatal errors",
        about="application",
        weight=CONSEQUENCE,
        source=_COORDINATION,
        says=_GONE,
    ),
    # Paddle tries again until the server listens.
    _net(
        r"Retry to connect to (?P<host>[\w.-]+):(?P<port>\d+) while the server is not yet listening",
        "net-master-refused net-master-unreachable",
        weight=HINT,
        source=_PADDLE,
    ),
    # ps-lite, of MXNet and BytePS: the address is that of DMLC_INTERFACE or DMLC_NODE_HOST.
    _net(r"my_node_\.port\S* != -1.* bind failed", "net-bind-failed net-port-in-use", weight=LIKELY, source=_PS),
    _net(
        r"Check failed: !(?:interface|ip)\.empty\(\)",
        weight=LIKELY,
        source=_PS,
        says="ps-lite finds no interface with an address. Set DMLC_INTERFACE, or DMLC_NODE_HOST.",
    ),
    # MLX, on macOS: 48 is EADDRINUSE, 49 EADDRNOTAVAIL.
    _net(r"\[ring\] Couldn't bind socket \(error: (?:48|98)\)", _TAKEN, weight=LIKELY, source=_MLX),
    _net(
        r"\[ring\] Couldn't bind socket \(error: (?:49|99)\)",
        "net-bind-failed",
        weight=LIKELY,
        source=_MLX,
    ),
    _net(r"\[ring\] Couldn't (?:connect|accept)", weight=LIKELY, source=_MLX, says=_NO_PEER),
    # Ascend.
    _net(r"Getting socket times out\. Reason", weight=LIKELY, source=_ASCEND, says=_NPUS),
    _net(r"Communication_Error_(?:Get_Socket|\w*Timeout)", weight=LIKELY, source=_ASCEND, says=_NPUS),
    _net(
        r"Maybe the last training process is running",
        about="start-up",
        source=_ASCEND,
        says="Processes of an earlier run still use the NPUs. End them, and wait ten seconds.",
    ),
    _net(
        r"ERR02200 DIST call hccl api failed",
        weight=CONSEQUENCE,
        source=_ASCEND,
        says="HCCL failed. The error code (EI, EJ) in the lines around this one says why.",
    ),
    # oneCCL.
    _net(
        r"CCL_ERROR\|.*(?:fi_\w+|\bofi\b|atl_)",
        weight=SYMPTOM,
        source=_ONECCL,
        says="oneCCL finds no transport that works. Set FI_PROVIDER=tcp or CCL_ATL_TRANSPORT=mpi, and CCL_KVS_IFACE.",
    ),
    # Spark and other Java: a name before its own error is the machine's own name.
    _net(r"Service '\w+' failed after \d+ retries", "net-hostname-wrong-nic host-own-name-unresolvable", source=_SPARK),
    _net(r"UnknownHostException: ([\w.-]+): \1: ", _OWN_NAME, source=_JAVA),
    _net(
        r"UnknownHostException: (?P<host>[\w-]+(?:\.[\w-]+)*)(?!\S*: \S+: )",
        "env-master-addr-unresolvable k8s-dns-not-ready",
        weight=SYMPTOM,
        source=_JAVA,
        unless=_CLOUD,
    ),
    _net(
        r"P2PDaemonError",
        weight=SYMPTOM,
        source=_HIVEMIND,
        says="The peer-to-peer daemon of Hivemind did not start, or reaches none of the initial peers: their address or port is closed.",
    ),
    # LightGBM, XGBoost's Rabit.
    _net(r"\[LightGBM\] \[Fatal\] Binding port (?P<port>\d+) failed", _TAKEN, source=_LIGHTGBM),
    _net(
        r"Machine list file doesn't contain the local machine",
        source=_LIGHTGBM,
        says="LightGBM finds none of this node's addresses in its list of machines: correct machines, or the port in it.",
    ),
    _net(r"\[LightGBM\] \[Warning\] Connecting to rank \d+ failed", _MISSING, weight=HINT, source=_LIGHTGBM),
    _net(
        r"\bFailed to connect to (?:the )?(?:rabit )?tracker\b",
        "net-master-unreachable net-master-refused",
        weight=SYMPTOM,
        source=_RABIT,
    ),
    # Tasks that wait for the others: TensorFlow, Paddle, MindSpore.
    _net(r"CreateSession still waiting for response from worker", _MISSING, weight=HINT, source=_TENSORFLOW),
    _net(r"not ready endpoints ?:", _MISSING, weight=HINT, source=_PADDLE),
    _net(
        r"Failed to connect to the meta server",
        "net-master-unreachable net-master-refused",
        weight=SYMPTOM,
        source=_MINDSPORE,
    ),
    _net(r"register and try to reconnect to the meta server", _MISSING, weight=HINT, source=_MINDSPORE),
)
