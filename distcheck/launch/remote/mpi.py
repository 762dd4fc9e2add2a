"""Start one probe per node by mpirun: Open MPI's, or a Hydra (MPICH, Intel MPI).

| | Open MPI | Hydra |
|---|---|---|
| nodes | --host a:1,b:1 --map-by ppr:1:node | -hosts a,b -ppn 1 |
| variables | -x NAME | -genvlist NAME,… |
| labels | --tag-output | -prepend-rank |
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache

from distcheck.facts.errors import UsageError
from distcheck.facts.touch import which
from distcheck.launch.remote.assignment import Assignment, encode
from distcheck.launch.remote.spec import Command, Outside, Words, probe_argv

WORDS = Words(
    of_task=re.compile(r"^\[(?:\d+,)?(\d+)\](?:<\w+>:)? ?(.*)"),
    of_node=(
        re.compile(r"^\s*Node:\s+(\S+)()"),
        re.compile(r"^\[(?:proxy:\d+:\d+@|mpiexec@)(\S+)\] (.*)"),
        re.compile(r"^ssh: (?:connect to host|Could not resolve hostname) ([^\s:]+)[ :](.*)"),
        re.compile(r"^(?:\S+@)?([^\s:]+): (Permission denied \(.*)"),
    ),
)


def commands(launch: Outside, assignment: Assignment) -> Sequence[Command]:
    """Return the one command that starts all probes.

    Raises:
        UsageError: there is no MPI launcher on this machine.
    """
    program, flavour = _launcher()
    number, names = str(len(launch.hosts)), ("DISTCHECK_TOKEN", *launch.environment)
    probe = probe_argv(launch, encode(assignment))
    if flavour == "openmpi":
        carried = [word for name in names for word in ("-x", name)]
        hosts = ",".join(f"{host}:1" for host in launch.hosts)
        options = ["--host", hosts, "-np", number, "--map-by", "ppr:1:node", "--bind-to", "none", "--tag-output"]
    else:
        carried = ["-genvlist", ",".join(names)]
        options = ["-hosts", ",".join(launch.hosts), "-ppn", "1", "-n", number, "-prepend-rank"]
    return (Command(key=program, argv=(program, *options, *carried, *launch.arguments, *probe)),)


@cache
def _launcher() -> tuple[str, str]:
    """Return the MPI launcher and its family, from its --version output."""
    for program in ("mpirun", "mpiexec.hydra", "mpiexec"):
        path = which(program)
        if path is None:
            continue
        try:
            shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        if "Open MPI" in shown or "OpenRTE" in shown or "PRRTE" in shown:
            return program, "openmpi"
        if "HYDRA" in shown.upper() or "Intel(R) MPI" in shown:
            return program, "hydra"
    raise UsageError("--launcher mpi: neither Open MPI's mpirun nor MPICH's mpiexec.hydra is on PATH")
