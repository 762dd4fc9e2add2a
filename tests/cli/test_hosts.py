"""Host lists, hostfiles of every dialect, and how the probes are started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.cli import hosts
from distcheck.cli.options import Options
from distcheck.cli.request import request_of
from distcheck.facts.errors import UsageError
from distcheck.selection.nodelist import folded

BATCH = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node[1-4]", "SLURM_TASKS_PER_NODE": "5,1(x3)"}
STEP = BATCH | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}


@pytest.fixture(autouse=True)
def _srun(tmp_path, monkeypatch):
    """Put an srun on PATH, so that Slurm seems installed."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def outside(environ=None, **options):
    return hosts.outside(Options(**options), environ or {})


def refused(environ=None, **options) -> str:
    with pytest.raises(UsageError) as caught:
        outside(environ, **options)
    return str(caught.value)


# -- --hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b[1-4]", "a b1 b2 b3 b4"),
        ("b[1-2],a", "b1 b2 a"),
        ("node[3,1]", "node1 node3"),
        ("a b  c", "a b c"),
        ("a,,b,", "a b"),
        ("a,a,b", "a b"),
        ("node[1-2]-data", "node1-data node2-data"),
        ("node[01-03]", "node01 node02 node03"),
        ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
        ("rack[1-2]n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"),
        ("fd00::1,user@b", "fd00::1 user@b"),
    ],
)
def test_a_host_list_keeps_its_order(text, expected):
    assert hosts.expand(text, "--hosts") == tuple(expected.split())


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("node[1-", "a,b[1-4]"),
        ("node[4-1]", "a,b[1-4]"),
        (",", "names no host"),
        (" ", "names no host"),
        ("-oProxyCommand=x", "cannot begin with a dash"),
        ("a,-x", "cannot begin with a dash"),
        ("node1:2", "--nproc"),
        ("a\x01b", "printable"),
        ("node[1-100000000]", "more than 65536 hosts"),
        ("rack[1-1000]node[1-1000]", "more than 65536 hosts"),
    ],
)
def test_an_invalid_host_list_is_reported_with_its_value(text, remedy):
    message = refused(hosts=text)
    assert repr(text) in message
    assert remedy in message


@given(st.lists(st.from_regex(r"[a-z][a-z0-9]{0,5}(-[a-z])?", fullmatch=True), min_size=1, max_size=8))
def test_plain_names_are_kept_once_each(names):
    assert hosts.expand(",".join(names), "--hosts") == tuple(dict.fromkeys(names))


@given(st.lists(st.from_regex(r"[ab]-?[0-9]{0,3}", fullmatch=True), min_size=1, max_size=8, unique=True))
def test_hosts_that_a_fix_folds_are_the_same_in_the_same_order(names):
    assert hosts.expand(folded(names), "--hosts") == tuple(names)


@given(st.text(alphabet="ab19[]-,:. \t\\!&^%#\x00é", max_size=12))
def test_any_text_is_a_host_list_or_a_usage_error(text):
    try:
        found = hosts.expand(text, "--hosts")
    except UsageError as error:
        assert "--hosts" in str(error)
    else:
        assert found
        assert len(set(found)) == len(found)
        assert all(host.isprintable() and not host.startswith("-") for host in found)


# -- --hostfile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", {"a": None, "b": None}),
        ("a slots=4\nb slots=2\n", {"a": 4, "b": 2}),
        ("a slots = 4 max_slots=8\nb max-slots=8 slots=2", {"a": 4, "b": 2}),
        ("a max_slots=8\n", {"a": None}),
        ("# Open MPI\n\na slots=2 # the first\n  b\tslots=2\r\n", {"a": 2, "b": 2}),
        ("a:4\nb:2 ifname=eth0\n", {"a": 4, "b": 2}),
        ("node[1-3] slots=2", {"node1": 2, "node2": 2, "node3": 2}),
        ("a\na\nb\nb\nb\n", {"a": 2, "b": 3}),
        ("a slots=2\na slots=2\n", {"a": 4}),
        ("\ufeffa slots=2\r\nb\r\n", {"a": 2, "b": None}),
    ],
    ids=["plain", "DeepSpeed", "limits", "no-slots", "comments", "MPICH", "ranges", "PBS", "twice", "Windows"],
)
def test_hostfiles_of_every_dialect_are_read(tmp_path, text, expected):
    path = tmp_path / "hosts"
    path.write_text(text)
    names, slots = hosts.read_hostfile(path)
    assert {name: slots.get(name) for name in names} == expected
    assert names == tuple(expected)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no host"),
        ("# a comment\n", "names no host"),
        ("a\nb:x\n", "line 2: 'b:x' is not a host; expected, for example, node1 slots=8"),
        ("a slots=many", "line 1: many ranks; give 1 to 4096"),
        ("a slots=0", "line 1: 0 ranks; give 1 to 4096"),
        ("a slots=99999999999", "line 1: 99999999999 ranks"),
        ("a two words", "line 1: 'a two words' is not a host"),
        ("node[1-", "line 1: 'node[1-' is not a list of hosts"),
        ("-x", "line 1: '-x': a host cannot begin with a dash"),
    ],
)
def test_an_invalid_hostfile_is_reported_with_its_line(tmp_path, text, problem):
    path = tmp_path / "hosts"
    path.write_text(text)
    message = refused(hostfile=path)
    assert str(path) in message
    assert problem in message


def test_an_unreadable_hostfile_is_reported(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read: No such file or directory" in refused(hostfile=tmp_path / "absent")
    assert "binary: not a text file in UTF-8" in refused(hostfile=tmp_path / "binary")
    assert "/dev/zero: larger than 64 MiB" in refused(hostfile=Path("/dev/zero"))


@given(st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.integers(1, 64), min_size=1), st.booleans())
def test_every_host_has_the_slots_of_its_line(tmp_path_factory, counts, colon):
    path = tmp_path_factory.getbasetemp() / "counts"
    path.write_text("".join(f"{h}:{n}\n" if colon else f"{h} slots={n}\n" for h, n in counts.items()))
    assert hosts.read_hostfile(path) == (tuple(counts), counts)


# -- what starts the probes


@pytest.mark.parametrize(
    ("environ", "options", "engine"),
    [
        ({}, {}, None),
        ({}, {"nproc": "2"}, None),
        ({}, {"hosts": "a,b"}, "ssh"),
        ({}, {"hosts": "a,b", "launcher": "mpi"}, "mpi"),
        (BATCH, {}, "slurm"),
        (BATCH, {"nproc": "2"}, "slurm"),
        (BATCH, {"launcher": "ssh"}, "ssh"),
        (BATCH, {"hosts": "node[1-2]"}, "ssh"),
        (BATCH, {"launcher": "mpi"}, "mpi"),
        (BATCH, {"launcher": "local"}, None),
        (BATCH, {"alone": True}, None),
        (BATCH, {"rank": 0, "world_size": 2}, None),
        (BATCH | {"RANK": "0", "WORLD_SIZE": "2"}, {}, None),
        (STEP, {}, None),
        (STEP | {"SLURM_NTASKS": "1"}, {"hosts": "a,b"}, "ssh"),
        (TORCHRUN, {}, None),
    ],
)
def test_options_and_allocation_select_how_to_start_the_probes(environ, options, engine):
    launch = outside(environ, **options)
    assert (launch and launch.engine) == engine


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        (BATCH | {"SLURM_JOB_NODELIST": "node1"}, {}),
        (BATCH, {"launcher": "local"}),
        (BATCH, {"alone": True}),
        (BATCH | {"RANK": "0", "WORLD_SIZE": "2"}, {}),
        (STEP, {}),
        (TORCHRUN | BATCH, {}),
    ],
)
def test_one_node_and_ranks_that_are_started_already_need_no_srun(monkeypatch, environ, options):
    monkeypatch.setenv("PATH", "/nowhere")
    assert outside(environ, **options) is None


def test_an_allocation_of_several_nodes_without_srun_is_not_taken_for_this_node(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    for options in ({}, {"nproc": "2"}):
        message = refused(BATCH, **options)
        for part in ("SLURM_JOB_NODELIST node[1-4]", "4 nodes", "srun", "--launcher ssh", "--launcher local"):
            assert part in message


@pytest.mark.parametrize(
    ("environ", "options", "value", "remedy"),
    [
        ({}, {"launcher": "local", "hosts": "a"}, "--launcher local", "drop --hosts and --hostfile"),
        ({}, {"alone": True, "hosts": "a"}, "--alone with --hosts", "drop one of them"),
        ({}, {"alone": True, "launcher": "mpi"}, "--alone with --launcher mpi", "drop one of them"),
        ({}, {"hosts": "a", "rank": 0, "world_size": 1}, "--rank 0 with --hosts", "drop one of them"),
        ({}, {"launcher": "ssh", "local_rank": 1}, "--local-rank 1 with --launcher ssh", "drop one of them"),
        ({}, {"launcher": "slurm"}, "--launcher slurm", "use sbatch or salloc"),
        ({}, {"launcher": "ssh"}, "--launcher ssh", "use --hosts or --hostfile"),
        ({}, {"hosts": "a", "hostfile": "f"}, "--hosts and --hostfile", "give only one"),
        ({}, {"hosts": "a", "nproc": "0"}, "--nproc 0", "from 1 to 4096, or auto"),
        ({}, {"hosts": "a", "nproc": "auto"}, "--nproc auto", "give a number"),
        ({}, {"hosts": "a,b", "need": 3}, "--need 3", "from 1 to 2"),
        ({}, {"hosts": "a,b", "need": 0}, "--need 0", "from 1 to 2"),
        ({}, {"hosts": "a", "need": 2}, "--need 2: out of 1 node;", "from 1 to 1"),
        ({}, {"hosts": "a", "launcher_args": "'x"}, "--launcher-args", "No closing quotation"),
        ({"MASTER_PORT": "99999"}, {"hosts": "a"}, "MASTER_PORT 99999", "20000 to 32000"),
        ({}, {"need": 2}, "--need 2", "give --hosts"),
        ({}, {"env": "NCCL_*"}, "--env NCCL_*", "give --hosts"),
        ({}, {"setup": "true"}, "--setup true", "give --hosts"),
        ({}, {"python": "/x"}, "--python /x", "give --hosts"),
        ({}, {"launcher_args": "-x"}, "--launcher-args -x", "give --hosts"),
        (STEP, {"hosts": "a,b"}, "already one of 8 that slurm started", "outside of them"),
        (TORCHRUN, {"launcher": "ssh"}, "already one of 8 that torchrun started", "outside of them"),
        (BATCH | {"SLURM_JOB_NODELIST": ""}, {}, "SLURM_JOB_NODELIST is empty", "inside salloc"),
    ],
)
def test_invalid_options_are_reported_with_value_and_fix(environ, options, value, remedy):
    message = refused(environ, **options)
    assert value in message
    assert remedy in message


# -- the launch


def test_ssh_starts_one_rank_per_host_or_nproc():
    assert outside(hosts="b,a").ranks_by_host == (1, 1)
    launch = outside(hosts="b,a", nproc="3")
    assert (launch.ranks_by_host, launch.multiplies, launch.master_addr, launch.master_port) == (
        (3, 3),
        True,
        "b",
        29500,
    )
    assert launch.python == sys.executable


def test_slots_are_ranks_and_nproc_overrides_them(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a slots=3\nb\n")
    assert outside(hostfile=path).ranks_by_host == (3, 1)
    assert outside(hostfile=path, nproc="2").ranks_by_host == (2, 2)


def test_the_scheduler_hostfile_is_found(tmp_path):
    path = tmp_path / "nodes"
    path.write_text("a\na\nb\nb\n")
    launch = outside({"PBS_NODEFILE": str(path)}, launcher="ssh")
    assert (launch.hosts, launch.ranks_by_host) == (("a", "b"), (2, 2))


def test_an_allocation_defines_hosts_tasks_and_port():
    launch = outside(BATCH)
    assert (launch.hosts, launch.ranks_by_host, launch.multiplies) == (
        ("node1", "node2", "node3", "node4"),
        (5, 1, 1, 1),
        False,
    )
    assert (launch.master_addr, launch.master_port) == ("node1", 20077)
    assert launch.host_of_task == ("node1",) * 5 + ("node2", "node3", "node4")
    assert outside(BATCH | {"SLURM_GPUS_ON_NODE": "8"}, nproc="auto").ranks_by_host == (8,) * 4


@pytest.mark.parametrize(
    ("environ", "arguments"),
    [
        ({"SLURM_DISTRIBUTION": "cyclic"}, ""),
        ({"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "1"}, ""),
        ({"SLURM_DISTRIBUTION": "block"}, "--qos=high -m cyclic:block"),
        ({}, "--distribution=cyclic"),
        ({}, "--distribution plane=1"),
    ],
)
def test_srun_distribution_maps_tasks_to_nodes(environ, arguments):
    launch = outside(BATCH | environ, launcher_args=arguments)
    assert launch.host_of_task == ("node1", "node2", "node3", "node4") + ("node1",) * 4
    assert launch.ranks_by_name() == {"node1": (0, 4, 5, 6, 7), "node2": (1,), "node3": (2,), "node4": (3,)}
    assert launch.without(("node2",)).ranks_by_name()["node1"] == (0, 3, 4, 5, 6)
    assert outside(BATCH | environ, launcher_args=arguments, nproc="2").ranks_by_name()["node2"] == (2, 3)


def test_a_custom_distribution_leaves_the_task_map_unknown():
    launch = outside(BATCH | {"SLURM_DISTRIBUTION": "arbitrary"})
    assert (launch.host_of_task, set(launch.ranks_by_name().values())) == ((), {()})


def test_the_master_options_override_the_environment():
    there = {"MASTER_ADDR": "env", "MASTER_PORT": "1234"}
    launch = outside(there, hosts="a")
    assert (launch.master_addr, launch.master_port) == ("env", 1234)
    launch = outside(there, hosts="a", master_addr="option", master_port=5)
    assert (launch.master_addr, launch.master_port) == ("option", 5)


def test_excluding_a_host_removes_its_ranks_and_moves_the_master():
    launch = outside(hosts="a,b,c", nproc="2").without(("a",))
    assert (launch.hosts, launch.master_addr, launch.ranks_by_name()["c"]) == (("b", "c"), "b", (2, 3))
    assert outside(hosts="a,b,c", master_addr="head").without(("a",)).master_addr == "head"


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("NCCL_*,UCX_*", "NCCL_DEBUG UCX_TLS"),
        (" NCCL_DEBUG , ", "NCCL_DEBUG"),
        ("", ""),
        ("nccl_*", ""),
        ("?CX_TLS", "UCX_TLS"),
    ],
)
def test_matching_variables_are_passed_on(patterns, names):
    environ = {"NCCL_DEBUG": "INFO", "UCX_TLS": "tcp", "HOME": "/root"}
    assert list(hosts.carried(patterns, environ)) == names.split()


def test_what_starts_the_probes_is_kept_for_the_commands_of_fixes_without_its_secrets():
    options = Options(
        hosts="a", python="/opt/bin/python", setup="export HF_TOKEN=x; cd /job", launcher_args="-x A", env="B*"
    )
    asked = request_of("env", ("environment",), options, {}).asked
    assert (asked.python, asked.setup) == ("/opt/bin/python", "export HF_TOKEN=(redacted); cd /job")
    assert (asked.launcher_args, asked.env) == ("-x A", "B*")
    assert request_of("env", ("environment",), Options(hosts="a"), {}).asked.python == ""
