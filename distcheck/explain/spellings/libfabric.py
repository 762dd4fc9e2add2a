"""Networks through libfabric: AWS EFA, HPE Slingshot (CXI), Omni-Path, and MPICH on top of it."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, SYMPTOM, told

_EFA = "https://github.com/ofiwg/libfabric/tree/main/prov/efa/src"
_CXI = "https://github.com/ofiwg/libfabric/tree/main/prov/cxi/src"
_GETINFO = "https://ofiwg.github.io/libfabric/main/man/fi_getinfo.3.html"
_MPICH = "https://github.com/pmodels/mpich/tree/main/src/mpid/ch4/netmod/ofi"
_PSM = "https://github.com/cornelisnetworks/opa-psm2/blob/master/psm_error.c"
_PLUGIN = "https://github.com/aws/aws-ofi-nccl/tree/master/src"
_net = partial(told, about="network", weight=LIKELY)
_MISSING = "nccl-efa-provider-missing nccl-efa-plugin-missing"
_UNANSWERED = (
    "The other node does not answer over EFA. Check that the security group allows all traffic to itself, in both"
    " directions, and that all nodes are in one subnet."
)
_FAILED = (
    "The plugin for libfabric failed. Check the security group (all traffic to itself, in both directions), and repeat"
    " with FI_LOG_LEVEL=warn."
)
_NO_PROVIDER = "libfabric offers no network that fits what MPI asks for. Compare fi_info with FI_PROVIDER."
_SLINGSHOT = "The Slingshot adapter ran out of a resource or refused a request. Look for cxi in the kernel log."
_OMNI_PATH = "The Omni-Path adapter cannot be opened: its device files, its contexts or its driver."

SPELLINGS = (
    # aws-ofi-nccl: nccl_ofi_net, _rdma, _sendrecv, of releases 1.2 to 1.21
    _net(
        r"NET/OFI .*(?:fi_getinfo|No eligible providers|Failed to initialize|Unable to find a protocol|initialization failed)",
        _MISSING,
        source=_PLUGIN,
    ),
    _net(r"EFA provider requires at least libfabric version", _MISSING, source=_PLUGIN),
    _net(
        r"NET/OFI .*(?:completed with error|Couldn't|Unable to (?:insert|free|post|connect))",
        weight=SYMPTOM,
        source=_PLUGIN,
        says=_FAILED,
    ),
    _net(
        r"NCCL WARN NET/OFI .*(?:Failed to|Unable to|Could not|Error |failed\b)",
        weight=SYMPTOM,
        source=_PLUGIN,
        says=_FAILED,
    ),
    # EFA itself
    _net(r"\bUnresponsive (?:remote|receiver)\b", source=_EFA, says=_UNANSWERED),
    _net(r"\bunreachable remote\b", source=_EFA, says=_UNANSWERED),
    _net(r"libfabric:.*:efa:.*Cannot allocate memory", "ib-fork-or-memlock", source=_EFA),
    _net(r"fi_getinfo: -61", _MISSING, source=_GETINFO, near=r"\befa\b"),
    _net(r"fi_getinfo: -61", source=_GETINFO, says=_NO_PROVIDER, unless=r"\befa\b"),
    # Slingshot
    _net(r"cxil_(?:map|alloc_\w+|open_device|destroy_\w+): ", source=_CXI, says=_SLINGSHOT),
    _net(r"LE resources not recovered during flow control", source=_CXI, says=_SLINGSHOT),
    _net(r"libfabric:.*:cxi:.*(?:\bfail|\berror\b|\bENOSPC\b)", weight=HINT, source=_CXI, says=_SLINGSHOT),
    # MPICH
    _net(r"\bOFI (?:fi_)?(?:getinfo|addrinfo)\(\) failed", source=_MPICH, says=_NO_PROVIDER),
    _net(
        r"\bOFI (?:poll|fi_\w+|endpoint|domain|av|cq) .{0,30}failed \(ofi_", source=_MPICH, weight=SYMPTOM, says=_FAILED
    ),
    # Omni-Path
    _net(r"PSM\d? can't open (?:hfi|nic) unit", source=_PSM, says=_OMNI_PATH),
    _net(r"hfi_userinit: .*command failed", source=_PSM, says=_OMNI_PATH),
)
