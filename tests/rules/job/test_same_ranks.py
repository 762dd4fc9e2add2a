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
UNEQUAL = "--hostfile <(printf '%s\\n' 'node[1-2] slots=2' 'node3 slots=1')"
SETUP = "source /opt/env.sh && cd ~"
STARTING = {"python": "/opt/python", "setup": SETUP, "launcher_args": "--mca btl tcp,self", "env": "NCCL_*,UCX_TLS"}
PREPARED = f" --env 'NCCL_*,UCX_TLS' --setup '{SETUP}' --python /opt/python"
MPI_ARGS = " --launcher-args '--mca btl tcp,self'"
MESH, PIPELINE = parse("tp=2,pp=2", "tp-dp-pp"), parse("tp=2,pp=2")


def launched(engine, *ranks_of_nodes):
    nodes = [LaunchedNode(name=n, ranks=r, outcome="reported") for n, r in zip(HOSTS, ranks_of_nodes, strict=False)]
    return Launched(engine=engine, command=(), nodes=tuple(nodes))


def two(engine):
    return launched(engine, (0, 1), (2, 3))


def three(engine, *third):
    return launched(engine, (0, 1), (2, 3), third)


def allocated(nodes):
    return {"variables": {"SLURM_JOB_NODELIST": nodes}}


@pytest.fixture
def command(job_of, change):
    """Return how a command of a fix reads in a run of distcheck that started its ranks itself."""

    def read(command, launched=None, launcher="distcheck", nodes=1, variables=(), **asked):
        job = change.job(change.asked(job_of(nodes, 4, launcher), **asked), launched=launched)
        job = change.environment(job, None, **dict(variables)) if variables else job
        (found,) = on_same_ranks(job, Fix("Repeat it.", (command,))).commands
        return found

    return read


@pytest.mark.parametrize(
    ("given", "run", "options", "said"),
    [
        # ranks on this node
        ("distcheck isolate", None, {}, "distcheck isolate --nproc 4"),
        ("A=1 B=none distcheck bandwidth --step", None, {}, "A=1 B=none distcheck bandwidth --nproc 4 --step"),
        ("distcheck isolate", None, {"by_default": True}, "distcheck isolate"),
        ("distcheck gate -v", None, {"nodes": 2}, "distcheck gate --nproc 4 -v"),  # as srun distcheck --nproc 4
        *(("distcheck net", None, {"launcher": name}, "distcheck net") for name in ("torchrun", "slurm", "by hand")),
        # on other nodes, as the launcher takes them
        ("distcheck net", three("ssh", 4, 5), {}, "distcheck net --hosts 'node[1-3]' --nproc 2"),
        ("distcheck net", three("mpi", 4, 5), {}, "distcheck net --launcher mpi --hosts 'node[1-3]' --nproc 2"),
        ("distcheck net", three("slurm", 4, 5), {}, "distcheck net --nproc 2"),
        ("distcheck net", two("slurm"), allocated("node[1-2]"), "distcheck net --nproc 2"),
        ("distcheck net", two("slurm"), allocated("node[1-3]"),
         "distcheck net --launcher slurm --hosts 'node[1-2]' --nproc 2"),
        ("distcheck net", launched("slurm", (0, 1, 2, 3)), {"launcher": "slurm"}, "distcheck net"),
        ("distcheck net", launched("ssh", (), ()), {}, "distcheck net --hosts 'node[1-2]'"),
        ("distcheck gate -v", three("ssh", 4), {}, f"distcheck gate {UNEQUAL} -v"),
        ("distcheck gate -v", three("mpi", 4), {}, f"distcheck gate --launcher mpi {UNEQUAL} -v"),
        ("distcheck gate -v", three("slurm", 4), {}, f"distcheck gate --launcher slurm {UNEQUAL} -v"),
        # what the command gives itself stays
        ("distcheck env --nproc 8", two("mpi"), {}, "distcheck env --launcher mpi --hosts 'node[1-2]' --nproc 8"),
        ("distcheck isolate --hosts node1", two("mpi"), {}, "distcheck isolate --nproc 2 --hosts node1"),
        ("distcheck net --hosts node1 --nproc 1", two("ssh"), STARTING,
         f"distcheck net{PREPARED} --hosts node1 --nproc 1"),
        # backend, mesh, and what starts Python on the nodes
        ("distcheck net -v", None, {"backend": "gloo"}, "distcheck net --nproc 4 --backend gloo -v"),
        ("distcheck gate --backend mpi", None, {"backend": "nccl"}, "distcheck gate --nproc 4 --backend mpi"),
        (f"distcheck gate --mesh {MESH}", None, {"mesh": MESH},
         "distcheck gate --nproc 4 --mesh-order tp-dp-pp --mesh pp=2,dp=-1,tp=2"),
        ("distcheck gate", None, {"mesh": MESH}, "distcheck gate --nproc 4"),
        ("distcheck gate --mesh tp=2", None, {"mesh": PIPELINE}, "distcheck gate --nproc 4 --mesh tp=2"),
        ("distcheck net -v", two("ssh"), STARTING, f"distcheck net --hosts 'node[1-2]' --nproc 2{PREPARED} -v"),
        ("distcheck net -v", two("mpi"), STARTING,
         f"distcheck net --launcher mpi --hosts 'node[1-2]' --nproc 2{MPI_ARGS}{PREPARED} -v"),
        ("distcheck net -v", two("slurm"), STARTING, f"distcheck net --nproc 2{MPI_ARGS}{PREPARED} -v"),
        ("distcheck net", two("slurm"), {"setup": "cd /a\nsource b"}, "distcheck net --nproc 2"),
        ("distcheck net", two("slurm"), {"setup": "x" * 2000}, "distcheck net --nproc 2"),
    ],
)  # fmt: skip
def test_a_command_starts_the_ranks_of_the_run(command, given, run, options, said):
    assert command(given, run, **options) == said


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


def test_some_of_the_nodes_with_unequal_numbers_of_ranks_keep_theirs(job_of, change):
    job = change.job(job_of(1, 4, "distcheck"), launched=three("ssh", 4))
    fix = Fix("Test them.", (f"distcheck isolate{on_hosts(job, ('node2', 'node3'))}",))
    hosts = "--hostfile <(printf '%s\\n' 'node2 slots=2' 'node3 slots=1')"
    assert on_same_ranks(job, fix).commands == (f"distcheck isolate {hosts}",)


def test_the_hostfile_of_a_fix_has_the_nodes_and_ranks_of_the_run(command, tmp_path):
    lines = shlex.split(command("distcheck net", three("ssh", 4)))[5:]
    file = tmp_path / "hosts"
    file.write_text("\n".join(line.rstrip(")") for line in lines))
    assert read_hostfile(file) == (HOSTS, {"node1": 2, "node2": 2, "node3": 1})


def test_thousands_of_nodes_with_unequal_numbers_of_ranks_are_named_without_a_number(command):
    many = [LaunchedNode(name=f"n{i}", ranks=tuple(range(i % 2 + 1)), outcome="reported") for i in range(2000)]
    assert command("distcheck net", Launched("ssh", (), tuple(many))) == "distcheck net --hosts 'n[0-1999]'"


def test_a_placement_given_as_options_is_that_of_the_command(job_of, change):
    unset = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"))
    options = Placement(rank=0, world_size=2, local_rank=0, master_addr="10.0.0.1", master_port=29600)
    job = change.environment(job_of(), None, options, **unset)
    given = "--rank 0 --world-size 2 --local-rank 0 --master-addr 10.0.0.1 --master-port 29600"
    assert on_same_ranks(job, Fix("Look.", ("distcheck net -v",))).commands == (f"distcheck net {given} -v",)
    job = change.environment(job_of(), None, Placement(master_addr="10.0.0.1"), MASTER_ADDR=None)
    assert on_same_ranks(job, Fix("", ("distcheck net",))).commands == ("distcheck net --master-addr 10.0.0.1",)
