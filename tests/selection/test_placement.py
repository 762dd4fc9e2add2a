from __future__ import annotations

from pathlib import Path

import pytest

from distcheck.cli.options import Options
from distcheck.cli.request import request_of
from distcheck.facts.errors import UsageError
from distcheck.facts.placement import Placement
from distcheck.selection.meeting_place import control_port
from distcheck.selection.node_environment import node_level, placements
from distcheck.selection.placement import beside, exported, integer, local_placements, place, rank_environment

_FOLDER = Path(__file__).parents[1] / "recorded"


def recorded(name):
    """Return an environment as observed or documented; the first line names the source."""
    lines = (_FOLDER / f"{name}.txt").read_text().splitlines()
    assert lines[0].startswith("# ")
    return dict(line.split("=", 1) for line in lines[1:])


PLACED = {
    # launcher, rank, world, local rank, ranks on the node, node rank
    "torchrun": ("torchrun", 5, 8, 1, 4, 1),
    "torchx": ("torchrun", 5, 8, 1, 4, 1),
    "slurm": ("slurm", 5, 8, 1, 4, 1),
    "slurm_uneven": ("slurm", 6, 8, 0, 1, 2),
    "openmpi": ("openmpi", 5, 8, 1, 4, None),
    "azureml_mpi": ("openmpi", 5, 8, 1, 4, None),
    "mpich": ("hydra", 5, 8, 1, 4, None),
    "intel_mpi": ("hydra", 5, 8, 1, 4, None),
    "mvapich2": ("mvapich", 5, 8, 1, 4, None),
    "mvapich_plus": ("mvapich", 5, 8, 1, 4, None),
    "horovodrun": ("horovod", 5, 8, 1, 4, 1),
    "pals": ("pals", 5, 8, 1, 4, 1),
    "jsrun": ("jsrun", 5, 8, 1, 4, None),
    "ray_train": ("ray", 5, 8, 1, 4, 1),
    "deepspeed": ("deepspeed", 5, 8, 1, 4, 1),
    "azureml": ("azureml", 5, 8, 1, None, 1),
    "pytorchjob_one_process": ("kubernetes", 1, 2, None, None, 1),
}


@pytest.mark.parametrize("name", PLACED)
def test_a_launchers_variables_place_a_rank(name):
    placed = place(recorded(name))
    assert (
        placed.launcher, placed.rank, placed.world_size, placed.local_rank, placed.local_world_size, placed.node_rank
    ) == PLACED[name]  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_the_environment_of_a_rank_describes_no_node(name):
    node = node_level(recorded(name))
    assert node is None or not node.needs_ranks


def test_every_recorded_environment_is_tested():
    assert {path.stem for path in _FOLDER.glob("*.txt")} == {*PLACED, *PODS, "indexed_job", "pytorchjob_elastic"}


PODS = {
    "pytorchjob": ("kubernetes", "4", "train-master-0", 23456),
    "trainjob": ("kubernetes", "4", "train-node-0-0.train", 29500),
    "jobset": ("kubernetes", "", "train-workers-0-0.train", 3389),
    "sagemaker": ("sagemaker", "4", "algo-1", 7777),
}


@pytest.mark.parametrize("name", PODS)
def test_a_pods_ranks_are_numbered_as_torchrun_does(name):
    launcher, nproc, address, port = PODS[name]
    node = node_level(recorded(name))
    assert (node.launcher, node.node_rank, node.nodes, node.nproc) == (launcher, 1, 2, nproc)
    placed = placements(node, 4, Placement())
    assert [(p.rank, p.local_rank) for p in placed] == [(4, 0), (5, 1), (6, 2), (7, 3)]
    assert {(p.world_size, p.local_world_size, p.node_rank, p.launcher) for p in placed} == {(8, 4, 1, launcher)}
    assert {(p.master_addr, p.master_port) for p in placed} == {(address, port)}


def test_a_given_address_overrides_a_pods_meeting_place():
    given = Placement(master_addr="node9", master_port=1234)
    (placed,) = placements(node_level(recorded("trainjob")), 1, given)
    assert (placed.master_addr, placed.master_port) == ("node9", 1234)


@pytest.mark.parametrize("name", ["indexed_job", "pytorchjob_elastic"])
def test_a_pod_of_a_job_of_unknown_size_starts_no_ranks(name):
    node = node_level(recorded(name))
    assert node is None or (node.nodes is None and not node.needs_ranks)
    assert place(recorded(name)).rank is None


@pytest.mark.parametrize("environ", [{}, {"PET_NNODES": "2"}, {"RANK": "0", "PET_NNODES": "2"}, {"SM_HOSTS": "["}])
def test_a_shell_with_leftover_variables_is_not_a_pod(environ):
    assert node_level(environ) is None


def test_a_host_outside_the_list_is_not_a_node():
    assert node_level(recorded("sagemaker") | {"SM_CURRENT_HOST": "algo-9"}) is None


# -- where to meet under srun


def test_srun_tasks_without_a_meeting_place_derive_the_same_one():
    places = [place(recorded("slurm") | {"SLURM_PROCID": str(i)}) for i in range(8)]
    assert {(p.master_addr, p.master_port, p.master_derived) for p in places} == {("node1", 20001, True)}
    assert place(recorded("slurm_uneven")).master_port == 20002


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"MASTER_ADDR": "node9", "MASTER_PORT": "29500"}, ("node9", 29500, False)),
        ({"MASTER_ADDR": "node9"}, ("node9", 20001, True)),
        ({"MASTER_PORT": "29500"}, ("node1", 29500, True)),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, ("node1", 20001, True)),
        ({"MASTER_ADDR": "node9", "MASTER_PORT": "x"}, ("node9", None, False)),
    ],
)
def test_a_given_meeting_place_is_kept(given, expected):
    placed = place(recorded("slurm") | given)
    assert (placed.master_addr, placed.master_port, placed.master_derived) == expected


def test_an_option_prevents_the_derivation():
    placed = place(recorded("slurm"), Placement(master_addr="node9"))
    assert (placed.master_addr, placed.master_port, placed.master_derived) == ("node9", None, False)


PRTE = {"OMPI_MCA_orte_hnp_uri": "", "PMIX_NAMESPACE": "prterun-login-1-4711@1"}
"""Open MPI 5's name of a job: prte_plm_base_set_hnp_name in prte's src/mca/plm/base/plm_base_jobid.c."""


@pytest.mark.parametrize(
    ("name", "more", "mpiexec", "host"),
    [
        ("openmpi", {}, "", "10.77.0.11"),
        ("openmpi", {"OMPI_MCA_orte_hnp_uri": "9.0;tcp://172.17.0.1,10.77.0.11:34979"}, "", "10.77.0.11"),
        ("openmpi", PRTE, "", "login-1"),
        ("openmpi", PRTE | {"SLURM_JOB_NODELIST": "node[3-4]", "SLURM_JOB_ID": "7"}, "", "node3"),
        ("mpich", {}, "node1:43153", "node1"),
        ("mpich", {"SLURM_JOB_NODELIST": "node[3-4]", "SLURM_JOB_ID": "7"}, "", "node3"),
        ("horovodrun", {}, "", "10.77.0.11"),
    ],
)
def test_mpi_and_horovod_ranks_meet_where_their_launcher_runs(name, more, mpiexec, host):
    places = [place(recorded(name) | more | {"PMI_RANK": str(i)}, mpiexec=mpiexec) for i in range(4)]
    assert {(p.master_addr, p.master_derived, p.can_meet) for p in places} == {(host, True, True)}
    (port,) = {p.master_port for p in places}
    assert port == 20007 if "SLURM_JOB_ID" in more else 20000 <= port < 30000


def test_two_mpi_jobs_have_different_ports():
    assert (
        place(recorded("mpich"), mpiexec="node1:1").master_port
        != place(recorded("mpich"), mpiexec="node1:2").master_port
    )


@pytest.mark.parametrize("name", ["mpich", "intel_mpi", "mvapich2", "pals", "jsrun"])
def test_without_a_trace_of_rank_0_no_meeting_place_is_derived(name):
    placed = place(recorded(name))
    assert (placed.master_addr, placed.master_port, placed.master_derived) == (None, None, False)


@pytest.mark.parametrize("uri", ["9.0;tcp://", "tcp6://[fd00::1]:3", "9.0;tcp://172.17.0.1:3", "x"])
def test_a_local_only_daemon_address_is_not_a_meeting_place(uri):
    assert place(recorded("openmpi") | {"OMPI_MCA_orte_hnp_uri": uri}).master_addr is None


def test_a_hydra_proxy_among_the_ancestors_gives_the_host_of_mpiexec():
    proxy = "/usr/bin/hydra_pmi_proxy --control-port node1:43153 --rmk user --launcher ssh --proxy-id 1"
    assert control_port(("bash -c distcheck", proxy, "sshd: root@notty")) == "node1:43153"
    assert control_port(("python train.py --control-port node9:1", "bash")) == ""


def test_a_tasks_neighbours_are_counted_by_launcher_variables_alone():
    assert beside(recorded("slurm") | {"LOCAL_WORLD_SIZE": "8"}) == (1, 4)
    assert beside(recorded("openmpi")) == (1, 4)
    assert beside(recorded("torchrun") | {"LOCAL_RANK": ""}) == (0, 1)
    assert beside({}) == (0, 1)


SALLOC = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "4294967290", "SLURM_JOB_ID": "7"}
"""The shell of salloc, which is no rank, unlike its steps."""
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("environ", "given", "placed"),
    [
        (recorded("slurm") | {"RANK": "0", "WORLD_SIZE": "2"}, Placement(), ("slurm", 0, 2)),
        ({"RANK": "0", "WORLD_SIZE": "2"}, Placement(rank=3, world_size=4), ("by hand", 3, 4)),
        ({"RANK": "abc", "SLURM_PROCID": "3", "SLURM_STEP_ID": "0"}, Placement(), ("slurm", None, None)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, Placement(), ("none", None, None)),
        (SALLOC, Placement(), ("none", None, None)),
        (SALLOC | {"SLURM_STEP_ID": "0"}, Placement(), ("slurm", 0, 4)),
        (SALLOC | OPEN_MPI, Placement(), ("openmpi", 1, 4)),
        (SALLOC | {"RANK": "1", "WORLD_SIZE": "2"}, Placement(), ("by hand", 1, 2)),
    ],
)
def test_options_and_then_torchs_variables_override_the_launchers(environ, given, placed):
    found = place(environ, given)
    assert (found.launcher, found.rank, found.world_size) == placed
    assert found.by_options == (given.rank is not None)


@pytest.mark.parametrize(
    ("text", "number"),
    [("3", 3), (" 3 ", 3), ("-1", -1), ("", None), (None, None), ("3.0", None), ("abc", None), ("1" * 30, None)],
)
def test_numbers_are_read_as_torch_reads_them(text, number):
    assert integer(text) == number


def test_only_a_whole_placement_can_meet():
    whole = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    assert place(whole).can_meet
    for name in whole:
        assert not place({k: v for k, v in whole.items() if k != name}).can_meet
    assert not place(whole | {"MASTER_PORT": "70000"}).can_meet
    assert place(whole | {"RANK": "2"}).can_meet


def test_local_ranks_get_torchruns_variables_and_no_inherited_ones():
    inherited = {"RANK": "9", "GROUP_RANK": "1", "TORCHELASTIC_RUN_ID": "x", "PET_NNODES": "2", "HOME": "/root"}
    second = local_placements(2, "127.0.0.1", 29500)[1]
    assert rank_environment(inherited, second) == {
        "HOME": "/root", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip


def test_only_known_variables_are_exported():
    assert exported(Placement(rank=1, world_size=2)) == {"RANK": "1", "WORLD_SIZE": "2"}


def test_an_invalid_address_can_still_be_encoded():
    import msgspec

    msgspec.json.encode(place({"MASTER_ADDR": "node\udcff"}))


# -- the ranks for which one process speaks


def _ranks(environ, **options):
    request = request_of("env", ("environment", "meeting"), Options(**options), environ)
    return request.placements, request.asked.started_here


@pytest.mark.parametrize("name", ["pytorchjob", "trainjob", "sagemaker"])
def test_in_a_pod_the_ranks_that_torchrun_would_make_are_started(name):
    placed, started = _ranks(recorded(name))
    assert started
    assert [p.rank for p in placed] == [4, 5, 6, 7]
    assert {p.world_size for p in placed} == {8}


def test_a_given_number_of_ranks_overrides_the_pods():
    placed, _ = _ranks(recorded("trainjob"), nproc="2")
    assert [(p.rank, p.world_size, p.local_world_size) for p in placed] == [(2, 4, 2), (3, 4, 2)]
    placed, _ = _ranks(recorded("jobset"), nproc="2")
    assert [(p.rank, p.world_size) for p in placed] == [(2, 4), (3, 4)]


def test_a_pod_with_one_process_is_the_rank_itself():
    (placed,), started = _ranks(recorded("pytorchjob_one_process"))
    assert (placed.rank, placed.world_size, started) == (1, 2, False)


def test_a_pod_of_a_job_of_unknown_size_cannot_number_its_ranks():
    environ = recorded("indexed_job") | {"MASTER_ADDR": "train-0"}
    with pytest.raises(UsageError, match="node 1 of a job that meets at train-0"):
        _ranks(environ, nproc="2")
    placed, _ = _ranks(environ, nproc="2", rank=1, world_size=2)
    assert [(p.rank, p.world_size) for p in placed] == [(2, 4), (3, 4)]


def test_a_pod_without_a_meeting_place_tests_itself():
    placed, _ = _ranks(recorded("indexed_job"), nproc="2")
    assert [(p.rank, p.world_size, p.master_addr) for p in placed] == [(0, 2, "127.0.0.1"), (1, 2, "127.0.0.1")]


def test_one_task_per_node_numbers_its_ranks_by_node():
    environ = recorded("slurm") | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_TASKS_PER_NODE": "1(x2)"}
    environ |= {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "LOCAL_WORLD_SIZE": "8"}
    placed, _ = _ranks(environ, nproc="2")
    assert [(p.rank, p.local_rank, p.node_rank) for p in placed] == [(2, 0, 1), (3, 1, 1)]
    assert {(p.world_size, p.local_world_size, p.master_addr) for p in placed} == {(4, 2, "node1")}


def test_several_tasks_on_a_node_number_their_ranks_consecutively():
    placed, _ = _ranks(recorded("slurm"), nproc="2")
    assert [(p.rank, p.local_rank, p.node_rank) for p in placed] == [(10, 2, 1), (11, 3, 1)]
    assert {(p.world_size, p.local_world_size) for p in placed} == {(16, 8)}
