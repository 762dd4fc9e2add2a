"""A run of one process that has nobody to meet."""

from __future__ import annotations

import threading
import time

from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.placement import Placement
from distcheck.probe import network
from distcheck.run import entry
from distcheck.run.request import Request
from distcheck.run.watchdog import armed


def ended(name):
    """Return the findings' errors and the exit code of a world of one rank whose MASTER_ADDR is this name."""
    place = Placement(rank=0, world_size=1, local_rank=0, master_addr=name, master_port=network.free_port())
    environ = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": name, "MASTER_PORT": "29500"}
    asked = Asked("env", ("environment", "meeting"), timeout_seconds=2.0)
    errors = []

    def publish(_job, diagnosis, code):
        errors.extend(found for found in diagnosis.findings if found.severity == "error")
        return code

    result = entry._run_alone(Request(asked, (place,), environ, start=time.monotonic()), publish)
    return result, errors


def test_a_resolver_that_answers_leads_to_no_finding():
    result, errors = ended("127.0.0.1")
    assert (result.exit_code, errors) == (0, [])


def test_no_further_thread_may_start_and_the_run_goes_on(monkeypatch):
    def refused(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with armed(time.monotonic() + 60, 20):
        result, errors = ended("127.0.0.1")
    assert (result.exit_code, errors) == (0, [])


def test_a_resolver_that_does_not_answer_is_given_up_and_the_name_and_the_time_are_reported(monkeypatch):
    monkeypatch.setattr(network, "resolve", lambda _name: time.sleep(20))
    began = time.monotonic()
    result, (found,) = ended("node77")
    assert time.monotonic() - began < 10
    assert isinstance(result.job.processes[0].master_resolution, Missing)
    assert (result.exit_code, found.rule) == (20, "env-master-addr-unresolvable")
    assert "the name node77 in MASTER_ADDR does not resolve (no answer from the resolver within 1 s)" in found.message
