"""Servers beside the job, packages and crashes: they have a class, and blame no rule."""

from __future__ import annotations

import pytest
from explain.answered import HEALTHY, found, rules, rules_of


@pytest.mark.parametrize(
    ("line", "about"),
    [
        # ports and connections of other servers
        ("[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use", "start-up"),
        ("zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.58:40043')", "start-up"),
        ("OSError: Cannot find empty port in range: 7860-7860.", "start-up"),
        ("ValueError: Ray component dashboard_agent_grpc is trying to use a port number 8266", "start-up"),
        ("httpx.ConnectError: [Errno 111] Connection refused", "application"),
        ("aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host localhost:8000", "application"),
        ("wandb: Network error (ConnectionError), entering retry loop.", "application"),
        # packages
        ("nvcc fatal   : Unsupported gpu architecture 'compute_90'", "start-up"),
        ("unable to execute 'nvcc': No such file or directory", "start-up"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'", "start-up"),
        ("pkg_resources.DistributionNotFound: The 'tokenizers' distribution was not found", "start-up"),
        ("TypeError: Descriptors cannot be created directly.", "start-up"),
        # kernels and crashes
        ("double free or corruption (!prev)", "application"),
        ("*** SIGSEGV received at time=1700000000 on cpu 3 ***", "application"),
        ("slurm_script: line 30: 12345 Terminated              python train.py", "process killed"),
        ("Spot instance interruption notice", "process killed"),
        ("Traceback (most recent call last):\n  File 'a.py', line 3, in step", "application"),
    ],
)
def test_what_is_beside_the_job_has_its_class_and_no_rule(line, about):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about) == ([], about)


def test_the_same_words_about_the_ranks_name_a_rule():
    assert rules("RuntimeError: Address already in use\n")[0] == "net-port-in-use"
    assert rules("ConnectionRefusedError: [Errno 111] Connection refused\n")[0] == "net-master-refused"


def test_a_signal_that_the_others_receive_is_a_consequence():
    assert rules("Received SIGTERM: 15\nRuntimeError: Address already in use\n")[0] == "net-port-in-use"
