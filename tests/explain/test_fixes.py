"""The commands that follow a log's answer can be pasted, on every node the same."""

from __future__ import annotations

from rules.misread import misleading, misread

from distcheck.explain.fixes import FIXES, FIXES_BY_LINE


def test_every_fix_reads_well_and_every_command_is_one_of_a_shell():
    fixes = [*FIXES.values(), *((text, commands) for rows in FIXES_BY_LINE.values() for _, text, commands in rows)]
    assert len(fixes) > 50
    assert [text for text, _ in fixes if misread(text)] == []
    assert [command for _, commands in fixes for command in commands if misleading(command)] == []
