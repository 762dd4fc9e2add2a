"""How to fix what a rule names, and how to prove it, with the values that a log shows."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping

from distcheck.explain.fixes import BY_LINE, COMMANDS, TEXTS
from distcheck.explain.subject import command, known_rule
from distcheck.rules.docstring import docstring, fix_in
from distcheck.rules.finding import Fix

_VALUE = re.compile(r"(?<!\$)\{([a-z_]+)(?:\|([^}]*))?\}")
_SAFE = re.compile(r"[\w.:-]{1,253}")
"""What a value of a log may be to stand in a command."""
_SAFE_PATH = re.compile(r"/[\w./:@%+-]{1,1000}")
_UNSETS = re.compile(r"unset ([A-Z_${!@} ]*[A-Z}])((?:  #.*)?)")
_MOST_HOSTS = 64


def fix(rule: str, values: Mapping[str, str], line: str = "", settings: Collection[str] = ()) -> Fix:
    """Return the fix of a rule: the one in its docstring, or words and commands that fit a log, with the log's values.

    `line` shows the rule, and may decide between several fixes. Only variables that the log shows as set (`settings`)
    are unset.
    """
    own = fix_in(docstring(known_rule(rule).judge))
    found = (other for other in BY_LINE.get(rule, ()) if re.search(other[0], line, re.IGNORECASE))
    _, text, commands = next(found, ("", TEXTS.get(rule, own.text), COMMANDS.get(rule, own.commands)))
    filled = (_VALUE.sub(lambda m: _value(values, m[1], m[2] or m[1].upper()), command) for command in commands)
    return Fix(text, tuple(filter(None, (_unset(command, settings) for command in filled))))


def _unset(command: str, settings: Collection[str]) -> str:
    """Return a command that unsets variables with those only that are set, empty if none is; others as they are."""
    found = _UNSETS.fullmatch(command)
    if found is None:
        return command
    patterns = {name: name.removeprefix("${!").replace("@}", "*") for name in found[1].split()}
    names = [name for name, pattern in patterns.items() if fnmatch.filter(settings, pattern)]
    return f"unset {' '.join(names)}{found[2]}" if names else ""


def proof(rule: str, values: Mapping[str, str], nodes: tuple[str, ...]) -> str:
    """Return the command of distcheck that shows whether a rule applies, with the job's nodes and port."""
    name = command(rule)
    on = f"  # on {nodes[0]}" if len(nodes) == 1 else ""
    if name.endswith(" COMMAND"):
        return f"distcheck {name}  # in front of the job's command, on each node"
    if name == "node":
        return "distcheck node" + (on or "  # on every node")
    if name == "env":
        return "distcheck env  # in place of the script, started in the same way"
    if name == "gpu" and len(nodes) <= 1:
        return "distcheck gpu --nproc auto" + on
    known = 1 < len(nodes) <= _MOST_HOSTS
    words = ["distcheck", name, "--hosts", ",".join(nodes) if known else "NODES"]
    port = _value(values, "port", "")
    if port.isdigit() and int(port) < 65536 and ("master" in rule or "port" in rule):
        words += ["--master-port", port]
    return " ".join(words) + ("" if known else "  # the nodes of the job, as in node1,node2")


def _value(values: Mapping[str, str], name: str, default: str) -> str:
    value = values.get(name, "").strip("[]()'\",")
    safe = _SAFE_PATH if name == "folder" else _SAFE
    return value if safe.fullmatch(value) and not value.startswith("-") else default
