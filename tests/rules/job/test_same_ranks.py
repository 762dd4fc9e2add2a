"""The commands of a fix start distcheck on the nodes and ranks of the run, however it was started."""

from __future__ import annotations

import shlex

import pytest

from distcheck.cli.hosts import read_hostfile
from distcheck.facts.job import Launched, LaunchedNode
from distcheck.facts.placement import Placement
from distcheck.rules.finding import Fix
from distcheck.rules.job.same_ranks import on_hosts, on_same_ranks
from distcheck.selection.meshes import parse

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


UNEQUAL = "--hostfile <(printf '%s\\n' 'node[1-2] slots=2' 'node3 slots=1')"


@pytest.mark.parametrize(
    ("engine", "options"),
    [("ssh", f" {UNEQUAL}"), ("mpi", f" --launcher mpi {UNEQUAL}"), ("slurm", f" --launcher slurm {UNEQUAL}")],
)
def test_nodes_with_unequal_numbers_of_ranks_get_theirs_from_a_hostfile(command, engine, options):
    said = command("distcheck gate -v", launched(engine, (0, 1), (2, 3), (4,)))
    assert said == f"distcheck gate{options} -v"


def test_some_of_the_nodes_with_unequal_numbers_of_ranks_keep_theirs(job_of, change):
    job = change.job(job_of(1, 4, "distcheck"), launched=launched("ssh", (0, 1), (2, 3), (4,)))
    fix = Fix("Test them.", (f"distcheck isolate{on_hosts(job, ('node2', 'node3'))}",))
    assert on_same_ranks(job, fix).commands == (
        "distcheck isolate --hostfile <(printf '%s\\n' 'node2 slots=2' 'node3 slots=1')",
    )


def test_the_hostfile_of_a_fix_has_the_nodes_and_ranks_of_the_run(command, tmp_path):
    said = command("distcheck net", launched("ssh", (0, 1), (2, 3), (4,)))
    lines = shlex.split(said)[5:]
    file = tmp_path / "hosts"
    file.write_text("\n".join(line.rstrip(")") for line in lines))
    assert read_hostfile(file) == (HOSTS, {"node1": 2, "node2": 2, "node3": 1})


def test_thousands_of_nodes_with_unequal_numbers_of_ranks_are_named_without_a_number(command):
    many = [LaunchedNode(name=f"n{i}", ranks=tuple(range(i % 2 + 1)), outcome="reported") for i in range(2000)]
    assert command("distcheck net", Launched("ssh", (), tuple(many))) == "distcheck net --hosts 'n[0-1999]'"


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_backend_of_the_run_is_that_of_the_command(command, backend):
    assert command("distcheck net -v", backend=backend) == f"distcheck net --nproc 4 --backend {backend} -v"
    assert command("distcheck gate --backend mpi", backend=backend) == "distcheck gate --nproc 4 --backend mpi"


def test_a_mesh_in_a_command_has_the_order_of_the_run(command):
    mesh = parse("tp=2,pp=2", "tp-dp-pp")
    said = command(f"distcheck gate --mesh {mesh}", mesh=mesh)
    assert said == "distcheck gate --nproc 4 --mesh-order tp-dp-pp --mesh pp=2,dp=-1,tp=2"
    assert command("distcheck gate", mesh=mesh) == "distcheck gate --nproc 4", "no order without sizes"
    assert command("distcheck gate --mesh tp=2", mesh=parse("tp=2,pp=2")).endswith("--nproc 4 --mesh tp=2")


STARTING = {
    "python": "/opt/env/bin/python",
    "setup": "source /opt/env.sh && cd ~",
    "launcher_args": "--mca btl tcp,self",
    "env": "NCCL_*,UCX_TLS",
}
ENVIRONMENT = " --env 'NCCL_*,UCX_TLS' --setup 'source /opt/env.sh && cd ~' --python /opt/env/bin/python"


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


def test_a_placement_given_as_options_is_that_of_the_command(job_of, change):
    unset = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"))
    options = Placement(rank=0, world_size=2, local_rank=0, master_addr="10.0.0.1", master_port=29600)
    job = change.environment(job_of(), None, options, **unset)
    (said,) = on_same_ranks(job, Fix("Look.", ("distcheck net -v",))).commands
    assert said == (
        "distcheck net --rank 0 --world-size 2 --local-rank 0 --master-addr 10.0.0.1 --master-port 29600 -v"
    )
    job = change.environment(job_of(), None, Placement(master_addr="10.0.0.1"), MASTER_ADDR=None)
    assert on_same_ranks(job, Fix("", ("distcheck net",))).commands == ("distcheck net --master-addr 10.0.0.1",)


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
