"""The launcher in a command, behind what people put in front of it."""

from __future__ import annotations

import shlex

import pytest

from distcheck.selection.launch_commands.inner import Inner, Sought, inner

PROGRAMS = frozenset({"torchrun", "torch.distributed.run"})


def found_in(command: tuple[str, ...], environ: dict[str, str], **files: str) -> Inner | None:
    def read(path: str) -> str:
        if path not in files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return files[path]

    found = list(inner(command, environ, Sought(PROGRAMS, read)))
    assert len(found) < 2
    return found[0] if found else None


@pytest.mark.parametrize(
    "line",
    [
        "torchrun -x t.py",
        "/opt/env/bin/torchrun -x t.py",
        "env A=b torchrun -x t.py",
        "env -u C A=b OMP_NUM_THREADS=4 numactl --cpunodebind=0 --membind 0 torchrun -x t.py",
        "nohup nice -n 5 timeout -k 5 1h torchrun -x t.py",
        "uv run --with numpy torchrun -x t.py",
        "conda run -n x --no-capture-output torchrun -x t.py",
        "nsys profile -o out --trace cuda,nvtx torchrun -x t.py",
        "python -m torch.distributed.run -x t.py",
        "python3.11 -u -X dev -mtorch.distributed.run -x t.py",
        "python /opt/env/bin/torchrun -x t.py",
        "bash -c 'torchrun -x t.py'",
        "bash -lc 'exec env A=b torchrun -x t.py'",
        "nsys profile bash -c 'torchrun -x t.py'",
        "bash -euo pipefail -c 'torchrun -x t.py'",
        "sudo -E -u bash torchrun -x t.py",
        "apptainer exec --nv docker://x/torchrun torchrun -x t.py",
        "hatch run gpu:torchrun -x t.py",
        "conda run -p /envs/torchrun torchrun -x t.py",
        "python -m debugpy --listen 5678 -m torch.distributed.run -x t.py",
        "python -um torch.distributed.run -x t.py",
        "systemd-run --scope -p MemoryMax=8G py-spy record -o p.svg -- python -m torch.distributed.run -x t.py",
    ],
)
def test_a_launcher_is_found_behind_what_is_in_front(line: str) -> None:
    found = found_in(tuple(shlex.split(line)), {})
    assert found is not None
    assert (found.program in PROGRAMS, found.words) == (True, ("-x", "t.py"))


@pytest.mark.parametrize(
    "line",
    [
        "python train.py torchrun",
        "python -c 'import torchrun' torchrun",
        "python -m train torch.distributed.run",
        "bash launch.sh torchrun",
        "nohup python train.py torchrun",
        "apptainer exec docker://x/torchrun ./a.out",
        'bash -c "torchrun \'t.py"',
        "./torchrun.sh",
        "",
    ],
)
def test_what_only_a_shell_or_the_script_can_tell_is_no_launcher(line: str) -> None:
    command = ("bash", "-c", "torchrun 't.py") if line.endswith("'t.py\"") else tuple(shlex.split(line))
    assert found_in(command, {}, **{"launch.sh": "", "./torchrun.sh": ""}) is None


def test_a_shells_variables_are_filled_in() -> None:
    line = "torchrun --node-rank ${SLURM_NODEID:-0} --master-addr \"$M\" --rdzv-id ${NO_ID:-7} $NO_ID '$M' $2"
    found = found_in(("bash", "-c", line, "bash", "a", "b c"), {"SLURM_NODEID": "1", "M": "n 1"})
    assert found is not None
    assert found.words == ("--node-rank", "1", "--master-addr", "n 1", "--rdzv-id", "7", "$M", "b", "c")


@pytest.mark.parametrize(
    "front", ["env -i", "sudo -E", "nohup env", "sudo env X=y", "apptainer exec --env A=b,X=y --env"]
)
def test_env_and_sudo_change_what_the_launcher_reads(front: str) -> None:
    found = found_in((*front.split(), "PET_NNODES=2", "torchrun", "PET_NNODES=3"), {"A": "b"})
    assert found is not None
    assert found.environ["PET_NNODES"] == "2"
