from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from real.waiting import until

from distcheck.facts.placement import Variables
from distcheck.facts.ranges import unfold
from distcheck.facts.rank import Agent
from distcheck.probe import process


def test_a_process_knows_its_command_and_ancestors():
    assert process.command_of(os.getpid())[0].endswith(("python", "python3", "python3.11")) or sys.executable
    assert process.ancestors()


TOLD = "from distcheck.probe.process import given_devices; import os; print(given_devices(os.environ))"


@pytest.mark.process
@pytest.mark.parametrize(
    ("began", "line", "given"),
    [
        ({"PBS_JOBID": "7", "CUDA_VISIBLE_DEVICES": "0,1"}, "CUDA_VISIBLE_DEVICES=3", "0,1"),
        ({"LSB_JOBID": "7", "CUDA_VISIBLE_DEVICES": "4"}, "bash -c 'unset CUDA_VISIBLE_DEVICES; exec \"$@\"' -", "4"),
        ({"LSB_JOBID": "7"}, "CUDA_VISIBLE_DEVICES=3", ""),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "CUDA_VISIBLE_DEVICES=3 PBS_JOBID=7", ""),
    ],
)
def test_the_first_process_of_a_batch_job_keeps_what_it_was_given(began, line, given):
    script = f"{line} {sys.executable} -c '{TOLD}'; true"
    ended = subprocess.run(
        ["bash", "-c", script], env=os.environ | began, stdout=subprocess.PIPE, text=True, check=True
    )
    assert ended.stdout.strip() == given


CUT_NAME = r"""
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"trainieren\xc3\xa4\xc3\xa4\xc3")
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_a_process_whose_name_or_words_are_no_utf_8_is_shown_with_what_is_legible():
    child = subprocess.Popen(
        [sys.executable, "-c", CUT_NAME, b"lern\xe4n"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        child.stdout.readline()
        assert process.parent_of(child.pid) == os.getpid()
        assert process.state_of(child.pid) in "RS"
        assert process.started(child.pid)
        assert process.command_or_name(child.pid).endswith("lern\ufffdn")
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process.command_or_name(child.pid) == "trainierenää\ufffd"


@pytest.mark.process
def test_a_process_that_ended_has_no_command_parent_or_state():
    child = subprocess.Popen(["true"])
    child.wait()
    assert (process.command_of(child.pid), process.parent_of(child.pid), process.state_of(child.pid)) == ((), 0, "")


@pytest.mark.parametrize(
    ("device", "terminal"), [(34819, "pts/3"), (0x10882C, "pts/300"), (1025, "tty1"), (0, ""), (1280, "")]
)
def test_the_terminal_of_a_process_has_the_name_that_ps_shows(monkeypatch, device, terminal):
    monkeypatch.setattr(process, "_text", lambda _: f"7 (a (b) c) S 1 7 7 {device} 7 0")
    assert process.terminal_of(7) == terminal


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "program", "arguments"),
    [
        (["/x/bin/torchrun", "--nnodes=2", "t.py"], "torchrun", ("--nnodes=2", "t.py")),
        (["-m", "torch.distributed.run", "t.py"], "torchrun", ("t.py",)),
        (["-u", "-m", "torch.distributed.launch", "t.py"], "launch", ("t.py",)),
        (["/x/torch/distributed/launch.py", "t.py"], "launch", ("t.py",)),
        (["/x/bin/accelerate", "launch", "t.py"], "accelerate", ("launch", "t.py")),
    ],
)
def test_the_nearest_agent_is_found_with_its_arguments_and_variables(words, program, arguments):
    script = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    environ = {"MASTER_ADDR": "node1", "RANK": "3", "NCCL_DEBUG": "INFO", "HOME": "/root"}
    # An interpreter that runs a script shows its arguments: the agent's command line without the agent.
    agent = subprocess.Popen([sys.executable, "-c", script, *words], env=environ)
    try:
        child = until(psutil.Process(agent.pid).children)[0].pid
        found = process.agent({"TORCHELASTIC_RUN_ID": "7"}, child)
        assert found == Agent(
            program=program,
            pid=agent.pid,
            arguments=arguments,
            exported=Variables({"MASTER_ADDR": "node1", "RANK": "3"}),
        )
        assert process.agent({}, child) is None
    finally:
        for pid in [*psutil.Process(agent.pid).children(), psutil.Process(agent.pid)]:
            pid.kill()
        agent.wait()


def test_a_process_that_no_agent_started_has_none():
    assert process.agent({"TORCHELASTIC_RUN_ID": "7"}) is None


@pytest.mark.parametrize(
    ("environ", "gpus", "known"),
    [({}, False, False), ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, False, True), ({}, True, True)],
)
def test_the_device_of_shared_memory_is_read_in_pods_and_with_gpus(environ, gpus, known):
    assert isinstance(process.shm_device(environ, gpus=gpus), int) == known


def test_the_cpus_on_which_this_process_may_run_are_listed():
    listed = unfold(process.allowed_cpu_list())
    assert listed == os.sched_getaffinity(0)
    assert len(listed) == process.allowed_cpus()


@pytest.mark.parametrize(
    ("cgroup", "job", "container"),
    [
        ("4:memory:/slurm/uid_1000/job_7/step_0/task_1\n", "7", ""),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_special\n", "4711", ""),
        (f"0::/system.slice/docker-{'0123456789abcdef' * 4}.scope\n", "", "0123456789ab"),
        (f"12:pids:/docker/{'ab' * 32}\n", "", "abababababab"),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{'cd' * 32}.scope\n", "", "cdcdcdcdcdcd"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "", ""),
        ("0::/home/job_x\n", "", ""),
        ("", "", ""),
    ],
)
def test_a_process_s_slurm_job_and_container_are_in_its_cgroup(monkeypatch, cgroup, job, container):
    monkeypatch.setattr(process, "_text", lambda _: cgroup)
    gone = 1 << 22
    assert (process.slurm_job_of(gone), process.container_of(gone)) == (job, container)


def test_without_a_cgroup_the_variables_give_the_slurm_job(monkeypatch):
    monkeypatch.setattr(process, "_text", lambda _: "0::/\n")
    monkeypatch.setattr(process, "variables_of", lambda _: {"SLURM_JOB_ID": "7"})
    assert process.slurm_job_of(1 << 22) == "7"
