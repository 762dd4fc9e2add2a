"""Help and shell completion of every command."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from distcheck.cli.main import MODULES, app, main
from distcheck.cli.options import PANELS
from distcheck.cli.starting import STARTS

CHECKING = ("env", "net", "gpu", "bandwidth", "isolate", "gate", "node")


def ended(monkeypatch, capsys, *words):
    """Run the command line in this process; return what it printed to stdout."""
    monkeypatch.setattr(sys, "argv", ["distcheck", *words])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", CHECKING)
def test_options_are_grouped(monkeypatch, capsys, name):
    text = ended(monkeypatch, capsys, name, "--help")
    groups = [line[:-1] for line in text.splitlines() if re.fullmatch(r"\w[\w ]*:", line)]
    expected = [panel for panel in PANELS if panel != "Measurement" or name in {"bandwidth", "gate"}]
    expected = [panel for panel in expected if panel != "Which ranks" or name != "node"]
    assert groups == [*(["Arguments"] if name == "gate" else []), *expected, "Options"]
    assert text.count("Options:\n") == 1


@pytest.mark.parametrize("name", CHECKING)
def test_variables_are_mentioned_once_and_every_option_has_one(monkeypatch, capsys, name):
    text = " ".join(ended(monkeypatch, capsys, name, "--help").split())
    assert "env var" not in text
    assert text.count("Each option can also be set by an environment variable") == 1
    command = get_command(app([name])).commands[name]
    options = [param for param in command.params if param.param_type_name == "option"]
    long = {param.name: max(param.opts, key=len) for param in options}
    assert {param.name: param.envvar for param in options} == {
        key: "DISTCHECK_" + option.removeprefix("--").replace("-", "_").upper() for key, option in long.items()
    }


@pytest.mark.parametrize("name", MODULES)
def test_the_example_of_a_command_is_valid(monkeypatch, capsys, name):
    text = ended(monkeypatch, capsys, name, "--help")
    (example,) = re.findall(r"Example:\n +(.+)", text)
    words = shlex.split(example)
    arguments = words[words.index("distcheck") + 1 :]
    assert arguments[0] == name
    get_command(app(arguments)).commands[name].make_context(name, arguments[1:])


@pytest.mark.parametrize("name", MODULES)
def test_values_and_defaults_read_as_they_are_typed(monkeypatch, capsys, name):
    text = ended(monkeypatch, capsys, name, "--help")
    assert not re.search(r"\bNone\b|list\[|<|>=|\d\.0\b|\[\[|Arguments?:\n +\[", text)
    heads = [head.split("  ")[0] for head in re.findall(r"^  (--?\w.*)$", text, re.MULTILINE)]
    assert all(len(words := head.replace(",", " ").split()) == len(set(words)) for head in heads), heads


@pytest.mark.parametrize("name", MODULES)
def test_a_command_mentions_its_own_options_only(monkeypatch, capsys, name):
    own = lambda name: {option for p in get_command(app([name])).commands[name].params for option in p.opts}  # noqa: E731
    text = ended(monkeypatch, capsys, name, "--help").partition("  Example:\n  ")
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text[0] + text[2].rpartition("\n  Each option")[2]))
    more = {"report": own("gate") | {"--no-strict"}, "explain": {"--save"}, "hang": {"--no-stacks"}}
    others = more.get(name, set())
    assert mentioned <= own(name) | others | {"--help", "--partition"}


def test_the_readme_and_the_help_show_the_same_gate_for_each_launcher(monkeypatch, capsys):
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    text = ended(monkeypatch, capsys, "gate", "--help")
    for start in STARTS:
        assert f"`{start.command}`" in readme
        assert f"  {start.launcher}:\n    {start.command}\n" in text


def test_no_help_line_is_longer_than_80_columns(monkeypatch, capsys):
    for words in [(), *((name,) for name in MODULES)]:
        assert max(map(len, ended(monkeypatch, capsys, *words, "--help").splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("distcheck ga", ["gate"]),
        ("distcheck g", ["gate", "gpu"]),
        ("distcheck gate --np", ["--nproc"]),
        ("distcheck report --base", ["--baseline"]),
        ("distcheck env --backend g", ["gloo"]),
        ("distcheck net --launcher s", ["slurm", "ssh"]),
        ("distcheck report --format j", ["json", "junit"]),
    ],
)
def test_bash_completes_commands_options_and_values(monkeypatch, capsys, words, expected):
    monkeypatch.setenv("_DISTCHECK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert sorted(ended(monkeypatch, capsys).split()) == expected


def test_zsh_completes_commands_with_their_help(monkeypatch, capsys):
    monkeypatch.setenv("_DISTCHECK_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "distcheck ga")
    assert '"gate":"Run all checks; on a pass, run COMMAND."' in ended(monkeypatch, capsys)


def test_the_options_of_report_have_no_variables():
    command = get_command(app(["report"])).commands["report"]
    assert {param.name for param in command.params} >= {"format", "output", "strict"}
    assert [param.name for param in command.params if param.envvar] == []


def test_completion_is_offered_without_a_command_only(monkeypatch, capsys):
    assert "--install-completion" in ended(monkeypatch, capsys, "--help")
    assert not app(["env"])._add_completion
