import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import measured

CODE = '"""What it is."""\n\ndef f(x):\n    """Return more."""\n    return x + 1  # more\n'
BLOCK = "# Page\n\nbefore\n\n<!-- measured: speed -->\n<!-- end of speed -->\n\nafter\n"
COMMAND = "python measure.py --write"


@pytest.fixture
def repository(tmp_path):
    """A repository with one measured module and one page with a block for its table."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(BLOCK)
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "page.j2").write_text("{{ a }}")
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    return tmp_path


def put(repository, *lines):
    measured.put("docs/page.md", "speed", lines, command=COMMAND, root=repository)
    return (repository / "docs" / "page.md").read_text()


def test_every_measured_table_has_its_command():
    assert [line for line in measured.listed() if line.endswith(": ")] == []


@pytest.mark.process
def test_a_table_has_its_date_commit_machine_and_command(repository):
    page = put(repository, "| a |", "|---|", "| 1.5 |")
    commit = subprocess.run(
        ["git", "-C", repository, "rev-parse", "--short=10", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert page.startswith("# Page\n\nbefore\n\n<!-- measured: speed\n")
    assert page.endswith("<!-- end of speed -->\n\nafter\n")
    assert "\n| a |\n|---|\n| 1.5 |\n\n*Measured 20" in page
    machine = r"\d+ cores \(\d+ million loop steps/s\), \d+ GiB, Python 3\.\S+, torch \S+"
    assert re.search(rf"at {commit}, {machine}, by `{COMMAND}`\.\*\n", page)
    assert list(measured.tables(page)) == [measured.Table("speed", COMMAND, measured.today())]


@pytest.mark.process
def test_a_new_table_replaces_the_old_one(repository):
    put(repository, "the first")
    page = put(repository, "the second")
    assert "the first" not in page
    assert page.count("the second") == page.count("*Measured ") == 1


@pytest.mark.process
def test_rewording_a_block_keeps_its_date_and_machine(repository):
    page = put(repository, "| 1.5 |", "", "of one run")
    assert measured.reword(page, "speed", ["| 1.6 |"]) == page.replace("| 1.5 |\n\nof one run", "| 1.6 |")
    with pytest.raises(ValueError, match="no measured block 'speed' with lines"):
        measured.reword(BLOCK, "speed", ["x"])


@pytest.mark.process
def test_text_outside_of_measured_blocks_keeps_its_line_numbers(repository):
    page = put(repository, "| 1.5 |")
    outside = measured.outside(page)
    assert "1.5" not in outside
    assert "after" in outside
    assert outside.count("\n") == page.count("\n")


@pytest.mark.process
def test_only_changes_outside_of_the_pages_count_as_uncommitted(repository):
    assert "uncommitted" not in put(repository, "x")
    assert "uncommitted" not in put(repository, "y"), "the page itself has changed"
    (repository / "code.py").write_text(CODE.replace("x + 1", "x + 2"))
    assert "with uncommitted changes" in put(repository, "z")


@pytest.mark.process
def test_the_tables_are_listed_the_oldest_first_and_empty_ones_before(repository):
    assert measured.listed(repository) == ["never       docs/page.md: speed: "]
    put(repository, "x")
    assert measured.listed(repository) == [f"{measured.today()}  docs/page.md: speed: {COMMAND}"]


@pytest.mark.process
def test_a_missing_block_is_an_error(repository):
    with pytest.raises(ValueError, match="no block 'speed'"):
        measured.put("code.py", "speed", ["x"], command=COMMAND, root=repository)
    with pytest.raises(ValueError, match="end of speed --> is missing"):
        list(measured.tables(BLOCK.replace("<!-- end of speed -->", "")))
