"""A start opens few files: thousands of ranks start at once from one shared file system."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import distcheck
from distcheck.probe.network import free_port

PACKAGE = Path(distcheck.__file__).parent
NOTE = """
import json, os, runpy, sys

PLACE = {"open": 0, "os.listdir": 0, "os.scandir": 0, "import": 1}  # an import has a path if it loads a shared library
opened = []
sys.addaudithook(lambda event, given: opened.append(given[PLACE[event]]) if event in PLACE else None)
try:
    runpy.run_module("distcheck", run_name="__main__", alter_sys=True)
finally:
    with open(os.environ["OPENED"], "w") as file:
        json.dump([[path for path in opened if isinstance(path, str)], sorted(sys.modules)], file)
"""
NEEDLESS = {
    "torch",
    "pydantic",
    "email",
    "importlib.metadata",
    "statistics",
    "jinja2",
    "rich",
    "ClusterShell",
    "pynvml",
}
"""Modules with many files of their own that no start of `env` needs."""


@pytest.fixture
def starting(tmp_path):
    """Start `distcheck env` as one rank; return what waits for its end and returns the files and modules it loaded."""

    def start(number, world_size, port):
        noted = tmp_path / f"opened-{number}.json"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DISTCHECK_")}
        environ |= {"RANK": str(number), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(number)}
        environ |= {"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        running = subprocess.Popen(
            [sys.executable, "-c", NOTE, "env"], env={**environ, "OPENED": str(noted)}, stdout=subprocess.DEVNULL
        )

        def loaded():
            assert running.wait(120) == 0
            opened, modules = json.loads(noted.read_text())
            return {of_module(path) for path in opened if not path.startswith(("/proc/", "/sys/", "/dev/"))}, modules

        return loaded

    return start


def of_module(path):
    """Return the source of a compiled file, so that the first start after a change counts like the second."""
    return re.sub(r"__pycache__/([^/.]+)\.[^/]*$", r"\1.py", path)


def ours(files):
    return [path for path in files if Path(path).is_relative_to(PACKAGE)]


@pytest.mark.process
def test_env_opens_less_than_three_hundred_files_and_about_half_are_its_own(starting):
    files, modules = starting(0, 1, free_port())()
    assert not NEEDLESS & set(modules)
    assert len(ours(files)) <= 168
    assert len(files) < 300, sorted(files)


@pytest.mark.process
def test_a_rank_that_follows_opens_no_file_of_the_rules_or_reports_that_only_rank_0_needs(starting):
    port = free_port()
    leader, follower = starting(0, 2, port), starting(1, 2, port)
    (led, _), (followed, modules) = leader(), follower()
    assert not (NEEDLESS - {"statistics"}) & set(modules)
    assert not [path for path in followed if "/rules/environment/" in path or "/report/text" in path]
    assert len(followed) <= len(led) - 20
    assert len(followed) < 370, sorted(followed)
