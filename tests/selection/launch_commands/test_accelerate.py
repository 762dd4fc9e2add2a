"""What accelerate's words and configuration files say about its ranks."""

from __future__ import annotations

import pytest
from selection.launch_commands.reading import reading, told

from distcheck.facts.launch_command import Stated

DEFAULT = "/home/u/.cache/huggingface/accelerate/default_config.yaml"
HOME = {"HOME": "/home/u"}
FSDP = """\
compute_environment: LOCAL_MACHINE   # written by accelerate config
debug: false
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
main_process_ip: node1
main_process_port: 29511
machine_rank: 1
num_machines: 2
num_processes: 16
rdzv_backend: c10d
same_network: true
use_cpu: false
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
"""
NO = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 4\n"
MULTI_CPU = """\
distributed_type: MULTI_CPU
mpirun_config:
  mpirun_hostfile: /job/hosts
num_machines: 2
num_processes: 4
"""
DEEPSPEED = """\
distributed_type: DEEPSPEED
deepspeed_config:
  deepspeed_hostfile: /job/hosts
  deepspeed_multinode_launcher: pdsh
main_process_ip: node1
num_machines: 2
num_processes: 16
"""
MACHINES = "--num_machines 2 --num_processes 16 --main_process_ip node1"
PARALLEL = "--use_parallelism_config --parallelism_config_dp_shard_size 4 --parallelism_config_tp_size 2"
HOSTS = "node1 slots=8\nnode2 slots=8\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("accelerate launch train.py", "one rank per GPU on this node"),
        ("accelerate launch --multi_gpu --num_processes 2 train.py", "2 ranks on this node"),
        ("accelerate-launch --multi-gpu --num-processes=8 --main_process_port 0 train.py", "8 ranks on this node"),
        ("python -m accelerate.commands.launch --use_fsdp --num_processes 8 train.py", "8 ranks on this node"),
        ("uv run --with accelerate accelerate launch --multi_gpu --num_processes 2 x.py", "2 ranks on this node"),
        (
            f"accelerate launch --multi_gpu --same_network --main_process_port 29511 {MACHINES} --machine_rank 1 x",
            "2 nodes, this is node 1, 8 ranks each, master node1:29511",
        ),
        (
            f"accelerate launch --use_fsdp {MACHINES} --machine_rank 0 train.py",
            "2 nodes, this is node 0, 8 ranks each, master node1:29500",
        ),
        (
            f"accelerate launch --use_fsdp {MACHINES} --rdzv_backend c10d --machine_rank 0 train.py",
            "2 nodes, 8 ranks each, master node1:29500",
        ),
        (
            f"accelerate launch --use_fsdp --fsdp_version 2 {PARALLEL} --num_processes 8 train.py",
            "8 ranks on this node, mesh dp_shard=4,tp=2",
        ),
        (
            "accelerate-launch --use_megatron_lm --megatron_lm_tp_degree 2 --megatron_lm_pp_degree 2 --num_processes=8",
            "8 ranks on this node, mesh pp=2,dp=-1,tp=2",
        ),
        ("accelerate launch --cpu --num_processes 4 train.py", "1 rank on this node"),
        ("accelerate config", "no launcher"),
        ("accelerate", "no launcher"),
    ],
)
def test_options_say_which_ranks_start(line: str, expected: str) -> None:
    assert told(line, HOME) == expected


def test_several_ranks_without_a_kind_of_training_need_several_gpus() -> None:
    assert reading("accelerate launch --num_processes 4 train.py") == Stated(
        "accelerate launch", "4", few_gpus=("1", "1")
    )


@pytest.mark.parametrize(
    ("line", "content", "expected"),
    [
        ("train.py", FSDP, "2 nodes, this is node 1, 8 ranks each, master node1:29511"),
        ("--machine_rank 0 train.py", FSDP, "2 nodes, this is node 0, 8 ranks each, master node1:29511"),
        ("--cpu train.py", FSDP, "1 rank on this node"),
        ("train.py", NO, "1 rank on this node"),
        ("--multi_gpu train.py", NO.replace("num_processes: 4\n", ""), "1 rank on this node"),
        ("--num_processes 2 --multi_gpu train.py", NO, "2 ranks on this node"),
        ("train.py", NO.replace("'NO'", "MULTI_GPU"), "4 ranks on this node"),
        ("train.py", MULTI_CPU, "4 ranks on 2 hosts"),
        ("train.py", DEEPSPEED, "16 ranks on 2 hosts, master node1:29500"),
    ],
)
def test_the_default_configuration_file_counts_unless_an_option_does(line: str, content: str, expected: str) -> None:
    mesh = ", mesh dp_replicate=2,dp_shard=4,tp=2" if content == FSDP and "--cpu" not in line else ""
    assert told(f"accelerate launch {line}", HOME, {DEFAULT: content, "/job/hosts": HOSTS}) == expected + mesh


def test_the_report_names_the_configuration_file() -> None:
    found = reading("accelerate launch --config_file c.json x.py", HOME, {"c.json": '{"distributed_type": "NO"}'})
    assert isinstance(found, Stated)
    assert found.file == "c.json"


def test_hf_home_has_the_default_configuration_file() -> None:
    files = {"/hf/accelerate/default_config.yaml": NO.replace("'NO'", "MULTI_GPU")}
    assert told("accelerate launch x.py", {"HF_HOME": "/hf"}, files) == "4 ranks on this node"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--num_processes two x.py", "refused: --num_processes is 'two', expected a number from 1"),
        ("--config_file gone.yaml x.py", "refused: --config_file gone.yaml cannot be read: No such file or directory"),
        ("--config_file slurm.yaml x.py", "its configuration file has no num_processes"),
        ("--config_file anchor.yaml x.py", "its configuration file's 'num_processes: *n' is not a plain value"),
        ("--config_file aws.yaml x.py", "Amazon SageMaker starts its ranks"),
        ("--multi_gpu --num_machines 2 x.py", "its --num_processes is not given for several machines"),
        (
            "--multi_gpu --num_machines 2 --num_processes 4 x.py",
            "its --main_process_ip is not given for several machines",
        ),
        ("--tpu --num_processes 8 x.py", "it starts TPU processes"),
        (
            "--cpu --num_machines 2 --num_processes 4 x.py",
            "its script finds its rank by itself; give --rank, --world-size and --nproc",
        ),
    ],
)
def test_what_cannot_be_told_has_a_reason(line: str, expected: str) -> None:
    files = {
        "slurm.yaml": "distributed_type: MULTI_GPU\n",
        "anchor.yaml": "distributed_type: MULTI_GPU\nnum_processes: *n\n",
        "aws.yaml": "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n",
    }
    assert told(f"accelerate launch {line}", HOME, files).removeprefix("not told: ") == expected


@pytest.mark.parametrize("front", ["uv run", "apptainer exec x.sif", "env -C /x"])
def test_a_file_that_is_not_here_may_be_where_a_wrapper_starts_it(front: str) -> None:
    said = told(f"{front} accelerate launch --config_file gone.yaml x.py")
    assert said == "not told: its --config_file gone.yaml cannot be read: No such file or directory"
