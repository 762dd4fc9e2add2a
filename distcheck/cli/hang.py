"""The command hang: which rank holds up a running job, and at which line."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import typer
from msgspec.structs import replace

from distcheck.cli.command import command
from distcheck.cli.options import HangOptions
from distcheck.cli.publish import check_writable, publish
from distcheck.cli.request import command_line, rules_of
from distcheck.cli.variables import warn_of_misspelt
from distcheck.facts.asked import Asked
from distcheck.facts.errors import UsageError
from distcheck.facts.quantities import count
from distcheck.facts.saved import is_folder

if TYPE_CHECKING:
    from distcheck.facts.hang import RunningJob
    from distcheck.facts.job import Job
    from distcheck.probe.hang.look import Wanted
    from distcheck.run.hang_nodes import JobNodes

_UNKNOWN = 20
_RESERVE_SECONDS = 3
"""To find the ranks, to read stacks and to judge."""
_WORST = (70, 30, 40, _UNKNOWN, 10, 0)


@command("Name the rank that holds up a running job.", "distcheck hang --save hang.json")
def hang(options: HangOptions) -> None:
    """Name the rank that holds up a running job, its line, and what the others wait in.

    It looks at the ranks on this node from outside, twice, and stops none. Exit code 0: not hung, or slow; 30: the
    program hangs; 40: a node does; 20: cannot tell.
    """
    from distcheck.explain.flight.running import recorded
    from distcheck.probe.hang.look import look
    from distcheck.run import hang as running
    from distcheck.run.interrupts import INTERRUPT_SECONDS, Interruption, caught
    from distcheck.run.watchdog import Watchdog, armed

    asked, wanted, where = _asked(options), _wanted(options), _elsewhere(options)
    check_writable(options)
    if not options.quiet:
        warn_of_misspelt(os.environ)
    stop, dog, deadline = Interruption(), Watchdog(math.inf, _UNKNOWN), math.inf

    def looking(wanted: Wanted) -> list[RunningJob]:
        if where is None:
            return [recorded(job) for job in look(wanted, stop.pause)]
        from distcheck.run import hang_nodes

        left = deadline - time.monotonic() - _RESERVE_SECONDS
        return [recorded(job) for job in hang_nodes.look(where, wanted, left, stop)]

    def once() -> list[Job]:
        nonlocal dog, deadline
        deadline = time.monotonic() + options.timeout
        with armed(deadline, _UNKNOWN) as dog:
            return running.watched(asked, wanted, looking, stop, at_once=where is not None)

    def interrupt(signum: signal.Signals) -> None:
        stop.note(signum)
        dog.hasten(INTERRUPT_SECONDS, 128 + signum)

    code = 0
    with caught(interrupt):
        for found in running.changes(once, options.watch, stop):
            code = _published(found, options)
    raise typer.Exit(128 + stop.came if stop.came else code)


def _asked(options: HangOptions) -> Asked:
    select, ignore = rules_of(options)
    return Asked(
        command="hang",
        looks=("hang",),
        timeout_seconds=options.timeout,
        strict=options.strict,
        select=select,
        ignore=ignore,
        line=command_line(),
    )


def _wanted(options: HangOptions) -> Wanted:
    """Return what to look at.

    Raises:
        UsageError: there is no such process, or options contradict each other.
    """
    from distcheck.probe.hang.look import Wanted

    if options.wait + _RESERVE_SECONDS > options.timeout:
        raise UsageError(f"--wait {options.wait:g}: raise --timeout to {options.wait + 2 * _RESERVE_SECONDS:g} too")
    if options.native and not options.stacks:
        raise UsageError("--native --no-stacks: give only one")
    pids = [word.strip() for given in options.pid or () for word in given.split(",")]
    for pid in pids:
        if not pid.isdecimal():
            raise UsageError(f"--pid {pid}: give the number of a process")
        if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
            raise UsageError(f"--pid {pid}: there is no such process on this node")
    native_seconds = options.timeout / 3 if options.native else 0.0
    return Wanted(options.wait, tuple(map(int, pids)), stacks=options.stacks, native_seconds=native_seconds)


def _elsewhere(options: HangOptions) -> JobNodes | None:
    """Return how to look at the nodes of the job, None if it is this node alone.

    Raises:
        UsageError: options contradict each other, or name no node.
    """
    given = [f"--{name}" for name in ("hosts", "hostfile", "job", "pods", "pid") if getattr(options, name)]
    beside = [f"--{name}" for name in ("namespace", "container") if getattr(options, name) and not options.pods]
    if len(given) > 1 or beside:
        raise UsageError(f"{' and '.join(given or beside)}: {'give only one' if given[1:] else 'give --pods too'}")
    if not given or options.pid:
        return None
    from distcheck.cli.hosts import expand, read_hostfile
    from distcheck.launch.remote.spec import Outside
    from distcheck.run import hang_nodes

    kubectl = ("kubectl", *(("-n", options.namespace) if options.namespace else ())) if options.pods else ()
    if options.job and not options.job.isdecimal():
        raise UsageError(f"--job {options.job}: give the number of a Slurm job")
    hosts = (
        expand(options.hosts, "--hosts") if options.hosts
        else read_hostfile(options.hostfile)[0] if options.hostfile
        else hang_nodes.nodes_of(options.job) if options.job
        else hang_nodes.pods_of(kubectl, options.pods)
    )  # fmt: skip
    python = options.python or ("python3" if options.pods else sys.executable)
    ones = (1,) * len(hosts)
    launch = Outside(
        "ssh", hosts, ones, multiplies=True, master_addr="", master_port=0, python=python, setup=options.setup
    )
    return hang_nodes.JobNodes(launch, options.job, kubectl, options.container)


def _published(found: list[Job], options: HangOptions) -> int:
    """Write a report for each job and return the worst exit code."""
    from distcheck.rules.diagnose import judge

    files = [str(path) for path in (options.output, options.save) if path is not None and not is_folder(path)]
    several = len(found) > 1 and bool(files)
    shown = replace(options, output=None, save=None) if several else options
    codes: list[int] = []
    for job in found:
        if codes and options.format == "text":
            sys.stdout.write("\n")
        diagnosis = judge(job)
        codes.append(publish(job, diagnosis, diagnosis.verdict.exit_code, shown, to_stderr=False))
    if several:
        names = ", ".join(
            f"{job.hang.name} (process {job.hang.ranks[0].pid})" for job in found if job.hang and job.hang.ranks
        )
        raise UsageError(f"{files[0]} is not written: {count(len(found), 'job')} run here, each with a report of its "
                         f"own: {names}; choose one with --pid")  # fmt: skip
    return next((code for code in _WORST if code in codes), _UNKNOWN)
