"""Launchers, shells and schedulers: the neighbours of a message are known as well as the message."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        # programs that are missing
        ("/bin/sh: 1: torchrun: not found", "launch-probe-missing"),
        ("sh: 1: /home/gyn/miniconda/envs/ct/bin/torchrun: not found", "launch-probe-missing"),
        ("sh: python3: not found", "launch-probe-missing"),
        ("/bin/sh: 1: mpirun: not found", "launch-failed"),
        ("bmtrain_mgpu.sh: 行 84: torchrun\uff1a未找到命令", "launch-probe-missing"),
        ("dist_train.sh: 行 10: python: 未找到命令", "launch-probe-missing"),
        ("run.sh: Zeile 3: mpirun: Kommando nicht gefunden.", "launch-failed"),
        ("run.sh: ligne 3: srun\u00a0: commande introuvable", "launch-failed"),
        ("run.sh: línea 3: deepspeed: orden no encontrada", "launch-probe-missing"),
        ("run.sh: 行 3: accelerate: コマンドが見つかりません", "launch-probe-missing"),
        ("zsh:1: command not found: mpirun", "launch-failed"),
        ("fish: Unknown command: torchrun", "launch-probe-missing"),
        ("Command 'mpirun' not found, but can be installed with:", "launch-failed"),
        ("which: no mpirun in (/usr/local/bin:/usr/bin)", "launch-failed"),
        ("/usr/bin/env: \u2018python\u2019: No such file or directory", "launch-probe-missing"),
        ("nohup: failed to run command 'torchrun': No such file or directory", "launch-probe-missing"),
        ('exec: "mpirun": executable file not found in $PATH: unknown', "launch-failed"),
        ('FATAL:   "torchrun": executable file not found in $PATH', "launch-probe-missing"),
        ("'torchrun' is not recognized as an internal or external command,", "launch-probe-missing"),
        ("The term 'mpiexec' is not recognized as the name of a cmdlet, function", "launch-failed"),
        ("run_step_by_step_example.sh: line 10: -np: command not found", "launch-failed"),
        ("run.sh: line 2: --hostfile: command not found", "launch-failed"),
        ("/bin/bash: ./train.sh: Permission denied", "launch-failed"),
    ],
)
def test_a_launcher_that_cannot_be_started_is_named_in_the_words_of_each_shell(line, rule):
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


@pytest.mark.parametrize(
    "line",
    [
        "train.sh: line 8: --validation_file: command not found",
        "train.sh: line 8: syntax error near unexpected token `('",
        "sh: 3: source: not found",
        "train.sh: 12: Bad substitution",
        "bash: ./a.out: cannot execute binary file: Exec format error",
        'Lmod has detected the following error: The following module(s) are unknown: "openmpi"',
        "EnvironmentNameNotFound: Could not find conda environment: train",
        "mkdir: cannot create directory '/run/sshd': Permission denied",
        "Missing privilege separation directory: /run/sshd",
        'exec: "train": executable file not found in $PATH',
    ],
)
def test_a_broken_start_script_is_start_up_and_no_rule(line):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], "start-up")


@pytest.mark.parametrize(
    "line",
    [
        "module 'torchrun' has been found",
        "searching for mpirun: found",
        "-- Could NOT find Python: not found in the cache",
        "loaded command 'torchrun' from config; not found: 0",
        "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/ray'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/root/.cache/huggingface/accelerate'",
    ],
)
def test_a_program_that_is_only_mentioned_is_not_missing(line):
    assert rules(f"{HEALTHY}{line}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: world_size (8) is not equal to tensor_model_parallel_size (4) x pipeline_model_parallel_size",
        "RuntimeError: world_size (6) is not divisible by tensor_model_parallel_size (4) x pipeline_model_parallel",
        "AssertionError: world size (4) is not divisible by tensor parallel size (8) times pipeline parallel size (1)",
        "ValueError: ('The number of process requires to run all replicas (8)', 'must be equal to the world size')",
        "RuntimeError: Mesh should not be bigger than default world size 4, but found 8 ranks!",
        "AssertionError: tensor_para_size * pipeline_para_size must be equal to world_size.",
        "AssertionError: rollout world_size: 4 is not divisible by infer_tp: 3",
    ],
)
def test_parallel_sizes_that_do_not_fit_the_world_are_named(line):
    assert rules(f"{HEALTHY}[rank1]: {line}\n")[0] == "mesh-size-mismatch"


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("AssertionError: Loading a checkpoint for MP=8 but world size is 1", "start-up"),
        ("RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (worldConfig.cpp:89)", "start-up"),
        ("AssertionError: First dimension of the tensor should be divisible by tensor parallel size", "application"),
        ("ValueError: global batch size (5) is not divisible by world size (4)", "application"),
        ("AssertionError: num_layers should be divisible by pipeline_model_parallel_size", "application"),
    ],
)
def test_a_script_that_runs_alone_and_a_model_that_cannot_be_cut_are_no_mismatch_of_the_mesh(line, about):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], about)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        # Open MPI and PRRTE
        ('Open MPI tried to fork a new process via the "execve" system call but', "launch-failed"),
        ("mpirun was unable to start the specified application as it encountered an", "launch-failed"),
        ("PRTE was unable to open the hostfile:", "launch-failed"),
        ("Open RTE detected a parse error in the hostfile:", "launch-failed"),
        ("Some of the requested hosts are not included in the current allocation for the", "launch-failed"),
        ("At least one of the requested hosts is not included in the current", "launch-failed"),
        ("No executable was specified on the mpirun command line.", "launch-failed"),
        ("Your job has requested a conflicting number of processes for the", "launch-failed"),
        ("A daemon (pid 31) died unexpectedly with status 127 while attempting", "launch-node-unreachable"),
        ('The application appears to have been direct launched using "srun",', "launch-failed"),
        # MPICH and Intel MPI
        ("Error: node list format not recognized. Try using '-hosts=<hostnames>'.", "launch-failed"),
        ("[mpiexec@n1] match_arg (lib/utils/args.c:166): unrecognized argument npp", "launch-failed"),
        (
            "[proxy:0@n1] HYDU_create_process (launch.c:73): execvp error on file a.py (No such file or directory)",
            "launch-failed",
        ),
        (
            "[proxy:0@n1] HYDU_create_process (launch.c:73): execvp error on file python3 (No such file or directory)",
            "launch-probe-missing",
        ),
        (
            "[mpiexec@n1] check_exit_codes (hydra_demux_poll.c:121): unable to run bstrap_proxy (pid 3, exit code 256)",
            "launch-node-unreachable",
        ),
        # Slurm
        ("srun: error: Only allocated 3 nodes asked for 9", "launch-failed"),
        ("srun: error: Job violates accounting/QOS policy (job submit limit)", "launch-failed"),
        ("srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files", "launch-failed"),
        ("slurmstepd: error:  mpi/pmix_v3: init: (null) [0]: mpi_pmix.c:139: pmi/pmix: can not load", "launch-failed"),
        (
            "slurmstepd: error: Could not open stdout file /logs/7.out: No such file or directory",
            "storage-path-missing",
        ),
        # ranks that have no launcher
        (
            "MisconfigurationException: ddp2 only works in SLURM or via torchelastic with the WORLD_SIZE flags",
            "env-rank-unset",
        ),
        ("RuntimeError: sharded checkpoints are only supported with torchrun", "env-rank-unset"),
        (
            "RuntimeError: NCCL error in: /x/c10d/NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8",
            "env-rank-out-of-range",
        ),
        ("AssertionError: world size is 8 but have 4 available devices", "gpu-fewer-than-needed"),
        # the endpoint
        ("The port number of the rendezvous endpoint 'n1:' must be an integer", "env-empty-string"),
        ("The port number of the rendezvous endpoint 'n1:port' must be an integer", "env-master-port-range"),
        # threads
        ("  what():  Resource temporarily unavailable", "host-nproc-pids"),
        ("runtime: failed to create new OS thread (have 12 already; errno=11)", "host-nproc-pids"),
        ("/bin/sh: 1: Cannot fork", "host-nproc-pids"),
        (
            'ThreadPoolBuildError { kind: IOError(Os { code: 11, kind: WouldBlock, message: "x" }) }',
            "host-nproc-pids",
        ),
        (
            "[c10d] The client socket has failed to connect to [h.docker.internal]:12345 (system error: 10049 - x).",
            "net-master-refused",
        ),
    ],
)
def test_the_neighbours_of_a_message_are_named_as_well(line, rule):
    assert rules(f"{HEALTHY}{line}\n")[0] == rule


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("ValueError: The port number of the rendezvous endpoint 'None:None' must be an integer", "start-up"),
        ("ValueError: The port number of the rendezvous endpoint 'n1:None' must be an integer", "start-up"),
        ("ValueError: Cannot initialize distributed with distributed_world_size=1", "start-up"),
        (
            "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group",
            "start-up",
        ),
        ("ValueError: Ray does not allocate any GPUs on the driver node.", "start-up"),
        ("INFO shm_broadcast.py:698] No available shared memory broadcast block found in 60 seconds", "application"),
        ("[W socket.cpp:764] [c10d] x (errno: 97 - Address family not supported by protocol).", None),
        ("ImportError: /home/u/.triton/cache/a/l.so: cannot stat shared object: Stale file handle", "application"),
        ("OSError: /home/u/.cache/torch_extensions/py310/fused_adam/fused_adam.so: file too short", "application"),
        ("filelock/_unix.py\nOSError: [Errno 116] Stale file handle", "start-up"),
        ("AssertionError: Loading a checkpoint for MP=0 but world size is 1", "application"),
    ],
)
def test_what_looks_like_a_fault_of_the_machine_and_is_none_blames_no_rule(line, about):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], about)


def test_only_an_agent_that_never_joined_comes_to_a_rendezvous_that_was_closed_before():
    first = "INFO:torch.distributed.elastic.agent.server.api:[default] Rendezvous'ing worker group\n"
    closed = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"
    assert rules(first + closed)[0] == "torchrun-rdzv-id-shared"
    assert rules(f"{first}[default] Rendezvous complete for workers. Result:\n{closed}") == []
    assert rules(closed) == []


def test_a_stale_handle_outside_of_a_cache_is_the_file_system():
    assert rules("ls: cannot access /mnt/dataset/: Stale file handle\n")[0] == "storage-hangs"


def test_distcheck_that_torchrun_took_for_a_python_file_is_named_with_the_option_to_add():
    line = "/usr/bin/python: can't open file '/home/me/distcheck': [Errno 2] No such file or directory"
    answered = found(f"{HEALTHY}{line}\n")
    assert answered.about == "start-up"
    assert "--no-python before distcheck" in answered.telling.says
