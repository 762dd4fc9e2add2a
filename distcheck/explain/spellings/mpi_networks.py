"""How processes of MPI reach one another, and what MPI says of a program: Open MPI's TCP, UCX, PSM and error classes.

Words: help-mpi-btl-tcp.txt, help-oob-tcp.txt and btl_tcp_endpoint.c of Open MPI 1.4 to 5.0; errnames.txt of MPICH.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, SYMPTOM, told

_TCP = "https://github.com/open-mpi/ompi/blob/main/opal/mca/btl/tcp/help-mpi-btl-tcp.txt"
_ENDPOINT = "https://github.com/open-mpi/ompi/blob/main/opal/mca/btl/tcp/btl_tcp_endpoint.c"
_OOB = "https://github.com/open-mpi/ompi/blob/v4.1.x/orte/mca/oob/tcp/help-oob-tcp.txt"
_PEER = "https://github.com/open-mpi/ompi/blob/v4.1.x/orte/mca/oob/tcp/oob_tcp_connection.c"
_UCX = "https://openucx.readthedocs.io/en/master/faq.html"
_PSM = "https://github.com/cornelisnetworks/opa-psm2/blob/master/psm.c"
_CLASSES = "https://github.com/open-mpi/ompi/blob/main/ompi/errhandler/errhandler_predefined.c"
_MPICH = "https://github.com/pmodels/mpich/blob/main/src/mpi/errhan/errnames.txt"
_MPIRUN = "https://github.com/openpmix/prrte/blob/master/src/tools/prte/help-prun.txt"
_net = partial(told, about="network")
_app = partial(told, about="application")
_BRIDGE = r"(?:127\.|172\.1[78]\.|192\.168\.122\.|10\.88\.|fe80)"
"""Addresses that several nodes have alike: loopback, docker0, virbr0, podman0."""
_CLOSED = "net-firewall-ephemeral net-subnet-mismatch"
_NAME_ONE = "Name the network that all nodes share with -mca btl_tcp_if_include and -mca oob_tcp_if_include."
_ALIKE = f"MPI tries an address that exists on every node, as that of docker0 or virbr0. {_NAME_ONE}"
_UNKNOWN_ADDRESS = f"A process connected from an address that it had not announced, so MPI drops it. {_NAME_ONE}"
_OTHER_PEER = "Something that is not this Open MPI connected: another version on a node, or a port scanner."
_NO_NETWORK = "A value of btl_tcp_if_include, oob_tcp_if_include or their exclude lists names no network of this node."
_LOST = (
    "A process of MPI lost its connection to another one, which ended first. The cause is in the lines of that process."
)
_NO_ENDPOINT = (
    "The Omni-Path or PSM3 adapter cannot be opened, or has no free context. Use another fabric: FI_PROVIDER=tcp."
)
_WRONG_CALL = "The program calls MPI with wrong arguments, or its ranks call it with other sizes or in another order."
_RETURNED = "A rank failed. The cause is in the lines of that rank before this report."

SPELLINGS = (
    # Open MPI over TCP.
    _net(r"detected an inbound MPI TCP connection request", weight=LIKELY, source=_TCP, says=_UNKNOWN_ADDRESS),
    _net(r"dropped inbound connection", weight=SYMPTOM, source=_TCP, says=_UNKNOWN_ADDRESS),
    _net(r"received an inbound socket connection from a", weight=LIKELY, source=_TCP, says=_OTHER_PEER),
    _net(r"failed to handshake with a connecting peer", weight=SYMPTOM, source=_TCP, says=_OTHER_PEER),
    _net(  # each node lacks another one of the networks
        r"invalid value was given for (?:btl|oob)_tcp_if_include",
        "net-subnet-mismatch",
        source=_TCP,
        near=r"Value:\s+(\S+/\d+)\s[\s\S]{0,900}Value:\s+(?!\1\s)\S+/\d+\s",
    ),
    _net(
        r"invalid value was given for (?:btl|oob)_tcp_if_(?:include|exclude)",
        weight=LIKELY,
        source=_TCP,
        says=_NO_NETWORK,
    ),
    _net(r"None of the TCP networks specified to be included", source=_OOB, says=_NO_NETWORK),
    _net(r"networks to be excluded for TCP out-of-band", source=_OOB, says=_NO_NETWORK),
    _net(r"specified network is not parseable", source=_OOB, says=_NO_NETWORK),
    _net(r"One or more TCP routes were given to a process", "net-subnet-mismatch net-firewall-ephemeral", source=_OOB),
    _net(
        r"unable to complete a TCP connection",
        "net-firewall-ephemeral net-hostname-wrong-nic",
        source=_PEER,
        near=r"process or daemon",
        unless=rf"Remote host:\s+{_BRIDGE}",
    ),
    _net(r"unable to complete a TCP connection", source=_PEER, near=rf"Remote host:\s+{_BRIDGE}", says=_ALIKE),
    _net(
        r"accept\(3\) system call failed on a TCP socket",
        "host-nofile net-open-files",
        weight=LIKELY,
        source=_TCP,
    ),
    _net(
        rf"connect\(\) to {_BRIDGE}\S* failed: ", weight=LIKELY, source=_ENDPOINT, near=r"btl_tcp|btl:tcp", says=_ALIKE
    ),
    _net(
        rf"connect\(\) to (?!{_BRIDGE})\S+ failed: (?:No route|Connection (?:timed out|refused)|Network is unreach|Host is)",
        _CLOSED,
        weight=LIKELY,
        source=_ENDPOINT,
        near=r"btl_tcp|btl:tcp",
    ),
    _app(r"btl_tcp_\w+\.c\S* .*readv? failed: ", weight=CONSEQUENCE, source=_ENDPOINT, says=_LOST),
    _app(r"MPI communication peer process has unexpectedly disconnected", weight=CONSEQUENCE, source=_TCP, says=_LOST),
    # UCX and PSM.
    _net(
        r"ucp_ep_create\(.*failed: Destination is unreachable",
        weight=LIKELY,
        source=_UCX,
        says="UCX has no transport to the other side. Compare UCX_TLS and UCX_NET_DEVICES on the nodes.",
    ),
    _app(r"UCX +ERROR .*(?:recv|send|readv?)\S* failed: ", weight=CONSEQUENCE, source=_UCX, says=_LOST),
    _net(
        r"\bPSM[23]? can't open \w+ unit",
        "ib-device-not-openable",
        weight=LIKELY,
        source=_PSM,
    ),
    *(
        _net(words, weight=LIKELY, source=_PSM, says=_NO_ENDPOINT)
        for words in (
            r"PSM[23]? was unable to open an endpoint",
            r"PSM[23]? could not set up communication endpoints",
        )
    ),
    # What MPI says of the program.
    _app(
        r"MPI_ERR_(?:TRUNCATE|COUNT|TYPE|BUFFER|OP|ROOT|TAG|ARG|COMM|RANK)\b",
        weight=LIKELY,
        source=_CLASSES,
        says=_WRONG_CALL,
    ),
    _app(
        r"Fatal error in P?MPI_\w+: (?:Message truncated|Invalid \w+|Wrong |Null )",
        weight=LIKELY,
        source=_MPICH,
        says=_WRONG_CALL,
    ),
    _app(
        r"Fatal error in P?MPI_Init(?:_thread)?: ",
        about="start-up",
        weight=CONSEQUENCE,
        source=_MPICH,
        says="MPI could not start. The lines below this one say why.",
    ),
    _app(
        r"Fatal error in P?MPI_(?!Init)\w+: (?!Message truncated|Invalid \w+|Wrong |Null )",
        weight=CONSEQUENCE,
        source=_MPICH,
        says="A call of MPI failed. The lines below this one say why.",
    ),
    _app(r"function was called before MPI_INIT was invoked", weight=LIKELY, source=_CLASSES, says=_WRONG_CALL),
    _app(r"to use an MPI routine before initializing MPI", weight=LIKELY, source=_MPICH, says=_WRONG_CALL),
    _app(r"use an MPI routine after finalizing MPI", weight=SYMPTOM, source=_MPICH, says=_WRONG_CALL),
    # How mpirun ends.
    _app(r"Primary job\s+terminated normally, but", weight=CONSEQUENCE, source=_MPIRUN, says=_RETURNED),
    _app(r"processes exited with non-zero status, thus causing", weight=CONSEQUENCE, source=_MPIRUN, says=_RETURNED),
    _app(r"BAD TERMINATION OF ONE OF YOUR APPLICATION", weight=CONSEQUENCE, source=_MPIRUN, says=_RETURNED),
    _app(r"one of the processes terminated badly; aborting", weight=CONSEQUENCE, source=_MPIRUN, says=_RETURNED),
)
