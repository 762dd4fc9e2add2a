"""What the gate's options become in front of a launch command."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest
from made.jobs import node_of

from distcheck.cli.launch_command import filled
from distcheck.cli.options import GateOptions
from distcheck.facts.asked import Asked
from distcheck.probe import gpu
from distcheck.rollcall import numbering
from distcheck.run.join import join_patience


@pytest.mark.parametrize(
    ("command", "shown", "ranks"),
    [
        ("accelerate launch --num_processes 4 train.py", "0,1,2,3", 4),
        ("accelerate launch --num_processes 4 train.py", "3", 1),
        ("accelerate launch --num_processes 4 train.py", "", 1),
        ("accelerate launch --multi_gpu --num_processes 4 train.py", "", 4),
        ("deepspeed train.py", "2,3", 2),
    ],
)
def test_the_visible_gpus_decide(monkeypatch, command, shown, ranks):
    async def gpus(timeout, vendor, *, health):
        return node_of(0, 8).gpus

    monkeypatch.setattr(gpu, "gpus", gpus)
    monkeypatch.setattr(gpu, "accelerator", lambda: "nvidia")
    options, told, *_ = filled(GateOptions(), command.split(), {"CUDA_VISIBLE_DEVICES": shown, "HOME": "/nowhere"})
    assert options.nproc == str(ranks)
    assert f"{ranks} rank{'s' * (ranks > 1)} on this node" in told


@pytest.mark.parametrize(
    ("nproc", "gpus", "said"),
    [
        ("auto", 0, "64 ranks on this node (no GPU: one per CPU)"),
        ("auto", 8, "8 ranks on this node (one per GPU)"),
        ("gpu", 8, "8 ranks on this node (one per GPU)"),
        ("cpu", 8, "64 ranks on this node (one per CPU)"),
        ("3", 8, "3 ranks on this node"),
    ],
)
def test_the_number_that_is_tested_is_said_with_what_was_counted(monkeypatch, nproc, gpus, said):
    async def found(timeout, vendor, *, health):
        return node_of(0, gpus).gpus

    monkeypatch.setattr(gpu, "gpus", found)
    monkeypatch.setattr(gpu, "accelerator", lambda: "nvidia" if gpus else "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    filled_in = of(f"torchrun --nproc-per-node {nproc} train.py")
    assert filled_in.told == f"placement from torchrun's arguments: {said}"
    assert filled_in.options.nproc == said.partition(" ")[0] == filled_in.stated.nproc


@pytest.mark.parametrize(
    ("accelerator", "shown", "told"),
    [
        (
            "none",
            None,
            "it will refuse its words: --nproc-per-node is 'gpu', and this node has no GPU",
        ),
        (
            "nvidia",
            "",
            "it will refuse its words: --nproc-per-node is 'gpu', and this node has no GPU",
        ),
        ("amd", None, "its number of GPUs is unknown; give --nproc"),
    ],
)
@pytest.mark.parametrize("line", ["torchrun --nproc-per-node gpu train.py", "tune run --nproc-per-node gpu recipe"])
def test_torchrun_refuses_gpus_where_there_are_none(monkeypatch, line, accelerator, shown, told):
    monkeypatch.setattr(gpu, "accelerator", lambda: accelerator)
    monkeypatch.setattr("distcheck.cli.launch_command.gpu_count", lambda _: 0)
    filled_in = of(line, {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
    assert filled_in.told == f"placement not read from {line.split(' --')[0]}: {told}"
    assert bool(filled_in.stated) is (accelerator != "amd")
    assert (filled_in.options.launcher, filled_in.options.nproc) == (
        ("local", "1") if filled_in.stated else ("auto", None)
    )


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"NPROC_PER_NODE": "3"}, "3 ranks on this node"),
        ({"NNODES": "2", "MASTER_ADDR": "n1"}, "2 nodes, this is node 0, 1 rank each, master n1:29500"),
        ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29655", "NPROC_PER_NODE": "4"},
         "2 nodes, this is node 1, 4 ranks each, master n1:29655"),
        ({"MASTER_ADDR": "n1", "NPROC_PER_NODE": "2"}, "2 ranks on this node"),
        ({"NNODES": "2", "NODE_RANK": "1", "RDZV_ENDPOINT": "n1:29700"},
         "2 nodes, this is node 1, 1 rank each, master n1:29700"),
        ({"RDZV_BACKEND": "c10d", "RDZV_ENDPOINT": "n1", "NPROC_PER_NODE": "2"},
         "2 ranks on this node, master n1:29400"),
        ({"STANDALONE": "1", "MASTER_PORT": "29655", "NPROC_PER_NODE": "2"}, "2 ranks on this node"),
        ({"STANDALONE": "0", "MASTER_PORT": "29655"}, "1 rank on this node, master 127.0.0.1:29655"),
    ],
)  # fmt: skip
def test_variables_of_torchrun_tell_what_its_options_do(environ, said):
    variables = {f"PET_{name}": value for name, value in environ.items()}
    filled_in = filled(GateOptions(), ["torchrun", "x.py"], variables)
    assert filled_in.told == f"placement from torchrun's arguments and environment: {said}"


@pytest.mark.parametrize("kind", ["", "--multi_gpu"])
def test_a_gpu_on_each_of_several_nodes_is_not_several_gpus(monkeypatch, kind):
    async def gpus(timeout, vendor, *, health):
        return node_of(0, 1).gpus

    monkeypatch.setattr(gpu, "gpus", gpus)
    monkeypatch.setattr(gpu, "accelerator", lambda: "nvidia")
    line = f"accelerate launch {kind} --num_machines 2 --machine_rank 0 --num_processes 2 --main_process_ip node1 x.py"
    without = (
        "not read from accelerate launch: with 1 GPU it starts one process without a rank; give --multi_gpu in COMMAND"
    )
    read = "from accelerate launch's arguments: 2 nodes, this is node 0, 1 rank each, master node1:29500"
    assert of(line).told == f"placement {read if kind else without}"


def of(line, environ=None, **options):
    return filled(GateOptions(**options), line.split(), {"HOME": "/nowhere", **(environ or {})})


def test_a_task_of_srun_starts_a_job_of_its_own_if_its_command_names_one_node():
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    options = of("torchrun --standalone --nproc-per-node 2 x.py", step).options
    assert (options.rank, options.world_size, options.nproc, options.master_addr) == (0, 1, "2", "127.0.0.1")
    assert options.master_port


def test_litgpts_tasks_of_srun_stay_ranks_and_meet_where_lightning_has_them_meet():
    task = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "42", "SLURM_NODELIST": "node[3-4]"}
    options = of("litgpt pretrain m --devices 2", task).options
    assert (options.rank, options.nproc, options.launcher) == (None, None, "auto")
    assert (options.master_addr, options.master_port) == ("node3", 15042)


def test_options_that_the_user_gave_stay():
    line = "torchrun --nnodes 2 --node-rank 1 --master-addr node1 --nproc-per-node 8 train.py"
    options = of(line, nproc="4", master_port=29511).options
    assert (options.nproc, options.rank, options.world_size) == ("4", 1, 2)
    assert (options.master_addr, options.master_port) == ("node1", 29511)


def test_the_report_says_which_options_replace_what_the_command_states():
    line = "torchrun --nnodes 2 --node-rank 1 --master-addr node1 --nproc-per-node 8 train.py"
    assert of(line, nproc="8", master_addr="node1").told.endswith("8 ranks each, master node1:29500")
    told = of(line, nproc="4", rank=0, world_size=3).told
    assert told.endswith("8 ranks each, master node1:29500; replaced by --nproc 4 --rank 0 --world-size 3")


@pytest.mark.parametrize(("nodes", "missing"), [("2", True), ("1:2", False)])
def test_nodes_that_do_not_come_for_their_numbers_are_not_waited_for_twice(monkeypatch, nodes, missing):
    monkeypatch.setattr(numbering, "LAST_CALL_SECONDS", 0.1)
    line = f"torchrun --nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint {socket.gethostname()}:29471"
    filled_in = of(f"{line} --rdzv-id {os.getpid()} x.py", join_timeout=6.5, quiet=True)
    assert (filled_in.waited >= 6.5) is missing
    asked = Asked("gate", (), join_timeout_seconds=6.5)
    left = join_patience(SimpleNamespace(asked=asked, request=SimpleNamespace(waited=filled_in.waited)))
    assert left == (5.0 if missing else 6.5)


@pytest.mark.parametrize("given", [{"hosts": "a,b"}, {"hostfile": "hosts"}, {"launcher": "slurm"}, {"launcher": "ssh"}])
def test_a_job_on_other_hosts_is_the_users_to_describe(given):
    options, told, stated, *_ = of("torchrun --nnodes 2 --node-rank 1 --master-addr n1 train.py", **given)
    assert (options, told, stated) == (GateOptions(**given), "", None)


def test_what_a_command_does_not_tell_is_said_with_the_option_that_would():
    options, told, stated, *_ = of("vllm serve m --data-parallel-backend ray -dp 2")
    assert (options.nproc, stated) == (None, None)
    assert told == "placement not read from vllm: Ray places its ranks; give --hosts and --nproc"


def test_a_pipe_is_left_for_the_command_to_read(tmp_path):
    os.mkfifo(tmp_path / "c.yaml")
    told = of(f"vllm serve m --config {tmp_path}/c.yaml").told
    assert told == f"placement not read from vllm: its file {tmp_path}/c.yaml cannot be read: not a regular file"
