"""The commands of a fix start distcheck on the nodes and ranks of the run, however it was started."""

from __future__ import annotations

import pytest

from distcheck.facts.job import Launched, LaunchedNode
from distcheck.rules.finding import Fix
from distcheck.rules.job.same_ranks import on_same_ranks

HOSTS = ("node1", "node2", "node3")


def launched(engine, *ranks_of_nodes):
    nodes = [LaunchedNode(name=n, ranks=r, outcome="reported") for n, r in zip(HOSTS, ranks_of_nodes, strict=False)]
    return Launched(engine=engine, command=(), nodes=tuple(nodes))


@pytest.fixture
def command(job_of, change):
    """Return how a command of a fix reads in a run of distcheck that started its ranks itself."""

    def read(command, launched=None, launcher="distcheck", nodes=1, variables=(), **asked):
        job = change.job(change.asked(job_of(nodes, 4, launcher), **asked), launched=launched)
        job = change.environment(job, None, **dict(variables)) if variables else job
        (found,) = on_same_ranks(job, Fix("Repeat it.", (command,))).commands
        return found

    return read


def test_ranks_that_distcheck_started_on_this_node_are_counted(command):
    assert command("distcheck isolate") == "distcheck isolate --nproc 4"
    said = command("NCCL_DEBUG=INFO NCCL_NET_PLUGIN=none distcheck bandwidth --step")
    assert said == "NCCL_DEBUG=INFO NCCL_NET_PLUGIN=none distcheck bandwidth --nproc 4 --step"


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("ssh", " --hosts 'node[1-3]' --nproc 2"),
        ("mpi", " --launcher mpi --hosts 'node[1-3]' --nproc 2"),
        ("slurm", " --nproc 2"),
    ],
)
def test_nodes_that_distcheck_started_are_named_as_its_launcher_takes_them(command, engine, options):
    job = launched(engine, (0, 1), (2, 3), (4, 5))
    assert command("distcheck net", job) == f"distcheck net{options}"


@pytest.mark.parametrize(
    ("allocated", "hosts"), [("node[1-3]", " --launcher slurm --hosts 'node[1-2]'"), ("node[1-2]", "")]
)
def test_some_nodes_of_an_allocation_are_named(command, allocated, hosts):
    said = command("distcheck net", launched("slurm", (0, 1), (2, 3)), variables={"SLURM_JOB_NODELIST": allocated})
    assert said == f"distcheck net{hosts} --nproc 2"


def test_the_tasks_of_srun_are_left_to_srun(command):
    assert command("distcheck net", launched("slurm", (0, 1, 2, 3)), launcher="slurm") == "distcheck net"
    assert command("distcheck net", launched("ssh", (), ())) == "distcheck net --hosts 'node[1-2]'", "ranks unknown"


def test_a_command_that_names_nodes_or_ranks_gets_what_it_lacks(command):
    job = launched("mpi", (0, 1), (2, 3))
    assert command("distcheck env --nproc 8", job) == "distcheck env --launcher mpi --hosts 'node[1-2]' --nproc 8"
    assert command("distcheck isolate --hosts node1", job) == "distcheck isolate --nproc 2 --hosts node1"


def test_each_task_of_another_launcher_starts_as_many_ranks_again(command):
    two = {"nodes": 2, "launcher": "distcheck"}
    assert command("distcheck gate -v", **two) == "distcheck gate --nproc 4 -v", "as under srun distcheck --nproc 4"


def test_nodes_with_unequal_numbers_of_ranks_are_named_without_a_number(command):
    assert command("distcheck gate -v", launched("ssh", (0, 1), (2,))) == "distcheck gate --hosts 'node[1-2]' -v"


STARTING = {
    "python": "/opt/env/bin/python",
    "setup": "source /opt/env.sh && cd ~",
    "launcher_args": "--mca btl tcp,self",
}
ENVIRONMENT = " --setup 'source /opt/env.sh && cd ~' --python /opt/env/bin/python"


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("ssh", f" --hosts 'node[1-2]' --nproc 2{ENVIRONMENT}"),
        ("mpi", f" --launcher mpi --hosts 'node[1-2]' --nproc 2 --launcher-args '--mca btl tcp,self'{ENVIRONMENT}"),
        ("slurm", f" --nproc 2 --launcher-args '--mca btl tcp,self'{ENVIRONMENT}"),
    ],
)
def test_the_python_of_the_nodes_and_what_prepares_them_are_those_of_the_run(command, engine, options):
    assert command("distcheck net -v", launched(engine, (0, 1), (2, 3)), **STARTING) == f"distcheck net{options} -v"


def test_a_command_with_nodes_of_its_own_starts_the_python_of_the_run(command):
    said = command("distcheck net --hosts node1 --nproc 1", launched("ssh", (0, 1), (2, 3)), **STARTING)
    assert said == f"distcheck net{ENVIRONMENT} --hosts node1 --nproc 1"


def test_a_setup_of_several_lines_or_of_thousands_of_characters_is_left_out(command):
    for setup in ("cd /a\nsource b", "x" * 2000):
        assert command("distcheck net", launched("ssh", (0,), (1,)), setup=setup).endswith(" --nproc 1")


@pytest.mark.parametrize("launcher", ["torchrun", "slurm", "by hand"])
def test_under_another_launcher_the_command_takes_its_ranks(command, launcher):
    assert command("distcheck isolate", launcher=launcher) == "distcheck isolate"


def test_a_default_number_of_ranks_stays_the_default(command):
    assert command("distcheck isolate", by_default=True) == "distcheck isolate"


@pytest.mark.parametrize(
    "other",
    [
        "distcheck net --hosts a,b --nproc 1",
        "distcheck gate --op all_reduce --nproc 2",
        "distcheck report job.json",
        "distcheck explain env-rank-unset",
        "distcheck node  # on node3",
        "srun --ntasks=4 distcheck gate",
        "ssh node3 distcheck net",
    ],
)
def test_a_command_with_ranks_of_its_own_stays_as_it_is(command, other):
    assert command(other) == other
