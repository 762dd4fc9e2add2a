"""Start-up, names, sockets, launchers and endings: the same fault in the words of several versions and layers."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        # torch's store, 1.8 to 2.13
        (
            "[W socket.cpp:401] [c10d] The server socket has failed to listen on [::]:47531 (errno: 98 - x).",
            "net-port-in-use",
        ),
        ("RuntimeError: Address already in use", "net-port-in-use"),
        (
            "DistStoreError: wait timeout after 60000ms, keys: /torch.rendezvous.j.0/torchelastic/role_info/0",
            "env-rank-missing",
        ),
        (
            "DistStoreError: wait timeout after 60000ms, keys: /torch.rendezvous.j.1/torchelastic/role_info/0",
            "elastic-join-blocked",
        ),
        ("port: 29500, useIpv6: false, code: -99, name: EADDRNOTAVAIL, message: x", "env-master-addr-not-rank0-host"),
        (
            "TCP client failed to connect/validate to host n1:29500 - timed out (try=1, timeout=60000ms): x",
            "net-master-unreachable",
        ),
        (
            "The client socket has timed out after 60s while trying to connect to 192.0.0.1:1234",
            "net-master-unreachable",
        ),
        (
            "The client socket has timed out after 60000ms while trying to connect to (n1, 1234).",
            "net-master-unreachable",
        ),
        ("ValueError: Port out of range 0-65535", "env-master-port-range"),
        ("ValueError: Port could not be cast to integer value as 'FREEPORT'", "env-not-integer"),
        ("The port number of the rendezvous endpoint 'n1:99999' must be an integer", "env-master-port-range"),
        (
            "ValueError: The hostname of the rendezvous endpoint 'http://n1:1' must be a dot-separated list",
            "env-master-addr-format",
        ),
        # names
        (
            "The IPv6 network addresses of ([fd00::1], 29500) cannot be retrieved (gai error: -2).",
            "env-master-addr-format",
        ),
        (
            "The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -2 - x).",
            "env-master-addr-unresolvable",
        ),
        (
            "The IPv6 network addresses of (n1, 53821) cannot be retrieved (gai error: -3 - x).",
            "host-own-name-unresolvable",
        ),
        (
            "The IPv6 network addresses of (job-master-0, 29500) cannot be retrieved (gai error: -2 - x).",
            "k8s-dns-not-ready",
        ),
        ("** server can't find job-master-0: NXDOMAIN", "k8s-dns-not-ready"),
        ("hostname: Name or service not known", "host-own-name-unresolvable"),
        # Gloo
        ("ifa != nullptr. Unable to find address for: ^lo,docker", "net-gloo-ifname-wrong"),
        (
            "Gloo connectFullMesh failed with [x] SO_ERROR: No route to host, remote=[10.0.0.7]:41",
            "net-firewall-ephemeral",
        ),
        (
            "Gloo connectFullMesh failed with [x] SO_ERROR: Connection refused, remote=[127.0.1.1]:41",
            "net-hostname-loopback",
        ),
        # variables and arguments
        ("KeyError: 'NODE_RANK'", "env-rank-unset"),
        ("ERROR: Could not consume arg: --local-rank=0", "launch-local-rank-arg"),
        (
            "RuntimeError: the new group's rank should be within the world_size set by init_process_group",
            "env-rank-out-of-range",
        ),
        # launchers
        ("FileNotFoundError: [Errno 2] No such file or directory: 'srun'", "launch-failed"),
        ("bash: python3: command not found", "launch-probe-missing"),
        ("srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE are mutually exclusive.", "launch-failed"),
        ("slurmstepd: error: execve(): train.sh: Permission denied", "launch-failed"),
        (
            "slurmstepd: error: couldn't chdir to `/home/x': No such file or directory: going to /tmp instead",
            "storage-path-missing",
        ),
        (
            "You set `devices=4` in Lightning, but the number of tasks per node `--ntasks-per-node=1`",
            "slurm-ntasks-vs-devices",
        ),
        ("RuntimeError: Using hostfile at h but host=n1 was not reachable via ssh.", "launch-node-unreachable"),
        ("ssh: Could not resolve hostname job-worker-0.job-worker: Name or service not known", "k8s-dns-not-ready"),
        (
            "[proxy:0:0@n1] HYDU_create_process: execvp error on file python (No such file or directory)",
            "launch-probe-missing",
        ),
        ("Your job failed to map. Either no mapper was available, or x", "launch-failed"),
        (
            "RuntimeError: Unable to find a set of common task-to-task communication interfaces: []",
            "net-subnet-mismatch",
        ),
        ("RuntimeError: Version mismatch: The cluster was started with:", "sw-packages-differ"),
        ("upstream connect error or disconnect/reset before headers. reset reason: x", "k8s-istio-sidecar"),
        # memory
        ("slurmstepd: error: Step 1.0 exceeded memory limit (9 > 8), being killed", "host-memory-low"),
        (
            "Memory on the node (IP: 10.0.0.1, ID: a) where the task (task ID: b) was running was 60GB",
            "host-memory-low",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: x",
            "host-memory-low",
        ),
        ("OSError: [Errno 12] Cannot allocate memory", "host-memory-low"),
        ("libgomp: Thread creation failed: Resource temporarily unavailable", "host-nproc-pids"),
    ],
)
def test_a_fault_is_named_in_the_words_of_each_version_and_layer(line, rule):
    assert rules(f"{HEALTHY}{line}\n{HEALTHY}")[0] == rule


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("worker_1 exited with code 137", "process killed"),
        ("srun: error: n1: task 3: Killed", "process killed"),
        ("Sending process 7 closing signal SIGHUP", "process killed"),
        ("MaxRetryError: Max retries exceeded with url: /x (Caused by [Errno 111] Connection refused)", "application"),
        ('RuntimeError: nnodes= is not in "MIN:MAX" format', "start-up"),
        ("ValueError: Hostname 'n9' not found in hostfile", "start-up"),
        ("salloc: error: Job submit/allocate failed: Invalid qos specification", "start-up"),
        ("Error: No available node types can fulfill resource request {'GPU': 2.0}", "start-up"),
        ("RuntimeError: use_libuv was requested but PyTorch was build without libuv support", "start-up"),
        ("[W TCPStore.cpp:106] sendBytes failed on SocketImpl(fd=67, remote=[x]:43145): Broken pipe", "application"),
        ("RuntimeError: Unable to connect to Redis at 10.0.199.179:6379 after 16 retries.", "network"),
        ("At least one pair of MPI processes are unable to reach each other for", "network"),
        ("WARNING: Open MPI accepted a TCP connection from what appears to be a another Open MPI process", "network"),
        ("[btl_tcp_endpoint.c:625] received unexpected process identifier [[58384,1],47]", "network"),
        ("WARNING: Open MPI failed to TCP connect to a peer MPI process.", "network"),
        ("Traceback (most recent call last):\nx.exc.BackendCompilerFailed: backend='inductor' raised:", "application"),
        ("hydra.errors.ConfigCompositionException", "application"),
        ("EOFError", "application"),
        ("start.sh: line 2: $'\\r': command not found", "start-up"),
        ("bash: ./train.sh: /bin/bash^M: bad interpreter: No such file or directory", "start-up"),
        ("etcd.EtcdKeyNotFound: Key not found : /torch/elastic/store", "start-up"),
        ('s.connect(("dns.google", 80))\nsocket.gaierror: [Errno -3] Temporary failure in name resolution', "network"),
        ("[launch.py:321:sigkill_handler] ['python', '-u', 'a.py'] exits with return code = 1", "application"),
        ("RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.6]:28048", "application"),
    ],
)
def test_what_no_rule_names_has_the_class_of_its_layer(line, about):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], about)


def test_only_the_lines_around_a_rendezvous_timeout_tell_why_the_nodes_did_not_meet():
    timeout = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
    warning = "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.\n"
    random_id = "config has no run_id, generated a random run_id: 1745\n"
    assert rules(timeout)[0] == "env-rank-missing"
    assert rules(warning + timeout)[0] == "torchrun-localhost-name-ambiguous"
    assert rules(f"torchrun --nnodes=2 --rdzv_endpoint=n1:29500 a.py\n{warning}{timeout}")[0] == "env-rank-missing"
    assert rules(random_id + timeout)[0] == "torchrun-rdzv-id-mismatch"
    assert rules(warning) == []


def test_a_missing_file_is_a_difference_between_nodes_only_where_there_are_several():
    missing = "node3: python: can't open file '/x/train.py': [Errno 2] No such file or directory\n"
    assert rules(f"mpirun -np 16 python /x/train.py\n{missing}")[0] == "command-file-missing"
    assert (rules(missing), found(missing).about) == ([], "application")


def test_a_download_that_fails_is_not_the_network_of_the_job():
    log = "requests/adapters.py\nsocket.gaierror: [Errno -2] Name or service not known\n"
    assert rules(log) == []
    assert (
        rules(log.replace("requests/adapters.py", "torch/distributed/rendezvous.py"))[0]
        == "env-master-addr-unresolvable"
    )


def test_the_counts_of_a_barrier_tell_missing_ranks_from_doubled_and_restarted_ones():
    barrier = "Timed out initializing process group in store based barrier on rank: 0, for key: k (world_size=4, {})\n"
    assert rules(barrier.format("worker_count=3, timeout=0:30:00"))[0] == "env-rank-missing"
    assert rules(barrier.format("num_workers_joined=3, timeout=0:30:00 error=x"))[0] == "env-rank-missing"
    doubled = barrier.format("worker_count=8, timeout=0:30:00")
    assert rules(doubled)[0] == "env-rank-duplicate"
    assert rules(f"INFO:torch.distributed.elastic.agent.server.api:x\n{doubled}")[0] == "elastic-restart-stale"


def test_a_file_that_serves_as_rendezvous_is_told_from_other_files():
    assert rules("RuntimeError: flock: Function not implemented\n")[0] == "net-file-rendezvous-nfs"
    assert rules("RuntimeError: open(/nfs/x): No such file or directory\n")[0] == "net-file-rendezvous-nfs"
    assert "net-file-rendezvous-nfs" not in rules("FileNotFoundError: [Errno 2] No such file or directory: '/nfs/x'\n")
    assert rules("dist.init_process_group('nccl', init_method='file:///nfs/x')\nOSError: No locks available\n")[0] == (
        "net-file-rendezvous-nfs"
    )


def test_a_script_that_was_started_without_its_launcher():
    assert rules("[INFO] Not using the DeepSpeed or dist launchers, attempting to detect MPI environment...\n") == []
    assert rules("in mpi_discovery\nModuleNotFoundError: No module named 'mpi4py'\n")[0] == "env-rank-unset"
    assert rules("ModuleNotFoundError: No module named 'mpi4py'\n") == []
    assert rules("AssertionError: this script must be launched with torchrun\n")[0] == "env-rank-unset"
    assert rules("FutureWarning: torch.distributed.launch is deprecated. Use torchrun.\n") == []


@pytest.mark.parametrize(
    "waited",
    [
        "Timed out initializing process group in store based barrier (world_size=4, worker_count=3, timeout=0:30:00)",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.",
        "[c10d] The client socket has timed out after 600s while trying to connect to (n1, 29500).",
    ],
)
def test_a_mistake_in_the_script_of_one_rank_is_told_from_the_others_that_wait_for_it(waited):
    mistake = "Traceback (most recent call last):\n  File \"train.py\", line 3, in build\nKeyError: 'hidden_size'\n"
    answered = found(f"{mistake}{waited}\n")
    assert (rules_of(answered), answered.about) == ([], "application")
    assert answered.telling.text == "KeyError: 'hidden_size'"
    assert rules(f"{waited}\n{mistake}") == rules(f"{waited}\n") != []
    assert rules(f"{mistake}RuntimeError: CUDA error: invalid device ordinal\n") != []


def test_a_service_beside_the_job_is_not_its_network():
    assert rules('  File "/x/visdom/__init__.py", line 720, in _send\nConnectionRefusedError: [Errno 111] x\n') == []
    assert (
        rules("redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.\n") == []
    )
    assert rules("Readiness probe failed: dial tcp 10.0.0.2:8080: connect: connection refused\n") == []
    assert rules("TensorBoard could not bind to port 6006, it was already in use\n") == []
    assert rules("ConnectionRefusedError: [Errno 111] Connection refused\n") != []
