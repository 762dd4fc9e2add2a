"""NCCL's networks: InfiniBand and RoCE verbs, sockets and MPI beside them, GPUDirect."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, NOISE, SYMPTOM, told

_IB = "https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib.cc"
_VERBS = "https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html"
_CORE = "https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/init.c"
_UCX = "https://openucx.readthedocs.io/en/master/faq.html"
_MPI_FABRICS = "https://docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/ib-and-roce.html"
_PEERMEM = "https://docs.nvidia.com/cuda/gpudirect-rdma/index.html"
_WC = "https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html"
_HOROVOD = "https://horovod.readthedocs.io/en/stable/troubleshooting_include.html"
_net = partial(told, about="network")
_OTHERS = r"(?:status=|error )(?:\w*\()?(?:1|2|4|5|6|8|9|10|11|13)\b|local access violation"
"""Statuses of ibv_wc_status that have spellings of their own."""
_UNREACHABLE = (
    "The two adapters cannot reach each other, although both have an address. Check the routes between their networks;"
    " if only adapters of the same rail are connected, set NCCL_CROSS_NIC=0."
)
_EXPECTED = (
    r"NCCL_IB_(?:HCA|GID_INDEX|TC|SL|TIMEOUT|ADDR\w+) set|NCCL_IB_DISABLE set by environment to 0|NCCL_NET set by \w+ to IB"
    r"|(?:Using|OOB) (?:\[\d+\])?ib[a-z]{0,3}\d\S*?[:.]"
)
"""Signs that the job is to use RDMA adapters: without them NCCL writes the same on every machine that has none."""
_TCP = "NCCL uses TCP between the nodes, as it does on every machine without RDMA adapters."
_POST = "The RDMA adapter rejected a request of NCCL. Look at its driver and at the kernel log."
_MISMATCH = "The ranks called different collectives, or the same with other sizes. NCCL's settings may also differ."

SPELLINGS = (
    _net(r"ibv_\w+(?:\([^()]*\))? failed.*Cannot allocate memory", "ib-fork-or-memlock", source=_IB),
    *(
        _net(
            rf"{call}\w*(?:\([^()]*\))? failed",
            "ib-fork-or-memlock",
            weight=LIKELY,
            source=_IB,
            unless=r"ibv_reg\w+(?:\([^()]*\))? failed.*Bad address",
        )
        for call in ("ibv_create_(?:qp|cq|srq)", "ibv_exp_create_qp", "ibv_reg_mr", "ibv_alloc_pd")
    ),
    _net(r"ibv_reg\w+(?:\([^()]*\))? failed.*Bad address", "gdr-module-missing gdr-on-some-nodes", source=_IB),
    _net(r"ibv_modify_qp failed.*(?:local|remote) GID ::(?:,|\s|$)", "roce-gid-index-wrong", source=_VERBS),
    _net(
        r"ibv_modify_qp failed.*local GID fe80:.*remote GID ::ffff:",
        "roce-gid-index-wrong roce-no-ipv4-gid",
        source=_VERBS,
    ),
    _net(
        r"ibv_modify_qp failed.*local GID ::ffff:.*remote GID fe80:",
        "roce-gid-index-wrong roce-no-ipv4-gid",
        source=_VERBS,
    ),
    _net(
        r"ibv_modify_qp failed.*local GID ::ffff:.*remote GID ::ffff:", weight=LIKELY, source=_VERBS, says=_UNREACHABLE
    ),
    _net(
        r"ibv_modify_qp\S* failed.*(?:Invalid argument|\b22\b)(?!.*GID ::ffff)",
        "ib-mixed-link-layer roce-gid-index-wrong",
        source=_VERBS,
        near=r"NET/IB : Using .*:\d+/(?:IB\b.*:\d+/RoCE|RoCE.*:\d+/IB\b)",
    ),
    _net(
        r"ibv_modify_qp\S* failed.*(?:Invalid argument|\b22\b)(?!.*GID ::ffff)",
        "roce-gid-index-wrong ib-pkey",
        source=_VERBS,
        unless=r"NET/IB : Using .*:\d+/(?:IB\b.*:\d+/RoCE|RoCE.*:\d+/IB\b)",
    ),
    _net(
        r"ibv_modify_qp\S* failed.*(?:unreachable|\b101\b|No data available|\b61\b)",
        "roce-gid-index-wrong roce-gid-subnet",
        source=_VERBS,
    ),
    _net(
        r"ibv_modify_qp\S* failed.*(?:No such device|\b19\b)(?!.*GID ::)",
        "roce-gid-index-wrong roce-port-in-other-namespace",
        weight=LIKELY,
        source=_VERBS,
        near=r"NCCL_IB_GID_INDEX set",
    ),
    _net(
        r"ibv_modify_qp\S* failed.*(?:No such device|\b19\b)(?!.*GID ::)",
        "roce-port-in-other-namespace roce-gid-index-wrong",
        weight=LIKELY,
        source=_VERBS,
        unless=r"NCCL_IB_GID_INDEX set",
    ),
    _net(
        r"(?:read|open) failed in ncclIbRoceGetVersionNum",
        "roce-port-in-other-namespace roce-gid-index-wrong",
        weight=LIKELY,
        source="https://github.com/NVIDIA/nccl/issues/1573",
    ),
    _net(
        r"ibv_modify_qp\S* failed.*(?:timed out|\b110\b)(?!.*GID ::ffff)",
        "roce-gid-subnet roce-no-ipv4-gid ib-subnet-differs",
        source=_VERBS,
    ),
    _net(r"ibv_modify_qp\S* failed(?!.*GID ::)", "roce-gid-index-wrong ib-pkey", weight=SYMPTOM, source=_VERBS),
    _net(r"ibv_open_device failed", "ib-device-not-openable", source=_IB),
    _net(r"NET/IB : Unable to open device", "ib-device-not-openable", source=_IB),
    _net(r"Failed to open libibverbs", "ib-no-device-in-container", weight=HINT, source=_IB, near=_EXPECTED),
    _net(r"Failed to open libibverbs", weight=NOISE, source=_IB, says=_TCP, unless=_EXPECTED),
    _net(r"does not support the kernel ABI of", "ib-no-device-in-container", source=_CORE),
    _net(r"^(?!.*NET/Plugin).*version `IBVERBS_PRIVATE_\d+' not found", "ib-no-device-in-container", source=_CORE),
    _net(r"no userspace device-specific driver found", "ib-no-device-in-container", weight=HINT, source=_CORE),
    _net(r"No IB devices found", "ib-no-device-in-container ib-port-down", weight=LIKELY, source=_CORE),
    _net(r"libibverbs: Warning: RLIMIT_MEMLOCK", "ib-fork-or-memlock", weight=LIKELY, source=_CORE),
    _net(r"trying to allocate some locked memory", "ib-fork-or-memlock", source=_MPI_FABRICS),
    _net(r"only allow registering part of your physical memory", "ib-fork-or-memlock", source=_MPI_FABRICS),
    _net(
        r"InfiniBand retry count between two MPI processes has been exceeded",
        "roce-pfc-ecn ib-port-down",
        weight=LIKELY,
        source=_MPI_FABRICS,
    ),
    _net(
        r"Transport retry count exceeded on \S+:\d",
        "roce-pfc-ecn roce-gid-index-wrong ib-port-down",
        weight=LIKELY,
        source=_UCX,
    ),
    _net(r"network device '\S+' is not available", "ib-hca-no-match ib-port-down", weight=LIKELY, source=_UCX),
    _net(
        r"Got completion .*status=(?:12|IBV_WC_RETRY_EXC_ERR)\b",
        "roce-pfc-ecn roce-gid-index-wrong ib-port-down",
        weight=LIKELY,
        source=_IB,
    ),
    _net(
        r"Got completion .*status=(?:IBV_WC_RETRY_EXC_ERR\()?\w*\(?12\b",
        "roce-pfc-ecn roce-gid-index-wrong ib-port-down",
        weight=LIKELY,
        source=_IB,
    ),
    _net(r"Got completion .*(?:local access violation|LOC_LEN_ERR)", "net-mtu-mismatch-ib", source=_IB),
    _net(
        r"Got completion .*(?:status=|error )(?:\w*\()?(?:1|2|4|6|8|9|10|11)\b",
        weight=LIKELY,
        source=_WC,
        says="The adapter could not access memory of this or the other rank. Check GPUDirect RDMA (nvidia-peermem, ACS)"
        " and the driver; NCCL_NET_GDR_LEVEL=LOC avoids GPUDirect.",
    ),
    _net(
        r"Got completion .*(?:status=|error )(?:\w*\()?13\b",
        "roce-pfc-ecn",
        weight=LIKELY,
        source=_WC,
    ),
    _net(
        r"Got completion .*(?:status=|error )(?:\w*\()?5\b",
        weight=CONSEQUENCE,
        source=_WC,
        says="A connection over InfiniBand or RoCE was closed after an earlier error, here or on the other node.",
    ),
    _net(
        r"Got completion .*(?:status=|error )", "roce-pfc-ecn ib-port-down", weight=SYMPTOM, source=_IB, unless=_OTHERS
    ),
    _net(r"Got async .*event.*port error", "ib-port-down", source=_IB),
    _net(
        r"NET/IB : \S+ async fatal event.*",
        weight=LIKELY,
        source=_IB,
        says="The RDMA adapter reported a fatal error. Look at its port and at the kernel log.",
        unless=r"port error",
    ),
    _net(r"NET/IB : \S+ async fatal event.*port error", "ib-port-down", source=_IB),
    _net(r"NET/IB : Unable to query (?:device|port)", "ib-device-not-openable", weight=LIKELY, source=_IB),
    _net(r"Attempted to (?:connect|merge) incompatible devices", "ib-mixed-link-layer", source=_IB),
    _net(r"net devices with different link_layer", "ib-mixed-link-layer", source=_IB),
    _net(r"merge multiple devices together with different link_layer", "ib-mixed-link-layer", source=_IB),
    _net(r"Try (?:only )?selecting NICs (?:of|with) only one (?:link )?type", "ib-mixed-link-layer", source=_IB),
    _net(r"mergedDev\S* \S* ?has a different number of devices", "ib-hcas-differ", weight=SYMPTOM, source=_IB),
    _net(r"remote FLID configured as zero even when endpoints", "ib-subnet-differs", source=_IB),
    _net(r"ibv_post_(?:send|recv)\(\) failed with error", weight=LIKELY, source=_IB, says=_POST),
    _net(
        r"(?:NET/IB .*)collective mismatch error",
        about="application",
        source=_IB,
        says=_MISMATCH,
    ),
    _net(
        r"receiving \d+ bytes instead of \d",
        about="application",
        source="https://github.com/NVIDIA/nccl/blob/master/src/transport/net_socket.cc",
        says=_MISMATCH,
    ),
    _net(
        r"Detected mixed local (?:Coll)?Net device counts(?!.*Ignoring due to)",
        "ib-hcas-differ",
        source="https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
    ),
    _net(
        r"NET/IB : No device found",
        "ib-hca-no-match ib-no-device-in-container ib-port-down",
        weight=LIKELY,
        source=_IB,
        near=r"NCCL_IB_HCA set",
    ),
    _net(
        r"NET/IB : No device found",
        "ib-no-device-in-container ib-hca-no-match ib-port-down",
        weight=HINT,
        source=_IB,
        near=_EXPECTED,
    ),
    _net(r"NET/IB : No device found", weight=NOISE, source=_IB, says=_TCP, unless=_EXPECTED),
    _net(r"could not insert '?nv(?:idia)?_peer_?mem", "gdr-module-missing sw-ofed-kernel", source=_PEERMEM),
    _net(
        r"(?:Unknown symbol|about version of symbol) ib_(?:un)?register_peer_memory_client",
        "gdr-module-missing sw-ofed-kernel",
        source=_PEERMEM,
    ),
    _net(r"failed to load nvidia-peermem module", "gdr-module-missing sw-ofed-kernel", source=_PEERMEM),
    _net(r"NET/IB : GPU Direct RDMA Disabled", "gdr-module-missing gdr-not-used", weight=HINT, source=_IB),
    _net(
        r"Got completion with error 12\b", "roce-pfc-ecn roce-gid-index-wrong ib-port-down", weight=LIKELY, source=_IB
    ),
    _net(
        r"failed to TCP connect to a peer MPI process",
        "net-firewall-ephemeral net-hostname-wrong-nic",
        source="https://docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/tcp.html",
    ),
    _net(
        r"unable to reach each other for MPI",
        "net-subnet-mismatch net-firewall-ephemeral",
        weight=LIKELY,
        source="https://docs.open-mpi.org/en/v5.0.x/tuning-apps/networking/tcp.html",
    ),
    _net(
        r"Please check that /dev/shm",
        "host-shm-too-small",
        about="start-up",
        source="https://github.com/openucx/ucx/blob/master/src/uct/sm/mm/posix/mm_posix.c",
    ),
    _net(
        r"common task-to-task communication interfaces", "net-subnet-mismatch net-firewall-ephemeral", source=_HOROVOD
    ),
    _net(
        r"Timed out waiting for tasks to (?:start|register)",
        "launch-node-unreachable net-firewall-ephemeral",
        source=_HOROVOD,
    ),
)
