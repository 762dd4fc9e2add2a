"""The causes of a process's death, by its signal and the state of its node."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.placement import Placement
from distcheck.facts.rank import Death, RankFacts, RankRun
from distcheck.facts.storage import Space
from distcheck.rules.collectives.deaths import cause_of_death, evidence_of_death, signal_of

MIB, GIB = 1 << 20, 1 << 30
ROOMY = Space(total_bytes=24 * GIB, free_bytes=23 * GIB, free_files=None, writable=True)
SMALL = Space(total_bytes=8 * MIB, free_bytes=3 * MIB, free_files=None, writable=True)
FULL = Space(total_bytes=24 * GIB, free_bytes=MIB, free_files=None, writable=True)
LIMIT = {"oom_kills": 1, "memory_limit_bytes": 300 * MIB, "memory_cgroup": "/sys/fs/cgroup/job"}


def dead(detail="was ended by SIGKILL", environment=None, **death):
    told = Death(**{"oom_kills": 0, "shm": ROOMY, **death})
    run = RankRun(pid=1, step="all_reduce 16 B", outcome="died", detail=detail, death=told)
    return RankFacts(process="p", placement=Placement(rank=1), environment=environment or {}, run=run)


@pytest.mark.parametrize(
    ("detail", "name"),
    [
        ("was ended by SIGBUS", "SIGBUS"),
        ("ended with the one that forked it, which was ended by SIGKILL", "SIGKILL"),
        ("exited with code 137", "SIGKILL"),
        ("exited with code 139", "SIGSEGV"),
        ("exited with code 134", "SIGABRT"),
        ("ended with exit code 135", "SIGBUS"),
        ("was ended by signal 64", "signal 64"),
        ("exited with code 3", ""),
        ("exited with code 255", ""),
        ("was lost when the connection to its node closed", ""),
    ],
)
def test_a_signal_is_read_from_text_and_from_a_shells_exit_code(detail, name):
    assert signal_of(detail) == name


def test_a_reached_memory_limit_is_named_with_its_size_and_is_the_jobs_fault():
    cause = cause_of_death(dead(**LIMIT))
    assert cause.seen == "the kernel OOM-killed it at its cgroup's memory limit of 300 MiB"
    assert (cause.scope, cause.owner) == ("rank", "user")
    assert evidence_of_death(dead(**LIMIT))["memory_limit_bytes"] == 300 * MIB


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({"SLURM_JOB_ID": "7"}, "#SBATCH --mem=600M"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "# in the container: resources: {limits: {memory: 600Mi}}"),
        ({}, "# add to docker run: --memory=600m"),
    ],
)
def test_the_fix_requests_more_memory_where_the_limit_was_set(environment, command):
    assert command in cause_of_death(dead(environment=environment, **LIMIT)).commands


def test_an_oom_kill_without_a_reached_limit_is_the_nodes_fault():
    cause = cause_of_death(dead(oom_kills=2))
    assert "the kernel OOM-killed 2 processes" in cause.seen
    assert cause.scope == "node"


@pytest.mark.parametrize(("environment", "sacct"), [({"SLURM_JOB_ID": "7"}, True), ({}, False)])
def test_a_kill_without_an_oom_kill_has_an_unknown_sender(environment, sacct):
    cause = cause_of_death(dead(environment=environment))
    assert cause.seen == "the kernel did not OOM-kill any process in its cgroup"
    assert (cause.owner, cause.scope) == ("unknown", "node")
    assert "sender is not known" in cause.text
    assert any("sacct" in command for command in cause.commands) == sacct


def test_without_a_count_of_oom_kills_the_usual_cause_is_given():
    cause = cause_of_death(dead(oom_kills=Missing(reason="no cgroup")))
    assert (cause.seen, cause.owner) == ("", "user")
    assert "Most often the memory limit" in cause.text


def test_a_memory_limit_explains_no_other_signal():
    for name in ("SIGSEGV", "SIGABRT", "SIGTERM"):
        assert "memory limit" not in cause_of_death(dead(f"was ended by {name}", **LIMIT)).seen


@pytest.mark.parametrize(
    ("room", "owner", "words", "command"),
    [
        (SMALL, "user", "Make /dev/shm larger", "# add to docker run: --shm-size=8g"),
        (FULL, "user", "Remove leftover files", "ls -la /dev/shm"),
        (ROOMY, "unknown", "Shared memory is not the cause", "df -h /tmp ."),
    ],
)
def test_a_bus_error_is_judged_by_the_free_shared_memory(room, owner, words, command):
    cause = cause_of_death(dead("was ended by SIGBUS", shm=room))
    assert cause.owner == owner
    assert words in cause.text
    assert command in cause.commands
    assert "its /dev/shm has" in cause.seen


def test_a_pods_shared_memory_is_a_volume():
    cause = cause_of_death(dead("was ended by SIGBUS", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, shm=SMALL))
    assert cause.commands[0].startswith("volumes: ")
    assert cause.seen == "its /dev/shm has 3 MiB free of 8 MiB"


def test_an_abort_is_the_watchdogs_if_the_output_says_so():
    said = "[E] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)"
    assert cause_of_death(dead("was ended by SIGABRT", said=said)).seen == "torch's watchdog aborted it"
    thrown = "working\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"
    assert cause_of_death(dead("was ended by SIGABRT", said=thrown)).seen == (
        "its output: 'terminate called after throwing an instance of 'std::bad_alloc''"
    )
    assert cause_of_death(dead("was ended by SIGABRT", said="all is well")).seen == ""


def test_a_crash_is_reported_with_its_python_call():
    said = "free(): invalid pointer\nFatal Python error: Aborted\nStack (most recent call first):\n"
    said += '  File "/x/torch/distributed/distributed_c10d.py", line 3000 in all_reduce\n'
    said += '  File "/x/worker.py", line 9 in run'
    assert cause_of_death(dead("was ended by SIGABRT", said=said)).seen == (
        "its output: 'free(): invalid pointer'; it was in all_reduce (distributed/distributed_c10d.py:3000)"
    )


def test_an_unexplained_death_has_no_evidence():
    run = RankRun(pid=1, step="all_reduce 16 B", outcome="died", detail="exited with code 3")
    rank = RankFacts(process="p", placement=Placement(rank=1), environment={}, run=run)
    assert evidence_of_death(rank) == {}
    assert "log" in cause_of_death(rank).text
