"""The command policy: what the site's policy sets here, where each value is from, and whether a file is valid."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import typer

from distcheck.cli.command import command
from distcheck.cli.options import OPTIONS, PolicyOptions
from distcheck.cli.publish import REMEDY, complain, print_to
from distcheck.facts.policy import SITE
from distcheck.report.harmless import harmless

_INVALID = 2


@command("Show the site's policy, or check a policy file.", "distcheck policy --check /etc/distcheck/policy.toml")
def policy(options: PolicyOptions) -> None:
    """Show what the site's policy sets for this node, and where each value is from; or check a policy file."""
    from distcheck.cli.policy_check import json_schema
    from distcheck.cli.policy_file import read

    if options.schema:
        print_to(sys.stdout, msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n", REMEDY)
        return
    named = os.environ.get("DISTCHECK_POLICY")
    place = options.check or options.policy or (Path(named) if named else None)
    found = read(place, rules=True)
    if found is not None and found.problems:
        for problem in found.problems:
            complain(str(problem))
        raise typer.Exit(_INVALID)
    lines = [f"no policy in {SITE}"] if found is None else [f"policy {', '.join(map(str, found.files))}"]
    if found is not None:
        lines += [f"sha256 {found.digest}", "valid"] if options.check else [f"sha256 {found.digest}"]
    if not options.check:
        lines += _in_force(options, found)
    print_to(sys.stdout, "".join(f"{harmless(line)}\n" for line in lines), REMEDY)


def _in_force(options: PolicyOptions, found: Any) -> Iterator[str]:
    """Yield each value that holds here, with its source: the environment before the files, the last file first."""
    from distcheck.cli.policy_check import dotted, shown
    from distcheck.probe.host import name_of_node

    node = options.node or name_of_node(os.environ)
    partition = options.partition or os.environ.get("SLURM_JOB_PARTITION", "")
    values: dict[str, tuple[str, str]] = {"mode": ('"enforce"', "built in")}
    for source in found.sources if found is not None else ():
        section = source.section
        if section.fits(node) and (not section.partitions or partition in section.partitions):
            for key, value in _leaves(source.raw, ()):
                name = dotted(part for part in key if key[0] != "busbw" or part == "busbw")
                name += f"[{source.file.name}:{source.line(key)}]" if key[0] == "busbw" else ""
                values[name] = shown(value), f"{source.file}:{source.line(key)}"
    for field in sorted({name for struct in OPTIONS.values() for name in struct.__struct_fields__} - {"policy"}):
        variable = f"DISTCHECK_{field.upper()}"
        if given := os.environ.get(variable):
            values["mode" if field == "mode" else f"options.{field.replace('_', '-')}"] = shown(given), variable
    yield f"on node {node}{f', partition {partition}' if partition else ''}"
    width = max(len(f"{name} = {value}") for name, (value, _) in values.items())
    yield from (f"{f'{name} = {value}':{min(width, 60)}}  {where}" for name, (value, where) in sorted(values.items()))


def _leaves(raw: Mapping[str, Any], key: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each value that a section sets."""
    for name, value in raw.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*key, name))
        elif name == "busbw":
            yield from (((*key, name, n), each) for n, each in enumerate(value))
        elif key or name not in {"nodes", "partitions"}:
            yield (*key, name), value
