"""The gate: real ranks, a report, an exit code, and COMMAND in an unchanged process."""

from __future__ import annotations

import json
import signal
import sys
from functools import partial

import pytest
from real.spoiling import WRONG, spoiled

TABLE = ["--sizes", "64K:256K", "--iters", "3"]


def test_four_healthy_ranks_pass_without_findings(distcheck):
    ended = distcheck("gate", "--nproc", "4", "--format", "json", *TABLE)
    report = ended.report
    assert (ended.code, report["verdict"], report["findings"], report["missing_ranks"]) == (0, "pass", [], [])
    assert [r["rank"] for r in report["ranks"]] == [0, 1, 2, 3]
    assert {r["status"] for r in report["ranks"]} == {"ok"}
    assert {row["op"] for row in report["bandwidth"]} == {"all_reduce", "broadcast"}
    assert all(row["wrong"] == 0 and row["algbw_GBps"] > 0 for row in report["bandwidth"])
    assert all(len(row["seconds"]["by_rank"]) == 4 for row in report["bandwidth"])


COUNTED = """
import sys
from pathlib import Path
from distcheck.__main__ import main
from distcheck.run import leader
from distcheck.run.record import Record

def noted(work, word):
    def note(*arguments):
        with Path(sys.argv[-1]).open("a") as notes:
            print(word(*arguments), file=notes)
        return work(*arguments)
    return note

Record.job = noted(Record.job, lambda *_: "merged")
leader.judge = noted(leader.judge, lambda _job, rules=None: "all" if rules is None else "some")
sys.argv[0] = "distcheck"
main()
"""


def test_a_healthy_gate_merges_the_facts_three_times_and_judges_by_all_rules_once(distcheck, tmp_path):
    """Each of these takes seconds of a large job."""
    notes = tmp_path / "notes"
    words = ("gate", "--nproc", "3", *TABLE, "--", "true", str(notes))
    ended = distcheck(*words, program=[sys.executable, "-c", COUNTED])
    assert ended.code == 0, ended
    assert notes.read_text().split() == ["merged", "some", "merged", "merged", "all"]


@pytest.mark.without_gpus
def test_without_a_launcher_or_nproc_two_gloo_ranks_run_and_are_reported(distcheck):
    ended = distcheck("gate", *TABLE)
    assert ended.code == 0
    assert "2 ranks" in ended.out.splitlines()[1]
    assert "--nproc" in ended.out


def test_ranks_are_set_as_torchrun_sets_them_and_inherited_ones_are_ignored(distcheck, tmp_path):
    job = tmp_path / "job.json"
    leaks = {"RANK": "7", "WORLD_SIZE": "9", "PET_NNODES": "3", "TORCHELASTIC_RUN_ID": "", "GROUP_RANK": "5"}
    ended = distcheck("env", "--nproc", "2", "--save", str(job), env=leaks)
    assert ended.code == 0
    seen = [r["environment"] for r in json.loads(job.read_text())["ranks"]]
    assert [(e["RANK"], e["LOCAL_RANK"], e["WORLD_SIZE"], e["LOCAL_WORLD_SIZE"]) for e in seen] == [
        ("0", "0", "2", "2"),
        ("1", "1", "2", "2"),
    ]
    assert not any("GROUP_RANK" in e or "PET_NNODES" in e for e in seen)


def test_a_command_runs_once_after_a_pass_and_owns_stdout(distcheck, tmp_path):
    ended = distcheck("gate", "--nproc", "2", *TABLE, "--", "sh", "-c", "echo started >> ran; echo hello")
    assert ended.code == 0
    assert ended.out == "hello\n"
    assert "\nPASS: 2 ranks on 1 node; " in ended.err
    assert (tmp_path / "ran").read_text() == "started\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "torchrun --nproc-per-node two --no-python true",
            "torchrun will refuse its words: --nproc-per-node is 'two', expected",
        ),
        ("torchrun --nprocs 2 --no-python true", "torchrun will refuse its words: unrecognized arguments: --nprocs,"),
        (
            "python -um torch.distributed.run --num_processes=2 --no-python true",
            "torch.distributed.run will refuse its words: unrecognized arguments: --num_processes=2,",
        ),
        (
            "torchrun --nproc-per-node 2",
            "torchrun will refuse its words: the following arguments are required: training_script,",
        ),
        ("bash gone.sh", "bash will refuse its words: gone.sh does not exist"),
        pytest.param(
            "torchrun --nproc-per-node gpu --no-python true",
            "torchrun will refuse its words: --nproc-per-node is 'gpu', and this node has no GPU",
            marks=pytest.mark.without_gpus,
        ),
    ],
)
def test_a_command_that_its_launcher_would_refuse_is_no_pass(distcheck, command, said):
    ended = distcheck("gate", "--", *command.split(), env={"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"})
    assert ended.code == 30, ended
    assert said in ended.err.partition("FAIL: ")[2].splitlines()[0]
    assert "[command-refused]" in ended.err


def test_an_abbreviation_that_torchrun_takes_is_taken(distcheck):
    path = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"}
    ended = distcheck("gate", *TABLE, "--", "torchrun", "--nproc_per", "2", "--no-python", "true", env=path)
    assert ended.code == 0
    assert "\nPASS: 2 ranks on 1 node; " in ended.err
    assert "placement from torchrun's arguments: 2 ranks on this node" in ended.err


def test_a_command_is_not_run_after_a_failure(distcheck, tmp_path):
    ended = distcheck("gate", "--", "touch", "ran", env={"RANK": "abc", "WORLD_SIZE": "2"})
    assert ended.code == 30
    assert not (tmp_path / "ran").exists()


STATE = """
import json, os, resource, signal, sys
print(json.dumps({
    "environment": dict(os.environ),
    "ignored": [line for line in open("/proc/self/status") if line.startswith(("SigIgn", "SigBlk"))],
    "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
    "umask": os.umask(0), "affinity": sorted(os.sched_getaffinity(0)), "cwd": os.getcwd(),
    "fds": sorted(f for f in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + f)),
}))
"""


@pytest.mark.parametrize(
    "given",
    [None, partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN),
     partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGALRM})],
    ids=["nothing", "ignored", "blocked"],
)  # fmt: skip
def test_the_command_gets_its_process_unchanged(start, tmp_path, given):
    script = tmp_path / "state.py"
    script.write_text(STATE)
    state = {"env": {"LC_ALL": "", "LANG": "C"}, "preexec_fn": given}
    bare = start(program=[sys.executable, str(script)], **state).wait()
    gated = start("gate", "--nproc", "1", *TABLE, "--", sys.executable, str(script), **state).wait()
    assert gated.code == 0, gated.err
    assert json.loads(gated.out) == json.loads(bare.out)


def test_export_sets_the_placement_of_the_command(distcheck):
    ended = distcheck(
        "gate",
        "--nproc",
        "1",
        "--export",
        *TABLE,
        "--",
        "sh",
        "-c",
        'echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR"',
    )
    assert ended.out == "0 1 0 127.0.0.1\n"


def test_arm_is_a_line_of_the_report_and_changes_nothing_else_of_the_command(distcheck):
    ended = distcheck("gate", "--nproc", "1", "--arm", *TABLE, "--", "env", "-0")
    assert ended.code == 0, ended.err
    (line,) = (line for line in ended.err.splitlines() if "arm: " in line)
    assert "arm: nothing to set" in line or "arm: distcheck hang may attach to env without root" in line
    assert "TORCH_" not in ended.out


@pytest.mark.parametrize("command", [(), ("--", "true")], ids=["without COMMAND", "with COMMAND"])
def test_export_silences_the_unset_warning_only_with_a_command(distcheck, port, tmp_path, command):
    task = {"SLURM_JOB_ID": f"{port % 10_000}"}  # MASTER_PORT follows from it, and is no other test's
    task |= {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}
    words = ("gate", "--export", *TABLE, "--format", "json", "--output", "report", *command)
    assert distcheck(*words, env=task | {"SLURM_STEP_NODELIST": "localhost"}).code == 0
    report = json.loads((tmp_path / "report").read_text())
    assert [f["rule"] for f in report["findings"]] == ([] if command else ["env-rank-unset"])
    assert all("gate --export -- COMMAND" in f["fix"]["text"] for f in report["findings"])


def test_nccl_with_a_torch_without_nccl_is_a_job_fault(distcheck):
    ended = distcheck("bandwidth", "--nproc", "2", "--backend", "mpi", "--format", "json", *TABLE)
    assert ended.code == 30
    assert ended.rules == ["torch-backend-missing"]


def test_a_rank_with_a_corrupted_reduction_is_named_with_the_number_of_wrong_elements(distcheck, tmp_path):
    ended = distcheck("bandwidth", "--nproc", "4", "--format", "json", *TABLE, env=spoiled(tmp_path, (2,), WRONG))
    found = [f for f in ended.report["findings"] if f["rule"] == "collective-wrong-result"]
    assert (ended.code, [f["ranks"] for f in found]) == (20, [[2]])
    assert "3 of " in found[0]["message"]
    assert {row["wrong"] for row in ended.report["bandwidth"] if row["op"] == "all_reduce"} == {3}
    assert {row["wrong"] for row in ended.report["bandwidth"] if row["op"] == "broadcast"} == {0}
