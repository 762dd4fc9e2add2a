"""The list of catalogued faults is true: every rule exists, and every test that it names fires that rule."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from distcheck.rules import find_rule

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import faults

ROOT = Path(__file__).parents[1]
SECTIONS = faults.sections()
FAULTS = [fault for section in SECTIONS for fault in section.faults]
DETECTED = [fault for fault in FAULTS if fault.how != "undetectable"]


def test_every_fault_is_listed_once():
    assert [s.title for s in SECTIONS] == [
        "NCCL and torch settings", "InfiniBand, RoCE and EFA", "Performance", "Hosts", "Software versions",
    ]  # fmt: skip
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    assert {s.name: (s.faults[0].number, s.faults[-1].number, len(s.faults)) for s in SECTIONS} == {
        "nccl": (139, 178, 39),
        "fabric": (179, 201, 22),
        "performance": (202, 215, 13),
        "host": (216, 231, 15),
        "software": (232, 248, 17),
    }


def test_every_fault_has_a_rule_by_its_name_or_a_reason():
    for fault in FAULTS:
        rule = find_rule(fault.name)
        assert fault.how in faults.HOW, fault
        if fault in DETECTED:
            assert rule is not None, f"the fault's name is the rule's, or an alias of it: {fault}"
            assert rule.name == fault.rule
        else:
            assert rule is None, fault
            assert fault.rule == "-", fault
        assert len(fault.note) > 20, f"the test that fires the rule, or the reason: {fault}"


def test_the_test_of_every_fault_exists_and_names_the_rule():
    for fault in DETECTED:
        path, _, name = fault.note.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"(?m)^(async )?def {name}\(", text), f"written path::function: {fault}"
        assert fault.rule in text or fault.name in text or fault.rule.replace("-", "_") in text, fault


def test_no_fault_is_open_and_most_rules_fire_through_real_collectors():
    whole = faults.everything()
    assert whole.count(*faults.HOW) == len(whole.faults) == 106, "each is detected, or its reason is given"
    assert whole.count(*faults.REAL, "facts") >= 91
    assert whole.fired(*faults.REAL) >= 0.6 * len(whole.rules)


def test_the_coverage_counts_what_the_list_holds():
    for section in SECTIONS:
        assert section.count(*faults.HOW) == len(section.faults)
        assert section.fired(*faults.REAL) <= len(section.rules) <= section.count(*faults.REAL, "facts")
