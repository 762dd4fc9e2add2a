"""The tables of spellings, and which rule the values of a message decide for."""

from __future__ import annotations

import re

import pytest
from explain.answered import HEALTHY, found, rules_of

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


def test_a_trie_finds_each_word_and_nothing_else():
    pattern = trie((b"abc", b"abd", b"x.y", b"ab"))
    assert [bool(pattern.search(word)) for word in (b"zab", b"x.y", b"xzy", b"a")] == [True, True, False, False]


def test_every_pattern_of_the_tables_can_be_compiled():
    for spelling in known():
        for pattern in filter(None, (spelling.pattern, spelling.near, spelling.unless, spelling.trace)):
            pattern.search("")


def test_without_regard_to_case():
    assert told("Address in Use", "net-port-in-use", about="network").pattern.search("ADDRESS IN USE")
