"""The tables of known errors: their form, and the logs that need them."""

from __future__ import annotations

import json
import random

import pytest
from explain import measure

from distcheck.explain.answer import answer, spellings
from distcheck.explain.known import known, read
from distcheck.explain.matching import Matcher
from distcheck.explain.reading import Log, pieces
from distcheck.rules import find_rule

HEADER = "[net-port-in-use] network, cause <https://example.org>\n"
MOST_WITHOUT_A_LOG = 999
"""Wordings that no collected log has. It only falls: a new wording comes with the log that needs it."""


def table(text):
    return [(one.pattern.pattern, one.near and one.near.pattern) for one in read(text, "t.txt")]


def test_a_wording_may_stand_for_several_and_a_name_for_a_text():
    assert table(f"port = 2\\d+\n{HEADER}  <<bind | listen>> to {{{{port}}}} failed\n") == [
        (r"bind to 2\d+ failed", None),
        (r"listen to 2\d+ failed", None),
    ]


def test_a_condition_holds_for_the_wordings_below_it_up_to_the_next_one():
    text = f"{HEADER}  address taken\n  @near a\n  in use by\n  used by x\n  @near b\n  held by\n{HEADER}  is busy\n"
    assert table(text) == [
        ("address taken", None), ("in use by", "a"), ("used by x", "a"), ("held by", "b"), ("is busy", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[net-port-in-use] weather, cause <https://example.org>\n", "t.txt:1: expected"),
        (f"{HEADER}  abc\\d+\n", "t.txt:2: no constant part"),
        (f"{HEADER}  @if x\n", "t.txt:2: a condition is one of"),
        (f"{HEADER}  @only x\n  in use by\n", "t.txt:2: 'x'"),
        (f'{HEADER}"It is taken."\n  in use by\n', "t.txt:3: an answer has rules or a sentence"),
        ("in use by\n", "t.txt:1: this is no header"),
    ],
)
def test_what_is_wrong_in_a_table_is_named_with_its_line(text, complaint):
    with pytest.raises(ValueError, match=complaint.replace(".", r"\.")):
        table(text)


def test_the_rules_of_the_tables_are_known_and_no_wording_stands_twice():
    for one in known():
        assert all((rule := find_rule(name)) and rule.name == name for name in one.rules), one.pattern.pattern
    alike = [(o.pattern.pattern, *(p and p.pattern for p in (o.near, o.unless, o.trace)), o.only) for o in known()]
    assert len(alike) == len(set(alike))


@pytest.mark.long
def test_the_order_of_the_tables_means_nothing():
    shuffled = list(spellings())
    random.Random(1).shuffle(shuffled)
    other = Matcher(shuffled)
    for entry in json.loads((measure.LOGS / "index.json").read_text()):
        path = measure.LOGS / f"{entry['id']}.log"
        answers = [
            answer(sorted(m.search(pieces(Log(path, path.name), []), path.name), key=lambda seen: seen.line))
            for m in (measure.matcher(), other)
        ]
        assert answers[0] == answers[1], entry["id"]


def test_a_wording_comes_with_a_log_that_needs_it():
    needed = set()
    for entry in json.loads((measure.LOGS / "index.json").read_text()):
        path = measure.LOGS / f"{entry['id']}.log"
        if entry["split"] == "build":
            found = measure.matcher().search(pieces(Log(path, path.name), []), path.name)
            needed |= {id(seen.spelling) for seen in found}
    without = [one for one in known() if id(one) not in needed]
    assert len(without) <= MOST_WITHOUT_A_LOG
