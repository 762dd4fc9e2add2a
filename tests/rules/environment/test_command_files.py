"""COMMAND's files and packages that are absent or different on some nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from distcheck.facts.job import Launched, LaunchedNode
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import Installed
from distcheck.facts.storage import CommandFile, Packages, Storage

SAME, OTHER = "a" * 64, "b" * 64
LAUNCHERS = ("torchrun", "slurm", "openmpi", "distcheck")


def file(word="train.py", role="script", state="file", sha256=SAME, size=9):
    return CommandFile(word, role, f"/job/{word}", state, size_bytes=size, sha256=sha256 if state == "file" else "")


@pytest.fixture
def job(job_of):
    return job_of(3, 2, "slurm", looks=("environment", "meeting", "storage", "peers"), command="gate")


@pytest.fixture
def with_files(change):
    """Return a job whose nodes find these files; None for a node is what the first one finds."""

    def with_files(job, *nodes):
        for number in range(len(job.nodes)):
            files = (nodes[number] if number < len(nodes) else None) or nodes[0]
            job = change.node(job, number, storage=Storage(files=tuple(files)))
        return job

    return with_files


@pytest.fixture
def told(judge):
    return lambda job: [
        (f.rule, f.severity, f.ranks, f.nodes) for f in judge(job, "environment.command_files").findings
    ]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_same_files_on_all_nodes_are_fine(job_of, with_files, told, launcher):
    job = job_of(3, 2, launcher, looks=("storage", "peers"), command="gate")
    absent = file("nowhere/x", "argument", "absent")
    files = (file(), file("python", "program"), file("data", "argument", "folder"), file("m", "module"), absent)
    assert told(with_files(job, files)) == []


@pytest.mark.parametrize("nodes", [(file(state="silent"),), (file(state="other"),), (file(), file("other.py"))])
def test_a_script_that_does_not_answer_is_a_pipe_or_is_not_named_on_a_node_is_not_missing(job, with_files, told, nodes):
    assert told(with_files(job, *((found,) for found in nodes))) == []


@pytest.mark.parametrize(
    ("role", "severity"), [("script", "error"), ("program", "error"), ("interpreter", "error"), ("argument", "warning")]
)
def test_a_file_that_one_node_lacks_is_named_there(job, with_files, told, role, severity):
    absent = with_files(job, (file(role=role),), (file(role=role, state="absent"),))
    assert told(absent) == [("command-file-missing", severity, (2, 3), ("node2",))]


@pytest.mark.parametrize("role", ["script", "module"])
def test_what_command_runs_and_no_node_has_is_an_error_of_the_job(job, with_files, judge, role):
    said = judge(with_files(job, (file(role=role, state="absent"),)), "environment.command_files")
    (found,) = said.findings
    assert (found.rule, found.scope, said.verdict.exit_code) == ("command-file-missing", "job", 30)
    assert found.ranks == (0, 1, 2, 3, 4, 5)
    assert f"COMMAND's {role} train.py {'does not exist' if role == 'script' else 'is not found'}" in found.message


@pytest.mark.parametrize(("role", "fires"), [("script", True), ("program", True), ("argument", False)])
def test_what_only_the_line_of_another_node_names_is_missed_there(job, with_files, told, role, fires):
    job = with_files(job, (file(),), (file("trian.py", role, "absent"),), (file(),))
    expected = [("command-file-missing", "error", (2, 3), ("node2",))] if fires else []
    assert told(job) == expected


def test_a_script_that_was_misspelt_comes_with_the_name_that_is_there(job_of, with_files, judge):
    job = job_of(1, 2, "distcheck", looks=("storage",), command="gate")
    absent = replace(file("trian.py", state="absent"), near="train.py")
    (found,) = judge(with_files(job, (absent,)), "environment.command_files").findings
    assert found.fix.text.endswith("Its folder has train.py.")
    assert found.fix.commands == ("ls /job",)


def test_a_file_that_only_the_leaders_node_lacks_is_missing_there_if_command_runs_it(job, with_files, told):
    lacks = (file(state="absent"), file("data/x", "argument", "absent"))
    assert told(with_files(job, lacks, (file(), file("data/x", "argument")), (file(),))) == [
        ("command-file-missing", "error", (0, 1), ("node1",))
    ]


@pytest.mark.parametrize(
    ("program", "launched", "fires"),
    [("python", False, True), ("srun", True, True), ("python", True, False), ("srun", False, False)],
)
def test_a_script_is_missed_where_command_runs_it(job, with_files, change, told, program, launched, fires):
    nodes = tuple(LaunchedNode(node.name, (), "reported") for node in job.nodes)
    job = change.asked(with_files(job, (file(state="absent"),)), program=program)
    probed = change.asked(job, folder="/job") if launched else job  # as the nodes judge it before the collectives
    job = change.job(job, launched=Launched("slurm", ("srun",), nodes) if launched else None)
    assert [[severity for _, severity, *_ in told(each)] for each in (job, probed)] == [["error"] * fires] * 2


def test_a_file_that_cannot_be_read_on_a_node_is_named_with_the_error(job, with_files, judge):
    closed = CommandFile("train.py", "script", "/job/train.py", "unreadable", "Permission denied")
    (found,) = judge(with_files(job, (file(),), None, (closed,)), "environment.command_files").findings
    assert (found.rule, found.nodes) == ("command-file-missing", ("node3",))
    assert found.evidence["error"] == "Permission denied"
    assert "train.py cannot be read; it exists on node1" in found.message


@pytest.mark.parametrize("other", [file(sha256=OTHER), file(size=10)])
def test_a_file_that_differs_on_one_node_is_a_warning_there(job, job_of, with_files, told, other):
    differs = "command-file-differs", "warning"
    assert told(with_files(job, (file(),), None, (other,))) == [(*differs, (4, 5), ("node3",))]
    two = with_files(job_of(2, 1, looks=("storage",)), (file(),), (other,))
    assert told(two) == [(*differs, (0, 1), ("node1", "node2"))], "of two versions none is the right one"


def test_another_python_is_reported_once(job, with_files, told, change):
    job = with_files(job, (file("python", "program"),), (file("python", "program", sha256=OTHER),))
    assert told(job) == [("command-file-differs", "warning", (2, 3), ("node2",))]
    torch = job.nodes[0].torch
    job = change.process(job, None, installed=Installed("3.11.7", "/venv", torch))
    assert told(change.process(job, (2, 3), installed=Installed("3.12.1", "/venv", torch))) == []


def with_packages(job, change, *nodes):
    for number, names in enumerate(nodes):
        packages = Packages(str(hash(names)), names)
        job = change.node(job, number, storage=Storage(packages=packages))
    return job


def test_packages_that_differ_on_one_node_are_listed(job, change, judge):
    usual, odd = ("numpy==2.2.6", "zlib==1"), ("numpy==1.26.4", "extra==3", "zlib==1")
    assert judge(with_packages(job, change, usual, usual, usual), "environment.command_files").findings == ()
    (found,) = judge(with_packages(job, change, usual, usual, odd), "environment.command_files").findings
    assert (found.rule, found.severity, found.nodes) == ("sw-packages-differ", "warning", ("node3",))
    assert "extra 3 only here and numpy 1.26.4 instead of 2.2.6" in found.message


def test_at_most_ten_packages_are_listed(job, change, judge):
    many = tuple(f"p{n:02}==1" for n in range(30))
    (found,) = judge(with_packages(job, change, many, many, ()), "environment.command_files").findings
    assert "the list is not known" in found.message
    (found,) = judge(with_packages(job, change, many, many, ("p00==1",)), "environment.command_files").findings
    assert found.evidence["number"] == 29
    assert found.evidence["differences"].count("only there") == 10


def test_packages_are_not_compared_where_torch_differs(job, change, judge):
    job = with_packages(job, change, ("a==1",), ("a==2",), ("a==1",))
    job = change.process(job, (2, 3), installed=Installed("3.11.7", "/venv", TorchBuild("2.7.1", None, None)))
    assert judge(job, "environment.command_files").findings == ()
