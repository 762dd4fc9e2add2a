"""The table of published fault classes in docs/reliability.md names rules that exist, and a source for each figure."""

from __future__ import annotations

import re
from pathlib import Path

from distcheck.rules import all_rules

PAGE = (Path(__file__).parents[1] / "docs" / "reliability.md").read_text(encoding="utf-8")
TABLE = re.search(r"\| class \|.*?(?=\n\n)", PAGE, re.DOTALL)[0].splitlines()
ROWS = TABLE[2:]


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_every_class_names_rules_that_exist_or_none():
    known = {rule.name for rule in all_rules()}
    assert len(ROWS) > 20
    for name, *_, rules in map(cells, ROWS):
        named = re.findall(r"`([a-z0-9-]+)`", rules)
        assert (rules == "none") != bool(named), name
        assert ", ".join(f"`{rule}`" for rule in named) in {rules, ""}, name
        assert set(named) <= known, f"{name}: {set(named) - known}"
        assert len(named) == len(set(named)), name


def test_every_share_is_in_the_column_of_a_source():
    _, *sources, last = cells(TABLE[0])
    assert last == "rules"
    assert [re.match(r"\[[\w -]+\]\(https://", source) is not None for source in sources] == [True] * 5
    for name, *shares, _ in map(cells, ROWS):
        assert len(shares) == 5, name
        for share in filter(None, shares):
            assert 0 < float(re.sub(r"\[([\d.]+)\]\(\S+\)", r"\1", share)) < 50, (name, share)


def test_the_page_says_when_most_of_these_faults_begin():
    text = " ".join(PAGE.split())
    assert "Most of these faults begin during a run: a gate catches those that persist at the next start" in text
