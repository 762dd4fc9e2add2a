"""What the answer to a text names first, by a table: a rule, a class, or no rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from explain.answered import HEALTHY, found, rules_of

TABLE = (Path(__file__).parent / "cases.txt").read_text("utf-8").splitlines()
TEXT_AT = 36


def text(line):
    return line[TEXT_AT:].replace("\\n", "\n").replace("\\t", "\t").replace("\\e", "\x1b")


@pytest.mark.parametrize("line", [line for line in TABLE if not line.startswith("#")])
def test_the_answer_to_a_text_is_that_of_the_table(line):
    answer = found(f"{HEALTHY}{text(line)}\n{HEALTHY}")
    named = rules_of(answer)
    expected = line[:TEXT_AT].strip()
    assert expected == (named[0] if named else "-" if expected == "-" else f"({answer.about})")
