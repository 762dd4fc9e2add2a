"""Single variables: set, not empty, a number, and equal to the launcher's own."""

from __future__ import annotations

import pytest

from distcheck.facts.network import Resolution
from distcheck.facts.placement import Placement
from distcheck.facts.storage import CommandFile, Storage
from distcheck.selection.placement import place

LAUNCHERS = ["by hand", "torchrun", "slurm", "openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod", "distcheck"]
OURS = ("environment", "leaks", "ranks", "master", "master_port")
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


def test_a_number_beyond_any_job_is_not_repeated_as_the_fix(job_of, change, found):
    findings, _ = found(change.environment(job_of(), None, WORLD_SIZE="9" * 20))
    assert findings["env-not-integer"].fix.commands == ("export WORLD_SIZE=2",)


def test_the_fix_in_a_batch_shell_is_srun(bare, change, found):
    batch = change.environment(bare, 0, SLURM_JOB_ID="77", SLURM_PROCID="0", SLURM_NTASKS="8")
    findings, exit_code = found(batch)
    assert (list(findings), exit_code) == (["env-rank-unset"], 30)
    assert "srun distcheck env" in findings["env-rank-unset"].fix.commands


def test_a_node_check_needs_no_rank(bare, change, found):
    assert found(change.asked(bare, command="node")) == ({}, 0)


def test_options_replace_variables(bare, change, found):
    given = Placement(rank=0, world_size=1, local_rank=0, master_addr="localhost", master_port=29500)
    assert found(change.rank(bare, 0, placement=place({}, given))) == ({}, 0)


def test_variables_that_options_replace_are_not_unset(bare, change, found):
    given = Placement(rank=0, world_size=1, local_rank=0)
    findings, _ = found(change.rank(bare, 0, placement=place({}, given)))
    assert findings["env-rank-unset"].evidence["unset"] == ["MASTER_ADDR", "MASTER_PORT"]


def test_one_missing_variable_is_the_only_one_named(job_of, change, found):
    findings, exit_code = found(change.environment(job_of(), 1, WORLD_SIZE=None))
    assert exit_code == 30
    assert findings["env-rank-unset"].evidence["unset"] == ["WORLD_SIZE"]
    assert findings["env-rank-unset"].ranks == (1,)
    assert findings["env-rank-unset"].fix.commands == ("export WORLD_SIZE=2",)


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


def test_ranks_started_by_distcheck_are_silent(job_of, change, found):
    job = job_of(nodes=2, launcher="distcheck")
    assert found(change.rank(job, None, environment={})) == ({}, 0)


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
    ("name", "value", "words"),
    [
        ("RANK", "${SLURM_PROCID}", "did not expand"),
        ("WORLD_SIZE", "$WORLD", "did not expand"),
        ("LOCAL_RANK", "one", "integer"),
        ("LOCAL_WORLD_SIZE", "4(x2)", "4 on each of 2 nodes"),
        ("MASTER_PORT", "29500.0", "decimal point"),
        ("GROUP_RANK", "-", "integer"),
    ],
)
def test_a_value_that_is_not_an_integer_is_reported(job_of, change, judge, name, value, words):
    diagnosis = judge(
        change.environment(job_of(nodes=2), 2, **{name: value}),
        "environment",
        "leaks",
        "ranks",
        "master",
        "master_port",
    )
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.evidence) == ("env-not-integer", {"variable": name, "value": value})
    assert words in finding.fix.text
    assert finding.fix.commands[0].startswith(f"export {name}=")
    assert diagnosis.verdict.exit_code == 30


@pytest.mark.parametrize(("value", "expected"), [("12345678901234567890", "below 2147483648"), ("abc", "an integer")])
def test_an_integer_that_is_too_large_is_not_called_no_integer(job_of, change, found, value, expected):
    findings, _ = found(change.environment(job_of(), None, WORLD_SIZE=value))
    assert findings["env-not-integer"].message.endswith(expected)


def test_a_float_is_corrected_and_slurms_notation_replaced(job_of, change, found):
    findings, _ = found(change.environment(job_of(), None, MASTER_PORT="29500.0"))
    assert findings["env-not-integer"].fix.commands == ("export MASTER_PORT=29500",)
    findings, _ = found(change.environment(job_of(launcher="slurm"), None, WORLD_SIZE="4(x2)"))
    assert findings["env-not-integer"].fix.commands == ("export WORLD_SIZE=$SLURM_NTASKS",)


def test_blanks_around_a_number_are_silent(job_of, change, found):
    assert found(change.environment(job_of(), 1, RANK=" 1 ", MASTER_PORT="29500\n")) == ({}, 0)


def test_a_rank_that_differs_from_the_schedulers_is_a_warning(job_of, change, found):
    swapped = change.environment(change.environment(job_of(launcher="slurm"), 0, RANK="1"), 1, RANK="0")
    findings, exit_code = found(swapped)
    assert ([f.rule for f in findings.values()], exit_code) == (["env-scheduler-disagrees"], 0)
    assert findings["env-scheduler-disagrees"].evidence["RANK=1"] == "SLURM_PROCID=0 on node1 pid 100"


def test_ranks_renumbered_by_node_are_silent(job_of, change, found):
    job = job_of(nodes=2, launcher="slurm")
    for position, procid in enumerate((0, 2, 1, 3)):
        job = change.environment(job, position, SLURM_PROCID=str(procid))
    assert found(job) == ({}, 0)


def test_torchrun_in_a_step_may_number_differently(job_of, change, found):
    job = job_of(nodes=2, launcher="torchrun")
    step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    for position in range(4):
        job = change.environment(job, position, SLURM_PROCID=str(position // 2), **step)
    assert found(job) == ({}, 0)
