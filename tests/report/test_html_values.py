"""What a template of the page shows is printable and escaped, whatever the template says."""

from __future__ import annotations

import re
from pathlib import Path

from made.hostile import HOSTILE
from markupsafe import Markup

from distcheck.report import html

TEMPLATES = html.environment()


def shown(source, **values):
    return TEMPLATES.from_string(source).render(**values)


def printable(text):
    return all(character.isprintable() or character == "\n" for character in text)


def test_a_value_is_made_harmless_and_escaped_without_a_filter():
    ways = (
        "{{ x }}",
        "{{ 'rank ' ~ x }}",
        "{{ x|marked }}",
        "{{ [x]|lined }}",
        "{% for y in [x] %}{{ y }}{% endfor %}",
        "{% macro m(y) %}{{ y }}{% endmacro %}{{ m(x) }}",
    )
    for way in ways:
        text = shown(way, x=HOSTILE)
        assert r"\x1b[31;1m\x07" in text, way
        assert r"\r\n" in text, way
        assert "<script>" not in text, way
        assert printable(text), way
        assert "\n" not in text, way


def test_lines_and_parts_of_the_page_stay_as_they_are():
    assert shown("{{ ['a\x1b', '<b>']|lined }}") == "a\\x1b\n&lt;b&gt;"
    assert shown("{{ x }}", x=Markup("<b>\n</b>")) == "<b>\n</b>"
    assert shown("{{ 1.5 }} {{ none }}") == "1.5 None"


def test_no_template_takes_a_value_for_a_part_of_the_page():
    templates = [path.read_text(encoding="utf-8") for path in Path(html.__file__).parent.glob("*.j2")]
    assert len(templates) > 5
    assert not [text for text in templates if re.search(r"\|\s*safe\b|autoescape", text)]
