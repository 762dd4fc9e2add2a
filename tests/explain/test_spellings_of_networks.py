"""Variables, names, paths and adapters, rule by rule: what other layers, versions and tools write of one fault."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, rules

NOT_RESOLVED = "cannot be retrieved (gai error: -2 - Name or service not known)."
TIMED_OUT = "The client socket has timed out after 600000ms while trying to connect to"
BRIDGES = "NCCL INFO NET/Socket : Using [0]bond0:10.0.0.1<0> [1]br-05ab815fa14e:172.19.0.1<0>"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        # a launcher that is missing, or another one
        (
            "AssertionError: DeepSpeed requires the LOCAL_RANK environment variable, it is set by x",
            "env-local-rank-unset",
        ),
        ("RuntimeError: Distributed finetune recipe should be run via a distributed launcher.", "env-rank-unset"),
        ("RuntimeError: Could not find 'SLURM_PROCID' in the SLURM environment, visit x", "slurm-no-srun"),
        ("RuntimeError: PyTorch distributed configuration should define env variables '['RANK']'", "env-rank-unset"),
        ("RuntimeError: This script must be launched with torchrun", "env-rank-unset"),
        ("ValueError: Did not find the environment variable `LSB_DJOB_RANKFILE`", "env-rank-unset"),
        ("KeyError: 'MV2_COMM_WORLD_LOCAL_RANK'", "env-rank-unset"),
        ("train.sh: line 3: MASTER_ADDR: parameter null or not set", "env-rank-unset"),
        ("RuntimeError: please indicate rank explicitly in dist_init method", "env-rank-unset"),
        # values
        (
            "ValueError: Error initializing torch.distributed using tcp:// rendezvous: port number missing",
            "env-rank-unset",
        ),
        ("RuntimeError: No rendezvous handler for localhost://", "env-master-addr-format"),
        (f"The IPv4 network addresses of (10.0.0.1:29500, 29500) {NOT_RESOLVED}", "env-master-addr-format"),
        (f"The IPv6 network addresses of (gpu[01-02], 29500) {NOT_RESOLVED}", "env-master-addr-format"),
        (f"The IPv6 network addresses of ($MASTER_ADDR, 29500) {NOT_RESOLVED}", "env-master-addr-format"),
        (f"{TIMED_OUT} (127.0.0.1:29500, 29516).", "env-master-addr-format"),
        ("ValueError: invalid literal for int() with base 10: '4(x2)'", "env-not-integer"),
        ("[INFO] [runner.py:417:main] Using IP address of  for node n0", "env-empty-string"),
        ("scontrol: error: host list is empty", "env-empty-string"),
        (f"TORCHELASTIC_USE_AGENT_STORE=True\n{TIMED_OUT} (n1, 29500).", "env-torchelastic-leak"),
        # local ranks
        ("RuntimeError: Invalid device string: 'cuda:None'", "env-local-rank-unset"),
        ("AssertionError: DP adjusted local rank 8 is out of bounds.", "env-local-rank-out-of-range"),
        ("    assert 0 <= local_rank < torch.cuda.device_count()\nAssertionError", "env-local-rank-out-of-range"),
        ("RuntimeError: LOCAL_RANK=4 but only 4 CUDA device(s) are visible.", "env-local-rank-out-of-range"),
        ("RuntimeError: local rank 9 exceeds visible devices=8", "env-local-rank-out-of-range"),
        ("ValueError: world size (12) is not divisible by local world size (8)", "env-local-world-size-inconsistent"),
        # ranks that do not come, or come twice
        ("DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/2", "env-rank-missing"),
        ("TimeoutError: [Rank 0] timed out waiting for workers", "env-rank-missing"),
        ("RuntimeError: Timeout waiting for key: 0 after 1800000 ms", "net-file-rendezvous-nfs"),
        # Slurm's variables, worlds, ports, empty values
        ("Exception: SLURM_JOB_NODELIST not set", "slurm-no-srun"),
        # frameworks that wait for others
    ],
)
def test_a_message_about_ranks_names_the_rule(text, rule):
    assert rules(f"{HEALTHY}{text}\n{HEALTHY}")[0] == rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        # proxies, and servers of another protocol
        ("last error: UNKNOWN: ipv4:10.0.0.1:8080: Trying to connect an http1.x server", "env-proxy-vars"),
        # names and connections
        ("Host n1 not found: 3(NXDOMAIN)", "env-master-addr-unresolvable"),
        (
            "TCP client failed to connect/validate to host localhost:29500 - retrying (try=0): Connection refused",
            "net-master-refused",
        ),
        (f"{BRIDGES}\nncclSystemError: System call (socket, malloc, munmap, etc) failed", "net-nccl-auto-wrong-iface"),
        ("  Message:    Did not find interface matching this subnet", "net-subnet-mismatch"),
        ("PermissionError: [Errno 13] Permission denied", ""),
        ("RuntimeError: Failed to listen on port 29500", "net-port-in-use"),
        ("RuntimeError: connect to 127.0.1.1:4321: Connection refused", "net-hostname-loopback"),
        ("[c10d] The hostname of the client socket cannot be retrieved. err=-3", "net-reverse-dns-slow"),
        # tools and the kernel
        # adapters
        ("rdma_context.cpp:1] Failed to register memory 0x7f: Cannot allocate memory [12]", "ib-fork-or-memlock"),
        ("rdma_context.cpp:1] Failed to register memory 0x7f: Bad address [14]", "gdr-module-missing"),
    ],
)
def test_a_message_about_networks_names_the_rule(text, rule):
    assert (rules(f"{HEALTHY}{text}\n{HEALTHY}") or [""])[0] == rule


@pytest.mark.parametrize(
    "text",
    [
        "INFO Port 5000 is already in use, trying port 5001",
        "[INFO] [runner.py:417:main] Using IP address of 10.0.0.1 for node n0",
        "10 packets transmitted, 10 received, 0% packet loss, time 9012ms",
        "RuntimeError: No rendezvous handler for tcp://",
        "ValueError: invalid literal for int() with base 10: 'abc'",
        "INFO local rank 0 needs less than 40 GB of GPU memory",
        "RuntimeError: Invalid device string: 'cuda:x'",
        BRIDGES,
        "\tstate:\t\t\tPORT_ACTIVE (4)",
        "Physical state: LinkUp",
        "max locked memory           (kbytes, -l) unlimited",
        "+ ulimit -l unlimited",
        "RuntimeError: eof (this error originated at tensorpipe/transport/uv/x.cc:1)",
        "ValueError: the interface was not found in the registry",
        "ERROR: requests to https://example.org failed: HTTP 403",
        "DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0",
        "curl: (28) Failed to connect to 10.0.0.1 port 80: Connection timed out",
        "ValueError: loss must be positive, world size 8",
        "ValueError: index 9 of the sport dataset is out of range",
        "WARNING: SLURM_NTASKS is 8 and WORLD_SIZE is 8",
        "AttributeError: 'NoneType' object has no attribute 'split'",
    ],
)
def test_a_similar_message_names_no_rule(text):
    assert rules(f"{HEALTHY}{text}\n{HEALTHY}") == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"The IPv4 network addresses of (n1.example, 29500) {NOT_RESOLVED}", "env-master-addr-unresolvable"),
        (f"{TIMED_OUT} (fd00::1, 29500).", "net-master-unreachable"),
        ("10 packets transmitted, 0 received, 100% packet loss, time 9012ms", "net-master-unreachable"),
        (" Port number 1 state is Down", "ib-port-down"),
        ("NCCL WARN Error: network IBext not found.", "nccl-net-name-invalid"),
        ("RuntimeError: LOCAL_WORLD_SIZE must be set", "env-rank-unset"),
    ],
)
def test_the_neighbour_of_a_message_keeps_its_rule(text, rule):
    assert rules(f"{HEALTHY}{text}\n{HEALTHY}")[0] == rule
