"""The web page in headless Chromium: what a person sees, presses and hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from made import reported
from report import chromium

from distcheck.report import render

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(chromium.program() is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium.chromium(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def opened(page, tmp_path):
    def load(name):
        path = tmp_path / f"{name}.html"
        path.write_text(render("html", *reported.CASES[name]()), encoding="utf-8")
        page.open(path)
        return page

    return load


@pytest.mark.parametrize("name", ["healthy", "messy", "cpu"])
def test_a_page_fits_every_width_and_leaves_the_console_empty(opened, name):
    tab = opened(name)
    for width in (1280, 400):
        for dark in (False, True):
            tab.look(width, dark=dark)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.console == []


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_axe_finds_no_barrier(opened, dark):
    axe = pytest.importorskip("axe_core_python", reason="needs axe-core-python")
    tab = opened("messy")
    tab.look(1280, dark=dark)
    tab.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8") + "; 1")
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = tab.evaluate(
        "axe.run().then(r => r.violations.map(v => v.id + v.nodes.map(n => n.html + n.failureSummary).join(', ')))"
    )
    assert found == []


def test_tabs_change_what_every_cell_shows_and_its_colour_without_script(opened):
    tab = opened("messy")
    cell = "document.querySelectorAll('.heat tbody tr')[2].querySelectorAll('td')[1]"
    look = f"[{cell}.innerText, getComputedStyle({cell}).backgroundColor]"
    tab.look(1280, dark=False)
    assert tab.evaluate(look) == ["✓", "rgb(223, 241, 228)"]
    tab.evaluate("document.getElementById('by1').checked = true")
    assert tab.evaluate(look) == ["1.02", "rgb(244, 165, 130)"]
    tab.look(1280, dark=True)
    assert tab.evaluate(look) == ["1.02", "rgb(143, 61, 26)"]


def test_the_arrow_keys_choose_a_tab(opened):
    tab = opened("healthy")
    tab.evaluate("document.getElementById('by0').focus()")
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
    assert tab.evaluate("[document.activeElement.id, document.activeElement.checked]") == ["by1", True]


def test_a_button_copies_the_command_beside_it(opened):
    tab = opened("messy")
    tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
    tab.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    tab.evaluate("document.querySelector('pre.command + button').click()")
    assert tab.evaluate("window.copied") == "srun --gpus-per-task=0 --gres=gpu:8 python train.py"
    assert tab.evaluate("document.querySelector('pre.command + button').textContent") == "Copied"
    tab.evaluate("document.querySelector('section.finding > button').click()")
    text = tab.evaluate("window.copied")
    assert text.startswith("error: gpu-duplicate, ranks 10-11 on node2")
    assert "srun --gpus-per-task=0" in text
    assert "Copy" not in text


def test_a_table_that_is_cut_has_a_shadow(opened):
    tab = opened("messy")
    tab.look(400, dark=False)
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    shadows = tab.evaluate(f"{cut}.map(e => getComputedStyle(e).backgroundAttachment)")
    assert shadows
    assert set(shadows) == {"local, local, scroll, scroll"}


def test_a_printed_page_has_no_buttons_and_nothing_to_scroll(opened):
    tab = opened("messy")
    tab.look(1280, dark=False, media="print")
    shown = "[...document.querySelectorAll('button, nav')].filter(e => e.offsetParent).length"
    assert tab.evaluate(shown) == 0
    assert tab.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    tab.look(1280, dark=False)
    assert tab.evaluate(shown) > 0


@pytest.mark.slow
def test_a_page_of_8192_ranks_opens_within_seconds(opened):
    tab = opened("large")
    tab.look(400, dark=False)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert tab.console == []
    began = tab.evaluate("performance.now()")
    tab.evaluate("document.getElementById('by4').checked = true; document.body.offsetHeight")
    assert tab.evaluate("performance.now()") - began < 10_000, "0.6 s on an idle core"
    assert tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") < 20_000, "0.8 s on an idle core"
    assert tab.evaluate("document.querySelectorAll('*').length") < 100_000
