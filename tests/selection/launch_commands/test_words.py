"""Options that stand anywhere, and those of a configuration file."""

from __future__ import annotations

import pytest

from distcheck.selection.launch_commands.stated import UnreadableError
from distcheck.selection.launch_commands.words import keys, spelled, values, with_file

OPTIONS = spelled("""
    --node-rank,-r --nodes,-n
    --data-size,-ds --quiet
""")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("m --nodes 2 x --node_rank=1", {"nodes": "2", "node-rank": "1"}),
        ("--nodes 2 --nodes 3", {"nodes": "3"}),
        ("-n2 -r 1 -ds 4", {"nodes": "2", "node-rank": "1", "data-size": "4"}),
        ("--nodes --quiet", {"nodes": "--quiet"}),
        ("--quiet 1 --nodes", {"quiet": "", "nodes": ""}),
        ("--dat 2 --no 3", {"data-size": "2"}),
        ("--nodes 2 -- --nodes 3", {"nodes": "2"}),
        ("--other -n", {"nodes": ""}),
        ("-ds4 -", {}),
    ],
)
def test_options_are_found_among_words(line: str, expected: dict[str, str]) -> None:
    assert values(line.split(), OPTIONS, frozenset({"quiet"})) == expected


def test_some_programs_take_no_beginnings() -> None:
    assert values(["--dat", "2"], OPTIONS, abbreviated=False) == {}


def test_the_words_of_a_file_stand_first_or_in_its_place() -> None:
    words = ("a", "--config", "f", "b", "--config=f")
    assert with_file(words, lambda _: "n: 1", first=True) == ("--n=1", "a", "b", "--config=f")
    assert with_file(words, lambda _: "n: 1", first=False) == ("a", "--n=1", "b", "--n=1")


def test_the_keys_of_a_file_are_those_at_its_margin() -> None:
    text = "# c\n---\na: 1 # c\n'b': \"2\"\nc:\n  a: 3\n- a: 4\nd: [\n]\nurl: http://h#x\n\n..."
    assert keys("f", lambda _: text) == {"a": "1", "b": "2", "c": "", "d": "[", "url": "http://h#x"}


@pytest.mark.parametrize("text", ["{a: 1}", "<<: *b", "? a", "a:1"])
def test_what_only_a_parser_can_read_is_not_read(text: str) -> None:
    with pytest.raises(UnreadableError):
        keys("f", lambda _: text)
