import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from distcheck.report.document import document
from distcheck.report.schema.document import Document
from distcheck.rules.diagnose import diagnose

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import examples
import measured

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def build_rules():
    spec = importlib.util.spec_from_file_location("build_rules", ROOT / "docs" / "build_rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rule_pages_are_up_to_date(build_rules):
    assert build_rules.stale() == [], "run python docs/build_rules.py"


def test_stale_pages_are_named_and_rewritten(build_rules, tmp_path):
    (tmp_path / "gone.md").write_text("a family that was removed")
    assert {"gone.md", "README.md", "host.probe.md"} <= set(build_rules.stale(tmp_path))
    build_rules.write(tmp_path)
    assert build_rules.stale(tmp_path) == []
    assert not (tmp_path / "gone.md").exists()
    (tmp_path / "host.probe.md").write_text("edited")
    assert build_rules.stale(tmp_path) == ["host.probe.md"]


@pytest.mark.process
def test_the_script_runs_from_anywhere(tmp_path):
    script = ROOT / "docs" / "build_rules.py"
    run = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0
    assert "--check" in run.stdout


def test_every_rule_has_an_anchor_on_its_page(build_rules):
    pages = build_rules.pages()
    for rule in build_rules.all_rules():
        name, _, anchor = rule.page.removeprefix("docs/rules/").partition("#")
        assert f"\n## {anchor}\n" in pages[name]
        assert f"({name}#{anchor})" in pages["README.md"]


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        ("set ``RANK=<n>`` here", "set `RANK=<n>` here"),
        ("use <n> of *these*", r"use &lt;n> of \*these\*"),
        ("A.\n\nFix: do it.\nSee: there.", "A.\n\n**Fix:** do it.\n\n**See:** there."),
    ],
)
def test_docstrings_become_markdown(build_rules, doc, expected):
    assert build_rules.markdown(doc) == expected


def test_the_examples_match_the_current_reports_of_the_recorded_jobs():
    assert examples.stale() == [], "run python docs/examples.py"


def test_an_example_is_stale_if_its_report_changes(monkeypatch):
    render = examples.render
    monkeypatch.setattr(examples, "render", lambda *arguments: render(*arguments).replace("all_reduce", "all_reduced"))
    assert examples.stale() == ["quickstart.md", "hang.md", "json.md"]


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_an_example_was_recorded_with_the_command_on_its_page(name):
    command, job = examples.EXAMPLES[name].command, examples.recorded(name)
    asked = re.search(r"distcheck (\w+)", command)[1]
    assert asked == job.asked.command
    if asked == "hang":
        return  # its job was there before
    per_node = int(re.search(r"--nproc(?:-per-node)? (\d+)", command)[1])
    ranks = per_node * (4 if "--hosts" in command else command.count("\n") + 1)
    assert ranks == document(job, diagnose(job)).world.ranks


REPORT = re.compile(r"^distcheck \d+\.\d+\.\d+ \w+: \d+ rank", re.MULTILINE)


def test_every_report_on_a_page_is_recorded():
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        assert not REPORT.search(measured.outside(text)), f"{path.name}: make this run one of docs/examples.py"
    recorded = [each for each in examples.EXAMPLES.values() if each.page == "README.md"]
    assert len(REPORT.findall((ROOT / "README.md").read_text(encoding="utf-8"))) == len(recorded)


def test_the_json_example_matches_the_schema():
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    example = re.search(r"(?s)```json\n(.*?)```", text)[1]
    assert msgspec.json.decode(example, type=Document, strict=True).schema == 1


def test_the_json_page_names_every_key():
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    for struct in msgspec.json.schema(Document)["$defs"].values():
        for key in struct["properties"]:
            assert f"`{key}`" in text or f"`seconds.{key}`" in text, key


def test_the_exit_codes_page_has_every_code():
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    for code in (0, 2, 10, 20, 30, 40, 70):
        assert f"\n| {code} | " in text


def test_the_design_names_files_that_are_there():
    """A name in backticks that is a path of the package, such as `run/leader.py` or `isolation/`."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text))
    assert len(named) > 50
    assert [name for name in named if not ((ROOT / "distcheck" / name).exists() or (ROOT / name).exists())] == []


@pytest.mark.parametrize("page", ["adding-a-rule.md", "adding-a-fact.md"])
def test_the_worked_examples_stand_in_the_code_as_on_the_page(page):
    blocks = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    files = [*(ROOT / "distcheck").rglob("*.py"), *(ROOT / "tests" / "probe").glob("*.py")]
    texts = [path.read_text("utf-8") for path in [*files, *(ROOT / "tests" / "rules").rglob("*.py")]]
    assert blocks
    assert [block for block in blocks if not any(block in text for text in texts)] == []
