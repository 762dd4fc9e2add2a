"""What the answer to a text names first, by a table: a rule, a class, or no rule; and the line that leads."""

from __future__ import annotations

from pathlib import Path

import pytest
from explain.answered import HEALTHY, found, rules_of

TABLE = (Path(__file__).parent / "cases.txt").read_text("utf-8").splitlines()
LINES = [line for line in TABLE if not line.startswith("#")]
TEXT_AT = 36


def text(line):
    return line[TEXT_AT:].replace("\\n", "\n").replace("\\t", "\t").replace("\\e", "\x1b")


@pytest.mark.parametrize("line", LINES)
def test_the_answer_to_a_text_is_that_of_the_table(line):
    before, _, marked = text(line).partition("«")
    leads, _, after = marked.partition("»")
    answer = found(f"{HEALTHY}{before}{leads}{after}\n{HEALTHY}")
    named = rules_of(answer)
    expected = line[:TEXT_AT].strip()
    assert expected == (named[0] if named else "-" if expected == "-" else f"({answer.about})")
    assert leads in (answer.telling.text if answer.telling else "")
