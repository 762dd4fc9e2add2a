"""Names of hosts: what getaddrinfo's errors become in torch, Python, glibc's tools and launchers."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, NOISE, SYMPTOM, told

_SOCKET = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp"
_GETADDRINFO = "https://man7.org/linux/man-pages/man3/gai_strerror.3.html"
_ENDPOINT = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/utils.py"
_URLLIB3 = "https://github.com/urllib3/urllib3/blob/main/src/urllib3/exceptions.py"
_IDNA = "https://docs.python.org/3/library/codecs.html#module-encodings.idna"
_net = partial(told, about="network")
_KUBERNETES = (
    r"\.svc\b|kubernetes|kubectl|kubeflow|pytorchjob|\bpod\b|\bpods\b|volcano|vcjob|-(?:master|worker|launcher)-\d"
)
_NO_SUCH = (
    r"(?:Name or service not known|Temporary failure|No address|nodename|Name does not resolve|Unknown host|Try again)"
)
_OF = r"network addresses of \((?P<host>[^,]+), (?P<port>\d+)\) cannot be retrieved"
_CHOSEN = r"network addresses of \((?P<host>[^,]+), (?P<port>(?:3[3-9]|[45]\d|6[0-5])\d{3})\) cannot be retrieved"
"""A port in the ephemeral range was chosen by torchrun, and so was the name: its agent's own."""
_OWN = r"gethostbyname\(|gethostname\(|getfqdn|hostname --?[iIf]\b|hostname --(?:ip|fqdn|all-ip)"
WEB = r"urllib3|dns\.google|HTTPS?ConnectionPool|requests/|urlopen|http\.client|huggingface_hub/|wandb/|wandb: ERROR|Max retries exceeded|aiohttp|httpx|httpcore|websockets?[./]|botocore|s3fs|fsspec|mlflow|clearml|comet_ml|neptune|swanlab"
"""A download or a tracker, not the job's own network."""

SPELLINGS = (
    _net(
        r"network addresses of \((?P<host>\[[0-9a-f:]+\]|\s[^,]*|[^,]*\s|\w+://[^,]*|[^,()]*[/$\"'`@{}\[][^,()]*|[\w.-]+:\d{2,5}|[\w.-]+(?:,[\w.-]+)+|), \d",
        "env-master-addr-format env-master-addr-unresolvable",
        source=_SOCKET,
    ),
    _net(
        rf"host not found: {_NO_SUCH}",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        source=_GETADDRINFO,
        near=_KUBERNETES,
    ),
    _net(
        rf"host not found: {_NO_SUCH}",
        "env-master-addr-unresolvable k8s-dns-not-ready",
        source=_GETADDRINFO,
        unless=_KUBERNETES,
    ),
    _net(rf"IPv4 {_OF}", "k8s-dns-not-ready env-master-addr-unresolvable", source=_SOCKET, near=_KUBERNETES),
    _net(rf"IPv4 {_OF}", "env-master-addr-unresolvable torchrun-fqdn-unreachable", source=_SOCKET, unless=_KUBERNETES),
    _net(
        rf"IPv6 {_CHOSEN} \(gai error: (?:-2|-3)\b",
        "host-own-name-unresolvable torchrun-fqdn-unreachable env-master-addr-unresolvable",
        weight=LIKELY,
        source=_SOCKET,
        unless=_KUBERNETES,
    ),
    _net(
        rf"IPv6 {_OF} \(gai error: (?:-2|-3)\b",
        "env-master-addr-unresolvable torchrun-fqdn-unreachable",
        weight=LIKELY,
        source=_SOCKET,
        unless=rf"{_KUBERNETES}|IPv6 {_CHOSEN.replace('?P<host>', '').replace('?P<port>', '')}",
    ),
    _net(
        rf"IPv6 {_OF} \(gai error: (?:-2|-3)\b",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        weight=LIKELY,
        source=_SOCKET,
        near=_KUBERNETES,
    ),
    _net(  # macOS and Windows say it of every address without IPv6, and of a name that does not resolve
        rf"IPv6 {_CHOSEN} \(gai error: (?:8\b|11001)",
        "torchrun-fqdn-unreachable host-own-name-unresolvable env-master-addr-unresolvable",
        weight=HINT,
        source=_SOCKET,
    ),
    _net(
        r"IPv6 network addresses of .* cannot be retrieved \(gai error: (?:-9|8\b|11001)",
        "net-ipv4-ipv6-mixed",
        weight=NOISE,
        source=_SOCKET,
    ),
    _net(r"hostname of the client socket cannot be retrieved", "net-reverse-dns-slow", weight=HINT, source=_SOCKET),
    _net(
        r"hostname of the rendezvous endpoint '.*' must be",
        "env-master-addr-format",
        about="start-up",
        source=_ENDPOINT,
    ),
    _net(
        r"gaierror: ",
        weight=LIKELY,
        source="https://github.com/vllm-project/vllm/pull/3419",
        near=r"dns\.google",
        says="An inference server asks the DNS only to learn its own address. Set its variable for it: VLLM_HOST_IP.",
    ),
    _net(
        r"does not appear to be an IPv[46](?: or IPv[46])? address",
        "env-master-addr-format",
        about="start-up",
        source="https://github.com/python/cpython/blob/main/Lib/urllib/parse.py",
        near=r"rendezvous|init_process_group|TCPStore|tcp://",
    ),
    _net(r"encoding with 'idna' codec failed", "env-master-addr-format", source=_IDNA, unless=WEB),
    _net(
        r"gaierror: \[Errno -?\d+\]",
        "host-own-name-unresolvable net-hostname-loopback",
        source=_GETADDRINFO,
        near=_OWN,
        unless=WEB,
    ),
    _net(r"gaierror: \[Errno -?\d+\]", "env-master-addr-unresolvable", source=_GETADDRINFO, unless=rf"{_OWN}|{WEB}"),
    _net(
        r"^hostname: (?:Name or service not known|Temporary failure|Unknown host|No address)",
        "host-own-name-unresolvable net-hostname-loopback",
        source="https://man7.org/linux/man-pages/man1/hostname.1.html",
    ),
    _net(
        r"server can't find \S*(?:master|worker|launcher|\.svc)",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        source="https://github.com/kubeflow/trainer/blob/release-1.9/pkg/config/config.go",
    ),
    _net(
        r"lookup \S*(?:master|worker|launcher|\.svc)\S* .*no such host",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        source="https://pkg.go.dev/net#DNSError",
    ),
    _net(
        r"nc: bad address '\S*(?:master|worker|launcher|\.svc)",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        source="https://github.com/kubeflow/trainer/blob/release-1.9/pkg/config/config.go",
    ),
    _net(
        r"nslookup: can't resolve '\S*(?:master|worker|launcher|\.svc)",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        source="https://github.com/kubeflow/trainer/blob/release-1.9/pkg/config/config.go",
    ),
    _net(
        r"Temporary failure in name resolution",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        weight=SYMPTOM,
        source=_GETADDRINFO,
        near=_KUBERNETES,
        unless=rf"gaierror|ssh: |{WEB}",
    ),
    _net(
        r"Temporary failure in name resolution",
        "env-master-addr-unresolvable net-dns-unstable",
        weight=SYMPTOM,
        source=_GETADDRINFO,
        unless=rf"gaierror|ssh: |{WEB}|{_KUBERNETES}",
    ),
    _net(  # sudo goes on
        r"sudo: unable to resolve host",
        "host-own-name-unresolvable net-hostname-loopback",
        weight=HINT,
        source="https://github.com/sudo-project/sudo/blob/main/plugins/sudoers/sudoers.c",
    ),
    _net(
        r"nodename nor servname provided",
        "env-master-addr-unresolvable host-own-name-unresolvable",
        weight=SYMPTOM,
        source=_GETADDRINFO,
        unless=rf"gaierror|ssh: |host not found:|cannot be retrieved|{WEB}",
    ),
    _net(
        r"Name or service not known",
        "env-master-addr-unresolvable",
        weight=SYMPTOM,
        source=_GETADDRINFO,
        unless=rf"gaierror|ssh: |sudo: |host not found:|cannot be retrieved|{WEB}",
    ),
    _net(
        r"Could not resolve host",
        "env-master-addr-unresolvable",
        weight=SYMPTOM,
        source=_GETADDRINFO,
        unless=rf"ssh: |curl: |github|https?://|{WEB}",
    ),
    _net(
        r"Max retries exceeded with url",
        about="application",
        weight=LIKELY,
        source=_URLLIB3,
        says="The script could not download a file, or reach a tracker: the node may have no way to the internet.",
    ),
    _net(
        r"urlopen error \[Errno -?\d+\]",
        about="application",
        weight=LIKELY,
        source=_URLLIB3,
        says="The script could not download a file: the node may have no way to the internet.",
    ),
    _net(
        r"couldn't connect to 'https://huggingface",
        about="application",
        source="https://huggingface.co/docs/transformers/installation#offline-mode",
        says="The script could not download a file: load it before, or set HF_HUB_OFFLINE=1.",
    ),
)
