"""`distcheck node` as a daemon runs it: no environment, no streams, an end in time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from made.nvml_jobs import PROFILES
from real.ended import STARTING_SECONDS
from real.waiting import until

H100 = PROFILES["dgx_h100"]
SECONDS = 10
PROLOG = {
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURMD_NODENAME": "node3",
}


@pytest.fixture
def node(tmp_path, fake_nvml):
    """Run ``distcheck node`` with only the given environment; `text` is NVML's answer."""

    def node(*args, text=None, env=None, **more):
        environ = fake_nvml.variables(text) if text else {}
        more = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "cwd": tmp_path} | more
        command = [sys.executable, "-m", "distcheck", "node", *args]
        return subprocess.run(command, env=environ | (env or {}), check=False, timeout=60, **more)

    return node


def rules(done):
    return [f["rule"] for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"]


def test_a_node_without_gpus_passes_with_an_empty_environment(node):
    done = node()
    assert (done.returncode, done.stderr) == (0, "")
    assert "no GPU" in done.stdout or "GPU" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("PASS: node ")


def test_a_node_that_is_to_have_gpus_and_has_no_driver_is_confirmed(node, tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library\n")
    done = node("--gpus", "8", "--reason-file", "reason", env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert done.returncode == 40
    reason = (tmp_path / "reason").read_text()
    assert reason.startswith("distcheck: FAIL: ")
    assert "[gpu-nvml-init-failed] exit code 40" in reason
    assert "NVIDIAs driver library cannot be loaded" in reason
    assert "poweroff" not in done.stdout


def test_a_lost_gpu_is_reported_in_every_requested_way(node, tmp_path):
    env = PROLOG
    done = node(
        "--reason-file", "reason", "--exclude-file", "bad", "--save", "job.json", text=H100 + "5.lost yes\n", env=env
    )
    assert done.returncode == 40
    assert "node3, 8 GPUs, driver 550.54.15, Slurm prolog_slurmd of job 77" in done.stdout
    (reason,) = (tmp_path / "reason").read_text().splitlines()
    assert reason.startswith("distcheck: FAIL: node3: GPU 5: NVML error 15")
    assert " [gpu-fell-off-bus" in reason
    assert reason.endswith(" [job=77]")
    assert len(reason) <= 200
    assert (tmp_path / "bad").read_text() == "node3\n"
    again = subprocess.run(
        [sys.executable, "-m", "distcheck", "report", "job.json"], cwd=tmp_path, capture_output=True, check=False
    )
    assert again.returncode == 40


def test_variables_of_ranks_are_ignored(node):
    ranks = {"RANK": "x", "WORLD_SIZE": "0", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1", "SLURM_PROCID": "3"}
    began = time.monotonic()
    done = node("--format", "json", env=PROLOG | ranks | {"SLURM_NTASKS": "8", "CUDA_VISIBLE_DEVICES": "0,0"})
    report = json.loads(done.stdout)
    assert (done.returncode, rules(done)) == (0, [])
    assert [(row["rank"], row["node"], row["status"]) for row in report["ranks"]] == [(None, "node3", "ok")]
    assert report["world"]["launcher"] == "none"
    assert time.monotonic() - began < 30


def test_a_hanging_nvml_ends_in_time_and_is_not_a_pass(node):
    began = time.monotonic()
    done = node("--format", "json", "--reason-file", "reason", text=H100 + "3.name hang\n")
    seconds = time.monotonic() - began
    assert (done.returncode, rules(done)) == (20, ["gpu-nvml-init-failed"])
    assert json.loads(done.stdout)["seconds"] < SECONDS
    assert seconds < SECONDS + STARTING_SECONDS


def test_closed_streams_are_harmless(tmp_path):
    script = 'exec "$0" -m distcheck node --save job.json --reason-file reason <&- >&- 2>&-'
    done = subprocess.run(["/bin/sh", "-c", script, sys.executable], env={}, cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 0
    assert json.loads((tmp_path / "job.json").read_text())["asked"]["command"] == "node"
    assert (tmp_path / "reason").read_text() == ""


@pytest.fixture
def logging_to(tmp_path):
    """Run ``distcheck node --syslog`` with this socket as /dev/log, in a separate mount namespace."""
    if os.getuid() != 0:
        pytest.skip("needs root, to mount")
    script = 'mount -t tmpfs none /dev && ln -s "$1" /dev/log && mknod /dev/null c 1 3 && '
    script += 'exec "$2" -m distcheck node --syslog'
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(path := str(tmp_path / "log"))
        log.settimeout(20)
        command = ["unshare", "--mount", "sh", "-c", script, "sh", path, sys.executable]
        yield log, lambda: subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_system_log_has_one_line(logging_to):
    log, run = logging_to
    done = run()
    line = log.recv(4096).decode()
    assert "distcheck[" in line
    # A /dev of its own has no shm: this node is suspected.
    assert done.returncode == 20
    assert "UNKNOWN: " in line
    assert " [host-shm-not-writable" in line
    assert line.startswith("<28>")


def test_a_system_log_that_takes_no_line_holds_up_nothing(logging_to):
    log, run = logging_to
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.settimeout(0)
        with suppress(BlockingIOError):
            while other.sendto(b"full", log.getsockname()):
                pass
    done = run()
    assert (done.returncode, done.stderr) == (20, "")
    assert " [host-shm-not-writable" in done.stdout.splitlines()[0]


def test_an_interrupt_is_reported_without_a_traceback(tmp_path, fake_nvml):
    told = fake_nvml.environ(H100 + "init hang\n") | {"DISTCHECK_TIMEOUT": "60"}
    process = subprocess.Popen(
        [sys.executable, "-m", "distcheck", "node"],
        env=told,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(psutil.Process(process.pid).children)  # the one that asks NVML
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    assert out.startswith(b"INTERRUPTED: SIGINT in the look at the node after ")


def test_a_node_is_looked_at_by_forks_and_starts_no_other_python(distcheck, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n\n"
        "def note(event, about):\n"
        "    if event in {'os.fork', 'subprocess.Popen'}:\n"
        f"        print(event, file=open({str(tmp_path / 'started')!r}, 'a'))\n\n"
        "sys.addaudithook(note)\n"
    )
    done = distcheck("node", env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 0
    assert set((tmp_path / "started").read_text().split()) == {"os.fork"}
