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
SLURM, POD = {"SLURM_JOB_ID": "7"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
WATCHDOG = "[E] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)"
THROWN = "working\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"
CRASH = """free(): invalid pointer
Fatal Python error: Aborted
Stack (most recent call first):
  File "/x/torch/distributed/distributed_c10d.py", line 3000 in all_reduce
  File "/x/worker.py", line 9 in run"""


def dead(detail="was ended by SIGKILL", environment=None, **death):
    told = Death(**{"oom_kills": 0, "shm": ROOMY, **death})
    run = RankRun(pid=1, step="all_reduce 16 B", outcome="died", detail=detail, death=told)
    return RankFacts(process="p", placement=Placement(rank=1), environment=environment or {}, run=run)


@pytest.mark.parametrize(
    ("detail", "name"),
    [
        ("was ended by SIGBUS", "SIGBUS"),
        ("ended with the one that forked it, which was ended by SIGKILL", "SIGKILL"),
        ("exited with code 139", "SIGSEGV"),
        ("ended with exit code 135", "SIGBUS"),
        ("was ended by signal 64", "signal 64"),
        ("exited with code 3", ""),
        ("exited with code 255", ""),
        ("was lost when the connection to its node closed", ""),
    ],
)
def test_a_signal_is_read_from_text_and_from_a_shells_exit_code(detail, name):
    assert signal_of(detail) == name


OF_LIMIT = "the kernel OOM-killed it at its cgroup's memory limit of 300 MiB"
OF_NODE = "the kernel OOM-killed 2 processes; its cgroup limit was not reached"
CRASHED = "its output: 'free(): invalid pointer'; it was in all_reduce (distributed/distributed_c10d.py:3000)"
OF_NOBODY = "the kernel did not OOM-kill any process in its cgroup"


@pytest.mark.parametrize(
    ("name", "environment", "death", "seen", "owner", "words"),
    [
        ("SIGKILL", SLURM, LIMIT, OF_LIMIT, "user", "#SBATCH --mem=600M"),
        ("SIGKILL", POD, LIMIT, OF_LIMIT, "user", "# in the container: resources: {limits: {memory: 600Mi}}"),
        ("SIGKILL", {}, LIMIT, OF_LIMIT, "user", "# add to docker run: --memory=600m"),
        ("SIGKILL", {}, {"oom_kills": 2}, OF_NODE, "unknown", "free -h"),
        ("SIGKILL", SLURM, {}, OF_NOBODY, "unknown", "sacct -j $SLURM_JOB_ID"),
        ("SIGKILL", {}, {}, OF_NOBODY, "unknown", "sender is not known"),
        ("SIGKILL", {}, {"oom_kills": Missing(reason="no cgroup")}, "", "user", "Most often the memory limit"),
        ("SIGSEGV", {}, LIMIT, "", "unknown", "crashed"),
        ("SIGTERM", {}, LIMIT, "", "unknown", "preemption"),
        ("SIGBUS", {}, {"shm": SMALL}, "its /dev/shm has 3 MiB free of 8 MiB", "user", "--shm-size=8g"),
        ("SIGBUS", POD, {"shm": SMALL}, "its /dev/shm has 3 MiB free of 8 MiB", "user", "volumes: "),
        ("SIGBUS", {}, {"shm": FULL}, "its /dev/shm has 1 MiB free of 24 GiB", "user", "Remove leftover files"),
        ("SIGBUS", {}, {}, "its /dev/shm has 23 GiB free of 24 GiB", "unknown", "df -h /tmp ."),
        ("SIGABRT", {}, {"said": WATCHDOG}, "torch's watchdog aborted it", "unknown", "distcheck isolate"),
        ("SIGABRT", {}, {"said": THROWN}, f"its output: '{THROWN.splitlines()[1]}'", "unknown", ""),
        ("SIGABRT", {}, {"said": "all is well"}, "", "unknown", ""),
        ("SIGABRT", {}, {"said": CRASH}, CRASHED, "unknown", ""),
    ],
)
def test_a_death_is_explained_by_what_its_node_showed(name, environment, death, seen, owner, words):
    cause = cause_of_death(dead(f"was ended by {name}", environment, **death))
    assert (cause.seen, cause.owner) == (seen, owner)
    assert cause.scope == ("rank" if seen == OF_LIMIT else "node"), "a reached limit is the job's fault"
    assert words in " ".join((cause.text, *cause.commands))


def test_the_evidence_of_a_death_is_what_its_node_showed_and_nothing_if_nobody_looked():
    assert evidence_of_death(dead(**LIMIT))["memory_limit_bytes"] == 300 * MIB
    run = RankRun(pid=1, step="all_reduce 16 B", outcome="died", detail="exited with code 3")
    rank = RankFacts(process="p", placement=Placement(rank=1), environment={}, run=run)
    assert evidence_of_death(rank) == {}
    assert "log" in cause_of_death(rank).text
