"""Launchers, shells, schedulers and orchestrators: the neighbours of a message are known as well as the message."""

from __future__ import annotations

import pytest
from explain.test_spellings import HEALTHY, found, rules


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        # programs that are missing
        ("/bin/sh: 1: torchrun: not found", "launch-probe-missing"),
        ("sh: 1: /home/gyn/miniconda/envs/ct/bin/torchrun: not found", "launch-probe-missing"),
        ("sh: python3: not found", "launch-probe-missing"),
        ("/bin/sh: 1: mpirun: not found", "launch-failed"),
        ("bmtrain_mgpu.sh: 行 84: torchrun：未找到命令", "launch-probe-missing"),
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
    assert (answered.causes, answered.about) == ((), "start-up")


@pytest.mark.parametrize(
    "line",
    [
        "module 'torchrun' has been found",
        "searching for mpirun: found",
        "-- Could NOT find Python: not found in the cache",
        "loaded command 'torchrun' from config; not found: 0",
    ],
)
def test_a_program_that_is_only_mentioned_is_not_missing(line):
    assert rules(f"{HEALTHY}{line}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: world_size (8) is not equal to tensor_model_parallel_size (4) x pipeline_model_parallel_size (1)",
        "RuntimeError: world_size (6) is not divisible by tensor_model_parallel_size (4) x pipeline_model_parallel_size (1)",
        "AssertionError: world size (4) is not divisible by tensor parallel size (8) times pipeline parallel size (1)",
        "ValueError: ('The number of process requires to run all replicas (8)', 'must be equal to the world size (4).')",
        "AssertionError: Invalid parallel dims: dp_replicate(1) * dp_shard(2) * cp(2) * tp(1) * pp(1) != WORLD_SIZE(8)",
        "RuntimeError: Mesh should not be bigger than default world size 4, but found 8 ranks!",
        "AssertionError: num_stages (3) must divide distributed world size (4)",
        "ValueError: ParallelismConfig total_size (8) does not match num_processes (4). Please adjust",
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
        ("AssertionError: Engine world size (2) != Runtime world size (1)", "start-up"),
        ("RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: mpiSize == tp * pp (worldConfig.cpp:89)", "start-up"),
        ("AssertionError: First dimension of the tensor should be divisible by tensor parallel size", "application"),
        ("ValueError: global batch size (5) is not divisible by world size (4)", "application"),
        ("AssertionError: num_layers should be divisible by pipeline_model_parallel_size", "application"),
    ],
)
def test_a_script_that_runs_alone_and_a_model_that_cannot_be_cut_are_no_mismatch_of_the_mesh(line, about):
    answered = found(f"{HEALTHY}{line}\n")
    assert (answered.causes, answered.about) == ((), about)
