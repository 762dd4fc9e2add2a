from __future__ import annotations

import pytest

from distcheck.cli.script import module_of, paths_in, processes_of, rendezvous_backend_of, script_of


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 1 other.py", "train.py"),
        ("python -X dev -Wignore train", "train"),
        ("python -- train.py", "train.py"),
        ("python -c pass train.py", ""),
        ("python - train.py", ""),
        ("python /dev/fd/63", ""),
        ("torchrun --nproc 8 --rdzv-conf a.py -r3 train", "train"),
        ("torchrun --new-option train.py", "train.py"),
        ("torchrun --new-option x train", ""),
        ("torchrun --no-python ./app data.py", "./app"),
        ("torchrun --no-python python -u train.py", "train.py"),
        ("python -E -m torch.distributed.run --standalone train.py", "train.py"),
        ("accelerate launch --config_file c.py --use_fsdp train.py", "train.py"),
        ("accelerate config train.py", ""),
        ("deepspeed --hostfile hosts --num_gpus 2 train.py", "train.py"),
        ("env LR=1 numactl -N 0 python train.py", "train.py"),
        ("env --chdir=/job python train.py", ""),
        ("srun --chdir /job python train.py", ""),
        ("srun --container-image=image python train.py", ""),
        ("srun -J python -n 4 python -u train.py", ""),
        ("srun -n 4 python -u train.py", "train.py"),
        ("srun bash -c RANK=$SLURM_PROCID;exec_$@ bash python train.py", ""),
        ("mpirun -np 4 --hostfile hosts python train.py", "train.py"),
        ("mpirun -wdir /job python train.py", ""),
        ("nohup", ""),
        ("/usr/bin/python3.11 -u /data/train.py", "/data/train.py"),
        ("torchrun --nproc-per-node 8 train.py", "train.py"),
        ("python -m package", ""),
        ("docker run image python train.py", ""),
        ("bash run.sh", ""),
    ],
)
def test_the_script_is_what_python_runs_here(command, script):
    assert script_of(command.split()) == script


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("python -um package.train --lr 1", "python -u package.train"),
        ("python -I -mpackage", "python -I package"),
        ("torchrun --nnodes 2 -m package.train", "torchrun package.train"),
        ("python -E -m torch.distributed.run --module package", "python -E package"),
        ("python train.py -m package", ""),
        ("env PYTHONPATH=/x python -m package", ""),
        ("python -m", ""),
    ],
)
def test_the_module_comes_with_the_interpreter_that_looks_for_it(command, module):
    words = command.split()
    assert " ".join(module_of(words)) == module
    assert not {"package.train", "package"} & {*paths_in(words)}


@pytest.mark.parametrize(
    ("command", "processes"),
    [
        ("python train.py", "1"),
        ("python -m package", "1"),
        ("torchrun --nproc-per-node=8 train.py", "8"),
        ("torchrun --nproc-per-node gpu -m package", "gpu"),
        ("python -m torch.distributed.run train.py", "4"),
        ("torchrun --new-option x train", ""),
        ("accelerate launch train.py", ""),
        ("./launch.sh", ""),
        ("bash -c python", ""),
        ("srun -n 4 python train.py", "1"),
        ("srun torchrun --nproc-per-node 8 train.py", "8"),
    ],
)
def test_the_number_of_processes_is_known_where_the_words_tell_it(command, processes):
    assert processes_of(command.split(), {"PET_NPROC_PER_NODE": "4"}) == processes


@pytest.mark.parametrize(
    ("command", "backend"),
    [
        ("torchrun --rdzv-backend=etcd train.py", "etcd"),
        ("torchrun --rdzv_backend etcd-v2 train.py", "etcd-v2"),
        ("torchrun train.py", ""),
        ("torchrun --rdzv-backend", ""),
    ],
)
def test_the_rendezvous_backend_is_read_as_torchrun_reads_it(command, backend):
    assert rendezvous_backend_of(command.split()) == backend
