"""What the kernel, ping, netcat, perftest and the tools of RDMA adapters write of a network, which users paste beside the job's log."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, HINT, LIKELY, SYMPTOM, told

_PING = "https://man7.org/linux/man-pages/man8/ping.8.html"
_NETCAT = "https://man.openbsd.org/nc"
_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_GETADDRINFO = "https://man7.org/linux/man-pages/man3/gai_strerror.3.html"
_WATCHDOG = "https://github.com/torvalds/linux/blob/master/net/sched/sch_generic.c"
_BONDING = "https://github.com/torvalds/linux/blob/master/drivers/net/bonding/bond_main.c"
_TCP = "https://github.com/torvalds/linux/blob/master/net/ipv4/tcp_input.c"
_MARTIAN = "https://github.com/torvalds/linux/blob/master/net/ipv4/route.c"
_NEIGHBOUR = "https://github.com/torvalds/linux/blob/master/net/core/neighbour.c"
_ADDRCONF = "https://github.com/torvalds/linux/blob/master/net/ipv6/addrconf.c"
_MLX5 = "https://github.com/torvalds/linux/tree/master/drivers/net/ethernet/mellanox/mlx5/core"
_PERFTEST = "https://github.com/linux-rdma/perftest/blob/master/src/perftest_resources.c"
_DEVINFO = "https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/examples/devinfo.c"
_IBSTAT = "https://github.com/linux-rdma/rdma-core/blob/master/infiniband-diags/ibstat.c"
_CMA = "https://github.com/linux-rdma/rdma-core/blob/master/librdmacm/cma.c"
_INIT = "https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/init.c"
_OPENIB = "https://github.com/open-mpi/ompi/blob/v4.1.x/opal/mca/btl/openib/help-mpi-btl-openib.txt"
_MODPROBE = "https://docs.nvidia.com/cuda/gpudirect-rdma/index.html"
_PERMISSION = "https://docs.python.org/3/library/socket.html"
_net = partial(told, about="network", weight=LIKELY)
_UNREACHABLE = "net-master-unreachable net-firewall-ephemeral"
_NONE = "ib-no-device-in-container ib-port-down"
_DOWN = "ib-port-down ib-rate-degraded"
_NIC = r"\b(?:eth|en|em|bond|net|ib|mlx|hsn)\w*"
_WEB = r"https?://|huggingface|github\.com|pypi\.org"

SPELLINGS = (
    # ping, netcat, telnet and resolvers' tools
    _net(r"[ ,](?:[1-9]|[1-9]\d)(?:\.\d+)?% packet loss", "net-packet-loss", source=_PING),
    _net(r"\bFrag(?:mentation)? needed and DF set", "net-mtu-mismatch-ip", weight=CAUSE, source=_PING),
    _net(r"local error: Message too long", "net-mtu-mismatch-ip", source=_PING),
    _net(r"sendmsg: Message too long", "net-mtu-mismatch-ip", source=_PING),
    _net(
        r"Error: \[Errno 90\] Message too long",
        "net-mtu-mismatch-ip",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=r"zmq|asyncio/queues",
    ),
    _net(r"timed out: Operation now in progress", _UNREACHABLE, source=_NETCAT, unless=_WEB),
    _net(r"^Ncat: TIMEOUT", _UNREACHABLE, source=_NETCAT),
    _net(r"Unable to connect to remote host: (?!Connection refused)", _UNREACHABLE, source=_NETCAT),
    _net(
        r"^Host \S+ not found: \d\((?:NXDOMAIN|SERVFAIL)\)",
        "env-master-addr-unresolvable",
        source="https://man.openbsd.org/host",
    ),
    _net(r"getent: .*(?:no such|not found)", "env-master-addr-unresolvable", weight=SYMPTOM, source=_GETADDRINFO),
    *(
        _net(words, "env-master-addr-unresolvable", weight=SYMPTOM, source=_GETADDRINFO, unless=_WEB)
        for words in (
            r"Name has no usable address",
            r"Non-recoverable failure in name resolution",
            r"No address associated with hostname",
            r"Name does not resolve",
            r"failed to connect to (?!\[?\]?:).*No such host is known",
        )
    ),
    _net(  # without an error code, as at the end of torch's attempts
        r"client socket has failed to connect to any network address of \(",
        "net-master-unreachable net-master-refused",
        weight=SYMPTOM,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/socket.cpp",
    ),
    # a rank that may not listen: the port is below 1024
    _net(
        r"PermissionError: \[Errno 13\]",
        "env-master-port-privileged net-bind-failed",
        source=_PERMISSION,
        trace=r"\.bind\(|server_bind|create_server|socketserver\.py",
    ),
    _net(
        r"\bbind(?:\(\))?: Permission denied",
        "env-master-port-privileged net-bind-failed",
        source=_PERMISSION,
        unless=r"ipcsocket|docker",
    ),
    # the kernel
    _net(r"NETDEV WATCHDOG: \S+ .*timed out", "net-nic-down-or-slow", source=_WATCHDOG),
    _net(rf"{_NIC}: (?:NIC )?Link is Down", "net-nic-down-or-slow", weight=HINT, source=_WATCHDOG),
    _net(r"link status definitely down for", "net-nic-down-or-slow", weight=SYMPTOM, source=_BONDING),
    _net(r"\b100\b.{1,4}Network is down", "net-nic-down-or-slow net-gloo-ifname-wrong", source=_ERRNO),
    _net(r"\bpossible SYN flooding on port", "net-somaxconn-backlog", source=_TCP, weight=SYMPTOM),
    _net(r"\bmartian source\b", "net-asymmetric-route", weight=HINT, source=_MARTIAN),
    _net(r"duplicate address \S+ (?:used by|detected)", "net-duplicate-ip", source=_ADDRCONF),
    *(
        _net(words, "net-duplicate-ip", weight=SYMPTOM, source=_ADDRCONF)
        for words in (r"\bDuplicate IP address\b", r"\bIP (?:address )?conflict\b", r"conflict detected for IP address")
    ),
    _net(r"mtu greater than device maximum", "net-mtu-mismatch-ip", source=_PING),
    _net(
        r"\blookup \S*(?:master|worker|launcher|\.svc)\S* on \S+:53: (?:server misbehaving|read udp|no such|dial udp|i/o timeout)",
        "k8s-dns-not-ready env-master-addr-unresolvable",
        source="https://pkg.go.dev/net#DNSError",
    ),
    _net(r"is using my IP address", "net-duplicate-ip", source=_ADDRCONF),
    _net(
        r"neighbou?r(?:: arp_cache: neighbor)? table overflow",
        source=_NEIGHBOUR,
        says="The kernel's table of neighbours (ARP) is full, so that new connections fail: raise net.ipv4.neigh.default.gc_thresh3.",
    ),
    _net(r"ADDRCONF\(NETDEV_UP\): (?:ib|hsn)\w*: link is not ready", _DOWN, weight=HINT, source=_ADDRCONF),
    _net(r"mlx[45]_core \S+ probe\b.*failed with error", "ib-hcas-differ ib-port-down", source=_MLX5),
    _net(
        r"probe of \S+ failed with error -\d+",
        "ib-hcas-differ ib-port-down",
        weight=SYMPTOM,
        source=_MLX5,
        near=r"mlx[45]_core",
    ),
    _net(r"Port module event\S* module \d+, (?:Cable error|Bad or shorted|High Temp|.*unplugged)", _DOWN, source=_MLX5),
    # perftest
    _net(r"Requested mtu is higher than active mtu", "net-mtu-mismatch-ib", weight=HINT, source=_PERFTEST),
    _net(
        r"Couldn't connect to (?P<host>[\w.-]+):(?P<port>\d+)",
        "net-master-refused net-master-unreachable",
        weight=SYMPTOM,
        source=_PERFTEST,
        unless=_WEB,
    ),
    # ibv_devinfo, ibstat, librdmacm
    _net(r"\bstate:\s+PORT_DOWN", "ib-port-down", weight=HINT, source=_DEVINFO),
    _net(r"\bstate:\s+PORT_(?:INIT|ARMED)", "ib-no-subnet-manager", weight=SYMPTOM, source=_DEVINFO),
    _net(r"Physical state: (?:Disabled|Polling|Sleep)", "ib-port-down", weight=HINT, source=_IBSTAT),
    _net(
        r"\bState: (?:Initializing|Armed)\b",
        "ib-no-subnet-manager",
        weight=SYMPTOM,
        source=_IBSTAT,
        near=r"Physical state: LinkUp",
    ),
    _net(
        r"Port number \d+ state is (?:Init|Armed)", "ib-no-subnet-manager ib-port-down", weight=CAUSE, source=_PERFTEST
    ),
    _net(r"sminfo: iberror: ", "ib-no-subnet-manager ib-port-down", source=_IBSTAT),
    _net(r"can't open UMAD port", "ib-no-device-in-container ib-device-not-openable", weight=SYMPTOM, source=_IBSTAT),
    _net(r"stat of IB device '\S+' failed", _NONE, source=_IBSTAT),
    _net(r"Failed to get IB devices list", _NONE, source=_DEVINFO),
    _net(r"ibv_get_device_list(?:\(\))? (?:failed|returned)", _NONE, source=_INIT),
    _net(r"(?:librdmacm|CMA): (?:Fatal: )?no RDMA devices found", _NONE, weight=HINT, source=_CMA),
    _net(r"(?:librdmacm|CMA): (?:Fatal: )?unable to (?:get|open) RDMA device", _NONE, weight=CAUSE, source=_CMA),
    _net(r"couldn't read uverbs ABI version", "ib-no-device-in-container", weight=HINT, source=_INIT),
    _net(r"libibverbs: Fatal: ", "ib-no-device-in-container", weight=HINT, source=_INIT),
    _net(r"no active ports detected", "ib-port-down ib-no-subnet-manager", weight=HINT, source=_OPENIB),
    _net(r"default subnet GID prefix was detected on more than one", "ib-subnet-differs", weight=HINT, source=_OPENIB),
    # modules
    _net(
        r"could not insert module \S*nv(?:idia)?[-_]peer_?mem",
        "gdr-module-missing sw-ofed-kernel",
        weight=CAUSE,
        source=_MODPROBE,
    ),
    *(
        _net(
            rf"{module}\w*: .*(?:error|fail|disagrees about version|Unknown symbol)",
            "gdr-module-missing sw-ofed-kernel",
            source=_MODPROBE,
        )
        for module in ("nvidia[-_]peermem", "nv_peer_mem")
    ),
)
