"""MPICH, MVAPICH and Intel MPI: their launcher Hydra, and the sockets and fabrics of their processes.

Words: src/pm/hydra of MPICH 1.3 to 4.3 (utils/sock/sock.c, pm/pmiserv, tools/bootstrap), which MVAPICH and Intel MPI took
over; i_hydra of Intel MPI 2019 and later; the errnames.txt of each channel.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_HYDRA = "https://github.com/pmodels/mpich/tree/main/src/pm/hydra"
_SOCK = "https://github.com/pmodels/mpich/blob/v3.3/src/pm/hydra/utils/sock/sock.c"
_PROXY = "https://github.com/pmodels/mpich/blob/v3.3/src/pm/hydra/pm/pmiserv/pmip.c"
_SLURM = "https://github.com/pmodels/mpich/tree/v3.3/src/pm/hydra/tools/bootstrap/external"
_PMI = "https://github.com/pmodels/mpich/blob/main/src/pmi/src/pmi_v1.c"
_CH3 = "https://github.com/pmodels/mpich/tree/main/src/mpid/ch3/channels"
_NETMASK = "https://learn.microsoft.com/powershell/high-performance-computing/mpi-environment-variables"
_OFI = "https://github.com/pmodels/mpich/blob/main/src/mpid/ch4/netmod/ofi/ofi_init.c"
_net = partial(told, about="network")
_start = partial(told, about="start-up")
_IN_HYDRA = r"hydra|HYDU?_|\[proxy:|\[mpiexec@|pmip?\.c"
_CLOSED = "net-firewall-ephemeral net-hostname-wrong-nic"
_REFUSED = "net-firewall-ephemeral net-hostname-loopback"
_UNREACHABLE = "launch-node-unreachable launch-failed"
_NO_ROUTE = (
    r"(?:No route to host|Connection timed out|Network is unreachable|Host is (?:down|unreachable)|Operation timed out)"
)
_PEER = "MPI could not reach a process on another node: its name, its address or a firewall is in the way. Name the network with -iface."
_LOST = "A process of MPI lost another one, which ended first. The cause is in the lines of that process."
_LOST_PROXY = "mpiexec lost its proxy on a node, or never reached it. The lines of that node tell why."
_NO_FABRIC = (
    "libfabric has no provider that works here. Set FI_PROVIDER=tcp, or load the libfabric that belongs to this MPI;"
    " within one node I_MPI_FABRICS=shm is enough."
)

SPELLINGS = (
    # Hydra's proxies connect to mpiexec, at a port that the kernel chose.
    _net(
        r"unable to get host address for (?P<host>[\w.-]+)",
        "env-master-addr-unresolvable host-own-name-unresolvable",
        source=_SOCK,
        near=_IN_HYDRA,
    ),
    _net(rf"unable to connect from \"\S+\" to \"(?P<host>\S+)\" \({_NO_ROUTE}", _CLOSED, source=_SOCK),
    _net(
        r"unable to connect from \"\S+\" to \"(?P<host>\S+)\" \(Connection refused",
        _REFUSED,
        weight=LIKELY,
        source=_SOCK,
    ),
    _net(r"at port \d+ \(check for firewalls!\)", _CLOSED, weight=SYMPTOM, source=_PROXY),
    # The processes connect to the process manager, by the host's own name: src/pmi/src/pmi_v1.c.
    _net(
        r"\[(?:unset|cli_\d+)\]: Unable to get host entry for (?P<host>\S+)",
        "host-own-name-unresolvable net-hostname-loopback",
        source=_PMI,
    ),
    _net(
        r"\[(?:unset|cli_\d+)\]: Unable to connect to (?P<host>\S+) on \d+",
        "net-hostname-wrong-nic host-own-name-unresolvable",
        weight=LIKELY,
        source=_PMI,
    ),
    _net(
        r"(?:get_sockaddr|MPL_get_sockaddr_iface|GetSockInterfaceAddr|gethostbyname)\b.*failed",
        "host-own-name-unresolvable net-hostname-loopback",
        weight=LIKELY,
        source=_PMI,
        near=r"MPI",
    ),
    # Hydra starts its proxies.
    _start(r"node list format not recognized", "launch-failed", source=_SLURM),
    _start(r"unable to run bstrap_proxy on (?P<host>[\w.-]+)", _UNREACHABLE, weight=LIKELY, source=_HYDRA),
    _start(r"unable to run proxy on (?P<host>[\w.-]+)", _UNREACHABLE, weight=LIKELY, source=_HYDRA),
    _start(  # a hostfile of Open MPI: node1 slots=8
        r"process_mfile_token \(.*token \S+ not supported", "launch-failed", source=_HYDRA
    ),
    _start(r"unable to open host ?file", "launch-failed", weight=LIKELY, source=_HYDRA, near=_IN_HYDRA),
    _start(r"match_arg \(.*unrecognized argument", "launch-failed", weight=LIKELY, source=_HYDRA),
    _start(r"_wait_for_\w+ \(\S+ ?\d*\): .*\berror\b", weight=CONSEQUENCE, source=_HYDRA, says=_LOST_PROXY),
    _start(r"control_cb \(.*assert \(!closed\) failed", weight=CONSEQUENCE, source=_HYDRA, says=_LOST_PROXY),
    _start(
        r"HYD_bstrap_setup \(.*error (?:waiting|setting)",
        weight=CONSEQUENCE,
        source=_HYDRA,
        says=_LOST_PROXY,
    ),
    # Sockets between the processes.
    _net(
        r"no endpoint matches the netmask",
        source=_NETMASK,
        says="MPICH_NETMASK (MPI's netmask) names a network in which the other node has no address.",
    ),
    _net(r"unable to connect to rank \d+ using business card", weight=LIKELY, source=_CH3, says=_PEER),
    _net(
        rf"Communication error with rank \d+(?:: )?{_NO_ROUTE}",
        _CLOSED,
        weight=LIKELY,
        source=_CH3,
    ),
    _net(
        r"Communication error with rank \d+: Connection refused",
        _REFUSED,
        weight=LIKELY,
        source=_CH3,
    ),
    _net(
        rf"Communication error with rank \d+(?!: Connection refused|(?:: )?{_NO_ROUTE})",
        about="application",
        weight=CONSEQUENCE,
        source=_CH3,
        says=_LOST,
    ),
    _net(r"unable to resolve host name to an address", "env-master-addr-unresolvable", weight=LIKELY, source=_CH3),
    # Fabrics.
    _net(r"OFI (?:addrinfo\(\)|(?:fi_|call )?getinfo(?:\(\))?) failed", weight=LIKELY, source=_OFI, says=_NO_FABRIC),
    _net(
        r"OFI (?:endpoint open|fabric|fi_open domain|domain open|event queue create|EP enable) failed",
        weight=SYMPTOM,
        source=_OFI,
        says=_NO_FABRIC,
    ),
    _net(r"no fabrics? providers? (?:found|available)", weight=LIKELY, source=_OFI, says=_NO_FABRIC),
    _net(
        r"OFI (?:poll|tagged \w+|\w+ send|send) failed",
        about="application",
        weight=CONSEQUENCE,
        source=_OFI,
        says=_LOST,
    ),
)
