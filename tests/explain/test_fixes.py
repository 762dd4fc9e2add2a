"""The fixes and commands that follow a log's answer read well and can be pasted, on every node the same."""

from __future__ import annotations

from rules.misread import misleading, misread

from distcheck.explain.fixes import BY_LINE, COMMANDS, TEXTS
from distcheck.rules import find_rule


def test_every_fix_reads_well_and_every_command_is_one_of_a_shell():
    by_line = [row for rows in BY_LINE.values() for row in rows]
    assert [text for text in (*TEXTS.values(), *(text for _, text, _ in by_line)) if misread(text)] == []
    commands = (*COMMANDS.values(), *(own for _, _, own in by_line))
    assert len(commands) > 20
    assert [command for own in commands for command in own if misleading(command)] == []
    assert all(find_rule(name).name == name for name in (*COMMANDS, *TEXTS, *BY_LINE))
