"""Checks what a policy file sets: unknown keys, values that do not fit, and what helps."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from distcheck.cli.declared import Declared, options_of
from distcheck.cli.options import OPTIONS
from distcheck.facts.base import Facts
from distcheck.facts.policy import Checker, Section, items

Key = tuple[str | int, ...]
"""A key of a file: ("where", 0, "rule", "gpu-xid", "mode")."""
Wrong = tuple[Key, str, str]
"""A key, its value as text, and what is wrong with it and helps."""
_NAME = r"""[\w-]+|"[^"]*"|'[^']*'"""
_HEADER = re.compile(rf"\s*(\[\[?)\s*((?:{_NAME}|[.\s])+?)\s*\]\]?\s*(?:#.*)?$")
_SET = re.compile(rf"\s*((?:{_NAME})(?:\s*\.\s*(?:{_NAME}))*)\s*=")
_HOSTS = re.compile(r"(?:[^\[\]\s,]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+")
_ELSEWHERE = {
    "policy": "it names the policy itself; drop it",
    "mode": 'set mode = "observe" or "enforce" outside of the options',
    "ignore": 'use [rule.NAME] with ignore = "why"',
    "path": "use required-paths",
    **dict.fromkeys(("rank", "local-rank"), "each process has its own; drop it"),
}
"""Options that a policy does not set, and what does."""


class PolicyFile(Section, frozen=True, rename="kebab", omit_defaults=True):
    """A whole file."""

    where: tuple[Section, ...] = ()
    """What it sets for some nodes or partitions, in order."""


class PolicyProblem(NamedTuple):
    """What is wrong at one place of a file."""

    file: str
    line: int
    """0 if unknown."""
    key: Key
    value: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        what = f"{dotted(self.key)}{f' = {self.value}' if self.value else ''}: " if self.key else ""
        return f"{place}: {what}{self.remedy}" if self.key else f"{place} {self.remedy}"


def dotted(key: Iterable[str | int]) -> str:
    """Return a key as it is written: where[0].rule.gpu-xid.mode."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return "".join(parts).lstrip(".")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a policy file."""
    found = msgspec.json.schema(PolicyFile)
    for part in found["$defs"].values():  # files have no tags of facts
        del part["properties"]["fact"]
        part["required"].remove("fact")
        part["additionalProperties"] = False
        for field in part["properties"].values():
            field.pop("default", None)
    return found


def lines_of(text: str) -> dict[Key, int]:
    """Return the line of each table and key of a TOML text; tomllib does not tell."""
    found: dict[Key, int] = {}
    numbers: dict[Key, int] = {}
    table: Key = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = ()
            for name in _names(header[2]):
                table = (*table, name)
                table = (*table, numbers[table]) if table in numbers else table
            if header[1] == "[[":
                table = table[:-1] if table and isinstance(table[-1], int) else table
                numbers[table] = numbers.get(table, -1) + 1
                table = (*table, numbers[table])
            found.setdefault(table, number)
        elif key := _SET.match(line):
            found.setdefault((*table, *_names(key[1])), number)
    return found


def _names(text: str) -> list[str]:
    return [name.strip("\"'") for name in re.findall(_NAME, text)]


def problems_of(raw: Mapping[str, Any], *, rules: bool) -> list[Wrong]:
    """Return all that is wrong with what a file sets; `rules` says whether the names of rules are checked."""
    found = list(_shape(raw, PolicyFile, ()))
    if found:
        return found
    sections: list[tuple[Key, Mapping[str, Any]]] = [((), raw)]
    sections += [(("where", n), part) for n, part in enumerate(raw.get("where", ()))]
    return [wrong for key, section in sections for wrong in _meaning(section, key, rules=rules)]


def _shape(value: Any, kind: Any, key: Key) -> Iterator[Wrong]:
    """Yield the unknown keys in a value, and the values of another type."""
    inner = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Facts) and isinstance(value, dict):
        hints = get_type_hints(kind, include_extras=True)
        known = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}
        needed = [field.encode_name for field in msgspec.structs.fields(kind) if field.required]
        for name, each in value.items():
            yield from _shape(each, known[name], (*key, name)) if name in known else [_unknown((*key, name), known)]
        yield from ((key, "", f"{name} is missing") for name in needed if name not in value)
    elif get_origin(kind) is dict and isinstance(value, dict):
        for name, each in value.items():
            if get_origin(inner[0]) is Literal and name not in get_args(inner[0]):
                yield _unknown((*key, name), get_args(inner[0]))
            else:
                yield from _shape(each, inner[1], (*key, name))
    elif get_origin(kind) is tuple and isinstance(value, list) and issubclass(inner[0], Facts):
        for number, each in enumerate(value):
            yield from _shape(each, inner[0], (*key, number))
    else:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            choices = next((get_args(one) for one in (kind, *inner) if get_origin(one) is Literal), ())
            yield key, shown(value), f"choose {' or '.join(choices)}" if choices else _said(error)


def _said(error: msgspec.ValidationError) -> str:
    text = str(error).partition(" - at ")[0].replace("`", "").replace(" | null", "")
    return text[:1].lower() + text[1:].replace("object", "a table").replace("array", "a list").replace("str", "text")


def shown(value: Any) -> str:
    """Return a value as a file has it."""
    return msgspec.json.encode(value).decode()


def _unknown(key: Key, known: Iterable[str]) -> Wrong:
    from difflib import get_close_matches

    close = get_close_matches(str(key[-1]).lower().replace("_", "-"), known, n=1, cutoff=0.6)
    return key, "", f"unknown key; did you mean {close[0]}?" if close else f"unknown key; known: {', '.join(known)}"


def _meaning(section: Mapping[str, Any], key: Key, *, rules: bool) -> Iterator[Wrong]:
    """Yield the values that no run can use."""
    if key and not (section.get("nodes") or section.get("partitions")):
        yield key, "", "it is for no nodes: give nodes or partitions"
    for name in ("nodes", "partitions"):
        if not key and name in section:
            yield (name,), shown(section[name]), "a whole file is for all nodes; begin a section with [[where]]"
    for item in items(section.get("nodes", "")):
        if _HOSTS.fullmatch(item) is None:
            yield (*key, "nodes"), shown(section["nodes"]), "is not a list of nodes such as gpu[001-128],login1"
    yield from _options(section.get("options", {}), (*key, "options"), OPTIONS)
    for command, setting in section.get("command", {}).items():
        yield from _options(setting.get("options", {}), (*key, "command", command, "options"), (command,))
    for name, setting in section.get("rule", {}).items():
        yield from _rule(name, setting, (*key, "rule", name), known=rules)
    for n, path in enumerate(section.get("required-paths", ())):
        if not path.startswith("/"):
            yield (*key, "required-paths", n), shown(path), "give an absolute path"


def _rule(name: str, setting: Mapping[str, Any], key: Key, *, known: bool) -> Iterator[Wrong]:
    if known:
        from distcheck.cli.rule_names import unknown
        from distcheck.rules import find_rule

        if find_rule(name) is None:
            yield key, "", f"unknown rule; {unknown(name)}"
    if setting.get("ignore") == "":
        yield (*key, "ignore"), '""', "give the reason"
    if until := setting.get("until"):
        try:
            dt.date.fromisoformat(until)
        except ValueError:
            yield (*key, "until"), until, "give the last day, as 2027-01-31"


def _options(options: Mapping[str, Any], key: Key, commands: Iterable[Checker]) -> Iterator[Wrong]:
    if not options:
        return
    takers = {command: options_of(OPTIONS[command]) for command in commands}
    known = {name.replace("_", "-") for declared in takers.values() for name in declared} - _ELSEWHERE.keys()
    for name, value in options.items():
        if name in _ELSEWHERE:
            yield (*key, name), shown(value), _ELSEWHERE[name]
        elif name not in known:
            yield _unknown((*key, name), sorted(known))
        for command, declared in takers.items():
            if name in known and (option := declared.get(name.replace("-", "_"))) and (why := _unfit(option, value)):
                yield (*key, name), shown(value), f"{why} (distcheck {command})"
                break


def worded(value: Any, kind: Any) -> Any:
    """Return a value as the command line would have it: --nproc takes a text, which may be a number."""
    return str(value) if kind is str and isinstance(value, int) else value


def _unfit(option: Declared, value: Any) -> str:
    """Return why an option does not accept a value, '' if it does."""
    kind = option.kind
    if isinstance(value, bool) != (kind is bool):
        return "must be true or false" if kind is bool else option.expected
    if kind is bool:
        return ""
    try:
        found = option.converted(worded(value, kind))
    except (msgspec.ValidationError, TypeError, ValueError):
        return option.expected
    return option.expected if isinstance(found, int | float) and not option.holds(found) else ""
