"""A rule's fix stands in its docstring, with commands that values of the job fill in."""

from __future__ import annotations

import pytest

from distcheck.rules.docstring import docstring, filled, fix_in, without_values
from distcheck.rules.finding import Fix


def rule():
    """Something is wrong.

    Why it hurts.

    Fix: mend ``it``,
    then look again.

        mend -i {gpu}
        look {at|HERE} ${SHELL:?}

    See: https://example.org
    """


MEND = Fix("Mend it, then look again.", ("mend -i {gpu}", "look {at|HERE} ${SHELL:?}"))


def test_the_fix_is_the_sentence_and_the_commands_below_it():
    assert fix_in(docstring(rule)) == MEND
    assert fix_in("A.\n\nWhy.\n\nFix: wait.\nSee: https://example.org") == Fix("Wait.")
    assert fix_in("A.\n\nFix: ``export X=1``, or wait.") == Fix("export X=1, or wait.")


def test_python_oo_drops_docstrings_and_the_source_still_has_them(monkeypatch):
    before = docstring(rule)
    monkeypatch.setattr(rule, "__doc__", None)
    assert docstring(rule) == before


@pytest.mark.parametrize(
    ("values", "commands"),
    [
        ({"gpu": ("3",)}, ("mend -i 3", "look HERE ${SHELL:?}")),
        ({"gpu": ("3", "4"), "at": ("x",)}, ("mend -i 3", "mend -i 4", "look x ${SHELL:?}")),
        ({"gpu": ()}, ("look HERE ${SHELL:?}",)),
    ],
    ids=["one", "a command for each", "none: no command"],
)
def test_values_fill_the_commands(values, commands):
    assert filled(MEND, values).commands == commands


def test_without_values_a_name_stands_for_each():
    assert without_values("mend -i {gpu} {at|HERE} ${SHELL:?}") == "mend -i GPU HERE ${SHELL:?}"
