"""NCCL's networks: InfiniBand and RoCE verbs, plugins, GPUDirect."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import HINT, LIKELY, SYMPTOM, told

_IB = "https://github.com/NVIDIA/nccl/blob/master/src/transport/net_ib.cc"
_VERBS = "https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html"
_PLUGIN = "https://github.com/NVIDIA/nccl/blob/master/src/plugin/net.cc"
_OFI = "https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md"
_HOROVOD = "https://horovod.readthedocs.io/en/stable/troubleshooting_include.html"
_net = partial(told, about="network")

SPELLINGS = (
    _net(r"ibv_\w+ failed.*Cannot allocate memory", "ib-fork-or-memlock", source=_IB),
    _net(
        r"ibv_(?:create_qp|create_cq|reg_mr|alloc_pd)\w* failed",
        "ib-fork-or-memlock",
        weight=LIKELY,
        source=_IB,
        unless=r"ibv_reg\w+ failed.*Bad address",
    ),
    _net(r"ibv_reg\w+ failed.*Bad address", "gdr-module-missing gdr-on-some-nodes", source=_IB),
    _net(
        r"ibv_modify_qp failed.*(?:Invalid argument|No such device|unreachable| 22\b| 19\b| 101\b)",
        "roce-gid-index-wrong ib-pkey",
        source=_VERBS,
    ),
    _net(
        r"ibv_modify_qp failed.*(?:timed out| 110\b)",
        "roce-gid-subnet roce-no-ipv4-gid ib-subnet-differs",
        source=_VERBS,
    ),
    _net(r"ibv_modify_qp failed", "roce-gid-index-wrong ib-pkey", weight=LIKELY, source=_VERBS),
    _net(r"ibv_open_device failed", "ib-device-not-openable", source=_IB),
    _net(r"NET/IB : Unable to open device", "ib-device-not-openable", source=_IB),
    _net(r"Failed to open libibverbs", "ib-no-device-in-container", weight=HINT, source=_IB),
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
    _net(r"Got completion .*local access violation", "net-mtu-mismatch-ib", source=_IB),
    _net(r"Got completion .*(?:status=|error)", "roce-pfc-ecn ib-port-down", weight=SYMPTOM, source=_IB),
    _net(r"Got async .*event.*port error", "ib-port-down", source=_IB),
    _net(r"Attempted to connect incompatible devices", "ib-mixed-link-layer", source=_IB),
    _net(r"Try selecting NICs of only one link type", "ib-mixed-link-layer", source=_IB),
    _net(
        r"Detected mixed local Net device counts",
        "ib-hcas-differ",
        source="https://github.com/NVIDIA/nccl/blob/master/src/init.cc",
    ),
    _net(
        r"NET/IB : No device found", "ib-hca-no-match ib-no-device-in-container ib-port-down", weight=HINT, source=_IB
    ),
    _net(r"Error: network AWS Libfabric not found", "nccl-efa-plugin-missing nccl-net-plugin-missing", source=_PLUGIN),
    _net(r"Error: network \S+.* not found", "nccl-net-name-invalid nccl-net-plugin-missing", source=_PLUGIN),
    _net(
        r"Failed to initialize any NET plugin",
        "nccl-net-plugin-missing nccl-net-name-invalid ib-no-device-in-container",
        source=_PLUGIN,
    ),
    _net(r"Could not find any optimal provider", "nccl-efa-provider-missing", source=_OFI),
    _net(
        r"NET/OFI .*(?:fi_getinfo|No eligible providers|Failed to|Unable to find)",
        "nccl-efa-provider-missing",
        weight=LIKELY,
        source=_OFI,
    ),
    _net(r"provider efa output empty list", "nccl-efa-provider-missing", source=_OFI),
    _net(r"Failed to find ncclNetPlugin_v\d+ symbol", "sw-plugin-abi", weight=HINT, source=_PLUGIN),
    _net(
        r"NET/Plugin: Could not find: libnccl-net",
        "nccl-efa-plugin-missing nccl-net-plugin-missing",
        weight=HINT,
        source=_PLUGIN,
    ),
    _net(r"GPU Direct RDMA Disabled", "gdr-module-missing gdr-not-used", weight=HINT, source=_IB),
    _net(
        r"Got completion with error 12\b", "roce-pfc-ecn roce-gid-index-wrong ib-port-down", weight=LIKELY, source=_IB
    ),
    _net(
        r"NET/Plugin.*version `[\w.]+' not found",
        "nccl-efa-plugin-missing sw-plugin-abi",
        source=_PLUGIN,
        near=r"efa|ofi|fabric",
    ),
    _net(
        r"NET/Plugin.*version `[\w.]+' not found",
        "sw-plugin-abi nccl-net-plugin-missing",
        source=_PLUGIN,
        unless=r"efa|ofi|fabric",
    ),
    _net(r"NET/Plugin.*undefined symbol", "sw-plugin-abi nccl-net-plugin-missing", source=_PLUGIN),
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
    _net(r"Only EFA provider is supported", "nccl-efa-provider-missing", source=_OFI),
    _net(r"NET/OFI Unable to register memory", "gdr-module-missing", weight=LIKELY, source=_OFI),
    _net(
        r"common task-to-task communication interfaces", "net-subnet-mismatch net-firewall-ephemeral", source=_HOROVOD
    ),
    _net(
        r"Timed out waiting for tasks to (?:start|register)",
        "launch-node-unreachable net-firewall-ephemeral",
        source=_HOROVOD,
    ),
)
