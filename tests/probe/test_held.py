"""What other processes hold of what this job's debugging aids use; without such aids nothing is looked at."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.held import PIPE, RAS, SERVER, Held
from distcheck.facts.network import PortOwner
from distcheck.facts.placement import Placement
from distcheck.facts.storage import CommandFile
from distcheck.probe import held
from distcheck.probe.command import look_at

RANKS = tuple(Placement(rank=n, master_port=29500) for n in range(2))
DUMP = "TORCH_FR_DUMP_TEMP_FILE"


@pytest.mark.parametrize(
    ("environ", "server", "ports"),
    [
        ({}, None, None),
        ({"RANK": "0", "NCCL_DEBUG": "WARN"}, None, None),
        ({RAS: "localhost:28100"}, None, {RAS: 28100}),
        ({RAS: "[::1]:28100"}, None, {RAS: 28100}),
        ({RAS: "localhost:28100", "NCCL_RAS_ENABLE": "0"}, None, None),
        ({}, 25999, {SERVER: 25999}),
        ({PIPE: "/tmp/p_"}, None, {}),
        ({PIPE: "/tmp/p_", DUMP: "/tmp/d_", "TORCH_FR_BUFFER_SIZE": "0"}, None, None),
        ({DUMP: "/tmp/d_"}, None, {}),
    ],
)
def test_only_what_the_job_uses_is_looked_at(environ, server, ports):
    found = held.uses(environ, RANKS, server)
    assert (found.ports if found else None) == ports
    assert held.uses({}, RANKS[1:], 25999) is None, "the debug server is rank 0's"


@pytest.fixture
def look(tmp_path):
    """Return what a process of ranks 0 and 1 finds with these variables; `others` are other processes' environments."""

    def of(environ, server=None, others=()):
        proc = tmp_path / "proc"
        for pid, variables in others:
            (proc / str(pid)).mkdir(parents=True)
            text = "".join(f"{name}={value}\0" for name, value in variables.items())
            (proc / str(pid) / "environ").write_text(text)
        proc.mkdir(exist_ok=True)
        task = held.uses(environ, RANKS, server)
        found = held.collect(msgspec.json.encode(task).decode(), proc)
        return msgspec.json.decode(msgspec.json.encode(found), type=Held)

    return of


def test_a_port_is_held_with_its_process(look):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = look({RAS: f"localhost:{port}"}, port).ports
    assert set(found) == {RAS, SERVER}
    assert {(bind.port, bind.owner.pid) for bind in found.values()} == {(port, os.getpid())}
    assert look({RAS: f"localhost:{port}"}).ports == {}


def test_a_pipe_is_held_while_a_process_reads_it(look, tmp_path):
    environ = {PIPE: f"{tmp_path}/p_"}
    os.mkfifo(tmp_path / "p_1.pipe")
    assert look(environ).files == (), "left over: torch replaces it"
    reader = os.open(tmp_path / "p_1.pipe", os.O_RDONLY | os.O_NONBLOCK)
    (found,) = look(environ).files
    assert os.read(reader, 9) == b"", "nothing asked it for a dump"
    os.close(reader)
    assert (found.rank, found.path, found.why) == (1, f"{tmp_path}/p_1.pipe", "read")


def test_a_pipe_of_another_user_cannot_be_replaced(look, tmp_path, monkeypatch):
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / "p_0.pipe").touch()
    assert look({PIPE: f"{folder}/p_"}).files == ()
    monkeypatch.setattr(held.os, "geteuid", lambda: os.getuid() + 1)
    (found,) = look({PIPE: f"{folder}/p_"}).files
    assert (found.rank, found.why, found.user) == (0, "foreign", Path(folder).owner())


@pytest.mark.parametrize(
    ("other", "held_by"),
    [
        ({DUMP: "/tmp/d_", "RANK": "1", "MASTER_PORT": "29999"}, True),
        ({DUMP: "/tmp/d_", "RANK": "1", "MASTER_PORT": "29500"}, False),
        ({DUMP: "/tmp/d_", "RANK": "1", "MASTER_PORT": "29500", "SLURM_JOB_ID": "8"}, True),
        ({DUMP: "/tmp/d_", "RANK": "1"}, False),
        ({DUMP: "/tmp/d_", "RANK": "2", "MASTER_PORT": "29999"}, False),
        ({DUMP: "/tmp/e_", "RANK": "1", "MASTER_PORT": "29999"}, False),
        ({"RANK": "1", "MASTER_PORT": "29999"}, False),
    ],
)
def test_a_file_of_dumps_is_shared_with_a_rank_of_another_job(look, other, held_by):
    files = look({DUMP: "/tmp/d_", "SLURM_JOB_ID": "7"}, others=[(os.getpid(), other)]).files
    assert [(file.rank, file.variable, file.path, file.why) for file in files] == [
        (1, DUMP, "/tmp/d_1", "shared")
    ] * held_by
    assert all(isinstance(file.process, PortOwner) and file.process.pid == os.getpid() for file in files)


def test_a_process_that_has_ended_is_no_error(look):
    (file,) = look({DUMP: "/d_"}, others=[(4194305, {DUMP: "/d_", "RANK": "0", "MASTER_PORT": "1"})]).files
    assert isinstance(file.process, Missing)


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("import torch\n", None),
        ("from torch.distributed.debug import start_debug_server\nstart_debug_server()\n", 25999),
        ("debug.start_debug_server(port=26001, worker_port=0)", 26001),
        ("debug.start_debug_server(26002)", 26002),
        ("# start_debug_server()\n", None),
    ],
)
def test_a_script_tells_whether_it_starts_torchs_debug_server(tmp_path, text, port):
    (tmp_path / "train.py").write_text(text)
    (found,) = look_at(CommandFile("train.py", "script", f"{tmp_path}/train.py", "silent"))
    assert found.debug_port == port
