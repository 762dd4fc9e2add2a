"""Sockets and names: torch's store, Python, Gloo, and how they word errno and getaddrinfo."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import CONSEQUENCE, LIKELY, NOISE, SYMPTOM, told

_SOCKET = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp"
_OLD_STORE = "https://github.com/pytorch/pytorch/blob/v1.8.0/torch/lib/c10d/Utils.cpp"
_GETADDRINFO = "https://man7.org/linux/man-pages/man3/gai_strerror.3.html"
_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_ACCELERATE = "https://github.com/huggingface/accelerate/blob/main/src/accelerate/utils/launch.py"
_C10D = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py"
_GLOO_DEVICE = "https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/device.cc"
_GLOO_PAIR = "https://github.com/pytorch/gloo/blob/main/gloo/transport/tcp/pair.cc"
_PING = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/TCPStore.cpp"
_net = partial(told, about="network")
_KUBERNETES = (
    r"\.svc\b|kubernetes|kubectl|kubeflow|pytorchjob|\bpod\b|\bpods\b|volcano|vcjob|-(?:master|worker|launcher)-\d"
)
_TAKEN = "net-port-in-use net-port-in-use-by-peer-job"
_PRIVILEGED = r"(?:\d{1,3}|10[01]\d|102[0-3])"
_INTERFACE = r"(?:(?:eth|ib|bond|docker|virbr|team|hsn|rdma|em|net|bnet|gpu)\d[\w.:]*|(?:en[opsx]|wl[opx]|ibp|ibs|br-?)\w+|lo)(?![\w.-])"
"""Names that Linux and container networks give to interfaces."""
_LOOPBACK = r"(?:localhost|127\.\d+\.\d+\.\d+|::1)"
_TO = r"(?:to connect|to any network address of|connect) ?(?:to )?[\[(]?"
_UNREACHABLE = "net-master-unreachable net-hostname-wrong-nic"

SPELLINGS = (
    # Rank 0 listens.
    _net(r"failed to bind to .*?:(?P<port>\d+) \((?:errno|system error): (?:98|48|10048)\b", _TAKEN, source=_SOCKET),
    _net(
        rf"failed to bind to .*?:{_PRIVILEGED} \((?:errno|system error): 13\b",
        "env-master-port-privileged",
        source=_SOCKET,
    ),
    _net(
        r"failed to bind to .*?:\d{4,} \((?:errno|system error): (?:13|1|10013)\b",
        "net-bind-failed env-master-port-privileged",
        source=_SOCKET,
        unless=rf":{_PRIVILEGED} \((?:errno|system error): 13",
    ),
    _net(
        r"failed to bind to .*\((?:errno|system error): 99\b",
        "env-master-addr-not-rank0-host net-bind-failed",
        source=_SOCKET,
    ),
    _net(r"EADDRINUSE", _TAKEN, source=_SOCKET),
    _net(r"name: EACCES", "env-master-port-privileged net-bind-failed", source=_SOCKET),
    _net(
        r"(?:port: (?P<port>\d+).*)?address already in use",
        _TAKEN,
        source=_ERRNO,
        unless=r"ipcsocket|nccl-socket|NCCL WARN",
    ),
    _net(
        r"RuntimeError: Permission denied",
        "env-master-port-privileged net-bind-failed",
        source=_OLD_STORE,
        near=r"rendezvous|TCPStore|init_process_group",
    ),
    _net(r"Tried to launch distributed communication on port `(?P<port>\d+)`", _TAKEN, source=_ACCELERATE),
    _net(
        r"server socket has failed to listen on any local network address",
        "net-bind-failed net-port-in-use",
        weight=SYMPTOM,
        source=_SOCKET,
    ),
    _net(
        r"Only one usage of each socket address",
        _TAKEN,
        source="https://learn.microsoft.com/windows/win32/winsock/windows-sockets-error-codes-2",
    ),
    _net(
        r"port (?P<port>\d+) is (?:already )?(?:in use|occupied|not available|unavailable)",
        _TAKEN,
        weight=LIKELY,
        source=_ERRNO,
    ),
    # The others connect.
    _net(
        rf"failed to connect to .*?{_LOOPBACK}\]?:\d+ \((?:errno|system error): (?:111|10061)\b",
        "net-master-refused env-master-addr-localhost-multinode",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        r"failed to connect to .*?\((?:errno|system error): (?:111|10061)\b",
        "net-master-refused net-master-unreachable",
        weight=LIKELY,
        source=_SOCKET,
        unless=_LOOPBACK,
    ),
    _net(
        r"failed to connect to .*?:(?P<port>\d+) \((?:errno|system error): (?:113|101|110|10060|10065)\b",
        _UNREACHABLE,
        source=_SOCKET,
    ),
    _net(
        r"failed to connect to .*\((?:errno|system error): (?:97|99|10049)\b",
        "net-ipv4-ipv6-mixed",
        weight=NOISE,
        source=_SOCKET,
    ),
    _net(
        r"failed to connect to .*\((?:errno|system error): 22\b",
        "env-master-addr-unresolvable",
        weight=NOISE,
        source=_SOCKET,
    ),
    _net(r"failed to connect to .*\((?:errno|system error): 24\b", "host-nofile net-open-files", source=_SOCKET),
    _net(
        rf"client socket has timed out after .* while trying {_TO}{_LOOPBACK}",
        "env-master-addr-localhost-multinode net-master-refused net-master-unreachable",
        weight=LIKELY,
        source=_SOCKET,
    ),
    _net(
        r"client socket has timed out after .* while trying to connect to \((?P<host>[^,]+), (?P<port>\d+)\)",
        "net-master-unreachable net-master-refused",
        weight=LIKELY,
        source=_SOCKET,
        unless=rf"connect to \({_LOOPBACK}",
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
    ),
    _net(r"Ping failed, invalid value returned from server", "env-port-speaks-http net-port-in-use", source=_PING),
    # Names.
    _net(
        r"host not found: (?:Name or service not known|Temporary failure|No address|nodename)",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        source=_GETADDRINFO,
        near=_KUBERNETES,
    ),
    _net(
        r"host not found: (?:Name or service not known|Temporary failure|No address|nodename)",
        "env-master-addr-unresolvable k8s-dns-not-ready",
        source=_GETADDRINFO,
        unless=_KUBERNETES,
    ),
    _net(
        r"IPv4 network addresses of \((?P<host>[^,]+), (?P<port>\d+)\) cannot be retrieved",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        source=_SOCKET,
        near=_KUBERNETES,
    ),
    _net(
        r"IPv4 network addresses of \((?P<host>[^,]+), (?P<port>\d+)\) cannot be retrieved",
        "env-master-addr-unresolvable torchrun-fqdn-unreachable",
        source=_SOCKET,
        unless=_KUBERNETES,
    ),
    _net(
        r"IPv6 network addresses of \((?P<host>[^,]+), (?P<port>\d+)\) cannot be retrieved \(gai error: -(?:2|3)\b",
        "env-master-addr-unresolvable torchrun-fqdn-unreachable",
        weight=LIKELY,
        source=_SOCKET,
        unless=_KUBERNETES,
    ),
    _net(
        r"IPv6 network addresses of \((?P<host>[^,]+), (?P<port>\d+)\) cannot be retrieved \(gai error: -(?:2|3)\b",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        weight=LIKELY,
        source=_SOCKET,
        near=_KUBERNETES,
    ),
    _net(
        r"IPv6 network addresses of .* cannot be retrieved \(gai error: (?:-9|11001)",
        "net-ipv4-ipv6-mixed",
        weight=NOISE,
        source=_SOCKET,
    ),
    _net(r"hostname of the client socket cannot be retrieved", "net-reverse-dns-slow", weight=NOISE, source=_SOCKET),
    _net(
        r"gaierror: \[Errno -?\d+\]",
        "host-own-name-unresolvable net-hostname-loopback",
        source=_GETADDRINFO,
        near=r"gethostbyname\(|gethostname\(|getfqdn",
    ),
    _net(
        r"gaierror: \[Errno -?\d+\]",
        "env-master-addr-unresolvable",
        source=_GETADDRINFO,
        unless=r"gethostbyname\(|gethostname\(|getfqdn",
    ),
    _net(
        r"Temporary failure in name resolution",
        "env-master-addr-unresolvable net-dns-unstable",
        weight=SYMPTOM,
        source=_GETADDRINFO,
        unless=r"gaierror|ssh: ",
    ),
    _net(
        r"Name or service not known",
        "env-master-addr-unresolvable",
        weight=SYMPTOM,
        source=_GETADDRINFO,
        unless=r"gaierror|ssh: |host not found:|cannot be retrieved",
    ),
    # Gloo.
    _net(
        r"Unable to resolve hostname to a \(local\) address",
        "net-hostname-loopback host-own-name-unresolvable",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
    ),
    _net(
        r"makeDeviceForHostname\(\): unsupported gloo device",
        "host-own-name-unresolvable net-hostname-loopback",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/GlooDeviceFactory.cpp",
    ),
    _net(
        r"makeDeviceForInterface\(\): unsupported gloo device",
        "net-gloo-ifname-wrong",
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/GlooDeviceFactory.cpp",
    ),
    _net(
        r"Unable to find address for: (?P<interface>" + _INTERFACE + ")",
        "net-gloo-ifname-wrong",
        source=_GLOO_DEVICE,
    ),
    _net(
        rf"Unable to find address for: (?!{_INTERFACE})",
        "host-own-name-unresolvable net-gloo-ifname-wrong",
        source=_GLOO_DEVICE,
    ),
    _net(r"Unable to find interface for: ", "host-own-name-unresolvable net-hostname-wrong-nic", source=_GLOO_DEVICE),
    _net(r"ss1\.ss_family == ss2\.ss_family", "net-ipv4-ipv6-mixed", source=_GLOO_PAIR),
    _net(
        r"Gloo connectFullMesh failed",
        "net-hostname-loopback net-gloo-ifname-wrong",
        weight=LIKELY,
        source=_GLOO_PAIR,
        near=r"remote=\[?127\.|Connect(?:ion)?\S* .{0,20}127\.0\.[01]\.1",
    ),
    _net(
        r"Gloo connectFullMesh failed",
        "net-hostname-wrong-nic net-gloo-ifname-wrong",
        weight=LIKELY,
        source=_GLOO_PAIR,
        near=r"remote=\[?172\.(?:17|18)\.",
    ),
    _net(
        r"Gloo connectFullMesh failed", "net-ipv6-link-local", weight=LIKELY, source=_GLOO_PAIR, near=r"remote=\[?fe80:"
    ),
    _net(
        r"Gloo connectFullMesh failed",
        "net-firewall-ephemeral net-hostname-wrong-nic net-gloo-ifname-wrong",
        weight=SYMPTOM,
        source=_GLOO_PAIR,
        unless=r"remote=\[?(?:127\.|172\.1[78]\.|fe80)",
    ),
    # What the survivors see.
    _net(
        r"Connection closed by peer",
        weight=CONSEQUENCE,
        source=_GLOO_PAIR,
        says="A rank lost its connection to another rank, which ended first. The cause is in the log of the other rank.",
    ),
    _net(
        r"Connection reset by peer",
        weight=CONSEQUENCE,
        source=_GLOO_PAIR,
        says="A rank lost its connection to another rank, which ended first. The cause is in the log of the other rank.",
    ),
    _net(
        r"Broken pipe",
        weight=CONSEQUENCE,
        source=_ERRNO,
        says="A rank wrote to another process that had ended. The cause is in the log of that process.",
    ),
    _net(
        r"RendezvousClosedError",
        weight=CONSEQUENCE,
        source=_C10D,
        says="The agents' rendezvous was closed because another agent ended. The cause is in the log of that agent.",
    ),
    _net(
        r"(?:recv|send|recvValue|sendBytes).{0,60}Connection was likely closed",
        weight=CONSEQUENCE,
        source=_SOCKET,
        says="A rank lost its connection to rank 0, which ended first. The cause is in the log of rank 0.",
    ),
    _net(
        r"failed to recv, got \d bytes",
        weight=CONSEQUENCE,
        source=_SOCKET,
        says="A rank lost its connection to rank 0, which ended first. The cause is in the log of rank 0.",
    ),
    _net(r"connect \[127\.\S+: Connection refused", "net-hostname-loopback net-gloo-ifname-wrong", source=_GLOO_PAIR),
    _net(r"Connect timeout \[127\.", "net-hostname-loopback net-gloo-ifname-wrong", source=_GLOO_PAIR),
    _net(r"connect \[172\.1[78]\.\S+: ", "net-hostname-wrong-nic net-gloo-ifname-wrong", source=_GLOO_PAIR),
    _net(
        r"connect \[(?!127|172\.1[78])\S+: (?:Connection refused|No route|Connection timed out)",
        "net-firewall-ephemeral net-hostname-wrong-nic",
        weight=LIKELY,
        source=_GLOO_PAIR,
    ),
    _net(
        r"Connect timeout \[(?!127)", "net-firewall-ephemeral net-hostname-wrong-nic", weight=LIKELY, source=_GLOO_PAIR
    ),
    _net(r"\bport\b.{0,40}\balready (?:in use|used|occupied|bound|allocated)", _TAKEN, source=_ERRNO),
    _net(
        r"Cannot assign requested address",
        "env-master-addr-not-rank0-host net-bind-failed",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=r"failed to connect to",
    ),
    _net(r"ConnectionRefusedError", "net-master-refused net-master-unreachable", weight=SYMPTOM, source=_ERRNO),
    _net(
        r"No route to host",
        "net-master-unreachable net-firewall-ephemeral",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=r"ssh: |failed to connect to|connect to \S+<",
    ),
    _net(
        r"Network is unreachable",
        "net-master-unreachable net-ipv4-ipv6-mixed",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=r"ssh: |failed to connect to|connect to \S+<|ibv_",
    ),
    _net(
        r"Connection timed out",
        "net-master-unreachable net-firewall-ephemeral",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=r"ssh: |failed to connect to|connect to \S+<|ibv_",
    ),
    _net(
        r"connection refused",
        "net-master-refused net-master-unreachable",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=r"ssh: |failed to connect to|connect to \S+<|Gloo|call to connect|connect \[",
    ),
    _net(
        r"couldn't connect to 'https://huggingface",
        about="application",
        source="https://huggingface.co/docs/transformers/installation#offline-mode",
        says="The script could not download a file: load it before, or set HF_HUB_OFFLINE=1.",
    ),
    _net(
        r"Could not resolve host", "env-master-addr-unresolvable", weight=SYMPTOM, source=_GETADDRINFO, unless=r"ssh: "
    ),
    _net(
        r"device\.cc:\d+\] .*Name or service not known",
        "host-own-name-unresolvable net-hostname-loopback",
        source=_GLOO_DEVICE,
    ),
)
