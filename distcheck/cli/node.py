"""The command node: this node alone, without ranks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from distcheck.cli.command import command
from distcheck.cli.options import NodeOptions
from distcheck.cli.publish import BROKEN, check_writable, complain, publish
from distcheck.cli.request import command_line, paths_of, policy_of, rules_of
from distcheck.cli.variables import warn_of_misspelt
from distcheck.facts.asked import Asked

if TYPE_CHECKING:
    from distcheck.facts.job import Job
    from distcheck.rules.diagnose import Diagnosis


@command(
    "Check this node alone, for Slurm or a DaemonSet.", "distcheck node --gpus 8 --reason-file /run/distcheck.reason"
)
def node(options: NodeOptions) -> None:
    """Check this node alone: no torch, no peers, at most 10 s.

    For a Slurm Prolog, a HealthCheckProgram or a DaemonSet.
    """
    start = time.monotonic()
    from distcheck.run import node as lone_node

    select, ignore = rules_of(options)
    policy, expected = policy_of(options), None
    if policy is not None:
        from distcheck.cli.policy_file import waited_seconds

        start, expected = start - waited_seconds(), policy.on().expect.gpus
    asked = Asked(
        command="node",
        looks=("node", "gpu", "storage"),
        timeout_seconds=options.timeout,
        strict=options.strict,
        select=select,
        ignore=ignore,
        mode=options.mode,
        policy=policy,
        gpus=expected if options.gpus is None else options.gpus,
        diagnose=options.diagnose,
        paths=paths_of(options),
        line=command_line(),
    )
    if sys.stdout is None and options.output is None:  # a daemon may have closed it; the exit code is enough
        options = msgspec.structs.replace(options, output=Path(os.devnull))
    check_writable(options)
    if not options.quiet:
        warn_of_misspelt(os.environ)

    past = "" if options.history is None else str(options.history)

    def notify_and_publish(job: Job, diagnosis: Diagnosis, code: int) -> int:
        failure = lone_node.tell(job, diagnosis, options.reason_file, syslog=options.syslog)
        if failure:
            complain(failure)
        return publish(job, diagnosis, BROKEN if failure else code, options, to_stderr=False)

    raise typer.Exit(lone_node.run(asked, os.environ, notify_and_publish, past, start).exit_code)
