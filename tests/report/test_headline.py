"""The first and the last line of every report."""

import signal

import msgspec
import pytest
from made import reported

from distcheck.facts.asked import Asked
from distcheck.facts.isolation import Isolation
from distcheck.report.headline import LONGEST, headline
from distcheck.rules.diagnose import Diagnosis, judge
from distcheck.rules.finding import Finding, Fix, NotChecked, Verdict, verdict


def line(job, *outcomes, strict=False):
    findings = tuple(o for o in outcomes if isinstance(o, Finding))
    gaps = tuple(o for o in outcomes if isinstance(o, NotChecked))
    return headline(job, Diagnosis(findings, gaps, verdict(findings, gaps, strict=strict)))


def bad(message, rule="r", **more):
    return Finding(rule=rule, message=message, fix=Fix("f"), **more)


TAKEN = bad("port 29500 is taken by process 7 (sh)", "in-use", scope="rank", ranks=(0,), nodes=("vm",))
LOST = bad("GPU 0 of node5 fell off the bus", "gpu-lost", scope="gpu", ranks=(32,), nodes=("node5",))
LATE = bad("ranks 4-5 (node3) did not come", "late", scope="node", confirmed=False, ranks=(4, 5), nodes=("node3",))
SLOW = bad("rank 3 is slow", "slow", severity="warning", scope="rank", ranks=(3,), nodes=("node1",))
SITE = bad("node1 drops packets", "firewall", scope="system", owner="admin", nodes=("node1",))
OWN = bad("rule x crashed", "probe-rule-crashed", scope="tool")
GAPS = NotChecked(rule="coll-hang", reason="torch is not there"), NotChecked(rule="nccl-slow", reason="no card")
STOP = "exit code 30: fix the job; retrying will not help"
EXCLUDE = "exit code 40: exclude node5, perhaps node3 too, and start again"
RETRY = "exit code 20: retry, preferably on other nodes"


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((TAKEN,), f"FAIL: port 29500 is taken by process 7 (sh), rank 0 on vm. [in-use] {STOP}"),
        ((LOST, TAKEN, SLOW), f"FAIL: port 29500 is taken by process 7 (sh), rank 0 on vm. [in-use, +2 more] {STOP}"),
        ((LATE, LOST), f"FAIL: GPU 0 of node5 fell off the bus, rank 32. [gpu-lost, +1 more] {EXCLUDE}"),
        ((SITE,), "FAIL: node1 drops packets. [firewall] exit code 30: fix the site; retrying will not help"),
        ((LATE, *GAPS), f"UNKNOWN: ranks 4-5 (node3) did not come. [late] {RETRY}"),
        ((SLOW, *GAPS), f"UNKNOWN: torch is not there. [coll-hang, +1 more] {RETRY}"),
        ((OWN,), "UNKNOWN: rule x crashed. [probe-rule-crashed] exit code 70: distcheck itself failed; report it"),
        ((SLOW,), "WARN: rank 3 is slow on node1. [slow] exit code 0"),
        ((bad("rank 1 (node2 pid 123): RANK is x", ranks=(1,), nodes=("node2",)),),
         f"FAIL: RANK is x, rank 1 on node2. [r] {STOP}"),
        ((bad("MTU differs", ranks=tuple(range(16)), nodes=("node1", "node2")),),
         f"FAIL: MTU differs, all 16 ranks. [r] {STOP}"),
        ((bad("bad", ranks=tuple(range(0, 16, 2)), nodes=tuple(f"a{n}-{n:05}" for n in range(8))),),
         f"FAIL: bad, 8 ranks on 8 nodes. [r] {STOP}"),
        ((bad("it is 2; others are 3", ranks=(1,)),), f"FAIL: it is 2, rank 1; others are 3. [r] {STOP}"),
        ((bad("X has no effect; did you mean Y?", ranks=(1,)),), f"FAIL: X has no effect, rank 1. [r] {STOP}"),
        ((bad("ranks 0-15 differ", ranks=tuple(range(16))),), f"FAIL: ranks 0-15 differ. [r] {STOP}"),
        ((bad("same", ranks=(1,)), bad("same", ranks=(5,)), bad("other", ranks=(7,))),
         f"FAIL: same, ranks 1,5. [r] {STOP}"),
    ],
)  # fmt: skip
def test_it_is_outcome_cause_place_rule_and_what_to_do(job_of, outcomes, expected):
    assert line(job_of(2, 8), *outcomes) == expected


@pytest.mark.parametrize(
    ("stage", "of", "where"),
    [
        ("meeting", 20, "the roll call after 4.1 s, without ranks 16-19"),
        ("collectives", 16, "the collectives after 4.1 s"),
    ],
)
def test_an_interrupted_run_judges_nothing(job_of, stage, of, where):
    job = msgspec.structs.replace(job_of(2, 8, world=of), interrupted=signal.SIGTERM, seconds=4.1)
    job = msgspec.structs.replace(job, processes=tuple(msgspec.structs.replace(p, stage=stage) for p in job.processes))
    found = judge(job)
    assert (found.findings, found.verdict) == ((), Verdict("unknown", 143))
    assert {gap.reason for gap in found.not_checked} == {"the run was ended by SIGTERM"}
    assert headline(job, found) == f"INTERRUPTED: SIGTERM in {where}; nothing was judged. exit code 143"


def test_strict_says_what_the_warning_costs(job_of):
    assert line(job_of(2, 8), SLOW, strict=True).endswith("[slow] exit code 10: fix the warnings or drop --strict")


def test_ranks_started_here_are_not_to_be_moved(job_of):
    job = msgspec.structs.replace(job_of(1, 2), asked=Asked("gate", (), started_here=True))
    assert line(job, LATE).endswith(" exit code 20: retry")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a cause; " + "more " * 50, "a cause"),
        ("a cause. " + "More " * 50, "a cause"),
        ("a cause (" + "aside " * 50 + ") of node9", "a cause of node9"),
        ("word " * 60, "word " * 20),
        ("x" * 300, "x" * 100),
        (
            "all_reduce of 8 GiB reaches 100 GB/s between 8 ranks, 28% of the usual 360.3 GB/s: " + "as " * 50,
            "all_reduce of 8 GiB reaches 100 GB/s between 8 ranks, 28% of the usual 360.3 GB/s. [",
        ),
    ],
)
def test_a_long_cause_is_cut_and_the_rest_stays(job_of, message, shown):
    said = line(job_of(2, 8), bad(message, "a-rule"))
    assert said.startswith(f"FAIL: {shown}".rstrip())
    assert said.endswith(" [a-rule] exit code 30: fix the job; retrying will not help")
    assert len(said) <= LONGEST
    assert ("..." in said) == (message[0] in "wx")


def test_it_is_one_line_of_at_most_200_characters(any_job):
    said = headline(*any_job)
    assert len(said) <= LONGEST
    assert said.isprintable()
    assert said.startswith(("PASS: ", "WARN: ", "FAIL: ", "UNKNOWN: "))


@pytest.mark.parametrize(
    ("command", "looks", "expected"),
    [
        ("env", ("environment",), "2 ranks on 1 node; variables and placement agree"),
        ("net", ("environment", "peers"), "2 ranks on 1 node; names, ports and paths between nodes work"),
        ("gpu", ("environment", "gpu"), "2 ranks on 1 node; every rank has its GPU"),
        ("node", ("node", "gpu"), "node node1: healthy, 2 GPUs"),
    ],
)
def test_a_pass_says_what_was_seen_in_the_words_of_the_command(job_of, command, looks, expected):
    job = msgspec.structs.replace(job_of(1, 2, measured=False), asked=Asked(command, looks))
    assert line(job) == f"PASS: {expected}. exit code 0"


@pytest.mark.parametrize(("command", "looks"), [("env", ("environment",)), ("node", ("node", "gpu"))])
def test_a_pass_of_selected_rules_promises_nothing_of_the_others(job_of, command, looks):
    asked = Asked(command, looks, select=("env-rank-unset",))
    job = msgspec.structs.replace(job_of(1, 2, measured=False), asked=asked)
    assert "the selected rules found nothing" in line(job)
    assert "agree" not in line(job)
    assert "healthy" not in line(job)


def test_a_pass_has_the_bandwidth_at_the_largest_size():
    case = reported.healthy()
    assert headline(*case) == (
        "PASS: 16 ranks on 2 nodes; all_reduce 690.3, broadcast 311.4 GB/s at 256 MiB. exit code 0"
    )
    found = msgspec.structs.replace(case.job, isolation=Isolation("healthy", "2 nodes passed alone"))
    assert headline(found, case.diagnosis) == "PASS: 16 ranks on 2 nodes; 2 nodes passed alone. exit code 0"
