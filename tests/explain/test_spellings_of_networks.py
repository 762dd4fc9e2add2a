"""Variables, names, paths and adapters, rule by rule: what other layers, versions and tools write of one fault."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules

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
        ("RuntimeError: This script requires torchrun", "env-rank-unset"),
        ("ValueError: Did not find the environment variable `LSB_DJOB_RANKFILE`", "env-rank-unset"),
        ("KeyError: 'MV2_COMM_WORLD_LOCAL_RANK'", "env-rank-unset"),
        ("train.sh: line 3: MASTER_ADDR: parameter null or not set", "env-rank-unset"),
        ("ValueError: Couldn't find 'RANK' in environment", "env-rank-unset"),
        ("ValueError: world_size must be set", "env-rank-unset"),
        ("RuntimeError: please indicate rank explicitly in dist_init method", "env-rank-unset"),
        ("请设置环境变量 RANK", "env-rank-unset"),
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
        ("run.sh: line 5: 4(x2) * 8: syntax error: invalid arithmetic operator", "env-not-integer"),
        ("torchrun: error: argument --node-rank/--node_rank: invalid int value: ''", "env-empty-string"),
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
        ("RuntimeError: Wait timeout after 30 seconds for key(s): 0. You may want to increase x", "env-rank-missing"),
        ("TimeoutError: [Rank 0] timed out waiting for workers", "env-rank-missing"),
        ("ABORTED: Duplicate task registration with task_name=/job:worker/replica:0/task:0", "env-rank-duplicate"),
        ("RuntimeError: RPC worker name w1 is not unique. Workers 1 and 2 share the same name.", "env-rank-duplicate"),
        ("INVALID_ARGUMENT: Unexpected task registered with task_name=/job:x/task:4", "env-rank-out-of-range"),
        ("RuntimeError: Timeout waiting for key: 0 after 1800000 ms", "net-file-rendezvous-nfs"),
        # Slurm's variables, worlds, ports, empty values
        ("Exception: SLURM_JOB_NODELIST not set", "slurm-no-srun"),
        ("CalledProcessError: Command 'scontrol show hostname None | head -n1' returned x", "slurm-no-srun"),
        (
            "    hosts = os.environ.get('SLURM_NODELIST').split()\nAttributeError: 'NoneType' object has no attribute",
            "env-rank-unset",
        ),
        ("RuntimeError: world size must be positive", "env-world-size-zero-neg"),
        ("ValueError: Port 700000 out of range", "env-master-port-range"),
        ("ValueError: invalid port number 70000", "env-master-port-range"),
        ("ValueError: MASTER_ADDR is empty", "env-empty-string"),
        # frameworks that wait for others
        ("I master.cc:1] CreateSession still waiting for response from worker: /job:ps/task:0", "env-rank-missing"),
        ("not ready endpoints:['10.0.0.2:6071']", "env-rank-missing"),
    ],
)
def test_a_message_about_ranks_names_the_rule(text, rule):
    assert rules(f"{HEALTHY}{text}\n{HEALTHY}")[0] == rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        # proxies, and servers of another protocol
        ("last error: UNKNOWN: ipv4:10.0.0.1:8080: Trying to connect an http1.x server", "env-proxy-vars"),
        ("UNAVAILABLE: HTTP proxy returned response code 403", "env-proxy-vars"),
        ("requests.exceptions.ProxyError: HTTPConnectionPool(host='10.0.0.1'): x (ProxyError('x'", "env-proxy-vars"),
        ("http.client.BadStatusLine: SSH-2.0-OpenSSH_8.9", "env-port-speaks-http"),
        # names and connections
        ("UNAVAILABLE: Name resolution failed for target dns:n1:1234", "env-master-addr-unresolvable"),
        ("Host n1 not found: 3(NXDOMAIN)", "env-master-addr-unresolvable"),
        ("nc: connect to n1 port 29500 (tcp) timed out: Operation now in progress", "net-master-unreachable"),
        (
            "TCP client failed to connect/validate to host localhost:29500 - retrying (try=0): Connection refused",
            "net-master-refused",
        ),
        (
            "RuntimeError: ETIMEDOUT: timed out (this error originated at tensorpipe/transport/uv/x.cc:1)",
            "net-firewall-ephemeral",
        ),
        (
            "RuntimeError: ECONNREFUSED: connection refused (this error originated at tensorpipe/transport/uv/x.cc:1)",
            "net-hostname-loopback",
        ),
        ("UCX  ERROR connect(fd=67, dest_addr=10.0.0.2:53235) failed: Connection timed out", "net-firewall-ephemeral"),
        ("connect to [fe80::1%eth0]:2345: Invalid argument", "net-ipv6-link-local"),
        (f"{BRIDGES}\nncclSystemError: System call (socket, malloc, munmap, etc) failed", "net-nccl-auto-wrong-iface"),
        ("  Message:    Did not find interface matching this subnet", "net-subnet-mismatch"),
        ("ValueError: Network interface eth7 not found", "net-gloo-ifname-wrong"),
        ("E1 chttp2_server.cc:1: UNKNOWN:No address added out of total 1 resolved", "net-port-in-use"),
        ("PermissionError: [Errno 13] Permission denied", ""),
        (
            "  File x\n    sock.bind((host, port))\nPermissionError: [Errno 13] Permission denied",
            "env-master-port-privileged",
        ),
        ("错误: 端口已被占用", "net-port-in-use"),
        ("ValueError: NCCL_SOCKET_IFNAME eth1 is not a valid interface", "net-nccl-ifname-no-match"),
        ("RuntimeError: GLOO_SOCKET_IFNAME eth0 not found", "net-gloo-ifname-wrong"),
        ("RuntimeError: RDMA device mlx5_9 not found", "ib-hca-no-match"),
        ("RuntimeError: Failed to listen on port 29500", "net-port-in-use"),
        ("RuntimeError: connect to 127.0.1.1:4321: Connection refused", "net-hostname-loopback"),
        ("[LightGBM] [Fatal] Binding port 12400 failed", "net-port-in-use"),
        ("ERROR: Failed to connect to 10.0.0.1:20000: Connection timed out", "net-master-unreachable"),
        ("lookup job-master-0 on 10.96.0.10:53: server misbehaving", "k8s-dns-not-ready"),
        ("[c10d] The hostname of the client socket cannot be retrieved. err=-3", "net-reverse-dns-slow"),
        # tools and the kernel
        ("RTNETLINK answers: x\nError: mtu greater than device maximum.", "net-mtu-mismatch-ip"),
        ("10 packets transmitted, 7 received, 30% packet loss, time 9012ms", "net-packet-loss"),
        ("From 10.0.0.1 icmp_seq=1 Frag needed and DF set (mtu = 1450)", "net-mtu-mismatch-ip"),
        ("OSError: [Errno 100] Network is down", "net-nic-down-or-slow"),
        ("NETDEV WATCHDOG: eth0 (ixgbe): transmit queue 0 timed out", "net-nic-down-or-slow"),
        ("TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.", "net-somaxconn-backlog"),
        ("IPv6: eth0: IPv6 duplicate address fe80::1 used by 02:00:00:00:00:01 detected!", "net-duplicate-ip"),
        # adapters
        ("\tstate:\t\t\tPORT_DOWN (1)", "ib-port-down"),
        ("\tstate:\t\t\tPORT_INIT (2)", "ib-no-subnet-manager"),
        ("State: Initializing\nPhysical state: LinkUp", "ib-no-subnet-manager"),
        (" Port number 1 state is Init", "ib-no-subnet-manager"),
        ("librdmacm: Fatal: unable to open RDMA device", "ib-no-device-in-container"),
        ("Failed to get IB devices list: Function not implemented", "ib-no-device-in-container"),
        ("ls: cannot access '/dev/infiniband': No such file or directory", "ib-no-device-in-container"),
        ("rdma_context.cpp:1] Failed to register memory 0x7f: Cannot allocate memory [12]", "ib-fork-or-memlock"),
        ("rdma_context.cpp:1] Failed to register memory 0x7f: Bad address [14]", "gdr-module-missing"),
        ("RuntimeError: nvidia_peermem kernel module is not loaded", "gdr-module-missing"),
        ("insmod: ERROR: could not insert module nvidia-peermem.ko: Invalid parameters", "gdr-module-missing"),
        ("UCX  ERROR There is no valid pkey with full membership on mlx5_0:1", "ib-pkey"),
        ("mlx5_core 0000:5e:00.0: probe with driver mlx5_core failed with error -12", "ib-hcas-differ"),
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


def test_a_full_table_of_neighbours_is_a_fault_of_the_network():
    answer = found("neighbour: arp_cache: neighbor table overflow!\n")
    assert (answer.about, answer.causes) == ("network", ())
