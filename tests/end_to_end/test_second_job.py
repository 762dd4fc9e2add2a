"""A second job on the node with the same debugging aids, as real processes; the gate leaves it alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from distcheck.probe.network import free_port

PORT = "NCCL_RAS_ADDR"
PIPE, DUMP = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE"
QUICK = ("--sizes", "1M:1M", "--iters", "2", "--ignore", "command-processes-differ")
JOB = """
import os, socket, sys
ports = [socket.create_server(("127.0.0.1", int(port))) for port in sys.argv[2:]]
os.mkfifo(sys.argv[1])
pipe = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
sys.stdin.read()
print(len(os.read(pipe, 128)), os.path.samestat(os.fstat(pipe), os.stat(sys.argv[1])))
"""


@pytest.fixture
def gate(distcheck, tmp_path):
    """Return the end of a gate, whose COMMAND's script starts a debug server at a port of its own."""
    ports = [free_port(), free_port() + 1]
    variables = {PORT: f"localhost:{ports[0]}", PIPE: f"{tmp_path}/pipe_", DUMP: f"{tmp_path}/dump_"}
    script = tmp_path / "train.py"
    script.write_text(f"if 0:\n    debug.start_debug_server(port={ports[1]})\n")

    def of():
        report = tmp_path / "report"
        words = ("gate", "--nproc", "2", *QUICK, "--format", "json", "--output", str(report))
        ended = distcheck(*words, "--", sys.executable, str(script), env=variables)
        return ended, json.loads(report.read_text())["findings"]

    of.ports, of.variables = ports, variables
    return of


def test_what_a_second_job_holds_is_named_and_left_alone(gate, tmp_path):
    words = [sys.executable, "-c", JOB, str(tmp_path / "pipe_0.pipe"), *map(str, gate.ports)]
    other = {**os.environ, **gate.variables, "RANK": "1", "MASTER_PORT": "1"}
    with subprocess.Popen(words, env=other, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout.readline() == "ready\n"
        ended, findings = gate()
        told, _ = job.communicate("")
    assert [(f["rule"], f["severity"], f["ranks"]) for f in findings] == [
        ("net-debug-port-in-use", "warning", [0, 1]),
        ("net-debug-port-in-use", "warning", [0]),
        ("torch-debug-file-in-use", "warning", [0]),
        ("torch-debug-file-in-use", "warning", [1]),
    ], ended
    assert all(f"process {job.pid} " in f["message"] for f in (*findings[:2], findings[3]))
    assert told == "0 True\n", "nobody wrote to its pipe or replaced it"


def test_the_same_job_alone_is_silent(gate):
    ended, findings = gate()
    assert findings == [], ended
