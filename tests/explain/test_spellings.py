"""The tables of spellings, and which rule the values of a message decide for."""

from __future__ import annotations

import re

import pytest
from explain.answered import HEALTHY, found, rules, rules_of

from distcheck.explain import remedies
from distcheck.explain.known import known
from distcheck.explain.quoted import quoted
from distcheck.explain.spelling import NOISE, anchor, told, trie
from distcheck.explain.subject import about
from distcheck.rules import all_rules


def test_every_rule_has_a_class_a_fix_and_a_command_that_proves_it():
    for rule in all_rules():
        assert about(rule.name)
        assert remedies.fix(rule.name, {}).text
        assert remedies.proof(rule.name, {}, ()).startswith("distcheck ")


def test_a_message_that_a_docstring_quotes_is_found_or_a_table_knows_it():
    for spelling in quoted():
        text = re.sub(r"\(\?:0x\)\?\[0-9a-fA-F\]\+", "7", spelling.pattern.pattern).replace(".*?", " x ")
        line = re.sub(r"\\(.)", r"\1", text)
        assert spelling.pattern.search(line)
        answered = found(f"{HEALTHY}[rank3]: {line}\n[rank3]: {line}\n{HEALTHY}")
        if any(one.weight == NOISE and one.pattern.search(line) for one in known()):
            assert answered.telling is None, line
            continue
        assert answered.telling is not None, line
        assert answered.telling.line == 7, line


def test_the_log_of_a_healthy_job_has_no_cause():
    assert found(HEALTHY * 100).telling is None


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("DistStoreError: Timed out after 121 seconds waiting for clients. 3/4 clients joined.", "env-rank-missing"),
        ("node7 [3] NCCL WARN Duplicate GPU detected : rank 11 and rank 10 both on CUDA device 9b000", "gpu-duplicate"),
        ("Failed to initialize NVML: Driver/library version mismatch", "gpu-nvml-init-failed"),
        ("\x1b[31mDataLoader worker (pid 7) is killed by signal: Bus error.\x1b[0m", "host-shm-too-small"),
        ("ValueError: environment variable MASTER_ADDR expected, but not set", "env-rank-unset"),
        ("failed to bind to [::]:29500 (errno: 98 - Address already in use).", "net-port-in-use"),
        ("failed to bind to 0.0.0.0:29500 (errno: 13 - Permission denied).", "net-bind-failed"),
        ("failed to bind to 0.0.0.0:1023 (errno: 13 - Permission denied).", "env-master-port-privileged"),
        ("failed to bind to 0.0.0.0:80 (errno: 13 - Permission denied).", "env-master-port-privileged"),
        ("failed to connect to [n1]:29500 (errno: 111 - Connection refused).", "net-master-refused"),
        ("failed to connect to [n1]:29500 (errno: 113 - No route to host).", "net-master-unreachable"),
        ("failed to connect to [n1]:29500 (errno: 110 - Connection timed out).", "net-master-unreachable"),
        ("failed to connect to [n1]:29500 (errno: 24 - Too many open files).", "host-nofile"),
        (
            "client socket has timed out after 900s while trying to connect to (10.0.0.1, 29500)",
            "net-master-unreachable",
        ),
        (
            "client socket has timed out after 900s while trying to connect to (127.0.0.1, 29500)",
            "env-master-addr-localhost-multinode",
        ),
        (
            "NCCL WARN socketStartConnect: Connect to 172.17.0.1<41> failed : No route",
            "net-nccl-picks-loopback-or-docker",
        ),
        ("NCCL WARN socketStartConnect: Connect to 10.0.0.7<41> failed : No route to host", "net-firewall-ephemeral"),
        ("NCCL WARN socketStartConnect: Connect to fe80::1%eth0<41> failed : x", "net-ipv6-link-local"),
        ("Unable to find address for: ib0", "net-gloo-ifname-wrong"),
        ("Unable to find address for: my-laptop", "host-own-name-unresolvable"),
        ("Error 802: system not yet initialized", "gpu-fabric-manager-down"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "sw-compat-libcuda"),
        ("Error 804: forward compatibility was attempted on non supported HW", "sw-compat-libcuda"),
        ("cuda runtime error (999) : unknown error at x.cpp:47", "gpu-cuda-init-failed"),
        ("cuda runtime error (10) : invalid device ordinal at x.cpp:47", "env-local-rank-out-of-range"),
        ("NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.", "gpu-fell-off-bus"),
        ("NVRM: Xid (PCI:0000:9b:00): 48, pid=1, DBE", "gpu-ecc-uncorrected"),
        ("NVRM: Xid (PCI:0000:9b:00): 31, pid=1, MMU Fault", "gpu-xid-recent"),
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "host-disk-full"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "host-shm-too-small"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0", "host-memory-low"),
        ("train.py: error: unrecognized arguments: --local-rank=5", "launch-local-rank-arg"),
        ("KeyError: 'WORLD_SIZE'", "env-rank-unset"),
        ("ssh: connect to host node3 port 22: Connection refused", "launch-node-unreachable"),
    ],
)
def test_values_in_a_message_decide_between_causes(line, rule):
    assert rules(f"{HEALTHY}{line}\n{HEALTHY}")[0] == rule


@pytest.mark.parametrize(
    ("line", "about", "exit_code"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0", "application", 0),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running x", "application", 0),
        ("ValueError: the script's own", "application", 20),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE)", "application", 20),
        (
            "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***",
            "process killed",
            0,
        ),
        ("  exitcode  : -9 (pid: 12)", "process killed", 0),
        ("sbatch: error: Batch job submission failed: x", "start-up", 0),
    ],
)
def test_what_no_rule_names_has_a_class_and_blames_no_rule(line, about, exit_code):
    answered = found(f"{HEALTHY}{line}\n")
    assert (rules_of(answered), answered.about, answered.exit_code) == ([], about, exit_code)
    assert [cause.summary for cause in answered.causes] == [answered.telling.says] * (exit_code == 0)


def test_an_anchor_is_the_longest_constant_part_outside_groups():
    assert anchor(r"(?:a|bcdefghijkl) failed to (?:x)?connect\. no+w \d+") == b" failed to "
    assert anchor(r"errno: 98 \(Bus error\)") == b" (bus error)"
    with pytest.raises(ValueError, match="group"):
        anchor("this|that")


def test_a_line_repeated_by_two_processes_counts_only_where_the_text_is_the_same():
    doubled = "initializing ddp: GLOBAL_RANK: {}, MEMBER: 1/2\n"
    assert rules(doubled.format(0) + doubled.format(1)) == []
    assert rules(doubled.format(0) * 2)[0] == "env-rank-duplicate"


def test_a_trie_finds_each_word_and_nothing_else():
    pattern = trie((b"abc", b"abd", b"x.y", b"ab"))
    assert [bool(pattern.search(word)) for word in (b"zab", b"x.y", b"xzy", b"a")] == [True, True, False, False]


def test_without_regard_to_case():
    assert told("Address in Use", "net-port-in-use", about="network").pattern.search("ADDRESS IN USE")


def test_a_pattern_is_compiled_when_it_is_first_searched_and_every_one_can_be(monkeypatch):
    compiled = []
    monkeypatch.setattr(re, "compile", lambda *words, whole=re.compile: compiled.append(words[0]) or whole(*words))
    tables = [*known(), told("Address in Use", "net-port-in-use", about="network")]
    patterns = [p for s in tables for p in (s.pattern, s.near, s.unless, s.trace) if p]
    assert "Address in Use" not in compiled
    for pattern in patterns:
        pattern.search("")
    assert "Address in Use" in compiled
