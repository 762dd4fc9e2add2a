"""Steps of Slurm, MPI's launchers, logins, agents and pods: further messages of the same faults."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        # srun and slurmstepd
        ("srun: fatal: cpus-per-task set by two different environment variables SLURM_CPUS_PER_TASK=1 != ...",
         "launch-failed"),
        ("srun: error: MPI: Unable to load any plugin", "launch-failed"),
        ("slurmstepd: error: mpi/pmix_v3: can not load PMIx library", "launch-failed"),
        ("srun: error: Attempt to run a job step with more nodes than allocated", "launch-failed"),
        ("slurmstepd: error: namespace_g_join(1234): Invalid argument", "launch-failed"),
        ("slurmstepd: error: uid 1005 not found on system", "launch-failed"),
        ("slurmstepd: error: connect io: No route to host", "launch-failed"),
        ("slurmstepd: error: something that no table has", "launch-failed"),
        ("srun: error: something that no table has", "launch-failed"),
        ('srun: error: slurm_set_addr: Unable to resolve "node2"', "launch-node-unreachable"),
        ("srun: error: timeout waiting for task launch, started 0 of 8 tasks", "launch-node-unreachable"),
        ("srun: error: Aborting, io error and missing step on node 3", "launch-node-unreachable"),
        ("srun: error: Nodes node[3-4] are still not ready", "launch-node-unreachable"),
        ("Job launch failed on node gpu03: launch failed requeued held", "launch-node-unreachable"),
        ("exec /usr/local/bin/torchrun: no such file or directory", "launch-probe-missing"),
        ("node2: /usr/bin/python3: No module named deepspeed.launcher.launch", "launch-probe-missing"),
        ("srun: error: node1: task 3: Exited with exit code 127", "launch-probe-missing"),
        # MPI
        ("RuntimeError: could not connect to some hosts via ssh", "launch-node-unreachable"),
        # logins
        ("Connection closed by 10.0.0.2 port 2222", "launch-node-unreachable"),
        ("ssh_dispatch_run_fatal: Connection to 10.1.1.1 port 22: incorrect signature", "launch-node-unreachable"),
        ("The authenticity of host 'node2 (10.0.0.2)' can't be established.", "launch-node-unreachable"),
        ("/root/.ssh/config: terminating, 1 bad configuration options", "launch-node-unreachable"),
        ("pdsh@h: node2: mcmd: connect failed: Connection refused", "launch-node-unreachable"),
        ("clush: node2: exited with exit code 255", "launch-node-unreachable"),
        # arguments of launchers
        ("train.py: error: argument --local_rank: expected one argument", "launch-local-rank-arg"),
        ("Error: No such option '--local_rank'", "launch-local-rank-arg"),
        ("getopt.GetoptError: option --local-rank not recognized", "launch-local-rank-arg"),
        ("error: unexpected argument '--local-rank=0' found", "launch-local-rank-arg"),
        # tasks and nodes
        ("AssertionError: tasks-per-node must equal the number of GPUs", "slurm-ntasks-vs-devices"),
        ("RuntimeError: SLURM_PROCID is not set; did you launch with srun?", "slurm-no-srun"),
        ("[default] Detected 1 new nodes from group_rank=0; will restart worker group", "elastic-nodes-changed"),
        ("horovod.common.exceptions.HostsUpdatedInterrupt", "elastic-nodes-changed"),
        # pods
        ("response_code_details: filter_chain_not_found", "k8s-istio-sidecar"),
        ("RBAC: access denied", "k8s-istio-sidecar"),
        ("dial tcp: lookup job-worker-0.job on 10.96.0.10:53: no such host", "k8s-dns-not-ready"),
        ("Warning  UnexpectedAdmissionError  Allocate failed due to requested number of devices unavailable",
         "gpu-fewer-than-needed"),
    ],
)  # fmt: skip
def test_a_start_that_fails_is_named_in_further_words(line, rule):
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


@pytest.mark.parametrize(
    "line",
    [
        "sshd[12]: Connection closed by 10.0.0.2 port 50122 [preauth]",
        "Received disconnect from 10.0.0.2 port 22:11: disconnected by user",
        "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***",
        "srun: error: node1: task 3: Exited with exit code 1",
        "Namespace(local_rank=0, node_rank=0)",
        "SLURM_PROCID is not set, using the default 0",
        "Normal  Pulled  kubelet  Successfully pulled image",
    ],
)
def test_lines_that_are_like_these_and_blame_nothing_name_no_rule(line):
    assert rules(f"{HEALTHY}{line}\n") == []


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("0/3 nodes are available: 3 node(s) had untolerated taint", "start-up"),
        ("Multi-Attach error for volume pvc-1: Volume is already used by pod(s) a", "start-up"),
        ("Marking for deletion Pod default/train-0 by TaintManagerEviction", "process killed"),
        ("BackoffLimitExceeded", "application"),
    ],
)
def test_what_kubernetes_reports_without_a_rule_has_its_class(line, about):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], about)


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: data_parallel_size (3) * tensor_model_parallel_size (2) must equal world_size (8)",
    ],
)
def test_parallel_sizes_that_do_not_fit_the_ranks_are_named(line):
    assert rules(f"{HEALTHY}{line}\n")[0] == "mesh-size-mismatch"


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: batch size 12 must be divisible by data parallel size and number of GPUs 8",
        "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3).",
        "AssertionError: number of layers 30 is not divisible by pipeline parallel size 4",
        "ValueError: fsdp_size 8 is larger than world size 1",
        "tp_size 4, world size 8",
    ],
)
def test_sizes_of_the_model_and_a_lone_process_are_no_mesh(line):
    assert rules(f"{HEALTHY}{line}\n") == []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("AssertionError: MPI rank 3 does not match torch rank 0", "env-scheduler-disagrees"),
        ("ValueError: The node_rank must be less than the number of nodes.", "torchrun-nnodes-mismatch"),
        ('OCI runtime create failed: chdir to cwd ("/workspace") set in config.json failed', "storage-path-missing"),
        ("TimeoutError: [Errno 110] Connection timed out: '/fsx/x.pt'", "storage-hangs"),
        ("libceph: osd12 (1)10.0.0.3:6801 socket closed (con state OPEN)", "storage-hangs"),
        ("mmfs: [E] Disk lease expired in 10 seconds, lease overdue", "storage-hangs"),
        ("filelock.Timeout: The file lock '/home/u/.cache/x.lock' could not be acquired.", "storage-hangs"),
    ],
)  # fmt: skip
def test_ranks_and_folders_that_differ_or_hang_are_named(line, rule):
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


@pytest.mark.parametrize(
    "line",
    [
        "enroot-nsenter: failed to create user namespace: No space left on device",
        "ch-run[1234]: error: can't execve(2): train.py: No such file or directory",
        "/opt/slurm/bin/srun: error while loading shared libraries: libslurmfull.so: cannot open",
    ],
)
def test_a_container_or_launcher_that_cannot_run_is_a_failed_launch(line):
    assert rules(f"{HEALTHY}{line}\n")[0] == "launch-failed"


def test_a_script_of_slurm_is_no_variable_of_slurm():
    assert rules("/var/spool/slurmd/job123/slurm_script: line 5: module: command not found\n") == []


CANCELLED = (
    "slurmstepd: error: *** STEP 12.0 ON node03 CANCELLED AT 2024-05-01T10:00:02 DUE TO NODE FAILURE, SEE SLURMCTLD LOG"
    " FOR DETAILS ***\n"
)


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("srun: error: Node failure on node05\n", "node05"),
        ("salloc: error: Node failure on node05\n", "node05"),
        ("srun: error: Node failure on node[05-06,09]\n", "node[05-06,09]"),
    ],
)
def test_the_node_that_slurm_lost_is_named_and_not_one_that_reports_it(line, node):
    for log in (line + CANCELLED, CANCELLED + line):
        answer = found(log)
        assert (answer.telling.node, answer.about, rules_of(answer)) == (node, "process killed", [])


def test_a_node_that_only_reports_a_lost_one_is_not_to_be_excluded():
    assert "Exclude" not in found(CANCELLED).telling.says
    assert found(CANCELLED).about == "process killed"


def test_of_a_step_that_ran_out_of_memory_the_task_and_its_node_are_named():
    event = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some step tasks have been OOM Killed.\n"
    task = "srun: error: node7: task 5: Out Of Memory\n"
    for log in (event + task, task + event):
        (cause, *_) = found(log).causes
        assert (cause.rule, cause.rank, cause.node) == ("host-memory-low", 5, "node7")
    assert rules(event)[0] == "host-memory-low"
