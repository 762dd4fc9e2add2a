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


def put(repository, *lines, covers=("code.py", "*.j2")):
    measured.put("docs/page.md", "speed", lines, covers=covers, command=COMMAND, root=repository)
    return (repository / "docs" / "page.md").read_text()


def test_every_measured_table_names_the_files_it_covers_and_its_command():
    for page in [measured.ROOT / "README.md", *(measured.ROOT / "docs").rglob("*.md")]:
        for table in measured.tables(page.read_text()):
            assert table.command, f"{page}: {table.name}"
            assert measured.digest(table.covers), f"{page}: {table.name}"


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
    assert list(measured.tables(page)) == [
        measured.Table("speed", COMMAND, ("code.py", "*.j2"), measured.digest(["code.py", "page.j2"], repository))
    ]


@pytest.mark.process
def test_a_new_table_replaces_the_old_one(repository):
    put(repository, "the first")
    page = put(repository, "the second")
    assert "the first" not in page
    assert page.count("the second") == page.count("*Measured ") == 1
    assert measured.stale(repository) == []


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
def test_only_changes_of_measured_files_count_as_uncommitted(repository):
    assert "uncommitted" not in put(repository, "x")
    assert "uncommitted" not in put(repository, "y"), "the page itself has changed"
    (repository / "code.py").write_text(CODE.replace("x + 1", "x + 2"))
    assert "with uncommitted changes" in put(repository, "z")


@pytest.mark.process
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("code.py", CODE.replace("x + 1", "x + 2")),
        ("code.py", CODE.replace("return x", "return -x")),
        ("code.py", CODE.replace("f(x)", "f(x, *, y=None)")),
        ("page.j2", "{{ b }}"),
        ("another.j2", "{{ a }}"),
    ],
)
def test_changing_a_measured_file_makes_its_table_stale(repository, file, text):
    put(repository, "x")
    assert measured.stale(repository) == []
    (repository / file).write_text(text)
    assert measured.stale(repository) == [
        f"docs/page.md: 'speed' is stale: the measured code has changed; run {COMMAND}"
    ]


@pytest.mark.process
def test_comments_docstrings_and_formatting_do_not_make_a_table_stale(repository):
    put(repository, "x")
    (repository / "code.py").write_text("# new\ndef f(\n    x,\n):\n    'Other text.'\n    return (x+1)\n")
    assert measured.stale(repository) == []


@pytest.mark.process
def test_moving_a_file_or_its_imports_does_not_make_a_table_stale(repository):
    put(repository, "x", covers=("*.py", "*.j2"))
    (repository / "code.py").rename(repository / "moved.py")
    (repository / "moved.py").write_text("import a\nfrom b import c\n" + CODE)
    assert measured.stale(repository) == []


@pytest.mark.process
def test_of_one_function_only_its_own_change_counts(repository):
    put(repository, "x", covers=("code.py::f",))
    (repository / "code.py").write_text(CODE + "\n\ndef g():\n    return f(1)\n")
    assert measured.stale(repository) == []
    (repository / "code.py").write_text(CODE.replace("x + 1", "x + 2"))
    assert len(measured.stale(repository)) == 1
    with pytest.raises(ValueError, match=r"code\.py has no h"):
        put(repository, "x", covers=["code.py::h"])


@pytest.mark.process
def test_an_empty_block_is_not_stale(repository):
    assert measured.stale(repository) == []


@pytest.mark.process
def test_a_missing_block_or_measured_file_is_an_error(repository):
    with pytest.raises(ValueError, match="no block 'speed'"):
        measured.put("code.py", "speed", ["x"], covers=["code.py"], command=COMMAND, root=repository)
    with pytest.raises(ValueError, match=r"no file matches gone\.py"):
        put(repository, "x", covers=["code.py", "gone.py"])
    with pytest.raises(ValueError, match="end of speed --> is missing"):
        list(measured.tables(BLOCK.replace("<!-- end of speed -->", "")))
