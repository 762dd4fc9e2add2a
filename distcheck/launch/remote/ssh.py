"""Starts one probe per node by ssh; stdin carries the assignment, its end means: stop.

ssh_config sets users, ports and keys; ssh never prompts (BatchMode). ssh exits with 255 if it cannot log in (ssh(1),
EXIT STATUS).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import msgspec

from distcheck.launch.remote.assignment import Assignment, encode
from distcheck.launch.remote.spec import Command, Outside, Words, probe_argv

WORDS = Words(of_task=re.compile(r"(?!)()()"), of_node=())
CANNOT_LOG_IN = 255


def commands(launch: Outside, assignment: Assignment) -> Sequence[Command]:
    """Return one command per node."""
    line = shlex.join(probe_argv(launch, "-"))
    return [
        Command(
            key=host,
            line=line,
            stdin=encode(
                msgspec.structs.replace(
                    assignment, task=task, environment=launch.environment, ends_with_stdin=True
                )
            ).encode()
            + b"\n",
        )
        for task, host in enumerate(launch.hosts)
    ]  # fmt: skip
