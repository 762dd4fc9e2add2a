"""The fork server starts before the command line is parsed where it will be needed, and never stays behind."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from distcheck import __main__
from distcheck.facts.asked import Asked
from distcheck.facts.placement import Placement
from distcheck.launch.local import program
from distcheck.launch.local.supervisor import LocalRanks
from distcheck.launch.remote.assignment import Assignment
from distcheck.run import remote_probe


@pytest.fixture
def started(monkeypatch):
    """Return the list of what was started or parsed, in order, in place of doing it."""
    order = []
    monkeypatch.setattr(program, "start", lambda: order.append("torch"))
    monkeypatch.setattr(program, "_early", [])
    monkeypatch.setattr("distcheck.cli.main.main", lambda: order.append("parsed"))
    return order


@pytest.mark.parametrize(
    ("words", "order"),
    [
        ("bandwidth --nproc 8", ["torch", "parsed"]),
        ("gate --nproc 8 -- mpirun --hosts a train", ["torch", "parsed"]),
        ("isolate", ["torch", "parsed"]),
        ("gate --hosts a,b", ["parsed"]),
        ("gate --hostfile=hosts", ["parsed"]),
        ("bandwidth --launcher slurm", ["parsed"]),
        ("gate --help", ["parsed"]),
        ("env --nproc 8", ["parsed"]),
        ("node", ["parsed"]),
        ("", ["parsed"]),
    ],
)
def test_torch_is_imported_while_the_command_line_is_parsed_if_ranks_will_measure_here(
    started, monkeypatch, words, order
):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(sys, "argv", ["distcheck", *words.split()])
    __main__.main()
    assert started == order


@pytest.mark.parametrize(("step", "starts"), [({}, 0), ({"SLURM_STEP_ID": "0"}, 1)])
def test_an_allocation_starts_its_ranks_elsewhere_and_a_step_here(started, step, starts):
    program.start_early(["--nproc", "2"], {"SLURM_JOB_ID": "1", **step})
    assert len(started) == starts


@pytest.mark.parametrize(
    ("command", "looks", "order"),
    [
        ("gate", ("environment", "meeting", "collectives"), ["torch", "run"]),
        ("net", ("environment", "meeting", "peers"), ["run"]),
    ],
)
def test_a_probe_of_another_node_imports_torch_while_it_loads_its_run(started, monkeypatch, command, looks, order):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("distcheck.run.entry.run", lambda *_: started.append("run"))
    asked = Asked(command=command, looks=looks, started_here=True)
    ranks = Assignment(asked=asked, task=0, ranks_by_task=(2,), master_addr="127.0.0.1", master_port=29500)
    assert (remote_probe._probe(ranks, None, 0.0), started) == (0, order)


@pytest.mark.process
def test_a_fork_server_that_is_not_needed_is_ended_with_its_channel_and_output(monkeypatch):
    server = program.start()
    monkeypatch.setattr(program, "_early", [server])
    program.drop()
    assert (server.process.returncode, server.control.fileno(), program.taken()) == (-9, -1, None)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(server.output)


@pytest.mark.process
def test_a_fork_server_whose_channel_is_closed_ends_by_itself():
    server = program.start()
    server.control.close()
    assert server.process.wait(60) == 0
    os.close(server.output)


@pytest.mark.process
def test_the_ranks_come_from_the_fork_server_that_was_started_early(monkeypatch):
    server = program.start()
    monkeypatch.setattr(program, "_early", [server])
    monkeypatch.setattr(program, "start", lambda: pytest.fail("a second fork server was started"))

    async def group():
        ranks = LocalRanks([Placement(rank=n, world_size=2, local_rank=n) for n in range(2)], inherit=False)
        try:
            await ranks.start()
            return ranks.group
        finally:
            await ranks.close()

    assert asyncio.run(group()) == server.process.pid
