"""The site's policy on the command line: which files, what is wrong with them, what counts before what."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest

from distcheck.cli import policy_file
from distcheck.cli.backends import KNOWN
from distcheck.cli.options import OPTIONS
from distcheck.cli.policy_check import json_schema, lines_of
from distcheck.facts import policy as facts
from distcheck.facts.policy import NOTHING

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text("utf-8")
POLICIES = re.findall(r"(?s)```toml\n(.*?)```", PAGE)

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib


@pytest.fixture(autouse=True)
def _own(monkeypatch, tmp_path):
    """Each test is another process, and its site has no policy yet."""
    monkeypatch.setattr(facts, "SITE", str(tmp_path / "etc" / "distcheck"))
    for name in [name for name in os.environ if name.startswith(("DISTCHECK_", "SLURM"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURMD_NODENAME", "gpu017")
    policy_file._in_force.cache_clear()
    policy_file._discarded.clear()


@pytest.fixture
def write(tmp_path):
    def write(text, name="etc/distcheck/policy.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("text", POLICIES, ids=["lab", "cloud", "slurm"])
def test_the_policies_of_the_page_are_valid_and_set_something_on_every_node(write, ended, text):
    path = write(text, "policy.toml")
    code, out, err = ended("policy", "--check", str(path))
    assert (code, err, out.splitlines()[-1]) == (0, "", "valid")
    jsonschema.validate(json.loads(json.dumps(tomllib.loads(text), default=str)), json_schema())
    assert policy_file.in_force(path).on() != NOTHING


def test_the_page_shows_the_keys_that_there_are():
    assert len(POLICIES) == 3
    assert sorted(re.findall(r"^\| `\[*(\w[\w-]*)", PAGE, re.MULTILINE)) == sorted(
        {name.replace("_", "-") for name in (*facts.Section.__struct_fields__, "where")} - {"nodes", "partitions"}
    )


BROKEN = [
    ('mod = "observe"', 1, "mod", "", "unknown key; did you mean mode?"),
    ('mode = "obsreve"', 1, "mode", '"obsreve"', "choose observe or enforce"),
    ("[command.gte]\nmode = 'observe'", 1, "command.gte", "", "unknown key; did you mean gate?"),
    ("[options]\ntimeuot = 3", 2, "options.timeuot", "", "unknown key; did you mean timeout?"),
    ("[options]\njoin_timeout = 3", 2, "options.join_timeout", "", "unknown key; did you mean join-timeout?"),
    ("[options]\ntimeout = 2", 2, "options.timeout", "2", "must be a number from 3 to 1000000000 (distcheck node)"),
    (
        "[options]\nbackend = 'ncl'",
        2,
        "options.backend",
        '"ncl"',
        f"choose one of {', '.join(KNOWN)}, or the backend of a plugin (distcheck env)",
    ),
    ("[options]\nstrict = 1", 2, "options.strict", "1", "must be true or false (distcheck env)"),
    ("[options]\nhistory = 3", 2, "options.history", "3", "must be text (distcheck net)"),
    ("[command.net.options]\ngpus = 3", 2, "command.net.options.gpus", "", "unknown key; known: "),
    ("[options]\nmode = 'observe'", 2, "options.mode", '"observe"', 'set mode = "observe" or "enforce" outside'),
    ("[rule.gpu-powercap]\nseverity = 'info'", 1, "rule.gpu-powercap", "", "unknown rule; did you mean gpu-power-cap?"),
    ("\n[rule]\ngpu-ecc-uncorrected.ignore = ''", 3, "rule.gpu-ecc-uncorrected.ignore", '""', "give the reason"),
    (
        "[rule.gpu-ecc-uncorrected]\nignore = 'w'\nuntil = 'May'",
        3,
        "rule.gpu-ecc-uncorrected.until",
        "May",
        "give the last day, as 2027-01-31",
    ),
    ("[expect]\ngpus = 'eight'", 2, "expect.gpus", '"eight"', "expected int, got text"),
    ("[[where]]\nmode = 'observe'", 1, "where[0]", "", "it is for no nodes: give nodes or partitions"),
    ("[[where]]\nnodes='a'\n[[where]]\nnodes = 'a[1-'", 4, "where[1].nodes", '"a[1-"', "is not a list of nodes"),
    ("nodes = 'a'", 1, "nodes", '"a"', "a whole file is for all nodes; begin a section with [[where]]"),
    ("required-paths = ['data']", 1, "required-paths[0]", '"data"', "give an absolute path"),
    ("[[busbw]]\ngpu = '*'", 1, "busbw[0]", "", "GBps is missing"),
    ("[threshold]\ntmp-free-GiB = 1", 2, "threshold.tmp-free-GiB", "", "unknown key; did you mean tmp-free-MiB?"),
]


@pytest.mark.parametrize(("text", "line", "key", "value", "remedy"), BROKEN, ids=lambda v: str(v)[:30])
def test_what_is_wrong_is_named_with_file_line_key_value_and_remedy(write, ended, text, line, key, value, remedy):
    path = write(text, "p.toml")
    code, out, err = ended("policy", "--check", str(path))
    shown = f" = {value}" if value else ""
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"distcheck: error: {path}:{line}: {key}{shown}: {remedy}")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"mode = \n", "is no valid TOML: Invalid value (at line 1, column 8)"), (b"\xff", "is no valid TOML: "),
     (b"#" * (1 << 20) + b"\n", "cannot be read: it is larger than 1 MiB")],
)  # fmt: skip
def test_a_file_that_is_no_toml_says_so(tmp_path, ended, content, words):
    path = tmp_path / "p.toml"
    path.write_bytes(content)
    code, _, err = ended("policy", "--check", str(path))
    assert code == 2
    assert err.startswith(f"distcheck: error: {path} {words}")


def test_a_missing_file_a_pipe_and_an_empty_folder_are_named(tmp_path, ended):
    os.mkfifo(tmp_path / "pipe")
    for place, words in {"absent": "No such file", "pipe": "not a regular file", ".": "it has no policy.toml"}.items():
        code, _, err = ended("policy", "--check", str(tmp_path / place))
        assert (code, words in err) == (2, True), err


def test_all_that_is_wrong_in_all_files_is_said_at_once(write, ended):
    write("mod = 1\nmode = 2\n", "d/policy.toml")
    folder = write("x = 3\n", "d/policy.d/10.toml").parents[1]
    _, _, err = ended("policy", "--check", str(folder))
    assert [line.partition(": error: ")[2].partition("d/")[2][:20] for line in err.splitlines()] == [
        "policy.toml:1: mod: ", "policy.toml:2: mode ", "policy.d/10.toml:1: ",
    ]  # fmt: skip


def test_the_lines_of_tables_keys_and_arrays_of_tables_are_found():
    text = 'a = 1\n[b."c.d"]\ne.f = 2\n[[w]]\nn = 1\n[w.x]\ny = 1\n[[w]]\n[[w.z]]\nq = 1 # [no]\n'
    assert lines_of(text) == {
        ("a",): 1, ("b", "c.d"): 2, ("b", "c.d", "e", "f"): 3, ("w", 0): 4, ("w", 0, "n"): 5, ("w", 0, "x"): 6,
        ("w", 0, "x", "y"): 7, ("w", 1): 8, ("w", 1, "z", 0): 9, ("w", 1, "z", 0, "q"): 10,
    }  # fmt: skip


def test_the_policy_command_shows_each_value_with_its_source(write, ended, monkeypatch):
    first = write('mode = "observe"\n[options]\ntimeout = 20\n[[where]]\nnodes = "gpu[001-128]"\nexpect.gpus = 8\n')
    later = write("[options]\ntimeout = 25\n", "etc/distcheck/policy.d/10.toml")
    monkeypatch.setenv("DISTCHECK_STRICT", "1")
    code, out, _ = ended("policy")
    lines = [line.split("  ") for line in out.splitlines()]
    shown = {line[0]: line[-1].strip() for line in lines if len(line) > 1}
    assert code == 0
    assert out.startswith(f"policy {first}, {later}\nsha256 ")
    assert shown == {
        'mode = "observe"': f"{first}:1",
        "options.timeout = 25": f"{later}:2",
        'options.strict = "1"': "DISTCHECK_STRICT",
        "expect.gpus = 8": f"{first}:6",
    }
    assert "expect.gpus" not in ended("policy", "--node", "login1")[1]


def test_without_a_policy_the_command_says_so(ended):
    code, out, _ = ended("policy")
    assert (code, out.splitlines()[0].partition(" in ")[0]) == (0, "no policy")
    assert 'mode = "enforce"  built in' in out


def node_json(ended, *words):
    code, out, err = ended("node", "--format", "json", *words)
    return code, json.loads(out), err


@pytest.mark.process
def test_an_option_is_taken_from_the_words_then_the_variable_then_the_policy_then_its_default(
    write, ended, monkeypatch, tmp_path
):
    (tmp_path / "there").mkdir()
    saved = lambda: json.loads((tmp_path / "job.json").read_text())["asked"]  # noqa: E731
    ask = lambda *words: (ended("node", "--format", "json", "--save", "job.json", *words), saved())[1]  # noqa: E731
    assert (ask()["timeout_seconds"], "policy" in saved() and saved()["policy"]) == (10.0, None)
    write(f'required-paths = ["{tmp_path}/there"]\n[options]\ntimeout = 20\n[command.node.options]\nstrict = true\n')
    policy_file._in_force.cache_clear()
    asked = ask()
    assert (asked["timeout_seconds"], asked["strict"], asked["paths"]) == (20.0, True, [f"{tmp_path}/there"])
    assert asked["policy"]["sections"][0]["options"] == {"timeout": 20}
    monkeypatch.setenv("DISTCHECK_TIMEOUT", "30")
    assert ask()["timeout_seconds"] == 30.0
    assert ask("--timeout", "40")["timeout_seconds"] == 40.0


@pytest.mark.process
def test_observing_a_fault_exits_with_0_and_leaves_no_list_to_act_on(write, ended, tmp_path):
    write('mode = "observe"\nrequired-paths = ["/nonexistent"]\n')
    lists = ("--exclude-file", "bad", "--passing-file", "good", "--reason-file", "reason", "--gpus", "8")
    code, report, _ = node_json(ended, *lists, "--history", str(tmp_path))
    assert (code, report["verdict"], report["exit_code"], report["exclude"]["nodes"]) == (0, "warn", 0, [])
    assert report["would"] == {"verdict": "node", "exit_code": 40, "nodes": ["gpu017"]}
    assert {f["rule"] for f in report["findings"] if f["observed"]} >= {"storage-path-missing", "gpu-nvml-init-failed"}
    assert [(tmp_path / name).read_text() for name in ("bad", "good", "reason")] == ["", "gpu017\n", ""]
    assert report["policy"]["mode"] == "observe"
    code, out, _ = ended("report", "--history", str(tmp_path), "--would")
    rows = [line.split() for line in out.splitlines() if "100%" in line]
    assert ["gpu-nvml-init-failed", "gpu017", "1", "100%"] in rows
    code, report, _ = node_json(ended, *lists, "--mode", "enforce")
    assert (code, report["would"]) == (40, None)
    assert [(tmp_path / name).read_text() for name in ("bad", "good")] == ["gpu017\n", ""]
    assert (tmp_path / "reason").read_text().startswith("distcheck: FAIL: ")


@pytest.mark.process
def test_a_saved_job_is_judged_by_the_policy_that_was_in_force(write, ended, tmp_path):
    path = write('mode = "observe"\n')
    first = ended("node", "--gpus", "8", "--save", "job.json")
    path.unlink()
    policy_file._in_force.cache_clear()
    again = ended("report", "job.json")
    assert again[0] == first[0] == 0
    assert again[1].splitlines()[0] == first[1].splitlines()[0]
    assert again[1].splitlines()[0].endswith("would have been exit code 40 (gpu017)")


@pytest.mark.process
@pytest.mark.parametrize(
    ("asked", "text", "code", "would"),
    [
        (("--gpus", "8"), 'mode = "enforce"', 40, None),
        (("--gpus", "8"), 'mode = "observe"', 0, 40),
        (("--gpus", "8"), "[rule.gpu-nvml-init-failed]\nignore = 'known'", 20, None),
        (("--gpus", "8"), "[[where]]\nnodes = 'gpu017'\nmode = 'observe'", 0, 40),
        (("--gpus", "8"), "[[where]]\nnodes = 'gpu018'\nmode = 'observe'", 40, None),
        ((), 'mode = "enforce"', 0, None),
        ((), "[expect]\ngpus = 4", 40, None),
        (("--mode", "observe"), "[expect]\ngpus = 4", 40, None),
    ],
)
def test_a_saved_job_can_be_judged_by_another_policy(write, ended, monkeypatch, asked, text, code, would):
    """It was saved under one that observes and expects 2 GPUs, on gpu017; the report is made elsewhere."""
    write('mode = "observe"\n[expect]\ngpus = 2\n')
    ended("node", *asked, "--save", "job.json")
    other = write(text, "other.toml")
    monkeypatch.setenv("SLURMD_NODENAME", "login1")
    done, out, err = ended("report", "job.json", "--policy", str(other), "--format", "json")
    report = json.loads(out)
    assert (done, err, report["would"] and report["would"]["exit_code"]) == (code, "", would)
    assert report["policy"]["files"] == [str(other)]


def test_a_policy_that_is_not_valid_judges_no_saved_job(write, ended, tmp_path):
    ended("env", "--save", "job.json")
    other = write('mod = "observe"', "other.toml")
    assert ended("report", "job.json", "--policy", str(other)) == (
        2, "", f"distcheck: error: --policy {other}:1: mod: unknown key; did you mean mode?\n",
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mode = ", "is no valid TOML"),
        ('mod = "enforce"', "policy.toml:1: mod: unknown key; did you mean mode?"),
        ('mode = "enforce"\n[options]\nsave = "/nonexistent/job"', "--save /nonexistent/job: "),
        ('mode = "enforce"\n[command.node.options]\nselect = "nosuch"', "--select nosuch: unknown rule"),
        ('mode = "enforce"\n[command.node.options]\noutput = "/nonexistent/"', "/nonexistent/"),
    ],
)
def test_a_broken_policy_is_one_warning_and_drains_nobody(write, ended, tmp_path, text, words):
    write(text)
    code, report, err = node_json(ended, "--strict", "--gpus", "8", "--reason-file", "reason")
    warnings = [f["message"] for f in report["findings"] if f["rule"] == "tool-policy-not-used"]
    assert (code, report["would"]["exit_code"], err) == (0, 40, "")
    assert len(warnings) == 1
    assert words in warnings[0]
    assert (tmp_path / "reason").read_text() == ""
    code, report, _ = node_json(ended, "--strict")
    assert (code, report["verdict"]) == (0, "warn")


def test_the_options_of_each_command_are_those_of_its_function():
    from distcheck.cli.main import entry

    for command, struct in OPTIONS.items():
        assert entry(command).function.__annotations__["options"] == struct.__name__
