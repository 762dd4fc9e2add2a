"""Fills in which ranks to test from the launch command that the gate stands in front of."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from distcheck.cli.options import GateOptions
from distcheck.cli.publish import print_to
from distcheck.cli.request import gpu_count
from distcheck.facts.base import legible_text
from distcheck.facts.errors import WriteError
from distcheck.facts.files import read
from distcheck.facts.launch_command import NO_RANK, REFUSED, Stated
from distcheck.facts.network import Resolution
from distcheck.facts.quantities import count
from distcheck.facts.touch import touch
from distcheck.probe import gpu
from distcheck.probe.command import answer_of
from distcheck.report.harmless import harmless
from distcheck.selection.gpu_variables import deciding
from distcheck.selection.launch_commands import stated
from distcheck.selection.launch_commands.stated import Untold
from distcheck.selection.placement import find_table

_LARGEST_FILE_BYTES = 1 << 20
_PARSE = """
import sys
sys.path[:1] = []  # not the working directory
from {module} import {name}
sys.stderr = sys.stdout
try:
    {parser}(sys.argv[1:])
except SystemExit:
    pass
"""
_PARSE_SECONDS = 20.0
_RESERVE = 5.0
"""Seconds of --timeout for what follows the wait for a number."""


class Filled(NamedTuple):
    """The options with what COMMAND states about its ranks."""

    options: GateOptions
    told: str = ""
    """What was understood, for the report."""
    stated: Stated | None = None
    waited: float = 0.0
    """Seconds that this node waited for nodes that did not come for their numbers."""
    ended: tuple[int, str] | None = None
    """The signal that ended it while this node waited for its number, and what it waited for."""


def filled(options: GateOptions, command: Sequence[str], environ: Mapping[str, str]) -> Filled:
    """Return the options with what COMMAND states about its ranks; an option that the user gave stays."""
    if options.hosts or options.hostfile or options.launcher not in {"auto", "local"} or options.alone:
        return Filled(options)
    found, counted = stated(command, environ, _text, _refusal), ""
    if isinstance(found, Stated) and options.nproc is None:
        found, counted = _counted(found, environ)
    if isinstance(found, Stated) and len({number for _, number in found.hosts}) > 1:
        found = Untold(found.by, "its hosts have different numbers of ranks", "--hostfile")
    if found is None:
        return Filled(options)
    if isinstance(found, Untold):
        remedy = f"; give {found.remedy}" if found.remedy else ""
        return Filled(options, legible_text(f"placement not read from {found.by}: {found.reason}{remedy}"))
    if found.refused and found.nodes == 1:  # nothing that it says can be tested with other nodes
        here = options if options.rank is not None else replace(options, launcher="local", nproc="1")
        told = f"placement not read from {found.by}: it will refuse its words: {found.refused}"
        return Filled(here, legible_text(told), found)
    waited, ended = 0.0, None
    if found.node_rank is None and options.rank is None:
        found, waited, ended = _numbered(found, options, environ)
    place = _place(found, in_step=find_table(environ) is not None)
    own = {name: value for name, value in place.items() if getattr(options, name) in {None, "", "auto"}}
    told = f"placement from {_whence(found)}: {found}{counted}{_replaced(options, place, own)}"
    if found.refused:
        told = f"placement not read from {found.by}: it will refuse its words: {found.refused}"
    if options.rank is not None:
        own.pop("world_size", None)
    return Filled(replace(options, **own), legible_text(told), found, waited, ended)


def _whence(found: Stated) -> str:
    parts = ["arguments", *(["environment"] if found.environment else []), *filter(None, [found.file])]
    return f"{found.by.partition(' -')[0]}'s {' and '.join(parts)}"


def _replaced(options: GateOptions, place: Mapping[str, object], own: Mapping[str, object]) -> str:
    """Return which of the user's options say other than COMMAND."""
    given = {name: getattr(options, name) for name, value in place.items() if name not in own and value != ""}
    other = [f"--{n.replace('_', '-')} {value}" for n, value in given.items() if value != place[n]]
    return f"; replaced by {' '.join(other)}" if other else ""


def _counted(found: Stated, environ: Mapping[str, str]) -> tuple[Stated | Untold, str]:
    """Return what COMMAND states with the number of ranks for this machine's GPUs or CPUs, and what was counted.

    Source: torch/distributed/run.py, determine_local_world_size; torch/_utils.py, cpu_count.
    """
    if not found.few_gpus and found.nproc not in {"auto", "gpu", "cpu"}:
        return found, ""
    gpus = 0 if found.nproc == "cpu" else gpu_count(environ)
    number = found.few_gpus[gpus] if gpus < len(found.few_gpus) else found.nproc
    if number == NO_RANK:
        reason = f"with {count(gpus, 'GPU')} it starts one process without a rank"
        return Untold(found.by, reason, "--multi_gpu in COMMAND"), ""
    if number == REFUSED:
        if (vendor := gpu.accelerator()) != "none" and deciding(environ, vendor)[1] not in {"", "-1"}:
            return Untold(found.by, "its number of GPUs is unknown", "--nproc"), ""
        return Stated(found.by, refused="--nproc-per-node is 'gpu', and this node has no GPU"), ""
    if number.isdecimal():
        return replace(found, nproc=number, few_gpus=()), ""
    without = {"gpu": "no GPU here", "cpu": "one per CPU"}.get(number, "no GPU: one per CPU")
    ranks = gpus or (1 if number == "gpu" else len(os.sched_getaffinity(0)))
    return replace(found, nproc=str(ranks), few_gpus=()), f" ({'one per GPU' if gpus else without})"


def _numbered(
    found: Stated, options: GateOptions, environ: Mapping[str, str]
) -> tuple[Stated, float, tuple[int, str] | None]:
    """Return what COMMAND states with this node's number, which the nodes get where they meet.

    Then the seconds that it waited for nodes that did not come, and what ended that.
    """
    from distcheck.probe.network import resolve_within
    from distcheck.rollcall import identity, numbering
    from distcheck.run.interrupts import InterruptedRunError, until_interrupted

    host, token = found.master_addr, environ.get("DISTCHECK_TOKEN", "")
    where, start = f"{host}:{found.master_port}", time.monotonic()
    name = f"{found.by} {found.rendezvous} {where} {token and identity.public_key(token)}"
    resolved = resolve_within(host, options.connect_timeout + 2)
    addresses = resolved.addresses if isinstance(resolved, Resolution) else ()
    secret = identity.job_secret(environ)
    meeting = numbering.Rendezvous(name, addresses, found.nodes, found.fewest or found.nodes, secret)
    seconds = min(options.join_timeout, max(1.0, options.timeout - _RESERVE)) if addresses else 0.0
    notes = [""]

    def note(text: str) -> None:
        notes.append(text)
        if not options.quiet and seconds:
            with contextlib.suppress(WriteError):
                print_to(sys.stderr, f"{harmless(f'distcheck: {where}: {text}, {seconds:g} s at most')}\n")

    got, ended = None, None
    try:
        got = asyncio.run(until_interrupted(numbering.number_by_arrival(meeting, seconds, note)))
    except InterruptedRunError as stop:
        came = f" ({notes[-1].partition(',')[0]})" if "came" in notes[-1] else ""
        ended = int(stop.args[0]), f"{stop.args[0].name} while waiting for node numbers at {where}{came}"
    number, nodes, there = got or numbering.Numbered(1, found.nodes, 0)
    waited = time.monotonic() - start if there < nodes else 0.0
    return replace(found, node_rank=number, nodes=nodes, fewest=0), waited, ended


def _place(found: Stated, *, in_step: bool) -> dict[str, object]:
    """Return the options that say what COMMAND states."""
    place: dict[str, object] = {"nproc": found.nproc, "mesh": found.mesh}
    if found.nproc == "task":
        place.pop("nproc")
    elif found.hosts:
        hosts = ",".join(host for host, _ in found.hosts)
        place |= {"hosts": hosts, "nproc": str(found.hosts[0][1]), "launcher": found.starter}
    elif found.nodes == 1:
        place["launcher"] = "local"  # also in a batch script of several nodes
        if in_step and not found.master_port:  # the ranks of each task are a job of their own
            from distcheck.probe.network import free_port

            place |= {"rank": 0, "world_size": 1, "master_addr": "127.0.0.1", "master_port": free_port()}
    else:
        place |= {"rank": found.node_rank, "world_size": found.nodes}
    if found.master_port:
        place |= {"master_addr": found.master_addr, "master_port": found.master_port}
    return place


def _refusal(program: str, module: str, parser: str, words: Sequence[str]) -> str:
    """Return the message with which a launcher's own parser refuses its words; '' without one."""
    code = _PARSE.format(module=module, name=parser.partition("(")[0], parser=parser)
    said = answer_of([program], "-c", code, *words, seconds=_PARSE_SECONDS)
    problem = said.rpartition("error: ")[2] if "error: " in said else ""
    return legible_text(problem.strip().removesuffix(", training_script_args"))


def _text(path: str) -> str:
    """Return a file's text; of a pipe, such as bash's <(…), COMMAND could not read again what was read here."""
    if not touch(path, "COMMAND", lambda: stat.S_ISREG(os.stat(path).st_mode)):  # noqa: PTH116 it may be any text
        raise OSError(errno.EINVAL, "not a regular file")
    return read(Path(path), _LARGEST_FILE_BYTES, "COMMAND").decode()
