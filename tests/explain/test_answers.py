"""The answer to logs: order of causes, who failed first, formats, exit codes, and nothing that can harm."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from explain.answered import rules_of
from typer.testing import CliRunner

from distcheck.cli.main import app
from distcheck.explain import reading, remedies
from distcheck.explain.answer import explained
from distcheck.explain.reading import CHUNK_BYTES
from distcheck.explain.steps import BY_CLASS, BY_TAG
from distcheck.facts.errors import UsageError
from distcheck.rules import all_rules

ROOT = Path(__file__).parents[2]
IN_USE = "The server socket has failed to bind to [::]:29511 (errno: 98 - Address already in use).\n"
NO_GPU = "RuntimeError: No CUDA GPUs are available\n"


def log(folder, text, name="job.log"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def answered(folder, text):
    return explained([log(folder, text)])


def run(*words):
    return CliRunner().invoke(app(["explain"]), ["explain", *map(str, words)])


def test_json_is_one_document_with_the_most_likely_cause_first(tmp_path):
    result = run("--format", "json", "--log", log(tmp_path, f"start\n[rank3]: node\nnode2: [rank3]: {IN_USE}"))
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (document["schema"], document["class"]) == (1, "network")
    first = document["causes"][0]
    shown = {name: first[name] for name in ("rule", "line", "rank", "node", "file")}
    assert shown == {
        "rule": "net-port-in-use",
        "line": 3,
        "rank": 3,
        "node": "node2",
        "file": str(tmp_path / "job.log"),
    }
    assert "ss -ltnp 'sport = :29511'" in first["fix"]["commands"]
    assert first["prove"] == (
        "distcheck net --hosts NODES --master-port 29511  # the nodes of the job, as in node1,node2"
    )
    assert result.stdout.count("\n") == 1
    assert len(document["causes"]) <= 3


def test_the_text_leads_with_the_rule_its_line_its_fix_and_the_proof(tmp_path):
    result = run("--log", log(tmp_path, f"node2: [rank3]: {IN_USE}"))
    lines = result.stdout.splitlines()
    assert lines[0].startswith("net-port-in-use: ")
    assert "job.log:1, first seen at rank 3 on node2" in lines[2]
    assert "errno: 98" in lines[3]
    order = [result.stdout.index(part) for part in ("fix: ", "also possible:", "to prove it:")]
    assert order == sorted(order)


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_every_format_says_when_nothing_is_recognised_and_exits_with_20(tmp_path, form):
    result = run("--format", form, "--log", log(tmp_path, "all is well\n"))
    assert result.exit_code == 20
    if form == "json":
        assert json.loads(result.stdout) | {"next": []} == {
            "schema": 1, "causes": [], "class": None, "telling": None, "hang": None, "later": [], "next": [],
            "unread": [],
        }  # fmt: skip
    else:
        assert "No line of the log has an error that distcheck knows." in result.stdout
        assert "distcheck gate" in result.stdout


def test_an_unknown_format_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="text, json, markdown"):
        CliRunner().invoke(
            app(["explain"]), ["explain", "--format", "xml", "--log", str(log(tmp_path, ""))], catch_exceptions=False
        )


def test_what_the_survivors_see_is_no_cause_wherever_it_stands(tmp_path):
    consequences = (
        "[rank0]: Connection closed by peer [10.0.0.2]:41\n"
        "[rank1]: BrokenPipeError: [Errno 32] Broken pipe\n"
        "Sending process 12 closing signal SIGTERM\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "[rank2]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
    )
    found = answered(tmp_path, f"{consequences}[rank3]: {NO_GPU}{consequences}")
    assert (found.causes[0].rule, found.causes[0].rank) == ("gpu-none-visible", 3)
    alone = answered(tmp_path, consequences)
    assert not rules_of(alone)
    assert alone.telling is not None


def test_the_earliest_time_is_first_and_not_the_first_line(tmp_path):
    late = "2024-05-01 10:00:09 node1: [rank0]: CUDA error: uncorrectable ECC error encountered\n"
    early = f"2024-05-01 10:00:02 node2: [rank5]: {IN_USE}"
    found = answered(tmp_path, late + early)
    assert (found.causes[0].rule, found.causes[0].rank, found.causes[0].node) == ("net-port-in-use", 5, "node2")
    assert found.causes[1].rule == "gpu-ecc-uncorrected"


def test_what_healthy_jobs_write_is_not_even_possible_as_a_cause(tmp_path):
    usual = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    assert rules_of(answered(tmp_path, f"{usual}{IN_USE}")) == rules_of(answered(tmp_path, IN_USE))


def test_january_follows_december_in_times_without_a_year(tmp_path):
    found = answered(tmp_path, f"[E0101 00:00:01 a.cpp:1] {NO_GPU}[E1231 23:59:59 a.cpp:1] {IN_USE}")
    assert found.causes[0].rule == "net-port-in-use"


def test_of_one_error_at_many_ranks_the_earliest_is_named(tmp_path):
    lines = [f"2024-05-01 10:00:{59 - rank} [rank{rank}]: {NO_GPU}" for rank in range(8)]
    found = answered(tmp_path, "".join(lines))
    assert (found.causes[0].rank, found.causes[0].times) == (7, 8)


FAULT = "1: Traceback (most recent call last):\n1:   File \"/job/train.py\", line 3\n1: KeyError: 'lr'\n"
EXITED = "srun: error: node2: task 1: Exited with exit code 1\n"
LIMIT = "slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-28T08:00:00 DUE TO TIME LIMIT ***\n"


def test_a_time_limit_that_ends_the_wait_for_a_failed_task_is_a_consequence(tmp_path):
    found = answered(tmp_path, f"{FAULT}{EXITED}{LIMIT}srun: error: node1: task 0: Terminated\n")
    assert (found.telling.rank, found.telling.text) == (1, "1: KeyError: 'lr'")
    assert found.about == "application"


@pytest.mark.parametrize("lines", [FAULT + LIMIT, FAULT + LIMIT + EXITED, EXITED + LIMIT, LIMIT + FAULT + EXITED])
def test_a_time_limit_is_the_cause_where_no_task_failed_with_an_error_before(tmp_path, lines):
    assert answered(tmp_path, lines).telling.says.startswith("The job reached its time limit.")


def test_the_agents_first_observed_failure_names_rank_and_node(tmp_path):
    report = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2024-05-01_10:00:00\n  host      : node2\n"
        "  rank      : 3 (local_rank: 1)\n  exitcode  : 1 (pid: 12)\n  error_file: <N/A>\n"
    )
    found = answered(tmp_path, NO_GPU + report)
    assert (found.causes[0].rank, found.causes[0].node) == (3, "node2")


def test_a_local_rank_is_shown_as_one_and_never_as_a_rank(tmp_path):
    path = log(tmp_path, f"node1: [default3]: fine\nnode2: [default3]: {NO_GPU}")
    (cause, *_) = explained([path]).causes
    assert (cause.rank, cause.local_rank, cause.node) == (None, 3, "node2")
    assert "first seen at local rank 3 on node2" in run("--log", path).stdout


@pytest.mark.parametrize(("local", "rank"), [(1, 5), (3, None)])
def test_the_agents_report_names_the_rank_of_its_own_local_rank_only(tmp_path, local, rank):
    report = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2024-05-01_10:00:00\n  host      : node2\n"
        "  rank      : 5 (local_rank: 1)\n  exitcode  : 1 (pid: 12)\n  error_file: <N/A>\n"
    )
    (cause, *_) = answered(tmp_path, f"[default{local}]: {NO_GPU}{report}").causes
    assert (cause.rank, cause.local_rank) == (rank, local if rank is None else None)


def test_a_directory_of_torchrun_names_the_local_rank_by_the_path(tmp_path):
    log(tmp_path, "fine\n", "none_x/attempt_0/0/stderr.log")
    log(tmp_path, NO_GPU, "none_x/attempt_0/2/stderr.log")
    (cause, *_) = explained([tmp_path]).causes
    assert (cause.local_rank, cause.file) == (2, str(tmp_path / "none_x/attempt_0/2/stderr.log"))


def test_several_logs_are_one_failure(tmp_path):
    late = log(tmp_path, f"2024-05-01 10:00:09 {NO_GPU}", "node1.log")
    early = log(tmp_path, f"2024-05-01 10:00:02 {IN_USE}", "node2.log")
    result = run("--format", "json", "--log", late, early)
    (first, *_) = json.loads(result.stdout)["causes"]
    assert (first["rule"], first["node"]) == ("net-port-in-use", "node2")
    assert result.stdout == run("--format", "json", "--log", late, "--log", early).stdout


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_a_compressed_log_is_read(tmp_path, compress):
    assert answered(tmp_path, compress(IN_USE.encode())).causes[0].rule == "net-port-in-use"


@pytest.mark.parametrize(
    "data",
    [gzip.compress(IN_USE.encode() * 99)[:40], b"\xfd7zXZ\x00junk", b"BZhjunk"],
    ids=["gzip", "xz", "bzip2"],  # gzip's bytes hold the time
)
def test_a_damaged_compressed_log_is_a_usage_error(tmp_path, data):
    with pytest.raises(UsageError, match=r"job\.log"):
        answered(tmp_path, data)


def test_a_file_of_a_directory_that_cannot_be_read_costs_no_answer_and_is_named(tmp_path):
    log(tmp_path, IN_USE, "0/stderr.log")
    log(tmp_path, gzip.compress(IN_USE.encode() * 99)[:40], "1/stderr.log.gz")
    found = explained([tmp_path])
    assert found.causes[0].rule == "net-port-in-use"
    assert [reason.partition(": ")[0] for reason in found.unread] == [str(tmp_path / "1" / "stderr.log.gz")]
    for form in ("text", "markdown", "json"):
        assert "stderr.log.gz" in run("--log", tmp_path, "--format", form).output


def test_files_beyond_the_most_that_are_read_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_MOST_FILES", 2)
    for rank in range(5):
        log(tmp_path, IN_USE, f"{rank}.log")
    assert explained([tmp_path]).unread == (f"{tmp_path}: 3 more files, from 2.log on",)


def test_an_empty_directory_and_a_missing_file_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match="no log files"):
        explained([tmp_path])
    with pytest.raises(UsageError, match="No such file"):
        explained([tmp_path / "missing"])


def test_line_numbers_are_right_in_a_log_read_in_pieces(tmp_path):
    filler = ("x" * 99 + "\n") * (3 * CHUNK_BYTES // 100)
    found = answered(tmp_path, filler + NO_GPU + filler)
    assert found.causes[0].line == 3 * CHUNK_BYTES // 100 + 1


def test_a_last_line_without_a_newline_and_a_progress_bar_are_lines(tmp_path):
    bar = "\r".join(f"epoch 1: {n}%" for n in range(100))
    assert answered(tmp_path, f"{bar}\n{NO_GPU.strip()}").causes[0].line == 2


@pytest.mark.parametrize(
    "junk", [b"", b"\n\n", bytes(range(256)) * 50, b"\xff" * 3_000_000, b"no newline", b"\0" * 9999]
)
def test_any_file_is_read_to_its_end(tmp_path, junk):
    assert answered(tmp_path, junk).telling is None


def test_an_error_in_a_huge_line_is_found_and_shown_short(tmp_path):
    found = answered(tmp_path, b"[rank4]: " + b"x" * 500_000 + NO_GPU.strip().encode() + b"y" * 500_000)
    assert (found.causes[0].rule, found.causes[0].rank) == ("gpu-none-visible", 4)
    assert len(found.causes[0].text) <= 165


def test_control_characters_of_a_log_do_not_reach_the_terminal(tmp_path):
    path = log(tmp_path, b"\x1b]0;title\x07 \x00\xff No CUDA GPUs are available\x1b[2J\x9b2J\n")
    for form in ("text", "json", "markdown"):
        output = run("--format", form, "--log", path).stdout
        assert "No CUDA GPUs are available" in output
        assert all(c.isprintable() or c == "\n" for c in output)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuv", "abcdefghij"),
        ("loading https://user:hunter22@host/x", "hunter22"),
        ("--api-key sk-abcdefghijklmnopqrst", "abcdefghij"),
        ("Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.x", "eyJhb"),
        ("wandb login 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ('{"password": "correct-horse"}', "correct-horse"),
        ("AWS_SECRET_ACCESS_KEY='abcd/efgh'", "abcd/efgh"),
    ],
)
def test_secrets_are_not_shown_again(tmp_path, text, secret):
    path = log(tmp_path, f"{text} {NO_GPU}")
    for form in ("text", "json", "markdown"):
        output = run("--format", form, "--log", path).stdout
        assert "No CUDA GPUs are available" in output
        assert secret not in output


def test_values_of_a_log_cannot_add_to_a_command(tmp_path):
    hostile = "ssh: Could not resolve hostname n1;reboot: x\nssh: connect to host -oProxyCommand=x port 22: refused\n"
    for cause in answered(tmp_path, hostile).causes:
        for command in (*cause.fix.commands, cause.prove):
            assert "reboot" not in command
            assert "Proxy" not in command


def test_the_command_that_proves_it_has_the_jobs_nodes(tmp_path):
    error = "failed to connect to [node1]:29511 (errno: 113 - No route to host)."
    text = f"node1: [rank0]: x Connection closed by peer\nnode2: [rank3]: {error}\n"
    (first, *_) = answered(tmp_path, text).causes
    assert first.prove == "distcheck net --hosts node1,node2 --master-port 29511"


def test_an_error_repeated_without_end_is_counted_and_not_read_again(tmp_path):
    found = answered(tmp_path, "".join(f"[rank3]: {NO_GPU}[rank3]: ValueError: {n}\n" for n in range(20_000)))
    assert (found.causes[0].rule, found.causes[0].times) == ("gpu-none-visible", 20_000)


def test_the_docs_show_what_is_printed():
    page = (ROOT / "docs" / "explain.md").read_text()
    shown = page.partition("```console\n$ distcheck ")[2].partition("\n```")[0]
    command, _, output = shown.partition("\n")
    words = [word.replace("tests/", f"{ROOT}/tests/") for word in command.split()]
    assert CliRunner().invoke(app(words), words).output.replace(f"{ROOT}/", "") == f"{output}\n"


def every_command():
    """Return the fixes and proofs of all rules, and what is run next, with and without a log's values."""
    values = {"port": "29511", "host": "node7", "gpu": "3", "path": "/data"}
    for rule in all_rules():
        for own, nodes in (({}, ()), (values, ("node1",)), (values, ("node1", "node2"))):
            yield from remedies.fix(rule.name, own).commands
            yield remedies.proof(rule.name, own, nodes)
    for commands in (*BY_CLASS.values(), *BY_TAG.values()):
        yield from commands


@pytest.mark.process
def test_every_command_is_valid_shell():
    commands = list(dict.fromkeys(every_command()))
    assert len(commands) > 150
    done = subprocess.run(["bash", "-n"], input="\n".join(commands), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_command_has_a_value_of_an_example_or_needs_another_page():
    for command in every_command():
        assert not re.search(r"\beth\d\b|=0,1$|node0\d|mlx5_\d|…|\.\.\. |gpu-reset$|<\w+>", command), command
        assert "torch.cuda.set_device" not in command.partition("# in the script")[0]
        assert not re.search(r"^(?:docker run|srun|torchrun)(?: -\S+)+$", command), command
    for rule in all_rules():
        assert "See: " not in remedies.fix(rule.name, {}).text, rule.name


def test_a_gpu_is_reset_only_by_the_number_that_the_log_has():
    assert "sudo nvidia-smi --gpu-reset -i 3" in remedies.fix("gpu-needs-reset", {"gpu": "3"}).commands
    assert "sudo nvidia-smi --gpu-reset -i GPU" in remedies.fix("gpu-needs-reset", {}).commands


def test_a_value_of_a_log_cannot_run_in_a_command(tmp_path):
    for host in ("$(reboot)", "-oProxyCommand=reboot", "a;b", "`x`", "a b"):
        assert "ssh-copy-id NODE" in remedies.fix("launch-node-unreachable", {"host": host}).commands


def test_after_a_collective_that_timed_out_the_flight_recorder_is_next(tmp_path):
    line = "[rank2]: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"
    found = answered(tmp_path, line)
    assert not rules_of(found)
    assert found.next[-1].startswith("distcheck explain --flight nccl_trace_rank_*")


@pytest.mark.long
def test_a_secret_is_hidden_wherever_the_line_is_cut(tmp_path):
    for length in range(40, 90):
        line = f"{'x ' * 60}--password=hunter2hunter2 {'y' * length} No CUDA GPUs are available {'z' * 200}\n"
        found = answered(tmp_path, line)
        assert "unter2" not in msgspec.json.encode(found).decode()
        assert "No CUDA GPUs are available" in found.causes[0].text


def test_one_line_is_shown_once_among_the_consequences(tmp_path):
    both = (
        "torch._C._cuda_setDevice(device) RuntimeError: cuda runtime error (38) : no CUDA-capable device is detected\n"
    )
    found = answered(tmp_path, both + "Failed to initialize NVML: Driver/library version mismatch\n")
    assert found.causes[0].rule == "gpu-nvml-init-failed"
    assert [later.line for later in found.later] == [1]


def test_a_job_that_slurm_refuses_is_answered_with_what_the_partitions_have(tmp_path):
    refused = "sbatch: error: Batch job submission failed: Requested node configuration is not available\n"
    assert answered(tmp_path, refused).next[0].startswith("sinfo -o")


def test_the_name_of_a_program_is_no_node_in_the_answer(tmp_path):
    found = answered(tmp_path, "nvidia-container-cli: initialization error: cuda error: unknown error\n")
    assert (found.causes[0].node, found.causes[0].prove) == (None, "distcheck gpu --nproc auto")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("srun: error: Unable to create step for job 7: Requested node configuration is not available", "sinfo -o"),
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", "sinfo -o"),
        ("There are not enough slots available in the system to satisfy the 8 slots", "slots per host"),
        ("prterun was unable to find the specified executable file, and therefore did", "ls -l PROGRAM"),
        ("slurmstepd: error: execve(): /opt/python: No such file or directory", "ls -l PROGRAM"),
        ("run.sh: line 10: mpirun: command not found", "command -v srun"),
    ],
)
def test_the_line_decides_how_a_launcher_that_failed_is_mended(line, words):
    assert any(words in command for command in remedies.fix("launch-failed", {}, line).commands)
