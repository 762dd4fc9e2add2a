"""Single variables: set, not empty, a number, and equal to the launcher's own."""

from __future__ import annotations

import pytest

from distcheck.facts.network import Resolution
from distcheck.facts.placement import Placement
from distcheck.facts.storage import CommandFile, Storage
from distcheck.selection.placement import place

LAUNCHERS = ["by hand", "torchrun", "slurm", "openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod", "distcheck"]
OURS = (
    "environment.variables",
    "environment.leaks",
    "environment.ranks",
    "environment.master_addr",
    "environment.master_port",
)
NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture
def bare(job_of, change):
    """Return a bare shell: one process without any variables."""
    job = change.keep(job_of(), 0)
    return change.environment(job, 0, **dict.fromkeys((*NUMBERS, "MASTER_ADDR", "MASTER_PORT")))


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("shape", [(1,), (2,), (8,), (2, 2), (5, 1, 1, 1), (4, 4, 4)])
@pytest.mark.parametrize("gpus", [0, 8])
def test_a_healthy_job_is_silent(job_of, judge, launcher, shape, gpus):
    diagnosis = judge(job_of(per_node=shape, launcher=launcher, gpus=gpus), *OURS)
    assert (diagnosis.findings, diagnosis.not_checked, diagnosis.verdict.exit_code) == ((), (), 0)


def test_who_needs_no_variables_is_silent(bare, job_of, change, silent):
    assert silent(change.asked(bare, command="node"))
    given = Placement(rank=0, world_size=1, local_rank=0, master_addr="localhost", master_port=29500)
    assert silent(change.rank(bare, 0, placement=place({}, given)))
    assert silent(change.rank(job_of(nodes=2, launcher="distcheck"), None, environment={}))


def test_only_what_is_missing_is_named(bare, job_of, change, found):
    given = Placement(rank=0, world_size=1, local_rank=0)
    finding = found(change.rank(bare, 0, placement=place({}, given)))[0]["env-rank-unset"]
    assert finding.evidence["unset"] == ["MASTER_ADDR", "MASTER_PORT"]
    finding = found(change.environment(job_of(), 1, WORLD_SIZE=None))[0]["env-rank-unset"]
    assert (finding.evidence["unset"], finding.ranks) == (["WORLD_SIZE"], (1,))
    assert finding.fix.commands == ("export WORLD_SIZE=2",)


def test_a_bare_shell_reports_all_four_variables_at_once(bare, found):
    findings, exit_code = found(bare)
    assert (list(findings), exit_code) == (["env-rank-unset"], 30)
    finding = findings["env-rank-unset"]
    assert finding.evidence["unset"] == ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    assert finding.message.endswith(": RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set")
    assert any(c.startswith("torchrun") for c in finding.fix.commands)
    assert any("export RANK=0 WORLD_SIZE=1" in c for c in finding.fix.commands)


def test_what_is_set_stays_as_it_is_where_only_the_rank_is_missing(bare, change, found):
    lacking = change.environment(bare, 0, WORLD_SIZE="3", MASTER_ADDR="node1", MASTER_PORT="29511")
    finding = found(lacking)[0]["env-rank-unset"]
    assert finding.fix.commands[1:] == ("export RANK=0 LOCAL_RANK=0",)
    finding = found(change.environment(lacking, 0, LOCAL_RANK="1"))[0]["env-rank-unset"]
    assert finding.fix.commands[1:] == ("export RANK=0",)


def test_the_fix_in_a_batch_shell_is_srun(bare, change, found):
    batch = change.environment(bare, 0, SLURM_JOB_ID="77", SLURM_PROCID="0", SLURM_NTASKS="8")
    findings, exit_code = found(batch)
    assert (list(findings), exit_code) == (["env-rank-unset"], 30)
    assert "srun distcheck env" in findings["env-rank-unset"].fix.commands


LACKING = [("slurm", "env-rank-unset")] + [
    (launcher, "env-mpi-horovod-vars-only") for launcher in ("openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod")
]


@pytest.mark.parametrize(("launcher", "rule"), LACKING)
def test_a_launchers_ranks_without_rank_are_one_warning(job_of, change, found, launcher, rule):
    job = job_of(nodes=2, launcher=launcher, mapped=False)
    findings, exit_code = found(job)
    assert ([(f.rule, f.severity) for f in findings.values()], exit_code) == ([(rule, "warning")], 0)
    assert findings[rule].evidence["unset"] == ["RANK", "WORLD_SIZE"]
    assert findings[rule].fix.commands[0].startswith("export RANK=$")
    assert "COMMAND" not in findings[rule].message

    findings, _ = found(change.asked(job, program="python3", script="train.py"))
    assert "starts COMMAND (python3 train.py) without RANK and WORLD_SIZE" in findings[rule].message
    assert "if the script has defaults for them, 4 jobs of one rank run" in findings[rule].message
    assert findings[rule].fix.commands == ("# add to distcheck gate, before COMMAND: --export",)

    script = CommandFile("train.py", "script", "/job/train.py", "file", mentions=("SLURM_",))
    job = change.asked(job, program="python3", script="train.py")
    findings, _ = found(change.node(job, None, storage=Storage(files=(script,))))
    assert findings[rule].severity == "info"


@pytest.mark.parametrize(("launcher", "rule"), LACKING)
def test_export_or_a_command_that_sets_the_variables_is_silent(job_of, change, found, launcher, rule):
    job = job_of(nodes=2, launcher=launcher, mapped=False)
    assert rule in found(job)[0]
    for given in ({"export": True, "program": "python3"}, {"program": "torchrun"}, {"program": "accelerate"}):
        assert found(change.asked(job, **given)) == ({}, 0)


@pytest.mark.parametrize(
    ("launcher", "variables", "master", "words"),
    [
        ("slurm", {"SLURM_STEP_NODELIST": "node[1-2]"}, "node1:20077", "scontrol show hostnames"),
        (
            "openmpi",
            {"OMPI_MCA_orte_hnp_uri": "7.0;tcp://10.0.0.1:4"},
            "10.0.0.1:",
            "-x MASTER_ADDR=node1 -x MASTER_PORT=",
        ),
        ("horovod", {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}, "10.0.0.1:", "export MASTER_ADDR=node1"),
    ],
)
def test_a_derived_master_is_a_warning_with_the_commands_to_paste(
    job_of, change, found, launcher, variables, master, words
):
    job = job_of(nodes=2, launcher=launcher, mapped=False)
    job = change.environment(job, None, MASTER_ADDR=None, MASTER_PORT=None, **variables)
    findings, exit_code = found(job)
    ((rule, finding),) = findings.items()
    assert (finding.severity, exit_code) == ("warning", 0)
    assert finding.evidence["unset"] == ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    assert finding.evidence["distcheck met at"].startswith(master)
    assert any(words in command for command in finding.fix.commands)
    assert found(change.asked(job, export=True)) == ({}, 0)

    # Rank 0's node does not have the address: no rank can meet there, and --export would pass it on.
    lost = change.process(job, None, master_resolution=Resolution(name="x", addresses=("10.0.0.9",), seconds=0.1))
    lost = change.asked(change.process(lost, None, attempts=()), export=True)
    findings, exit_code = found(lost)
    assert ([(f.rule, f.severity) for f in findings.values()], exit_code) == ([(rule, "error")], 30)
    assert "rank 0 is on node1" in findings[rule].message


@pytest.mark.parametrize(
    ("launcher", "words"),
    [("mvapich", "# add to mpirun_rsh: MASTER_ADDR=node1"), ("hydra", "# add to mpiexec: -genv MASTER_ADDR node1")],
)
def test_a_launcher_that_does_not_provide_the_host_of_rank_0_is_an_error(job_of, change, found, launcher, words):
    job = job_of(nodes=2, launcher=launcher, mapped=False)
    findings, exit_code = found(change.environment(job, None, MASTER_ADDR=None, MASTER_PORT=None))
    ((rule, finding),) = findings.items()
    assert (rule, finding.severity, exit_code) == ("env-mpi-horovod-vars-only", "error", 30)
    assert any(words in command for command in finding.fix.commands)


def test_an_empty_address_and_a_port_that_is_no_number_are_the_only_findings(job_of, change, found):
    job = change.keep(job_of(), 0)
    job = change.environment(job, 0, MASTER_ADDR="", MASTER_PORT="x", LOCAL_RANK=None, LOCAL_WORLD_SIZE=None)
    findings, exit_code = found(job)
    assert (set(findings), exit_code) == ({"env-empty-string", "env-not-integer"}, 30)
    assert findings["env-empty-string"].evidence == {"variable": "MASTER_ADDR", "value": ""}
    assert findings["env-not-integer"].evidence == {"variable": "MASTER_PORT", "value": "x"}


@pytest.mark.parametrize("name", [*NUMBERS, "MASTER_ADDR", "MASTER_PORT"])
def test_an_empty_variable_is_named_on_its_rank(job_of, change, judge, name):
    diagnosis = judge(change.environment(job_of(nodes=2), 3, **{name: ""}), *OURS)
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.evidence["variable"]) == ("env-empty-string", name)
    assert ("process 103 on node2:" if name == "RANK" else "rank 3 (node2 pid 103):") in finding.message
    assert finding.nodes == ("node2",)
    assert diagnosis.verdict.exit_code == 30


def test_an_option_makes_an_empty_variable_harmless(job_of, change, found):
    job = change.keep(job_of(per_node=1), 0)
    job = change.environment(job, 0, Placement(rank=0, world_size=1), RANK="")
    findings, exit_code = found(job)
    assert ([f.severity for f in findings.values()], exit_code) == (["warning"], 0)


@pytest.mark.parametrize(
    ("launcher", "name", "value", "expected", "command"),
    [
        ("by hand", "RANK", "${SLURM_PROCID}", "an integer", "export RANK="),
        ("by hand", "WORLD_SIZE", "9" * 20, "below 2147483648", "export WORLD_SIZE=4"),
        ("by hand", "LOCAL_RANK", "one", "an integer", "export LOCAL_RANK="),
        ("slurm", "WORLD_SIZE", "4(x2)", "an integer", "export WORLD_SIZE=$SLURM_NTASKS"),
        ("by hand", "MASTER_PORT", "29500.0", "a port from 1 to 65535", "export MASTER_PORT=29500"),
        ("by hand", "GROUP_RANK", "-", "an integer", "export GROUP_RANK="),
    ],
)
def test_a_value_that_is_not_an_integer_is_reported(job_of, change, only, launcher, name, value, expected, command):
    finding, exit_code = only(change.environment(job_of(nodes=2, launcher=launcher), 2, **{name: value}))
    assert (finding.rule, finding.evidence) == ("env-not-integer", {"variable": name, "value": value})
    assert (finding.nodes, exit_code) == (("node2",), 30)
    assert finding.message.endswith(expected)
    assert finding.fix.commands[0].startswith(command)


@pytest.mark.parametrize(
    ("launcher", "each", "every"),
    [
        ("by hand", [{}], {"RANK": " 1 ", "WORLD_SIZE": "2 ", "MASTER_PORT": "29500\n"}),
        ("slurm", [{"SLURM_PROCID": number} for number in "0213"], {}),
        ("torchrun", [{"SLURM_PROCID": number} for number in "0011"], {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}),
    ],
    ids=["blanks around a number", "renumbered by node", "torchrun in a step"],
)
def test_variables_that_are_right_in_another_way_are_silent(job_of, change, silent, launcher, each, every):
    job = job_of(nodes=2 if len(each) > 1 else 1, launcher=launcher)
    job = change.environment(job, 1 if each == [{}] else None, **every)
    for position, variables in enumerate(each):
        job = change.environment(job, position, **variables)
    assert silent(job)


def test_a_rank_that_differs_from_the_schedulers_is_a_warning(job_of, change, found):
    swapped = change.environment(change.environment(job_of(launcher="slurm"), 0, RANK="1"), 1, RANK="0")
    findings, exit_code = found(swapped)
    assert ([f.rule for f in findings.values()], exit_code) == (["env-scheduler-disagrees"], 0)
    assert findings["env-scheduler-disagrees"].evidence["RANK=1"] == "SLURM_PROCID=0 on node1 pid 100"
