"""torch's store: rank 0 listens, the others connect; every version of its socket errors.

torch 1.11 and later: csrc/distributed/c10d/socket.cpp. torch 1.10 and before: lib/c10d/Utils.cpp, which throws the words
of errno as a bare RuntimeError.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, HINT, LIKELY, NOISE, SYMPTOM, told

_SOCKET = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp"
_OLD_STORE = "https://github.com/pytorch/pytorch/blob/v1.8.0/torch/lib/c10d/Utils.cpp"
_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp"
_RENDEZVOUS = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/rendezvous.py"
_C10D = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py"
_ACCELERATE = "https://github.com/huggingface/accelerate/blob/main/src/accelerate/utils/launch.py"
_net = partial(told, about="network")
_TAKEN = "net-port-in-use net-port-in-use-by-peer-job"
_PRIVILEGED = r"(?:\d{1,3}|10[01]\d|102[0-3])"
_LOOPBACK = r"(?:localhost|127\.\d+\.\d+\.\d+|::1)"
_TO = r"(?:to connect|to any network address of|connect) ?(?:to )?[\[(]?"
_UNREACHABLE = "net-master-unreachable net-hostname-wrong-nic"
_ERRNO = r"\((?:errno|system error): "
_IN_STORE = r"rendezvous|TCPStore|init_process_group"
_LOST = "A rank lost its connection to rank 0, which ended first. The cause is in the log of rank 0."

SPELLINGS = (
    # Rank 0 listens.
    _net(rf"failed to (?:bind to|listen on) .*?:(?P<port>\d+) {_ERRNO}(?:98|48|10048)\b", _TAKEN, source=_SOCKET),
    _net(
        rf"failed to (?:bind to|listen on) .*?:{_PRIVILEGED} {_ERRNO}13\b", "env-master-port-privileged", source=_SOCKET
    ),
    _net(
        rf"failed to bind to .*?:(?!{_PRIVILEGED} )\d{{4,}} {_ERRNO}(?:13|1|10013)\b",
        "net-bind-failed env-master-port-privileged",
        source=_SOCKET,
    ),
    _net(rf"failed to bind to .*{_ERRNO}(?:99|49)\b", "env-master-addr-not-rank0-host net-bind-failed", source=_SOCKET),
    _net(r"EADDRINUSE", _TAKEN, source=_SOCKET),
    _net(r"name: EACCES", "env-master-port-privileged net-bind-failed", source=_SOCKET),
    _net(r"name: EADDRNOTAVAIL", "env-master-addr-not-rank0-host net-bind-failed", source=_SOCKET),
    _net(
        r"RuntimeError: Permission denied",
        "env-master-port-privileged net-bind-failed",
        source=_OLD_STORE,
        near=_IN_STORE,
    ),
    _net(
        r"RuntimeError: Cannot assign requested address",
        "env-master-addr-not-rank0-host net-bind-failed",
        source=_OLD_STORE,
        near=_IN_STORE,
    ),
    _net(r"Tried to launch distributed communication on port `?(?P<port>\d+)", _TAKEN, source=_ACCELERATE),
    _net(
        r"server socket has failed to listen on any local network address",
        "net-bind-failed net-port-in-use",
        weight=SYMPTOM,
        source=_SOCKET,
    ),
    _net(
        rf"server socket cannot be initialized on .*{_ERRNO}(?:97|93)\b",
        "net-ipv4-ipv6-mixed",
        weight=NOISE,
        source=_SOCKET,
    ),
    # The others connect.
    _net(
        rf"failed to connect to .*?{_LOOPBACK}\]?:\d+ {_ERRNO}(?:111|61|10061)\b",
        "net-master-refused env-master-addr-localhost-multinode",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        rf"failed to connect to (?!.*?{_LOOPBACK}\]?:).*?:(?P<port>\d+) {_ERRNO}(?:111|61|10061)\b",
        "net-master-refused net-master-unreachable",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        rf"failed to connect to .*?:(?P<port>\d+) {_ERRNO}(?:113|101|110|112|10060|10065|10051)\b",
        _UNREACHABLE,
        source=_SOCKET,
    ),
    _net(rf"failed to connect to .*{_ERRNO}(?:97|99)\b", "net-ipv4-ipv6-mixed", weight=NOISE, source=_SOCKET),
    _net(rf"failed to connect to \[?\]?:.*{_ERRNO}10049\b", "net-ipv4-ipv6-mixed", weight=NOISE, source=_SOCKET),
    _net(  # on Windows also while the ranks still come
        rf"failed to connect to (?!\[?\]?:).*{_ERRNO}10049\b",
        "net-master-refused env-rank-missing net-master-unreachable",
        weight=HINT,
        source=_SOCKET,
    ),
    _net(
        rf"client socket cannot be initialized to connect to .*{_ERRNO}(?:97|93)\b",
        "net-ipv4-ipv6-mixed",
        weight=NOISE,
        source=_SOCKET,
    ),
    _net(rf"failed to connect to .*{_ERRNO}22\b", "env-master-addr-unresolvable", weight=NOISE, source=_SOCKET),
    _net(rf"failed to connect to .*{_ERRNO}24\b", "host-nofile net-open-files", source=_SOCKET),
    _net(
        rf"client socket has timed out after .* while trying {_TO}{_LOOPBACK}",
        "env-master-addr-localhost-multinode net-master-refused net-master-unreachable",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        rf"client socket has timed out after .* while trying to connect to \(?(?!{_LOOPBACK})"
        r"(?P<host>[\w.:-]+?)(?:, |:)(?P<port>\d+)",
        "net-master-unreachable net-master-refused",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        rf"failed to connect/validate to host (?!{_LOOPBACK})(?P<host>[\w.:-]+?):(?P<port>\d+) - timed out",
        "net-master-unreachable net-master-refused",
        weight=LIKELY,
        source=_STORE,
    ),
    _net(r"connect\(\) timed out", "net-master-unreachable net-master-refused", weight=LIKELY, source=_OLD_STORE),
    _net(r"RuntimeError: Connection timed out", "net-master-unreachable", weight=LIKELY, source=_OLD_STORE),
    _net(r"RuntimeError: No route to host", "net-master-unreachable net-hostname-wrong-nic", source=_OLD_STORE),
    _net(r"RuntimeError: Network is unreachable", "net-master-unreachable net-ipv4-ipv6-mixed", source=_OLD_STORE),
    _net(
        r"RuntimeError: Connection refused",
        "net-master-refused net-master-unreachable",
        weight=LIKELY,
        source=_OLD_STORE,
    ),
    _net(
        r"connection to the C10d store has failed",
        "net-master-unreachable net-master-refused torchrun-fqdn-unreachable",
        weight=SYMPTOM,
        source=_C10D,
        unless=r"RuntimeError: Broken pipe|Connection reset by peer|Connection was likely closed|RendezvousTimeout",
    ),
    _net(r"Ping failed, invalid value returned from server", "env-port-speaks-http net-port-in-use", source=_STORE),
    # Ports that cannot be: pybind, urllib and Python's socket each have their own words.
    _net(
        r"incompatible constructor arguments",
        "env-master-port-range",
        about="start-up",
        source=_STORE,
        near=r"TCPStore[\s\S]{0,1500}(?:Invoked with: '?[^,]+, (?:6[6-9]\d{3}|65[6-9]\d\d|[7-9]\d{4}|\d{6,})\b)",
    ),
    _net(
        r"incompatible constructor arguments",
        "env-master-port-range",
        about="start-up",
        weight=LIKELY,
        source=_STORE,
        near=r"TCPStore",
    ),
    _net(r"Port out of range 0-65535", "env-master-port-range", about="start-up", source=_RENDEZVOUS),
    _net(
        r"Port could not be cast to integer value as '",
        "env-not-integer env-master-port-range",
        about="start-up",
        source=_RENDEZVOUS,
    ),
    # What the others see when rank 0 has ended.
    _net(
        r"(?:recv|send|recvValue|sendBytes).{0,60}Connection was likely closed",
        about="application",
        weight=CONSEQUENCE,
        source=_SOCKET,
        says=_LOST,
    ),
    _net(r"failed to recv, got \d bytes", about="application", weight=CONSEQUENCE, source=_SOCKET, says=_LOST),
)
