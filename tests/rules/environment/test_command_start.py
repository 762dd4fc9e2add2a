"""How many processes COMMAND starts, and whether its script gets the variables that it reads."""

from __future__ import annotations

import pytest

from distcheck.facts.job import Launched
from distcheck.facts.storage import CommandFile, Storage


@pytest.fixture
def told(judge):
    return lambda job: [(f.rule, f.severity, f.ranks) for f in judge(job, "environment.command_start").findings]


@pytest.fixture
def started(job_of, change):
    """Return a job whose ranks distcheck started itself, for a COMMAND that is Python, and its script's text."""

    def started(*, text=(), nodes=1, role="script", words=("python", "train.py"), **asked):
        given = {"program": "python", "script": "train.py", "processes": "1", "command": "gate", "looks": ("storage",)}
        job = job_of(nodes, 2, "distcheck", **(given | asked))
        job = change.process(job, None, command=("python", "-m", "distcheck", "gate", "--nproc", "2", "--", *words))
        script = CommandFile("train.py", role, "/job/train.py", "file", mentions=text)
        return change.node(job, None, storage=Storage(files=(script,)))

    return started


@pytest.mark.parametrize("words", [("python", "train.py", "--lr", "1"), ("python", "-u", "train.py", "--lr", "1")])
def test_python_without_a_launcher_is_one_process_and_not_the_ranks_that_were_tested(started, judge, words):
    (found,) = judge(started(words=words), "environment.command_start").findings
    assert (found.rule, found.severity, found.ranks) == ("command-processes-differ", "warning", (0, 1))
    assert found.message == "COMMAND (python train.py) is one process, started once; distcheck tested 2 ranks"
    launched = "distcheck gate --nproc 2 -- torchrun --standalone --nproc-per-node 2 train.py --lr 1"
    assert found.fix.commands == (launched,)


@pytest.fixture
def from_outside(started, change):
    """Return a run from outside of four ranks, for a COMMAND that starts Python on the nodes."""

    def from_outside(*text, program="srun", processes="1", ranks=4):
        job = started(text=text, nodes=ranks // 2, program=program, processes=processes, folder="/job")
        return change.job(job, launched=Launched("slurm", ("srun",), ()))

    return from_outside


@pytest.mark.parametrize("program", ["srun", "mpirun"])
def test_a_script_that_reads_rank_gets_none_from_srun_or_mpirun(from_outside, judge, program):
    (found,) = judge(from_outside('"RANK"', program=program), "environment.command_start").findings
    assert (found.rule, found.severity, found.ranks) == ("command-without-ranks", "warning", (0, 1, 2, 3))
    assert found.message.startswith(
        f"{program} sets no RANK and WORLD_SIZE, but COMMAND's script train.py reads them; "
    )
    assert found.message.endswith("if it has defaults, 4 jobs of one rank run")


def test_a_script_that_may_map_its_launchers_variables_or_reads_none_is_silent(from_outside, told):
    assert told(from_outside('"RANK"', "SLURM_")) == []
    assert told(from_outside()) == []
    assert told(from_outside('"RANK"', processes="8")) == []
    assert told(from_outside('"RANK"', program="./launch.sh", processes="")) == []


@pytest.mark.parametrize(("processes", "shown"), [("1", "1 process"), ("8", "8 processes")])
def test_torchrun_with_another_number_of_processes_leaves_some_untested(started, judge, processes, shown):
    words = ("torchrun", "--standalone", "--nproc-per-node", processes, "train.py")
    (found,) = judge(
        started(text=None, words=words, program="torchrun", processes=processes), "environment.command_start"
    ).findings
    assert found.message == f"COMMAND (torchrun train.py) starts {shown}; distcheck tested 2 ranks"
    assert found.fix.commands == (f"distcheck gate --nproc {processes} -- {' '.join(words)}",)


def test_a_module_is_started_by_torchrun_as_a_module(started, judge):
    words = ("python", "-m", "pack.train", "--lr", "1")
    job = started(role="module", words=words, script="", module=("python", "pack.train"))
    (found,) = judge(job, "environment.command_start").findings
    assert found.message.startswith("COMMAND (python -m pack.train) is one process")
    assert found.fix.commands[0].endswith("torchrun --standalone --nproc-per-node 2 -m pack.train --lr 1")


def test_python_in_each_of_several_tasks_is_as_many_processes(started, judge):
    (found,) = judge(started(nodes=2), "environment.command_start").findings
    assert "started 2 times; distcheck tested 4 ranks" in found.message
    assert found.fix.commands == ()


@pytest.mark.parametrize(
    "more",
    [
        {"text": ("spawn",)},
        {"text": None},
        {"by_default": True},
        {"started_here": False},
        {"processes": ""},
        {"processes": "2", "program": "torchrun"},
        {"processes": "gpu", "program": "torchrun"},
        {"processes": "8", "program": "torchrun", "by_default": True},
        {"program": "srun"},
        {"role": "argument"},
    ],
    ids=str,
)
def test_a_command_that_may_start_the_other_ranks_or_that_is_each_rank_is_silent(started, told, more):
    assert told(started(**more)) == []
