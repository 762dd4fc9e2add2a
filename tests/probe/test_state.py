"""What a node shows of itself, read on this one."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import msgspec
import pytest

from distcheck.facts.base import MOST, Missing
from distcheck.facts.network import Resolution
from distcheck.facts.node import NodeState
from distcheck.facts.storage import Space
from distcheck.probe import network, state


@pytest.mark.process
def test_this_node_answers():
    found = asyncio.run(state.state(30.0))
    assert isinstance(found, NodeState)
    assert set(found.spaces) == {"/dev/shm", "/tmp"}
    tmp = found.spaces["/tmp"]
    assert isinstance(tmp, Space)
    assert 0 <= tmp.free_bytes <= tmp.total_bytes
    assert isinstance(found.own_name, Resolution | Missing)


def test_a_missing_folder_has_a_reason(tmp_path):
    gone = state.space(str(tmp_path / "gone"))
    assert isinstance(gone, Missing)
    assert gone.reason == f"{tmp_path}/gone: No such file or directory"


def test_a_size_beyond_64_bits_is_clamped(monkeypatch):
    """CephFS reports -1 free files, and cloud file systems report the largest 64-bit size."""
    endless = SimpleNamespace(f_blocks=1 << 53, f_frsize=1 << 20, f_bavail=1 << 53, f_files=9, f_favail=(1 << 64) - 1)
    monkeypatch.setattr(state.os, "statvfs", lambda _folder: endless)
    space = state.space("/tmp")
    assert space == Space(MOST, MOST, MOST, writable=True)
    assert msgspec.json.decode(msgspec.json.encode(space), type=Space) == space


def test_temporary_files_go_to_tmpdir_if_it_is_a_folder(tmp_path):
    folder, room = state.temporary({"TMPDIR": str(tmp_path)})
    assert (folder, type(room)) == (str(tmp_path), Space)
    for elsewhere in ({}, {"TMPDIR": ""}, {"TMPDIR": str(tmp_path / "gone")}):
        assert state.temporary(elsewhere)[0] == "/tmp"


def test_a_resolver_that_hangs_costs_seconds_but_no_other_fact(monkeypatch):
    monkeypatch.setattr(state, "_NAME_SECONDS", 0.2)
    monkeypatch.setattr(network, "resolve", lambda _name: time.sleep(2.0))
    found = state.collect({})
    assert isinstance(found.own_name, Missing)
    assert "no answer from the resolver within 0.2 s" in found.own_name.reason
    assert isinstance(found.spaces["/tmp"], Space)


def test_a_slurm_prolog_is_recognised():
    found = state.collect({"SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_ID": "77"})
    assert (found.slurm_context, found.slurm_job) == ("prolog_slurmd", "77")
