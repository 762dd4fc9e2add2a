"""The command lines that start probes by srun, mpirun and ssh."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from distcheck.facts.asked import Asked
from distcheck.facts.errors import UsageError
from distcheck.launch.remote import assignment, mpi, slurm, ssh
from distcheck.launch.remote.assignment import Assignment
from distcheck.launch.remote.spec import Outside, probe_argv

PYTHON = "/opt/venv/bin/python"
TOLD = Assignment(asked=Asked("env", ("environment",)), ranks_by_task=(2, 2), master_addr="a", master_port=29500)


def launch(engine="ssh", **fields) -> Outside:
    given = {
        "hosts": ("a", "b"), "ranks_by_host": (2, 2), "multiplies": True, "master_addr": "a", "master_port": 29500,
        "python": PYTHON,
    }  # fmt: skip
    return Outside(engine=engine, **{**given, **fields})


@pytest.fixture
def mpirun(tmp_path, monkeypatch):
    """Put a program on PATH with this --version output."""

    def put(said: str, name: str = "mpirun") -> None:
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' {shlex.quote(said)}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        mpi._launcher.cache_clear()

    yield put
    mpi._launcher.cache_clear()


# -- what a node runs


def test_a_node_runs_the_python_that_was_named_and_nothing_around_it():
    assert probe_argv(launch(), "-") == (PYTHON, "-m", "distcheck.run.remote_probe", "-")


def run_setup(setup: str, python: str = "/bin/echo"):
    """Run a node's command, with a Python that prints its arguments."""
    argv = probe_argv(launch(setup=setup, python=python), "-")
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.process
@pytest.mark.parametrize(
    "setup", ["true", "cd / && true", "echo module >/dev/null;", "true # a comment", "if true; then\n:\nfi", "set -u"]
)
def test_setup_runs_first_whatever_its_form(setup):
    ended = run_setup(setup)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "-m distcheck.run.remote_probe -\n", "")


@pytest.mark.process
def test_what_setup_exports_reaches_the_probe(tmp_path):
    python = tmp_path / "python with a space"
    python.write_text('#!/bin/sh\necho "$SEEN from $PWD"\n')
    python.chmod(0o755)
    assert run_setup("export SEEN=it; cd /", str(python)).stdout == "it from /\n"


@pytest.mark.process
@pytest.mark.parametrize(("setup", "code"), [("false", 1), ("no-such-module load cuda", 127), ("(exit 5)", 5)])
def test_a_failing_setup_is_reported_with_its_code_and_no_probe_runs(setup, code):
    ended = run_setup(setup)
    assert (ended.returncode, ended.stdout) == (97, "")
    assert ended.stderr.splitlines()[-1] == f"distcheck: --setup failed with exit code {code}"


def test_the_own_python_is_kept_from_modules_in_the_folder_of_the_job(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    argv = probe_argv(launch(python=sys.executable), "-")
    assert argv[0] == sys.executable
    assert ("-P" in argv) == (sys.version_info >= (3, 11))


# -- srun


def srun(**fields) -> list[str]:
    (command,) = slurm.commands(launch("slurm", **fields), TOLD)
    assert (command.key, command.stdin, command.line) == ("srun", b"", "")
    assert assignment.decode(command.argv[-1]) == TOLD
    return list(command.argv[:-1])


def test_srun_starts_one_task_per_node_where_the_probe_starts_the_ranks():
    assert srun() == [
        "srun", "--label", "--kill-on-bad-exit=0", "--export=ALL", "--nodelist", "a,b",
        "--nodes", "2", "--ntasks", "2", "--ntasks-per-node", "1", "--cpu-bind", "none",
        PYTHON, "-m", "distcheck.run.remote_probe",
    ]  # fmt: skip


def test_srun_has_the_layout_of_the_job_where_each_task_is_a_rank():
    assert srun(multiplies=False)[4:] == ["--nodelist", "a,b", PYTHON, "-m", "distcheck.run.remote_probe"]


def test_the_users_arguments_come_last_and_win():
    words = srun(arguments=("--partition=gpu", "--ntasks-per-node=1"))
    assert words[-5:-3] == ["--partition=gpu", "--ntasks-per-node=1"]


def test_srun_gets_carried_variables_by_its_own_environment():
    assert "NCCL_DEBUG" not in " ".join(srun(environment={"NCCL_DEBUG": "INFO"}))


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({"SLURM_JOB_NODELIST": "n[1-3]"}, ("n1", "n2", "n3")),
        ({"SLURM_NODELIST": "n2,n1"}, ("n1", "n2")),
        ({"SLURM_JOB_NODELIST": "a", "SLURM_NODELIST": "b"}, ("a",)),
    ],
)
def test_the_nodes_of_the_allocation_are_slurms_in_its_order(environ, hosts):
    assert slurm.hosts(environ) == hosts


@pytest.mark.parametrize("text", ["", "n[1-"])
def test_an_allocation_without_a_node_list_is_an_error(text):
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST"):
        slurm.hosts({"SLURM_JOB_NODELIST": text})


@pytest.mark.parametrize(
    ("text", "number", "counts"),
    [
        ("2(x4)", 4, (2, 2, 2, 2)), ("5,1(x3)", 4, (5, 1, 1, 1)), ("3", 1, (3,)),
        ("", 2, (1, 1)), ("2(x4)", 3, (1, 1, 1)),
    ],
)  # fmt: skip
def test_the_tasks_of_each_node_are_slurms(text, number, counts):
    assert slurm.tasks_by_host({"SLURM_TASKS_PER_NODE": text}, number) == counts


@pytest.mark.parametrize(("job", "port"), [("7", 20007), ("10007", 20007), ("", 20000), ("x", 20000)])
def test_the_port_is_of_the_jobs_number(job, port):
    assert slurm.default_port({"SLURM_JOB_ID": job}) == port


# -- mpirun


@pytest.mark.process
def test_open_mpi_starts_one_probe_per_node_and_names_what_it_carries(mpirun):
    mpirun("mpirun (Open MPI) 4.1.4")
    (command,) = mpi.commands(launch("mpi", environment={"NCCL_DEBUG": "INFO"}, arguments=("--mca", "x", "y")), TOLD)
    assert command.key == "mpirun"
    assert list(command.argv[:-1]) == [
        "mpirun", "--host", "a:1,b:1", "-np", "2", "--map-by", "ppr:1:node", "--bind-to", "none", "--tag-output",
        "-x", "DISTCHECK_TOKEN", "-x", "NCCL_DEBUG", "--mca", "x", "y", PYTHON, "-m", "distcheck.run.remote_probe",
    ]  # fmt: skip
    assert assignment.decode(command.argv[-1]) == TOLD


@pytest.mark.process
@pytest.mark.parametrize("name", ["mpirun", "mpiexec.hydra", "mpiexec"])
@pytest.mark.parametrize("said", ["HYDRA build details:\n    Version: 4.0.2", "Intel(R) MPI Library for Linux"])
def test_hydra_starts_one_probe_per_node_under_any_of_its_names(mpirun, name, said):
    mpirun(said, name)
    (command,) = mpi.commands(launch("mpi", environment={"NCCL_DEBUG": "INFO"}), TOLD)
    assert list(command.argv[:-1]) == [
        name, "-hosts", "a,b", "-ppn", "1", "-n", "2", "-prepend-rank", "-genvlist", "DISTCHECK_TOKEN,NCCL_DEBUG",
        PYTHON, "-m", "distcheck.run.remote_probe",
    ]  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("said", [None, "some other mpirun"])
def test_a_machine_without_a_known_mpi_launcher_is_an_error(mpirun, monkeypatch, tmp_path, said):
    if said:
        mpirun(said)
    monkeypatch.setenv("PATH", str(tmp_path))
    mpi._launcher.cache_clear()
    with pytest.raises(UsageError, match=r"neither Open MPI's mpirun nor MPICH's mpiexec\.hydra is on PATH"):
        mpi.commands(launch("mpi"), TOLD)


# -- ssh


def test_ssh_has_one_command_per_node_with_its_task_on_stdin():
    commands = ssh.commands(launch(environment={"NCCL_DEBUG": "INFO"}), TOLD)
    assert [command.key for command in commands] == ["a", "b"]
    assert {command.line for command in commands} == {f"{PYTHON} -m distcheck.run.remote_probe -"}
    told = [assignment.decode(command.stdin.decode()) for command in commands]
    assert [t.task for t in told] == [0, 1]
    assert {(t.environment["NCCL_DEBUG"], t.ends_with_stdin) for t in told} == {("INFO", True)}
    assert all(command.stdin.count(b"\n") == 1 and command.stdin.endswith(b"\n") for command in commands)


def test_a_python_with_a_space_in_its_path_is_one_word_for_the_nodes_shell():
    (command, _) = ssh.commands(launch(python="/opt/my venv/python"), TOLD)
    assert shlex.split(command.line)[0] == "/opt/my venv/python"
