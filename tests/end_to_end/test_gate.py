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


def test_the_text_report_shows_ranks_figures_and_the_verdict(distcheck):
    ended = distcheck("gate", "--nproc", "4", *TABLE)
    verdict, first, *_, last = ended.out.splitlines()
    assert verdict.startswith("PASS: 4 ranks on 1 node; all_reduce ")
    assert "gate" in first
    assert "4 ranks on 1 node" in first
    assert "gloo" in first
    assert last == verdict
    assert "error" not in ended.out.replace("0 errors", "")


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


def test_a_rendezvous_file_in_command_is_checked(distcheck, tmp_path):
    meeting = tmp_path / "meet"
    meeting.write_text("a former run's key")
    ended = distcheck(
        "gate", "--nproc", "2", "--sizes", "64K:64K", "--output", str(tmp_path / "report"), "--format", "json",
        "--", "echo", f"--dist-url=file://{meeting}",
    )  # fmt: skip
    report = json.loads((tmp_path / "report").read_text())
    assert (ended.code, ended.out) == (0, f"--dist-url=file://{meeting}\n")
    assert [f["rule"] for f in report["findings"]] == ["net-file-rendezvous-nfs"]


def test_a_command_runs_once_after_a_pass_and_owns_stdout(distcheck, tmp_path):
    ended = distcheck("gate", "--nproc", "2", *TABLE, "--", "sh", "-c", "echo started >> ran; echo hello")
    assert ended.code == 0
    assert ended.out == "hello\n"
    assert "\nPASS: 2 ranks on 1 node; " in ended.err
    assert (tmp_path / "ran").read_text() == "started\n"


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


@pytest.mark.parametrize("command", [(), ("--", "true")], ids=["without COMMAND", "with COMMAND"])
def test_export_silences_the_unset_warning_only_with_a_command(distcheck, port, tmp_path, command):
    task = {"SLURM_JOB_ID": f"{port % 10_000}"}  # MASTER_PORT follows from it, and is no other test's
    task |= {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}
    words = ("gate", "--export", *TABLE, "--format", "json", "--output", "report", *command)
    assert distcheck(*words, env=task | {"SLURM_STEP_NODELIST": "localhost"}).code == 0
    report = json.loads((tmp_path / "report").read_text())
    assert [f["rule"] for f in report["findings"]] == ([] if command else ["env-rank-unset"])
    assert all("gate --export -- COMMAND" in f["fix"]["text"] for f in report["findings"])


def test_a_bandwidth_below_min_busbw_is_a_finding(distcheck):
    ended = distcheck("bandwidth", "--nproc", "2", *TABLE, "--min-busbw", "100000", "--format", "json")
    assert ended.code == 20
    assert set(ended.rules) == {"perf-below-min-busbw"}


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


@pytest.mark.slow  # tests/cluster/test_soak.py gates with torchrun in every change
def test_torchrun_starts_the_ranks_and_one_of_them_reports(start):
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
    ended = start(
        "--standalone", "--nproc-per-node", "2", "--no-python", sys.executable, "-m", "distcheck", "gate",
        "--format", "json", *TABLE, program=torchrun,
    ).wait()  # fmt: skip
    assert ended.code == 0, ended.err
    assert ended.report["world"]["launcher"] == "torchrun"
    # With torch 2.1 rank 0 of a standalone agent has a store of its own.
    assert [r["master"] for r in ended.report["ranks"]] in (["agent", "agent"], ["listening", "reached"])
    assert ended.report["findings"] == []
