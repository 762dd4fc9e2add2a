"""How processes of other software than torch's store meet: MPI, Hydra, trackers, gRPC, ZeroMQ and frameworks."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        # Hydra: MPICH 1.3 to 4.3, Intel MPI, MVAPICH
        (
            "HYDU_sock_connect (utils/sock/sock.c:145): unable to get host address for head (4)",
            "env-master-addr-unresolvable",
        ),
        (
            '[proxy:0:1@n2] HYDU_sock_connect (sock.c:145): unable to connect from "n2" to "n1" (No route to host)',
            "net-firewall-ephemeral",
        ),
        ('[proxy:0:1@n2] x: unable to connect from "n2" to "n1" (Connection timed out)', "net-firewall-ephemeral"),
        (
            "[proxy:0:1@n2] main (pmip.c:183): unable to connect to server n1 at port 37471 (check for firewalls!)",
            "net-firewall-ephemeral",
        ),
        ("Error: node list format not recognized. Try using '-hosts=<hostnames>'.", "launch-failed"),
        (
            "[mpiexec@n1] check_exit_codes (demux.c:117): unable to run bstrap_proxy on n2 (pid 7, exit code 65280)",
            "launch-node-unreachable",
        ),
        (
            "[mpiexec@n1] Error: Unable to run bstrap_proxy on n2 (pid 7, exit code 256)",
            "launch-node-unreachable",
        ),
        (
            "[mpiexec@n1] HYDU_process_mfile_token (utils/args/args.c:296): token slots not supported at this time",
            "launch-failed",
        ),
        ("[mpiexec@n1] HYDU_parse_hostfile (args.c:319): unable to open host file: hosts", "launch-failed"),
        ("[mpiexec@n1] match_arg (utils/args/args.c:159): unrecognized argument map-by", "launch-failed"),
        ("unable to resolve host name to an address", "env-master-addr-unresolvable"),
        # Open MPI
        # trackers and RPC
        (
            "gethostbyname(socket.getfqdn()) failed... trying on hostname()\nTraceback (most recent call last):",
            "host-own-name-unresolvable",
        ),
        (
            'In initFromLoop at tensorpipe/transport/uv/listener.cc:126 "rv < 0: invalid argument"',
            "net-ipv6-link-local",
        ),
        (
            "mesh_service.cc:370 : Failed to meet rendezvous 'x': Trying to connect an http1.x server (14)",
            "env-proxy-vars",
        ),
        # frameworks
        (
            "DNS resolution failed for job-worker-1:2222: C-ares status is not ARES_SUCCESS",
            "env-master-addr-unresolvable",
        ),
    ],
)
def test_a_message_of_other_software_names_the_rule(text, rule):
    assert rules(f"{HEALTHY}{text}\n{HEALTHY}")[0] == rule


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("rank 1 unable to connect, no endpoint matches the netmask 10.37.0.0/255.255.0.0", "network"),
        ("[ch3:sock] rank 13 unable to connect to rank 12 using business card <port=1 description=x>", "network"),
        ("create_vni_context(2253).....: OFI endpoint open failed (ofi_init.c:2253:Input/output error)", "network"),
        ("Open MPI detected an inbound MPI TCP connection request from a peer", "network"),
        ("WARNING: An invalid value was given for btl_tcp_if_include.  This\nvalue will be ignored.", "network"),
        ("[n1][btl_tcp_frag.c:241:recv] mca_btl_tcp_frag_recv: readv failed: Connection reset by peer", "application"),
        ("Fatal error in PMPI_Bcast: Message truncated, error stack:", "application"),
        ("Fatal error in MPI_Send: Invalid rank, error stack:", "application"),
        ("Fatal error in PMPI_Init_thread: Other MPI error, error stack:", "start-up"),
        ("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "application"),
        ("connect to (failed): [localhost]\nSocket Connect Error:Invalid argument", "network"),
        ("zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.58:40043')", "start-up"),
        ("[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use", "start-up"),
    ],
)
def test_a_message_that_no_rule_names_has_its_class(text, about):
    answered = found(f"{HEALTHY}{text}\n{HEALTHY}")
    assert not rules_of(answered)
    assert answered.about == about


@pytest.mark.parametrize(
    "text",
    [
        "unable to get host address for read buffer",  # no line of Hydra
        "gethostbyname(socket.getfqdn()) worked",
        "OFI provider: tcp; OFI endpoint opened",
        "Failed to connect to the tracking server",
        "dataset is in use by another program",
        "HTTP proxy returned 200",
        "Worker uses 95% of its memory budget",
        "listening at port 37471 (no firewall)",
    ],
)
def test_near_misses_name_nothing(text):
    assert not rules(text)


def test_an_http_server_s_port_is_not_the_master_s():
    line = "[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use"
    assert not rules(line)
    assert rules("RuntimeError: Address already in use")[0] == "net-port-in-use"


def test_nccl_that_also_took_a_link_local_interface_is_told_from_a_closed_port():
    using = "NCCL INFO NET/Socket : Using [0]eno1:172.18.40.41<0>{}\n"
    failed = "NCCL INFO Call to connect returned Connection timed out, retrying\n"
    assert rules(using.format(" [1]veth2:fe80::380d%veth2<0>") + failed)[0] == "net-ipv6-link-local"
    assert rules(using.format("") + failed)[0] == "net-firewall-ephemeral"


def test_a_refused_connection_of_the_script_s_own_names_no_rule():
    trace = 'Traceback (most recent call last):\n  File "{}", line 3, in f\nConnectionRefusedError: [Errno 111] x\n'
    answered = found(trace.format("upload.py"))
    assert not rules_of(answered)
    assert answered.about == "application"
    assert rules(trace.format("torch/distributed/rendezvous.py"))[0] == "net-master-refused"
    assert rules("ConnectionRefusedError: [Errno 111] x")[0] == "net-master-refused"


@pytest.mark.parametrize(
    "text",
    [
        "INFO: port 6006 is busy, using 6007",
        "error: could not connect to host database",
        "only 3/8 processes finished",
        "KeyError: 'rank'",
        "KeyError: 'local_rank'",
    ],
)
def test_words_that_only_look_like_a_missing_rank_or_port_name_nothing(text):
    assert not rules(text)
