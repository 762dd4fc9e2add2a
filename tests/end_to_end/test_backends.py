"""Backends that plugins register with torch are run by their names; Gloo stands for what moves the data."""

from __future__ import annotations

import json
import os

import pytest

TABLE = ("--sizes", "1M:1M", "--iters", "2")
WORKS = """
import torch.distributed as dist

def register():
    create = lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    dist.Backend.register_backend("dummy", create, devices=["cpu"])
"""
BROKEN = """
def register():
    raise OSError("libdummy.so: cannot open shared object file")
"""


@pytest.fixture
def plugin(tmp_path):
    """Install a plugin of torch in a folder, and return the environment that has it."""

    def of(code):
        info = tmp_path / "site" / "dummyback-1.0.dist-info"
        info.mkdir(parents=True)
        (info.parent / "dummyback.py").write_text(code)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dummyback\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[torch.backends]\ndummyback = dummyback:register\n")
        return {"PYTHONPATH": os.pathsep.join([str(info.parent), *filter(None, [os.environ.get("PYTHONPATH")])])}

    return of


@pytest.mark.parametrize(("name", "shown"), [("dummy", "dummy (Gloo)"), ("cpu:dummy,cuda:gloo", "cpu:dummy,cuda:gloo")])
def test_a_plugins_backend_is_run_and_the_class_behind_it_is_a_fact(distcheck, plugin, tmp_path, name, shown):
    saved = tmp_path / "job.json"
    words = ("gate", "--nproc", "2", "--backend", name, *TABLE, "--format", "json", "--save", str(saved))
    ended = distcheck(*words, env=plugin(WORKS))
    assert (ended.code, ended.rules) == (0, []), ended
    assert ended.report["world"]["backend"].startswith(shown)
    assert {row["op"] for row in ended.report["bandwidth"]} == {"all_reduce", "broadcast"}
    job = json.loads(saved.read_text())
    assert [rank["run"]["implementation"] for rank in job["ranks"]] == ["ProcessGroupGloo"] * 2


@pytest.mark.parametrize(("name", "lacks"), [("dummy", "backend dummy"), ("ucc", "UCC"), ("xccl", "XCCL")])
def test_a_backend_that_torch_lacks_is_named_with_those_that_it_has(distcheck, name, lacks):
    ended = distcheck("gate", "--nproc", "2", "--backend", name, *TABLE, "--format", "json")
    found = ended.finding("torch-backend-missing")
    assert (ended.code, found["ranks"]) == (30, [0, 1])
    assert f"cannot use {name}: " in found["message"]
    assert f"has no {lacks}; it has gloo" in found["message"]
    assert any("--backend gloo" in command for command in found["fix"]["commands"])


def test_a_plugin_that_cannot_be_loaded_is_named_with_its_error(distcheck, plugin):
    ended = distcheck("gate", "--nproc", "2", "--backend", "dummy", *TABLE, "--format", "json", env=plugin(BROKEN))
    found = ended.finding("collective-failed")
    assert "OSError: libdummy.so: cannot open shared object file" in found["message"]
    assert "dummyback" in str(found["evidence"])
    assert ended.code == 20


def test_commands_without_torch_take_any_name(distcheck):
    assert distcheck("env", "--nproc", "2", "--backend", "dummy").code == 0
