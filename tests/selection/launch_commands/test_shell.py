"""A launcher in a shell's line or script, among what people put around it."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection.launch_commands.reading import told

from distcheck.selection.launch_commands.shell import commands

_RUN = "torchrun --nproc-per-node 3"
_SCRIPT = """#!/bin/bash
#SBATCH --nodes 2
set -euo pipefail
GPUS=${1:-8}  # ranks per node
ARGS=(
    --nproc_per_node $GPUS
    --nnodes ${NNODES:-1}
)
ARGS+=(--log-dir x)
cat > hosts <<EOF
torchrun it's (
EOF
[ -d out ] || mkdir out
if [ -z "$LR" ]; then LR=1; fi
torchrun "${ARGS[@]}" \\
    train.py --lr $LR --at $(date +%s) "$@" 2>&1 | tee -a log.txt
"""


@pytest.mark.parametrize(
    "line",
    [
        f"{_RUN} t.py > log 2>&1",
        f"{_RUN} t.py 2>&1 | tee -a log",
        f"{_RUN} t.py &> >(tee log) < /dev/null",
        f"set -e; cd /x && {_RUN} t.py",
        f"cd /x || exit 1; ulimit -n 65536; module load cuda; {_RUN} t.py & wait",
        f"source venv/bin/activate && {_RUN} t.py; echo done",
        f"pip install -q deepspeed && {_RUN} t.py",
        "export PET_NPROC_PER_NODE=3 A=b; torchrun t.py",
        "PET_NPROC_PER_NODE=3 torchrun t.py",
        'N=3; OPTIONS="--nproc-per-node $N"; torchrun $OPTIONS t.py',
        "for n in 1 2; do echo $n; done; f() { N=4; }; N=${M:-${K:-3}}; torchrun --nproc-per-node ${N} t.py",
        "RUN='torchrun --nproc-per-node 3 t.py'; echo $RUN; eval $RUN",
        f"{_RUN} t.py $(date) `hostname`",
        f"[ -f x ] && echo y; {_RUN} t.py",
    ],
)
def test_a_launcher_is_read_among_what_is_plainly_none(line: str) -> None:
    assert told(f"bash -c {shlex.quote(line)}") == "3 ranks on this node"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("torchrun a.py; torchrun b.py", "it starts several launchers: torchrun and torchrun"),
        ("if true; then torchrun a.py; fi", "an if, a loop, a function or a test decides whether it runs"),
        ("for n in 1 2; do torchrun a.py; done", "an if, a loop, a function or a test decides whether it runs"),
        ("f() { torchrun a.py; }; f", "an if, a loop, a function or a test decides whether it runs"),
        ("[ -f x ] && torchrun a.py", "an if, a loop, a function or a test decides whether it runs"),
        ("torchrun --nproc-per-node $(nvidia-smi -L | wc) a.py", "only a shell can work out $(nvidia-smi -L | wc)"),
        ("torchrun $(cat options) t.py", "only a shell can work out $(cat options)"),
        ("source env.sh; torchrun --nproc-per-node ${N:-2} t.py", "only a shell can work out ${N:-2}"),
        ("[ -z $N ] && N=2; torchrun --nproc-per-node $N t.py", "only a shell can work out $N"),
        ("case $1 in a) N=2;; esac; torchrun --nproc-per-node $N t.py", "only a shell can work out $N"),
        ("export PET_NNODES=2 PET_MASTER_ADDR=$(head -1 hosts); torchrun t.py",
         "only a shell can work out the variables that it gets"),
    ],
)  # fmt: skip
def test_what_only_a_shell_can_tell_is_said(line: str, why: str) -> None:
    said = told(f"bash -c {shlex.quote(line)}")
    assert said == f"not told: {why}; give --nproc, and on several nodes --rank and --world-size"


def test_variables_that_are_not_exported_do_not_reach_the_launcher() -> None:
    assert told("bash -c 'PET_NPROC_PER_NODE=3; torchrun t.py'") == "1 rank on this node"
    assert told("bash -c 'PET_NPROC_PER_NODE=3 true; torchrun t.py'") == "1 rank on this node"


@pytest.mark.parametrize(
    "line", ["bash run.sh 3", "./run.sh 3", "nohup bash -x run.sh 3", "bash -c './run.sh 3 > log'"]
)
def test_a_script_with_one_launcher_is_read_with_its_arguments(line: str) -> None:
    files = {"run.sh": _SCRIPT, "./run.sh": _SCRIPT}
    assert told(line, {}, files) == "3 ranks on this node"
    assert told(line, {"NNODES": "2"}, files) == "2 nodes, this is node 0, 3 ranks each, master 127.0.0.1:29500"


@pytest.mark.parametrize("line", ["bash gone.sh", "sh -eu ./gone", "bash -o pipefail gone.sh 3"])
def test_a_script_that_does_not_exist_is_refused_by_its_shell(line: str) -> None:
    script = next(word for word in line.split() if "gone" in word)
    assert told(line, {"PATH": "/bin"}) == f"refused: {script} does not exist"
    assert told(f"uv run {line}") == told(f"mpirun -np 2 {line}").replace("2 ranks on this node", "no launcher")


def test_a_script_may_be_on_path() -> None:
    assert told("bash run.sh 3", {"PATH": "/bin:/x"}, {"/x/run.sh": _SCRIPT}) == "3 ranks on this node"


def test_files_are_read_in_the_folder_of_the_launcher() -> None:
    line = "bash -c 'cd /x; cd y; deepspeed --hostfile hosts t.py'"
    assert told(line, {}, {"/x/y/hosts": "n1 slots=2\nn2 slots=2\n"}).startswith("4 ranks on 2 hosts")


def test_scripts_that_start_themselves_end() -> None:
    assert told("bash run.sh", {}, {"run.sh": "bash run.sh"}) == "no launcher"


def test_a_container_sees_another_machine() -> None:
    assert told("docker run --gpus all image torchrun t.py") == (
        "not told: its container may see other GPUs, names and ports than this machine; "
        "give --nproc, and on several nodes --rank and --world-size"
    )


@given(st.text(alphabet="ab$(){}[]<>'\"`\\;&|=\n #!/-", max_size=60))
def test_any_text_has_an_end(text: str) -> None:
    assert all(simple.words for simple in commands(text, {"a": "b"}))
