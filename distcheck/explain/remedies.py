"""How to fix what a rule names, and how to prove it, with the values that a log shows."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping

from distcheck.explain.fixes import BY_LINE, COMMANDS, TEXTS
from distcheck.explain.subject import command
from distcheck.rules import find_rule
from distcheck.rules.finding import Fix

_VALUE = re.compile(r"\{(\w+)\|([^}]*)\}")
_SAFE = re.compile(r"[\w.:-]{1,253}")
"""What a value of a log may be to stand in a command."""
_SAFE_PATH = re.compile(r"/[\w./:@%+-]{1,1000}")
_COMMAND = re.compile(
    r"(?:sudo|export|unset|ulimit|nvidia-smi|docker|torchrun|srun|sbatch|ip|ss|pip|systemctl|sysctl|modprobe|df|scontrol"
    r"|ibstat|ethtool|dcgmi|chmod|mount|kubectl|getent|ldconfig)\b[^…]*"
)
_EXAMPLE = re.compile(r"\beth\d\b|=0,1$|\bnode0?\d|mlx5_|-i \d|\b10\.|hostname \w|force-reinstall|gpu-reset$|=N$|<\w")
"""Values of an example, which must not be pasted as they are."""
_UNSETS = re.compile(r"unset ([A-Z_${!@} ]*[A-Z}])((?:  #.*)?)")
_MOST_HOSTS = 64


def fix(rule: str, values: Mapping[str, str], line: str = "", settings: Collection[str] = ()) -> Fix:
    """Return the fix of a rule: the one in its docstring, with the commands that fit a log and the log's values.

    `line` shows the rule, and may decide between several fixes. Without commands for logs, those that the docstring
    quotes without an ellipsis are taken. Only variables that the log shows as set (`settings`) are unset.
    """
    quoted, commands = _quoted(rule)
    found = (own for own in BY_LINE.get(rule, ()) if re.search(own[0], line, re.IGNORECASE))
    _, text, commands = next(found, ("", TEXTS.get(rule, quoted), COMMANDS.get(rule, commands)))
    filled = (_VALUE.sub(lambda m: _value(values, m[1], m[2]), command) for command in commands)
    return Fix(text, tuple(filter(None, (_unset(command, settings) for command in filled))))


def _quoted(rule: str) -> tuple[str, tuple[str, ...]]:
    """Return the fix that a rule's docstring has, and the commands that it quotes."""
    known = find_rule(rule)
    passage = known.doc.partition("\n\nFix:")[2].partition("\n\n")[0].partition("See: ")[0] if known else ""
    text = " ".join(passage.split())
    quoted = [c for c in re.findall(r"``(.+?)``", text) if _COMMAND.fullmatch(c) and " " in c and "..." not in c]
    quoted = [_completed(c) for c in quoted if not _EXAMPLE.search(c)]
    plain = text.replace("``", "`")
    return plain[:1].upper() + plain[1:], tuple(dict.fromkeys(quoted))


def _unset(command: str, settings: Collection[str]) -> str:
    """Return a command that unsets variables with those only that are set, empty if none is; others as they are."""
    found = _UNSETS.fullmatch(command)
    if found is None:
        return command
    patterns = {name: name.removeprefix("${!").replace("@}", "*") for name in found[1].split()}
    names = [name for name, pattern in patterns.items() if fnmatch.filter(settings, pattern)]
    return f"unset {' '.join(names)}{found[2]}" if names else ""


def _completed(command: str) -> str:
    """Return a command with what its options are for, if it is quoted without: IMAGE, COMMAND or the script."""
    if "torchrun" in command:
        return command if ".py" in command else f"{command} train.py"
    if command.startswith("docker run"):
        return command if "IMAGE" in command else f"{command} IMAGE"
    bare = command.startswith("srun ") and all(word.startswith("-") for word in command.split()[1:])
    return f"{command} COMMAND" if bare else command


def proof(rule: str, values: Mapping[str, str], nodes: tuple[str, ...]) -> str:
    """Return the command of distcheck that shows whether a rule applies, with the job's nodes and port."""
    name = command(rule)
    on = f"  # on {nodes[0]}" if len(nodes) == 1 else ""
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
