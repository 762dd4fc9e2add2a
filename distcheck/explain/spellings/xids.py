"""Lines of NVIDIA's driver in the kernel log: NVRM: Xid (PCI:0000:9b:00): 79."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import LIKELY, told

_XIDS = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_xid = partial(told, about="GPU", source=_XIDS)
_LINE = r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): "

SPELLINGS = (
    _xid(_LINE + r"45\b.*caused by previous Xid (?:74|14[4-9]|150)\b", "gpu-nvlink-errors gpu-xid-recent"),
    _xid(_LINE + r"79\b", "gpu-fell-off-bus gpu-xid-recent"),
    _xid(_LINE + r"(?:48|95|140|171|172)\b", "gpu-ecc-uncorrected gpu-xid-recent gpu-needs-reset"),
    _xid(_LINE + r"(?:63|64)\b", "gpu-row-remap-pending gpu-xid-recent gpu-retired-pages"),
    _xid(_LINE + r"(?:74|14[4-9]|150|155)\b", "gpu-nvlink-errors gpu-xid-recent"),
    _xid(_LINE + r"154\b.*(?:Reset|Reboot|Drain)", "gpu-needs-reset gpu-xid-recent"),
    _xid(_LINE + r"(?P<xid>\d+)\b", "gpu-xid-recent", weight=LIKELY),
    # as monitoring tools write them
    _xid(r"\bXid errors?[ :=#]+79\b", "gpu-fell-off-bus gpu-xid-recent", weight=LIKELY),
    _xid(r"\bXid errors?[ :=#]+(?P<xid>\d{1,3})\b", "gpu-xid-recent", weight=LIKELY),
    _xid(r"nvidia-nvswitch\d*: SXid ", "gpu-nvlink-errors gpu-fabric-manager-down", weight=LIKELY),
    _xid(r"NVRM: API mismatch: the client has (?:the )?version", "gpu-nvml-init-failed"),
    _xid(r"rm_init_adapter failed", "gpu-fell-off-bus gpu-nvml-init-failed", weight=LIKELY),
)
