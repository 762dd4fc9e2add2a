"""Each launch command that distcheck reads, typed on two nodes behind `distcheck gate --`, and a fault in front of it.

Most are recorders under the launcher's name, which note what they were started with; torch's own modules and Open MPI's
mpirun are real and start the recorder as each rank. None of them starts when a port that it names is taken.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cluster.etc import PATH
from cluster.inside import PATIENCE
from forms.sampled import sampled
from real.waiting import until

from distcheck.selection.placement import RANK_VARIABLES

if TYPE_CHECKING:
    from real.ended import Ended

pytestmark = pytest.mark.without_slurm

_PORT = 29533
_RECORDER = f"""#!{sys.prefix}/bin/python
import json, os, socket, sys
with open(f"/shared/ran.{{socket.gethostname()}}.{{os.getpid()}}", "w") as file:
    json.dump([sys.argv, dict(os.environ)], file)
"""
_AS_MODULES = ("accelerate/commands/launch.py", "sglang/launch_server.py")
_AS_PROGRAMS = (
    "torchrun", "accelerate", "deepspeed", "composer", "colossalai", "fabric", "litgpt", "llamafactory-cli", "tune",
    "axolotl", "horovodrun", "torchx", "vllm", "train",
)  # fmt: skip
_FILES = {
    "train.py": "",
    "sft.yaml": "stage: sft\n",
    "axolotl.yaml": "base_model: m\n",
    "hosts": "node1 slots=2\nnode2 slots=2\n",
}


class Typed(NamedTuple):
    """What is typed on each node, with {n} for its number; on the first alone if its launcher reaches the others."""

    line: str
    env: str = ""
    fix: str = ""
    """What the fix of a taken port begins with; '' if the command names no port."""
    alone: bool = False
    passes: str = "4 ranks on 2 nodes"

    def words(self, node: int) -> list[str]:
        return shlex.split(self.line.format(n=node, at=f"node1:{_PORT}", port=_PORT))

    @property
    def program(self) -> list[str]:
        """The words of each rank if the launcher is real and starts the recorder."""
        words = self.words(0)
        return words[words.index("/shared/bin/train") :] if "/shared/bin/train" in words else []


_TORCH = "--nnodes 2 --node-rank {n} --nproc-per-node 2 --master-addr node1 --master-port {port}"
_OURS = "--multi_gpu --num_machines 2 --machine_rank {n} --num_processes 4 --main_process_ip node1 "
_OURS += "--main_process_port {port}"
_VARIABLES = "MASTER_ADDR=node1 MASTER_PORT={port} NODE_RANK={n}"
COMMANDS = {
    "torchrun": Typed(f"torchrun {_TORCH} train.py --lr 0.1", fix="--master-port"),
    "torch.distributed.run": Typed(
        "python -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint {at} "
        "--no-python /shared/bin/train --lr 0.1", fix="--rdzv-endpoint node1:",
    ),
    "torch.distributed.launch": Typed(
        f"python -m torch.distributed.launch --use-env {_TORCH} --no-python /shared/bin/train", fix="--master-port",
    ),
    "accelerate": Typed(f"accelerate launch {_OURS} train.py --lr 0.1", fix="--main_process_port"),
    "accelerate, as a module": Typed(
        f"python -m accelerate.commands.launch {_OURS} train.py", fix="--main_process_port",
    ),
    "deepspeed": Typed("deepspeed --hostfile hosts --master_port {port} train.py", fix="--master_port", alone=True),
    "deepspeed without ssh": Typed(
        "deepspeed --no_ssh --node_rank {n} --hostfile hosts --master_addr node1 --master_port {port} train.py "
        "--deepspeed", fix="--master_port",
    ),
    "composer": Typed(
        "composer -n 2 --world_size 4 --node_rank {n} --master_addr node1 --master_port {port} train.py x",
        fix="--master_port",
    ),
    "composer, by variables": Typed("composer -n 2 train.py", f"WORLD_SIZE=4 {_VARIABLES}", "--master_port"),
    "colossalai": Typed(
        "colossalai run --nproc_per_node 2 --host node1,node2 --master_addr node1 --master_port {port} train.py",
        fix="--master_port", alone=True,
    ),
    "fabric": Typed(
        "fabric run --num-nodes 2 --node-rank {n} --devices 2 --main-address node1 --main-port {port} train.py",
        fix="--main-port",
    ),
    "litgpt": Typed("litgpt pretrain m --devices 2 --num_nodes 2", _VARIABLES, "export MASTER_PORT="),
    "llamafactory-cli": Typed(
        "llamafactory-cli train sft.yaml", f"FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=2 {_VARIABLES}",
        "export MASTER_PORT=",
    ),
    "tune": Typed(
        "tune run --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint {at} full_finetune_distributed",
        fix="--rdzv-endpoint node1:",
    ),
    "axolotl": Typed(f"axolotl train axolotl.yaml -- {_OURS}", fix="--main_process_port"),
    "axolotl by torchrun": Typed(f"axolotl train axolotl.yaml --launcher torchrun -- {_TORCH}", fix="--master-port"),
    "horovodrun": Typed("horovodrun -np 4 -H node1:2,node2:2 python train.py", alone=True),
    "mpirun": Typed(
        "mpirun -np 4 -H node1:2,node2:2 -x MASTER_ADDR=node1 -x MASTER_PORT={port} /shared/bin/train a",
        fix="-x MASTER_PORT=", alone=True,
    ),
    "torchx": Typed("torchx run -s local_cwd dist.ddp -j 1x2 --script train.py", passes="2 ranks on 1 node"),
    "vllm": Typed(
        "vllm serve m -tp 2 -pp 2 --nnodes 2 --node-rank {n} --master-addr node1 --master-port {port}",
        fix="--master-port",
    ),
    "sglang": Typed(
        "python -m sglang.launch_server --model-path m --tp 2 --pp-size 2 --nnodes 2 --node-rank {n} "
        "--dist-init-addr {at}",
        fix="--dist-init-addr node1:",
    ),
}  # fmt: skip


@pytest.fixture
def typed(cluster):
    """Type a command on its nodes; return how it ended on each, and what was started there: words and variables."""
    programs, modules = cluster.shared / "bin", cluster.shared / "modules"
    for path in [*(programs / name for name in _AS_PROGRAMS), *(modules / name for name in _AS_MODULES)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_RECORDER)
        path.chmod(0o755)
    for name, text in _FILES.items():
        (cluster.shared / name).write_text(text)

    def on_its_nodes(command: Typed) -> tuple[list[Ended], dict[str, list[tuple[list[str], dict[str, str]]]]]:
        env = {"PATH": f"/shared/bin:{PATH}", "PYTHONPATH": "/shared/modules", "OMP_NUM_THREADS": "1"}
        gate = ("distcheck", "gate", "--sizes", "1M:1M", "--op", "all_reduce", "--join-timeout", "30", "--")
        running = []
        for node in range(1 if command.alone else 2):
            own = dict(pair.split("=") for pair in command.env.format(n=node, port=_PORT).split())
            words = (*gate, *command.words(node))
            running.append(cluster.start(f"node{node + 1}", *words, env=env | own, cwd="/shared"))
        ended = [each.wait(PATIENCE) for each in running]
        ran: dict[str, list[tuple[list[str], dict[str, str]]]] = {}
        for path in sorted(cluster.shared.glob("ran.*")):
            ran.setdefault(path.name.split(".")[1], []).append(json.loads(path.read_text()))
        return ended, ran

    return on_its_nodes


def line_1(ended: Ended) -> str:
    """Return the first line of a report, or the only one that a process without it prints."""
    lines = [line.removeprefix("distcheck: ") for line in ended.err.splitlines()]
    return next((line for line in lines if line.startswith(("PASS", "FAIL", "UNKNOWN"))), ended.err)


@pytest.mark.parametrize("name", sampled(COMMANDS.keys(), "accelerate", "fabric", "mpirun", "tune"))
def test_the_ranks_that_it_will_start_are_tested_and_it_starts_as_it_was_typed(typed, name):
    ended, ran = typed(command := COMMANDS[name])
    assert {each.code for each in ended} == {0}, ended
    for each in ended:
        assert line_1(each).startswith(f"PASS: {command.passes}; all_reduce "), each
    if command.program:
        assert [[words for words, _ in ran[node]] for node in sorted(ran)] == [[command.program] * 2] * 2
        return
    assert sorted(ran) == (["node1"] if command.alone else ["node1", "node2"])
    for number, started in enumerate(ran.values()):
        ((words, variables),) = started
        given = command.words(number)
        assert words[1:] == given[3 if given[0] == "python" else 1 :]
        own = {pair.partition("=")[0] for pair in command.env.split()}
        assert set(RANK_VARIABLES) & variables.keys() == own & set(RANK_VARIABLES)


_WITH_PORT = [name for name, command in COMMANDS.items() if command.fix]


@pytest.mark.parametrize(
    "name", sampled(_WITH_PORT, "accelerate", "deepspeed without ssh", "litgpt", "mpirun", "sglang")
)
def test_a_port_that_is_taken_is_named_with_the_commands_own_option_before_it_starts(cluster, typed, name):
    server = cluster.start("node1", sys.executable, "-m", "http.server", str(_PORT))
    until(lambda: cluster.run("node1", "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{_PORT}").code == 0)
    ended, ran = typed(command := COMMANDS[name])
    server.interrupt(signal.SIGKILL)
    server.wait()
    assert [each.code for each in ended] == [30] * len(ended), ended
    for each in ended:
        assert line_1(each).startswith(f"FAIL: MASTER_PORT {_PORT} is taken by process "), each
        assert " on node1. [net-port-in-use" in line_1(each), each
    fixes = [line.strip() for line in ended[0].err.splitlines() if command.fix in line]
    assert any(re.match(r"# in COMMAND(, on all nodes)?: |export ", line) for line in fixes), ended[0].err
    assert ran == {}
