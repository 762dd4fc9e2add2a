"""What is empty, absent or closed: values of options, variables, torch, ssh servers, folders, names and networks."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of

DEVICES = "#   Rank  0 Pid   1688 on    {} device  0 [0x18] RTX\n#   Rank  1 Pid   1688 on    {} device  1 [0x3b] RTX\n"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("torchrun: error: argument --master-port/--master_port: invalid int value: 'abc'", "env-not-integer"),
        ("[runner.py:417:main] Using IP address of  for node ddp-0.ddp.svc.cluster.local", "env-empty-string"),
        (
            "cmd = pdsh -w a,b python -m deepspeed.launcher.launch --master_addr= --master_port=29500",
            "env-empty-string",
        ),
        ("train.sh: line 12: MASTER_ADDR: unbound variable", "env-rank-unset"),
        ("train.sh: 3: WORLD_SIZE: parameter not set", "env-rank-unset"),
        ("train.sh: line 3: SLURM_NODEID: unbound variable", "slurm-no-srun"),
        ("KeyError: KeyError'SLURM_PROCID'", "slurm-no-srun"),
        ("KeyError: KeyError('RANK')", "env-rank-unset"),
        ("RuntimeError: Could not find 'SLURM_PROCID' in the SLURM environment", "slurm-no-srun"),
        ("RuntimeError: Could not find 'OMPI_COMM_WORLD_RANK' in the OpenMPI environment", "env-rank-unset"),
        ("RuntimeError: please indicate world_size explicitly in dist_init method", "env-rank-unset"),
        ("ImportError: No module named torch", "sw-torch-missing"),
        ("node2: ModuleNotFoundError: No module named 'torch'", "sw-torch-missing"),
        ("/usr/bin/python: No module named torch.distributed", "sw-torch-missing"),
        ("/bin/bash: line 1: /usr/sbin/sshd: No such file or directory", "launch-node-unreachable"),
        ("Failed to start ssh.service: Unit ssh.service not found.", "launch-node-unreachable"),
        ("srun: error: slurm_receive_msgs: [[node3]:6818] failed: Socket timed out on send", "launch-node-unreachable"),
        ("Permissions 0644 for '/root/.ssh/id_rsa' are too open.", "launch-node-unreachable"),
        ("[unset]: Unable to get host entry for MAC-140753", "host-own-name-unresolvable"),
        ("OSError: [Errno 28] No space left on device: '/psm_1a2b3c'", "host-shm-too-small"),
        ("transport/nvls.cc:223 NCCL WARN Cuda failure 999 'unknown error'", "gpu-nvls-multicast-broken"),
    ],
)
def test_what_is_empty_or_absent_is_named(line, rule):
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


@pytest.mark.parametrize(
    "line",
    [
        "train.py: error: argument --lr: expected one argument",
        "train.py: error: argument --nproc_per_node: expected one argument",
        "torchrun: error: argument --nnodes: expected one argument",
        "Using IP address of 10.0.0.4 for node worker-0",
        "cmd = python -m deepspeed.launcher.launch --master_addr=10.0.0.4 --master_port=29500 train.py",
        "  rdzv_endpoint    : node1:29500",
        "train.sh: line 12: DATA_DIR: unbound variable",
        "RuntimeError: Could not find 'weight' in the given environment",
        "ModuleNotFoundError: No module named 'torch.distributed.run'",
        "ModuleNotFoundError: No module named 'torch.serialization'; 'torch' is not a package",
        "ModuleNotFoundError: No module named 'torchvision'",
        "PermissionError: [Errno 13] Permission denied: 'nvcc'",
        "PermissionError: [Errno 13] Permission denied: '/usr/bin/nvcc'",
        "bash: /opt/bin/train: Permission denied",
        "mkdir: cannot create directory '/run/sshd': Permission denied",
    ],
)
def test_neighbours_that_mean_something_else_name_no_rule(line):
    assert rules(f"{HEALTHY}{line}\n") == []


@pytest.mark.parametrize(
    ("host", "rule"),
    [
        ("/root/cuda11.8.bashrc", "env-master-addr-format"),
        ("node[1-2]", "env-master-addr-format"),
        ("node1,node2", "env-master-addr-format"),
        ("$MASTER_ADDR", "env-master-addr-format"),
        ('"10.0.0.1"', "env-master-addr-format"),
        ("10.0.0.1:29500", "env-master-addr-format"),
        ("node-1.cluster.local", "env-master-addr-unresolvable"),
        ("2001:db8::7", "env-master-addr-unresolvable"),
    ],
)
def test_the_master_of_a_failed_look_up_decides_whether_its_form_is_wrong(host, rule):
    line = f"[c10d] The IPv4 network addresses of ({host}, 29500) cannot be retrieved (gai error: -2 - Name or service)"
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


def test_an_own_name_that_does_not_resolve_on_macos_leads_only_if_nothing_else_failed():
    of = "[c10d] The IPv6 network addresses of (mac.local, 56412)"
    warning = f"[W socket.cpp:697] {of} cannot be retrieved (gai error: 8 - nodename)"
    assert rules(f"{HEALTHY}{warning}\n")[0] == "torchrun-fqdn-unreachable"
    assert rules(f"{HEALTHY}{warning}\nValueError: bad batch\n") == []
    assert rules(f"{HEALTHY}{warning.replace('56412', '29500')}\n") == []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/mnt/data/checkpoints/step_1'", "storage-read-only"),
        ("[Errno 13] Permission denied: '/opt/venv/flashinfer/cubins'", "storage-read-only"),
        ("[Errno 13] Permission denied:\n  '/usr/local/lib/flashinfer_cubin/cubins/flashinfer'", "storage-read-only"),
        ("mkdir: cannot create directory '/logs': Permission denied", "storage-read-only"),
        ("train.sh: line 4: /logs/out.txt: Permission denied", "storage-read-only"),
        (
            'SafetensorError: Error while serializing: Os { code: 13, kind: PermissionDenied, message: "P"',
            "storage-read-only",
        ),
        ("Error: EACCES: permission denied, mkdir '/data'", "storage-read-only"),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/bucket/x'", "storage-hangs"),
        ("ls: cannot access '/mnt/bucket': Transport endpoint is not connected", "storage-hangs"),
    ],
)
def test_a_folder_that_cannot_be_written_is_named_in_the_words_of_each_tool(line, rule):
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


def test_a_system_call_of_nccl_on_one_host_is_of_shared_memory_and_between_hosts_unknown():
    failure = "node1: Test NCCL failure common.cu:777 'unhandled system error'\n"
    assert rules(DEVICES.format("node1", "node1") + failure)[0] == "host-shm-too-small"
    assert rules(DEVICES.format("node1", "node2") + failure) == []


def test_a_system_call_of_nccl_beside_the_bridges_of_docker_is_of_the_interfaces():
    using = "node1:1:1 [0] NCCL INFO NET/Socket : Using [0]bond0:10.0.0.1<0> [1]{}:172.19.0.1<0>\nncclSystemError: x\n"
    assert rules(using.format("br-05ab815fa14e"))[0] == "net-nccl-auto-wrong-iface"
    assert rules(using.format("eth1")) == []


def test_networks_of_which_each_node_lacks_one_are_not_connected():
    warning = "An invalid value was given for oob_tcp_if_include.\nvalue will be ignored.\n  Value:      {}\n"
    both = warning.format("10.0.1.0/24") + warning.format("10.0.2.0/24")
    assert rules(both)[0] == "net-subnet-mismatch"
    assert rules(warning.format("10.0.1.0/24") * 2) == []


@pytest.mark.parametrize(("own", "rule"), [("172.16.89.194", "net-hostname-wrong-nic"), ("10.1.3.4", None)])
def test_a_ray_node_with_an_address_of_another_private_network_than_the_head(own, rule):
    log = f"LEADER_IP=10.1.227.0\nLocal node IP: {own}\nException: The current node timed out during startup\n"
    assert rules(log)[:1] == ([rule] if rule else [])


def test_a_rank_that_starts_alone_under_slurm_was_started_without_srun():
    start = "Multi-processing is handled by Slurm.\ninitializing ddp: GLOBAL_RANK: {}, MEMBER: {}/8\n"
    assert rules(start.format(0, 1))[0] == "slurm-no-srun"
    assert rules(start.format(0, 1) + start.format(1, 2)) == []
    assert not rules_of(found(start.format(0, 1) + "ZeroDivisionError: division by zero\n"))
