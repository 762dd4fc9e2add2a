"""RDMA as other software than NCCL words it: libibverbs' statuses, perftest, UCX, NVSHMEM, Open MPI and the kernel."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, NOISE, SYMPTOM, told

_STATUS = "https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/enum_strs.c"
_PERFTEST = "https://github.com/linux-rdma/perftest/blob/master/src/perftest_resources.c"
_UCX = "https://github.com/openucx/ucx/tree/master/src"
_MPI = "https://github.com/open-mpi/ompi/blob/v4.1.x/opal/mca/btl/openib/help-mpi-btl-openib.txt"
_KERNEL = "https://github.com/torvalds/linux/tree/master/drivers/net/ethernet/mellanox/mlx5/core"
_MLX5 = "https://github.com/linux-rdma/rdma-core/blob/master/providers/mlx5/cq.c"
_NVSHMEM = "https://github.com/NVIDIA/nvshmem/tree/main/src"
_INIT = "https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/init.c"
_PEERMEM = "https://docs.nvidia.com/cuda/gpudirect-rdma/index.html"
_CMA = "https://github.com/open-mpi/ompi/blob/v4.1.x/opal/mca/btl/vader/btl_vader_get.c"
_net = partial(told, about="network", weight=LIKELY)
_host = partial(told, about="start-up", weight=LIKELY)
_NOT_OPENED = "ib-device-not-openable ib-no-device-in-container"
_NONE = "ib-no-device-in-container ib-port-down"
_LOST = "roce-pfc-ecn roce-gid-index-wrong ib-port-down"
_ACCESS = (
    "The adapter rejected a request, mostly one on memory that it may not reach. Check GPUDirect RDMA, the driver and"
    " the program."
)
_FLUSHED = "A connection over InfiniBand or RoCE was closed after an earlier error, here or on the other node."
_DEVX = (
    "NVSHMEM could not use the RDMA adapter. IBGDA needs PeerMappingOverride=1 for the driver, nvidia-peermem or DMA-BUF,"
    " and a container that may use /dev/infiniband; NVSHMEM_DEBUG=INFO tells more."
)
_COMPLETION = r"completion|CQE|wr_id|vendor|\bWC\b"

SPELLINGS = (
    # ibv_wc_status_str() and the names of ibv_wc_status
    _net(r"transport retry counter exceeded", _LOST, source=_STATUS),
    _net(r"IBV_WC_RETRY_EXC_ERR", _LOST, source=_STATUS),
    *(
        _net(rf"{words} error", source=_STATUS, says=_ACCESS, near=_COMPLETION)
        for words in (
            "local length",
            "local QP operation",
            "local protection",
            "memory management operation",
            "remote invalid request",
            "remote access",
            "remote operation",
        )
    ),
    _net(
        r"RNR retry counter exceeded", source=_STATUS, says="The other side was not ready to receive: look at its log."
    ),
    _net(r"Work Request Flushed Error", source=_STATUS, weight=CONSEQUENCE, says=_FLUSHED),
    _net(r"WR_FLUSH_ERR", source=_STATUS, weight=CONSEQUENCE, says=_FLUSHED),
    _net(
        r"mlx5: \S+: got completion with error",
        source=_MLX5,
        weight=SYMPTOM,
        says="An RDMA request failed. Look for the error that the program prints after it.",
    ),
    # perftest and the tools of libibverbs
    _net(r"Couldn't allocate MR", "gdr-module-missing", source=_PERFTEST, near=r"CUDA|GPU"),
    _net(r"Couldn't allocate MR", "ib-fork-or-memlock", source=_PERFTEST, unless=r"CUDA|GPU"),
    _net(r"Unable to find the Infiniband/RoCE device", _NONE, source=_PERFTEST),
    _net(r"Did not detect devices", _NONE, source=_PERFTEST),
    _net(
        r"\b0 HCAs found",
        _NONE,
        source="https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/examples/devinfo.c",
    ),
    _net(r"Port number \d+ state is Down", "ib-port-down ib-no-subnet-manager", source=_PERFTEST),
    _net(  # perftest, the examples of libibverbs, Mooncake, DeepEP
        r"Failed to modify QP\b.{0,20} to RT[RS]\b", "roce-gid-index-wrong roce-gid-subnet", source=_PERFTEST
    ),
    _net(
        r"\bNIXL_ERR_(?:BACKEND|REMOTE_DISCONNECT)\b",
        source="https://github.com/ai-dynamo/nixl/blob/main/src/api/cpp/nixl_types.h",
        weight=SYMPTOM,
        says="NIXL's backend, mostly UCX, failed or lost the other side. Look at the other process, then at UCX's lines.",
    ),
    # UCX
    _net(
        r"ibv_reg_dmabuf_mr\b.{0,90} failed",
        source="https://github.com/NVIDIA/nccl/issues/778",
        says="GPU memory cannot be registered with DMA-BUF. NCCL_DMABUF_ENABLE=0 uses nvidia-peermem.",
        weight=SYMPTOM,
    ),
    _net(r"transport '(?:rc|ud|dc|ib)\w*' is not available", _NONE, source=_UCX),
    _net(
        r"UCX +ERROR.* no (?:active messages|remote registered memory access|auxiliary) transport to",
        source=_UCX,
        says="UCX has no transport to the other side. Compare UCX_TLS, UCX_NET_DEVICES and the adapters of the nodes.",
    ),
    _net(
        r"(?:Local|Remote|Memory|Work Request|RNR|Invalid)\b.{0,40} on \w+:\d+/(?:IB|RoCE) \(synd ",
        source=_UCX,
        says=_ACCESS,
        unless=r"retry count exceeded",
    ),
    _net(
        r"UCX +ERROR.*(?:Destination is unreachable|Endpoint timeout|Connection reset by remote|Endpoint is not connected)",
        source=_UCX,
        weight=SYMPTOM,
        says="UCX lost, or could not make, a connection. Look at the other rank, then at UCX_TLS and UCX_NET_DEVICES.",
    ),
    # UCX and Open MPI between the processes of a host, which are in different containers
    _host(r"open\(file_name=/proc/\d+/fd/\d+ .*failed", "host-ptrace-pidns k8s-pod-host-confusion", source=_UCX),
    _host(r"shmat\(shmid=\d+\) failed: Invalid argument", "k8s-pod-host-confusion host-ptrace-pidns", source=_UCX),
    _host(r"\bRead -1, expected \d+, errno = 1\b", "host-ptrace-pidns", source=_CMA),
    _host(r"CMA support is not available due to restrictive ptrace", "host-ptrace-pidns", weight=HINT, source=_CMA),
    # NVSHMEM: host/transport/transport.cpp, modules/transport
    _net(
        r"neither nv_peer_mem,? or nvidia_peermem detected",
        "gdr-module-missing",
        source=_NVSHMEM,
        near=r"transport map failed|Unable to initialize any transports|is not accessible|init failed for",
    ),
    _net(r"neither nv_peer_mem,? or nvidia_peermem detected", "gdr-module-missing", source=_NVSHMEM, weight=HINT),
    _net(r"cannot allocate mlx5dv_devx_uar", source=_NVSHMEM, says=_DEVX),
    _net(r"nvshmem\S*:\d+: (?:NULL value|non-zero status)", source=_NVSHMEM, weight=SYMPTOM, says=_DEVX),
    _net(r"is not enumerated as an mlx5 device", source=_NVSHMEM, weight=HINT, says=_DEVX),
    _net(r"init failed for (?:remote )?transport: (?:IB|UCX|LIBFABRIC)", source=_NVSHMEM, weight=SYMPTOM, says=_DEVX),
    _net(r"\b(?:IBGDA|IBRC|IBDEVX|UCX|LIBFABRIC) transport: init failed", source=_NVSHMEM, weight=SYMPTOM, says=_DEVX),
    _net(
        r"DeepEP (?:error: )?(?:CPU recv )?timeout",
        source="https://github.com/deepseek-ai/DeepEP/blob/main/csrc/deep_ep.cpp",
        weight=CONSEQUENCE,
        says="DeepEP waited for a rank that failed, or that its RDMA network does not reach.",
    ),
    _net(r"Unable to initialize any transports", source=_NVSHMEM, weight=SYMPTOM, says=_DEVX),
    _net(
        r"building transport map failed",
        source=_NVSHMEM,
        weight=CONSEQUENCE,
        says="NVSHMEM has no way to another GPU. The message before it tells which transport failed, and why.",
    ),
    # libibverbs
    _net(
        r"couldn't load driver '(?:lib)?(?:mlx[45]|efa|bnxt_re|hns|irdma|qedr)\b",
        "ib-no-device-in-container",
        source=_INIT,
        weight=HINT,
    ),
    _net(
        r"couldn't load driver '(?!(?:lib)?(?:mlx[45]|efa|bnxt_re|hns|irdma|qedr)\b)",
        source=_INIT,
        weight=NOISE,
        says="A driver of RDMA adapters that this machine does not need is not installed.",
    ),
    _net(r"couldn't open config directory '/etc/libibverbs", "ib-no-device-in-container", source=_INIT, weight=HINT),
    _net(r"fork\(\)-safety requested but init failed", "ib-fork-or-memlock", source=_INIT, weight=SYMPTOM),
    _net(r"/dev/infiniband/\w+\W.{0,40}(?:Permission denied|Operation not permitted)", _NOT_OPENED, source=_INIT),
    _net(r"Permission denied.{0,40}/dev/infiniband/", _NOT_OPENED, source=_INIT),
    _net(r"open device\b.{0,40}Permission denied", _NOT_OPENED, source=_INIT),
    _net(r"ibv_query_gid(?:\([^()]*\))? failed", "roce-gid-index-wrong", source=_INIT),
    _net(r"ibv_create_ah(?:\([^()]*\))? failed", "roce-gid-index-wrong roce-gid-subnet", source=_INIT, weight=SYMPTOM),
    # the modules
    _net(r"Module nv(?:idia)?[-_]peer_?mem not found", "gdr-module-missing", source=_PEERMEM),
    # Open MPI
    _net(r"A process failed to create a queue pair", "ib-fork-or-memlock", source=_MPI),
    # the kernel
    _net(r"Port module event.*Cable unplugged", "ib-port-down", source=_KERNEL),
    _net(
        r"device's health compromised",
        source=_KERNEL,
        says="The RDMA adapter's firmware does not answer. Reset the adapter or its node.",
    ),
)
