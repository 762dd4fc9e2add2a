"""A second job on the node that uses the same ports, pipes and files; a job that is alone is silent."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.held import PIPE, RAS, SERVER, Held, HeldFile
from distcheck.facts.network import Bind, PortOwner

OWNER = PortOwner(pid=77, command="/usr/bin/python train.py", user="eve", started="2026-11-30T06:00:00+00:00")


@pytest.fixture
def said(job_of, change, judge):
    """Return the findings where the processes of two nodes with two ranks each find this, by rank."""

    def of(found):
        job = job_of(2, 2)
        for rank, held in found.items():
            job = change.process(job, rank, held=held)
        return judge(job, "network.held")

    return of


def test_a_job_that_holds_everything_alone_is_silent(said):
    assert said({}).findings == ()
    assert said(dict.fromkeys(range(4), Held())).findings == ()


def test_the_port_of_ras_is_reported_once_for_each_node(said):
    taken = Held({RAS: Bind(28100, "in-use", "", OWNER)})
    (found,) = said({2: taken, 3: taken}).findings
    assert (found.rule, found.severity, found.ranks, found.nodes) == (
        "net-debug-port-in-use",
        "warning",
        (2, 3),
        ("node2",),
    )
    assert found.message == (
        "port 28100 of NCCL_RAS_ADDR is held by process 77 (python train.py) of eve; ncclras may ask that process"
    )
    assert found.fix.commands[0].startswith("export NCCL_RAS_ADDR=localhost:")


def test_the_port_of_the_debug_server_is_rank_0s(said):
    (found,) = said({0: Held({SERVER: Bind(25999, "in-use", "", Missing(reason="hidden"))})}).findings
    assert (found.rule, found.severity, found.ranks) == ("net-debug-port-in-use", "warning", (0,))
    assert "port 25999 of the debug server is held by a process that is not visible (hidden)" in found.message
    assert "start_debug_server(port=" in found.fix.text


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("read", "/p_3.pipe is open in a process of eve; this job would replace it"),
        ("foreign", "/p_3.pipe belongs to eve, and torch cannot replace it"),
        ("shared", "/p_3.pipe is also written by process 77 (python train.py) of eve"),
    ],
)
def test_a_file_names_its_rank_and_who_uses_it(said, why, words):
    file = HeldFile(3, PIPE, "/p_3.pipe", why, "eve", OWNER)
    (found,) = said({3: Held(files=(file,))}).findings
    assert (found.rule, found.severity, found.ranks, found.nodes) == (
        "torch-debug-file-in-use",
        "warning",
        (3,),
        ("node2",),
    )
    assert found.message.endswith(words)
    assert found.fix.commands == (f"export {PIPE}=/p_29500_",)


def test_what_could_not_be_looked_at_is_told(said):
    told = said({1: Missing(reason="no answer within 3 s")})
    assert (told.findings, [gap.reason for gap in told.not_checked]) == ((), ["no answer within 3 s"])
    assert told.verdict.exit_code == 0
