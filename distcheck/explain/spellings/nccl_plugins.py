"""NCCL's network plugins: those that are missing or do not fit, and the one for AWS EFA (aws-ofi-nccl)."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, NOISE, SYMPTOM, told

_PLUGIN = "https://github.com/NVIDIA/nccl/blob/master/src/plugin/net.cc"
_OFI = "https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md"
_CLOUD = r"\bEFA\b|libfabric|FI_PROVIDER|p[45]d?e?\.\d+xlarge|rdmap\d|NET/OFI|TCPX|gVNIC"
_NO_PLUGIN = "NCCL has no network plugin and uses its own transports, as most jobs do."
_net = partial(told, about="network")

SPELLINGS = (
    _net(r"Error: network AWS Libfabric not found", "nccl-efa-plugin-missing nccl-net-plugin-missing", source=_PLUGIN),
    _net(
        r"Error: network (?!interface)\S+.* not found", "nccl-net-name-invalid nccl-net-plugin-missing", source=_PLUGIN
    ),
    _net(
        r"Failed to initialize any NET plugin",
        "ib-no-device-in-container ib-hca-no-match nccl-net-name-invalid",
        source=_PLUGIN,
        near=r"NET/IB : No device found|NCCL_NET set by environment to IB\b",
    ),
    _net(
        r"Failed to initialize any NET plugin",
        "nccl-net-plugin-missing nccl-net-name-invalid ib-no-device-in-container",
        source=_PLUGIN,
    ),
    _net(r"Could not find any optimal provider", "nccl-efa-provider-missing", source=_OFI),
    _net(r"provider efa output empty list", "nccl-efa-provider-missing", source=_OFI),
    _net(r"Failed to find ncclNetPlugin symbol", "sw-plugin-abi", weight=HINT, source=_PLUGIN),
    # An older interface is tried next; only the last of these lines is one plugin that does not fit.
    _net(r"Failed to find nccl(?:Net|CollNet)Plugin_v\d+ symbol", weight=NOISE, source=_PLUGIN, says=_NO_PLUGIN),
    _net(
        r"NET/Plugin: Could not find: libnccl-net",
        "nccl-net-plugin-on-some-ranks",
        weight=SYMPTOM,
        source=_PLUGIN,
        near=r"Plugin Path : \S*libnccl-net|NET/Plugin: Loaded net plugin",
    ),
    _net(
        r"NET/Plugin: Could not find: libnccl-net",
        "nccl-efa-plugin-missing nccl-net-plugin-missing",
        weight=HINT,
        source=_PLUGIN,
        near=_CLOUD,
        unless=r"Plugin Path : \S*libnccl-net|NET/Plugin: Loaded net plugin",
    ),
    _net(r"NET/Plugin: Could not find: libnccl-net", weight=NOISE, source=_PLUGIN, says=_NO_PLUGIN, unless=_CLOUD),
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
    _net(r"NET/OFI Selected Provider is (?!efa)", "nccl-efa-provider-missing", weight=HINT, source=_OFI),
    _net(r"Only EFA provider is supported", "nccl-efa-provider-missing", source=_OFI),
    _net(r"NET/OFI .*Cannot allocate memory", "ib-fork-or-memlock nccl-efa-provider-missing", source=_OFI),
    _net(
        r"NET/OFI Unable to register memory",
        "gdr-module-missing",
        weight=LIKELY,
        source=_OFI,
        unless=r"cxil_|NET/OFI .*Cannot allocate memory",
    ),
)
