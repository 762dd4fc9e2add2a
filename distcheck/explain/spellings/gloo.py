"""Gloo: the address that a rank announces, and the connections of every rank to every other."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, SYMPTOM, told

_DEVICE = "https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/device.cc"
_PAIR = "https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc"
_HELPERS = "https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/helpers.h"
_GROUP = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp"
_FACTORY = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/GlooDeviceFactory.cpp"
_net = partial(told, about="network")
_INTERFACE = (
    r"(?:(?:eth|ib|bond|docker|virbr|team|hsn|rdma|em|net|bnet|gpu|enP)\d[\w.:]*"
    r"|(?:en[opsx]|wl[opx]|ibp|ibs|br-?)\w+|lo|[\^=].*|\S+,.*)(?![\w.-])"
)
"""Names that Linux and container networks give to interfaces, and lists, which only NCCL understands."""
_OWN_NAME = "host-own-name-unresolvable net-hostname-loopback"
_LOOPBACK = "net-hostname-loopback net-gloo-ifname-wrong"
_BRIDGE = "net-hostname-wrong-nic net-gloo-ifname-wrong"
_CLOSED = "net-firewall-ephemeral net-hostname-wrong-nic net-gloo-ifname-wrong"
_FAILED = r"(?:Connection refused|No route|Connection timed out|Network is unreachable)"
_MESH_FAILED = r"connectFullMesh|Connect timeout|tcp/pair\.cc|Application timeout"
_REMOTE = r"remote=\[?"

SPELLINGS = (
    _net(
        r"Unable to resolve hostname to a \(local\) address",
        "net-hostname-loopback host-own-name-unresolvable",
        source=_GROUP,
        near=_MESH_FAILED,
    ),
    _net(  # also in healthy jobs on one node
        r"Unable to resolve hostname to a \(local\) address",
        "net-hostname-loopback host-own-name-unresolvable",
        weight=HINT,
        source=_GROUP,
        unless=_MESH_FAILED,
    ),
    _net(r"Failed to look up the IP address for the hostname", _OWN_NAME, source=_FACTORY),
    _net(r"makeDeviceForHostname\(\): unsupported gloo device", _OWN_NAME, source=_FACTORY),
    _net(r"interface or hostname can't be empty", "host-own-name-unresolvable net-gloo-ifname-wrong", source=_FACTORY),
    _net(r"makeDeviceForInterface\(\): unsupported gloo device", "net-gloo-ifname-wrong", source=_FACTORY),
    _net(r"Unable to find address for: (?P<interface>" + _INTERFACE + ")", "net-gloo-ifname-wrong", source=_DEVICE),
    _net(
        rf"Unable to find address for: (?!{_INTERFACE})",
        "host-own-name-unresolvable net-gloo-ifname-wrong",
        source=_DEVICE,
    ),
    _net(
        r"Unable to find address for \S+; bind\(", "host-own-name-unresolvable net-hostname-wrong-nic", source=_DEVICE
    ),
    _net(r"Unable to find interface for: ", "host-own-name-unresolvable net-hostname-wrong-nic", source=_DEVICE),
    _net(
        r"rp != nullptr", "host-own-name-unresolvable net-hostname-wrong-nic", source=_DEVICE, near=r"gloo|device\.cc"
    ),
    _net(
        r"ifa != nullptr",
        "net-gloo-ifname-wrong",
        weight=LIKELY,
        source=_DEVICE,
        near=r"gloo|device\.cc",
        unless="Unable to find address",
    ),
    _net(r"device\.cc:\d+\] .*Name or service not known", _OWN_NAME, source=_DEVICE),
    _net(r"address family mismatch", "net-ipv4-ipv6-mixed", source=_PAIR, near=r"gloo|pair\.cc"),
    _net(r"ss1\.ss_family == ss2\.ss_family", "net-ipv4-ipv6-mixed", source=_DEVICE),
    # The full mesh: the peer's address tells why.
    _net(
        r"Gloo connectFullMesh failed",
        _LOOPBACK,
        weight=LIKELY,
        source=_PAIR,
        near=rf"{_REMOTE}127\.|Connect(?:ion)?\S* .{{0,20}}127\.0\.[01]\.1",
    ),
    _net(r"Gloo connectFullMesh failed", _BRIDGE, weight=LIKELY, source=_PAIR, near=rf"{_REMOTE}172\.(?:17|18)\."),
    _net(r"Gloo connectFullMesh failed", "net-ipv6-link-local", weight=LIKELY, source=_PAIR, near=rf"{_REMOTE}fe80:"),
    _net(
        r"Gloo connectFullMesh failed",
        _CLOSED,
        weight=LIKELY,
        source=_PAIR,
        near=rf"(?:SO_ERROR: |connect ){_FAILED}",
        unless=rf"{_REMOTE}(?:127\.|172\.1[78]\.|fe80)",
    ),
    _net(
        r"Gloo connectFullMesh failed",
        _CLOSED,
        weight=SYMPTOM,
        source=_PAIR,
        unless=rf"{_REMOTE}(?:127\.|172\.1[78]\.|fe80)|(?:SO_ERROR: |connect ){_FAILED}",
    ),
    _net(r"connect \[127\.\S+: Connection refused", _LOOPBACK, source=_PAIR),
    _net(r"Connect timeout \[127\.", _LOOPBACK, source=_PAIR),
    _net(r"connect \[172\.1[78]\.\S+: ", _BRIDGE, source=_PAIR),
    _net(r"connect \[fe80:\S+: ", "net-ipv6-link-local", source=_PAIR),
    _net(
        rf"connect \[(?!127|172\.1[78]|fe80)\S+: {_FAILED}",
        "net-firewall-ephemeral net-hostname-wrong-nic",
        weight=LIKELY,
        source=_PAIR,
    ),
    _net(r"Connect timeout \[(?!127)", "net-firewall-ephemeral net-hostname-wrong-nic", weight=LIKELY, source=_PAIR),
    _net(
        rf"SO_ERROR: {_FAILED}, remote=(?!.?(?:127\.|172\.1[78]\.|fe80))",
        "net-firewall-ephemeral net-hostname-wrong-nic",
        weight=LIKELY,
        source=_HELPERS,
        unless="connectFullMesh",
    ),
    # Sizes, and ranks that end.
    _net(
        r"Received data size doesn't match expected size",
        about="application",
        source=_PAIR,
        says="The ranks called different collectives, or the same with tensors of different sizes.",
    ),
    _net(
        r"op\.preamble\.length <= op\.nbytes",
        about="application",
        source=_PAIR,
        says="The ranks called different collectives, or the same with tensors of different sizes.",
    ),
    _net(
        r"Socket (?:unexpectedly )?closed \[",
        weight=CONSEQUENCE,
        source=_PAIR,
        says="A rank lost its connection to another rank, which ended first. The cause is in the log of the other rank.",
    ),
    _net(
        r"Application timeout caused pair closure",
        about="application",
        weight=CONSEQUENCE,
        source="https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/unbound_buffer.cc",
        says="Another rank did not reach the collective in time. The cause is in the log of that rank.",
    ),
)
