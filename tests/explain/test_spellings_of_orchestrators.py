"""What is around a job: ssh, containers, Slurm, Kubernetes, batch systems, file servers, and other nodes."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        # ssh and what replaces it
        ('pdsh@master: gethostbyname("worker-1") failed', "launch-node-unreachable"),
        ("n2: rcmd: socket: Permission denied", "launch-node-unreachable"),
        ("pdsh@n1: Can't find module exec", "launch-failed"),
        ("paramiko.ssh_exception.AuthenticationException: Authentication failed.", "launch-node-unreachable"),
        ("asyncssh.misc.PermissionDenied: Permission denied", "launch-node-unreachable"),
        # containers
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "gpu-none-visible",
        ),
        ("FATAL:   container creation failed: mount /proc/self/fd/3 error", "launch-failed"),
        ("while mounting /data: mount source /data doesn't exist", "storage-path-missing"),
        ("[ERROR] No such file or directory: /images/pytorch.sqsh", "launch-failed"),
        # Slurm
        ("slurmstepd: error: execve(): python3: No such file or directory", "launch-probe-missing"),
        ("slurmstepd: error: execve(): ./a.out: No such file or directory", "launch-failed"),
        ("srun: error: Task launch for 1.0 failed on node n1: Unable to satisfy cpu bind request", "launch-failed"),
        ("srun: error: Task launch for 1.0 failed on node n1: Communication failure", "launch-node-unreachable"),
        ("KeyError: 'SLURM_STEP_NODELIST'", "slurm-no-srun"),
        # launchers
        ("ValueError: Please use `torchrun` or `accelerate launch` to run this script", "env-rank-unset"),
        ("RuntimeError: This script needs to be started with torchrun", "env-rank-unset"),
        ("ValueError: Using fsdp only works in distributed training.", "env-rank-unset"),
        ("ValueError: coordinator_address should be defined.", "env-rank-unset"),
        ("ValueError: MASTER_ADDR must be specified", "env-rank-unset"),
        ("ValueError: Requested more processes (4) than there are available slots (2)", "launch-failed"),
        # file servers
        ("nfs: server 10.0.0.9 not responding, still trying", "storage-hangs"),
        (
            "init_method='file:///nfs/init'\nn1:7:8 [0] NCCL WARN Connect to 10.3.1.2<217> failed : Connection refused",
            "net-file-rendezvous-nfs",
        ),
    ],
)
def test_the_layers_around_a_job_are_named(line, rule):
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ('Error from server (Forbidden): pods is forbidden: User "a" cannot list resource "pods"', "start-up"),
        ('admission webhook "validator.kubeflow.org" denied the request', "start-up"),
        ('MountVolume.SetUp failed for volume "data" : mount failed: exit status 32', "start-up"),
        ("docker: Error response from daemon: pull access denied for x", "start-up"),
        ("error: a program of the start script says so", "start-up"),
        ("ValueError: an error: of the script", "application"),
        ("[W launcher] python main.py -u -m deepspeed.launcher.launch --a=b --c=d /hostfile main.py --e", "start-up"),
        ("Failed, NCCL error plugin.cpp:183 'unknown result code'", "start-up"),
    ],
)
def test_a_refusal_of_the_layers_around_a_job_is_start_up_and_no_rule(line, about):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], about)


def test_probes_and_crash_loops_are_consequences():
    later = "Readiness probe failed: x\nCrashLoopBackOff\n"
    assert rules(f"{later}RuntimeError: CUDA error: invalid device ordinal\n")[0] == "env-local-rank-out-of-range"
    assert rules(later) == []


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        ("dial tcp: lookup job-launcher on 10.96.0.10:53: no such host", "k8s-dns-not-ready"),
        ("/usr/bin/orted: error while loading shared libraries: libimf.so: cannot open", "launch-failed"),
        ("mpirun: symbol lookup error: /lib/libopen-pal.so.40: undefined symbol: x", "launch-failed"),
        (
            "n2: ModuleNotFoundError: No module named 'x'\npdsh@n1: n2: ssh exited with exit code 1",
            "sw-packages-differ",
        ),
        (
            "n2: bash: a.sh: No such file or directory\npdsh@n1: n2: ssh exited with exit code 127",
            "command-file-missing",
        ),
        ("apsched: claim exceeds reservation's node-count", "launch-failed"),
        ("slurmstepd: error: Munge decode failed: Rewound credential", "host-clock-skew"),
        ("Exception: Python in worker has different version 3.7 than that in driver 3.8", "sw-python-differs"),
    ],
)
def test_what_a_launcher_finds_on_another_node_is_named(log, rule):
    assert rules(f"{HEALTHY}{log}\n")[0] == rule


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("mpirun noticed that process rank 2 with PID 0 on node n1 exited on signal 6 (Aborted).", "application"),
        ("mpirun detected that one or more processes exited with non-zero status, thus", "application"),
        ("mca_btl_tcp_endpoint_complete_connect] connect() to 172.17.0.1 failed: Connection refused (111)", "network"),
        ('munge: Error: Unable to access "/var/run/munge/munge.socket.2": No such file or directory', "start-up"),
        (
            "MPICH ERROR - Abort(-1): MPIDI_CRAY_init: GPU_SUPPORT_ENABLED is requested, but GTL is not linked",
            "start-up",
        ),
        ("Attempting to use an MPI routine before initializing MPICH", "application"),
        ("RuntimeError: Lightning can't create new processes if CUDA is already initialized.", "start-up"),
        ("ValueError: Invalid launcher type: torch", "start-up"),
        ("UncompletedJobError: Job 1 has not produced any output (state: TIMEOUT)", "process killed"),
        ("ModuleNotFoundError: No module named 'x'", "start-up"),
        ("bash: a.sh: No such file or directory", None),
    ],
)
def test_what_a_launcher_reports_of_its_ranks_blames_no_rule(line, about):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], about)
