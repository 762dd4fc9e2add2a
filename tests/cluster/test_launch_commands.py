"""The gate in front of what people type on each node, with no word about the ranks: it reads them from the command."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster.inside import GATE, JOB, PATIENCE, assert_healthy, blocks, finding, findings, placed, reports
from forms.sampled import sampled
from real.waiting import until

if TYPE_CHECKING:
    from real.ended import Ended

_IN_FRONT = ("distcheck", *GATE, "--")
_TORCHRUN = f"{sys.prefix}/bin/torchrun"
_STATIC = ("--nnodes", "2", "--master-addr", "node1", "--master-port", "29533", "--nproc-per-node", "2")
_ENDPOINT = ("--rdzv-backend", "c10d", "--rdzv-id", "7", "--nproc-per-node", "2")
_ENV = {"OMP_NUM_THREADS": "1"}


@pytest.fixture
def typed(cluster):
    """Type a line on node1 and node2, and wait for both; {n} in it is the node's number."""

    def on_both(*words: str, **env: str) -> list[Ended]:
        lines = [[word.replace("{n}", str(number)) for word in words] for number in range(2)]
        running = [cluster.start(f"node{n + 1}", *line, env=_ENV | env) for n, line in enumerate(lines)]
        return [each.wait(PATIENCE) for each in running]

    return on_both


@pytest.mark.parametrize(
    ("words", "env"),
    [
        ((_TORCHRUN, *_STATIC, "--node-rank", "{n}", JOB), {}),
        ((sys.executable, "-m", "torch.distributed.run", *_STATIC, "--node-rank={n}", JOB), {}),
        (("bash", "-c", f"{_TORCHRUN} --nnodes 2 --node-rank {{n}} --nproc-per-node $L {JOB}"),
         {"L": "2", "PET_MASTER_ADDR": "node1"}),
        ((_TORCHRUN, "--nnodes", "2", *_ENDPOINT, "--rdzv-endpoint", "node1:29534", JOB), {}),
    ],
    ids=["torchrun", "torch.distributed.run", "in a shell, with variables", "an endpoint only"],
)  # fmt: skip
def test_three_words_in_front_test_the_ranks_that_will_start_and_the_job_runs(typed, words, env):
    ended = typed(*_IN_FRONT, *words, **env)
    assert_healthy(ended, blocks(2, 2), "distcheck")


def test_an_elastic_command_passes_with_the_nodes_that_are_there(typed):
    ended = typed(*_IN_FRONT, _TORCHRUN, "--nnodes", "1:4", *_ENDPOINT, "--rdzv-endpoint", "node1:29535", JOB)
    assert_healthy(ended, blocks(2, 2), "distcheck")


@pytest.mark.parametrize(
    ("rank", "more"),
    [("--node-rank={n}", _STATIC), ("--rdzv-endpoint=node1:29533", ("--nnodes", "2", *_ENDPOINT))],
    ids=["master port", "endpoint"],
)
def test_a_port_that_is_taken_is_named_before_the_command_starts_on_any_node(cluster, typed, rank, more):
    server = cluster.start("node1", sys.executable, "-m", "http.server", "29533")
    until(lambda: cluster.run("node1", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/29533").code == 0)
    ended = typed(*_IN_FRONT, _TORCHRUN, *more, rank, JOB)
    server.interrupt(signal.SIGKILL)
    server.wait()
    assert [each.code for each in ended] == [30, 30], ended
    (report,) = reports(*ended)
    found = finding(report, "net-port-in-use")
    assert found["nodes"] == ["node1"]
    assert any(command.startswith("# in COMMAND, on all nodes: --") for command in found["fix"]["commands"])


_MEETS = f"""#!{sys.executable}
import socket, sys, time
if "--node-rank=0" in sys.argv:
    time.sleep(1)  # node 1 comes first
    with socket.create_server(("", 29533)) as server:
        server.accept()[0].sendall(b"the job")
refused, end = 0, time.monotonic() + 30
while "--node-rank=1" in sys.argv and time.monotonic() < end:
    try:
        with socket.create_connection(("node1", 29533), 5) as sock:
            print("refused" if refused else "never refused", "then met:", sock.makefile().read())
            break
    except ConnectionRefusedError:
        refused += 1
        time.sleep(0.005)
"""


def test_the_jobs_rendezvous_never_meets_distchecks(cluster):
    """Node 0's report is held up by a full pipe, then its goodbye by node 2; node 1's command connects at once."""
    words = ("--nnodes", "3", "--master-addr", "node1", "--master-port", "29533")
    assert cluster.run("node1", "mkfifo", "/tmp/report").code == 0
    nodes = []
    for number, output in enumerate((("--output", "/tmp/report"), (), ())):
        cluster.write(f"node{number + 1}", "/tmp/here/torchrun", _MEETS)
        own = (f"--node-rank={number}", "--no-python", "true")
        line = ("distcheck", *GATE, *output, "--", "/tmp/here/torchrun", *words, *own)
        nodes.append(cluster.start(f"node{number + 1}", *line, env=_ENV))
    pipe = os.open(f"/proc/{nodes[0].pid}/root/tmp/report", os.O_RDWR | os.O_NONBLOCK)
    filled = os.write(pipe, bytes(fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)))
    until(lambda: "/tmp/report" in _open_files(nodes[0].pid))
    assert _words(nodes[1].pid)[1:3] != ["/tmp/here/torchrun", words[0]], "it started before the report was out"
    nodes[2].interrupt(signal.SIGSTOP)
    os.read(pipe, filled)
    until(lambda: _words(nodes[1].pid)[1:3] == ["/tmp/here/torchrun", words[0]])
    time.sleep(0.3)  # it connects
    nodes[2].interrupt(signal.SIGCONT)
    nodes[2].process.send_signal(signal.SIGCONT)  # nsenter stops with its child
    ended = [each.wait(60) for each in nodes]
    os.close(pipe)
    assert [each.code for each in ended] == [0, 0, 0], ended
    assert ended[1].out == "refused then met: the job\n"


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def _open_files(pid: int) -> list[str]:
    with suppress(FileNotFoundError):  # files open and close while they are looked at
        return [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
    return []


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("wrong", ["--nproc-per-node two", "--nprocs 2"])
def test_a_line_that_is_refused_on_one_node_is_named_by_both_at_once(cluster, node, wrong):
    line = (_TORCHRUN, "--nnodes", "2", "--master-addr", "node1", "--master-port", "29533", "--node-rank")
    each = ["--nproc-per-node 2", "--nproc-per-node 2"]
    each[node] = wrong
    words = [(*_IN_FRONT, *line, str(n), *own.split(), JOB) for n, own in enumerate(each)]
    running = [cluster.start(f"node{n + 1}", *typed, env=_ENV) for n, typed in enumerate(words)]
    ended = [run.wait(PATIENCE) for run in running]
    assert [each.code for each in ended] == [30, 30], ended
    assert all("[command-refused]" in each.err for each in ended), ended
    (report,) = reports(*ended)
    assert findings(report, "error", "warning") == ["command-refused"]
    assert finding(report, "command-refused")["nodes"] == [f"node{node + 1}"]
    why = next(row["reason"] for row in report["not_checked"] if row["rule"] == "env-rank-missing")
    assert why.startswith("the launch command of another node will not start")


def test_one_line_copied_to_both_nodes_is_named_by_both(typed):
    ended = typed(*_IN_FRONT, _TORCHRUN, *_STATIC, "--node-rank", "0", JOB)
    assert [each.code for each in ended] == [30, 30], ended
    (report,) = reports(*ended)
    assert findings(report, "error") == ["command-node-rank-duplicate"]


def test_an_endpoint_that_no_agent_will_serve_is_named(cluster, typed):
    for number in (1, 2):
        hosts = f"127.0.0.1 localhost\\n127.0.1.1 node{number}\\n"
        assert cluster.run(f"node{number}", "bash", "-c", f"printf '{hosts}' > /etc/hosts").code == 0
    ended = typed(*_IN_FRONT, _TORCHRUN, "--nnodes", "2", *_ENDPOINT, "--rdzv-endpoint", "10.77.0.11:29534", JOB)
    assert [each.code for each in ended] == [30, 30], ended
    (report,) = reports(*ended)
    assert "command-endpoint-unserved" in findings(report, "error")


def test_under_srun_one_task_on_each_node_is_one_node_of_the_command(cluster):
    words = ("--nnodes", "2", *_ENDPOINT, "--rdzv-endpoint", "node1:29534", JOB)
    step = ("srun", "--nodes=2", "--ntasks-per-node=1", *_IN_FRONT, _TORCHRUN, *words)
    report = assert_healthy([cluster.run("node1", *step, env=_ENV, timeout=PATIENCE)], blocks(2, 2), "distcheck")
    assert findings(report, "info") == []


_STARTED = f"#!{sys.prefix}/bin/python\n"
_MASTER = "MASTER_ADDR=node1 MASTER_PORT=29533"
_EACH_NODE = "srun --nodes=2 --ntasks-per-node=1"
_MACHINES = "--multi_gpu --num_machines 2 --num_processes 4 --main_process_ip node1 --main_process_port 29533"
_ACCELERATE = f"python -m accelerate.commands.launch {_MACHINES} --machine_rank $SLURM_NODEID train.py"
_STATIC_RANKS = f"{_TORCHRUN} {' '.join(_STATIC)} --node-rank $SLURM_NODEID --no-python true"
_STANDALONE = "python -m torch.distributed.run --standalone --nproc-per-node 2 train.py"
_COMPOSER = f"export WORLD_SIZE=4 NODE_RANK=$SLURM_NODEID {_MASTER}; GATE composer -n 2 train.py"
_LITGPT = "litgpt pretrain m --devices 2 --num_nodes 2"


@pytest.fixture
def in_shell(cluster):
    """Run a line on node1, in which GATE is distcheck and the launchers that are no part of torch start nothing."""
    for name in ("bin/composer", "bin/litgpt", "modules/accelerate/commands/launch.py", "train.py"):
        path = cluster.shared / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_STARTED)
        path.chmod(0o755)

    def run(line: str) -> Ended:
        line = line.replace("GATE", shlex.join(_IN_FRONT))
        env = _ENV | {"PYTHONPATH": "/shared/modules"}
        return cluster.run("node1", "bash", "-c", line, env=env, cwd="/shared", timeout=PATIENCE)

    return run


@pytest.mark.parametrize(
    ("line", "layout"),
    sampled(
        {
            "torch on one node": (f"srun -n1 GATE {_STANDALONE}", blocks(2)),
            "torch, with a stale variable": (f"WORLD_SIZE=4 GATE {_STANDALONE}", blocks(2)),
            "accelerate": (f"{_EACH_NODE} bash -c 'GATE {_ACCELERATE}'", blocks(2, 2)),
            "torchrun": (f"{_EACH_NODE} bash -c 'GATE {_STATIC_RANKS}'", blocks(2, 2)),
            "composer": (f"{_EACH_NODE} bash -c '{_COMPOSER}'", blocks(2, 2)),
            "litgpt": (f"srun --nodes=2 --ntasks-per-node=2 GATE {_LITGPT}", blocks(2, 2)),
        },
        "accelerate", "torch, with a stale variable",
    ),
)  # fmt: skip
def test_in_steps_of_slurm_and_with_variables_the_ranks_are_the_commands_and_nothing_is_found(in_shell, line, layout):
    ended = in_shell(line)
    (report,) = reports(ended)
    assert (ended.code, report["verdict"], findings(report, "error", "warning", "info")) == (0, "pass", []), ended
    assert placed(report) == layout


@pytest.mark.slow
def test_two_tasks_whose_commands_name_one_node_are_two_jobs(in_shell):
    ended = in_shell(f"{_EACH_NODE} GATE {_STANDALONE}")
    assert (ended.code, sorted(map(placed, reports(ended)))) == (
        0,
        sorted([blocks(2), [(0, "node2", 0), (1, "node2", 1)]]),
    )


def test_lightnings_port_of_a_slurm_job_is_the_one_that_is_tested(in_shell):
    port = "$((15000 + SLURM_JOB_ID % 10000))"
    server = f"{sys.executable} -m http.server {port} >/dev/null 2>&1"
    wait = f"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.1; done"
    script = f"{server} & {wait}; {_EACH_NODE} GATE {_LITGPT}; code=$?; kill $!; exit $code"
    ended = in_shell(f"salloc --job-name=train --nodelist=node1,node2 bash -c '{script}'")
    (report,) = reports(ended)
    assert (ended.code, findings(report)) == (30, ["net-port-in-use"]), ended
    assert finding(report, "net-port-in-use")["message"].startswith("MASTER_PORT 15")
