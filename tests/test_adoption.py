"""The page of the ways to adopt distcheck, and the program that runs them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from distcheck.cli.main import MODULES

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import adoption
from adoption import Timed, Way

PAGE = adoption.PAGE.read_text(encoding="utf-8")
WAYS = {way.title: way.block for way in adoption.ways(PAGE)}


def test_each_section_of_the_page_is_a_way_with_commands():
    assert list(WAYS) == re.findall(r"(?m)^## (.+)$", PAGE)
    assert len(WAYS) > 7
    asked = {command for block in WAYS.values() for command in re.findall(r"\bdistcheck (\w+)", block)}
    assert {"gate", "node", "net", "bandwidth", "report"} <= asked
    assert asked <= set(MODULES)


def test_a_way_without_its_tool_is_not_run_and_says_so(monkeypatch):
    monkeypatch.setattr(adoption.shutil, "which", lambda tool: None if tool == "kubectl" else f"/bin/{tool}")
    assert adoption.lack(Way("Kubernetes", WAYS["Kubernetes"])) == "kubectl is not installed"
    assert adoption.lack(Way("Slurm", WAYS["Slurm"])) == ""
    assert adoption.table([(Way("Kubernetes", ""), "kubectl is not installed")])[-1].endswith(
        "| not run: kubectl is not installed |"
    )


@pytest.mark.process
def test_the_time_of_each_command_is_noted_and_a_failure_ends_the_way(tmp_path):
    (folder := tmp_path / "empty").mkdir()
    block = "cat > file <<'END'\nsleep 9\nEND\nsleep 0.3\necho \"it's here\" | grep here\nfalse\necho never\n"
    done = adoption.timed(block, folder, dict(os.environ))
    assert (done.code, done.output) == (1, "it's here\n")
    names = [command for command, _ in done.commands]
    assert names[:2] == ["cat > file <<'END'", "sleep 0.3"]
    assert dict(done.commands)["sleep 0.3"] >= 0.3
    assert dict(done.commands)["cat > file <<'END'"] < 9
    assert adoption.timed("true\n", folder, dict(os.environ)).code == 0


def test_the_table_tells_what_it_takes_to_install_from_what_it_takes_to_run():
    commands = (("python3 -m venv prolog", 2.0), ("prolog/bin/pip install distcheck", 3.25), ("distcheck node", 0.5))
    row = adoption.table([(Way("A node", ""), Timed(0, commands, ""))])[-1]
    assert row == "| A node | 3 | 5.2 | 0.5 | 5.8 |"


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("title", WAYS)
def test_a_newcomer_gets_through(title, tmp_path_factory):
    way = Way(title, WAYS[title])
    if reason := adoption.lack(way):
        pytest.skip(reason)
    packages = tmp_path_factory.getbasetemp() / "packages"
    if not packages.exists():
        packages.mkdir()
        adoption.wheels(packages)
    done = adoption.run(way, packages)
    assert done.code == 0, done.output
    assert not any("torch" in line for line in done.output.splitlines() if "Successfully installed" in line)
