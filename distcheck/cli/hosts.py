"""Selects nodes and how to start probes there, from options or the allocation."""

from __future__ import annotations

import fnmatch
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from distcheck.facts.errors import UsageError
from distcheck.facts.quantities import count
from distcheck.facts.touch import which
from distcheck.launch.remote.spec import Engine, Outside
from distcheck.selection import nodelist
from distcheck.selection.placement import find_table, integer

if TYPE_CHECKING:
    from distcheck.cli.options import Options

_PORT = 29500
_MOST_RANKS = 4096
"""On one node."""
_MOST_HOSTS = 65536
_LINE = re.compile(r"(?P<host>[^\s:=]+)(?::(?P<colon>\d+))?(?P<settings>(?:\s+[\w-]+\s*=\s*\S+)*)")
_SPAN = re.compile(r"(\d+)-(\d+)")
_SLOTS = re.compile(r"\sslots\s*=\s*(\S+)")
_LONGEST_HOSTFILE_BYTES = 1 << 26
_EXPECTED = "give a file with one node per line, for example node1 slots=8"
_OWN_HOSTFILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")


def outside(options: Options, environ: Mapping[str, str] = os.environ) -> Outside | None:
    """Return how to start probes on other nodes; None if there is no need to.

    Raises:
        UsageError: options contradict each other, or no hosts are given.
    """
    engine = _engine(options, environ)
    if engine is None:
        for name, value in (
            ("--need", options.need), ("--env", options.env), ("--setup", options.setup),
            ("--python", options.python), ("--launcher-args", options.launcher_args),
        ):  # fmt: skip
            if value:
                raise UsageError(
                    f"{name} {value}: distcheck starts no probes on other nodes here; give --hosts, or run it in an "
                    "sbatch script or inside salloc"
                )
        return None
    for name, value in (("--setup", options.setup), ("--python", options.python)):
        if value.isspace():
            raise UsageError(f"{name} {value!r} is blank; drop it, or give what the job uses on the nodes")
    hosts, slots = _hosts(options, environ, engine)
    ranks_by_host, multiplies = _ranks(options, environ, engine, hosts, slots)
    if options.need is not None and not 1 <= options.need <= len(hosts):
        raise UsageError(
            f"--need {options.need}: out of {count(len(hosts), 'node')}; give a number from 1 to {len(hosts)}"
        )
    port = options.master_port or integer(environ.get("MASTER_PORT")) or _default_port(engine, environ)
    if not 1 <= port <= 65535:
        raise UsageError(f"MASTER_PORT {port}: must be between 1 and 65535; 20000 to 32000 is a good choice")
    arguments = _words(options.launcher_args)
    return Outside(
        engine=engine,
        hosts=hosts,
        ranks_by_host=ranks_by_host,
        multiplies=multiplies,
        master_addr=options.master_addr or environ.get("MASTER_ADDR") or hosts[0],
        master_port=port,
        python=options.python or sys.executable,
        setup=options.setup,
        arguments=arguments,
        environment=carried(options.env, environ),
        distribution=_distribution(engine, environ, arguments),
    )


def _engine(options: Options, environ: Mapping[str, str]) -> Engine | None:
    """Return what starts the probes, None if no probes are started."""
    named = bool(options.hosts or options.hostfile)
    if options.launcher == "local" and named:
        raise UsageError("--launcher local starts ranks on this machine only; drop --hosts and --hostfile")
    starts = "--hosts or --hostfile" if named else f"--launcher {options.launcher}"
    elsewhere = named or options.launcher not in {"auto", "local"}
    if elsewhere and options.alone:
        raise UsageError(f"--alone with {starts}: it checks this process only; drop one of them")
    for option, number in (("--rank", options.rank), ("--local-rank", options.local_rank)):
        if elsewhere and number is not None:
            raise UsageError(
                f"{option} {number} with {starts}: distcheck numbers the ranks that it starts; drop one of them"
            )
    if options.launcher == "local" or options.alone:
        return None
    table = find_table(environ)
    world = integer(environ.get(table.world_size)) if table else None
    wanted: Engine | None = options.launcher if options.launcher != "auto" else "ssh" if named else None
    if table and (world or 0) > 1:
        if wanted:
            raise UsageError(
                f"{'--hosts' if named else f'--launcher {wanted}'}: this process is already one of {world} that "
                f"{table.launcher} started; start distcheck once, outside of them, or drop the option"
            )
        return None
    if wanted:
        if wanted == "slurm" and not environ.get("SLURM_JOB_ID"):
            raise UsageError("--launcher slurm: no allocation (SLURM_JOB_ID is not set); use sbatch or salloc")
        return wanted
    by_hand = options.rank is not None or (environ.get("RANK") and environ.get("WORLD_SIZE"))
    if table or by_hand or not environ.get("SLURM_JOB_ID"):
        return None
    if which("srun"):
        return "slurm"
    text = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    if (number := len(nodelist.expand(text))) > 1:
        raise UsageError(
            f"SLURM_JOB_NODELIST {text}: the allocation has {number} nodes, but srun, to start the probes there, is "
            "not on PATH; add it (in a container, by a bind mount) or give --launcher ssh; --launcher local checks "
            "this node alone"
        )
    return None


def _hosts(options: Options, environ: Mapping[str, str], engine: Engine) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the hosts in order, and the slots of those that have them in the hostfile."""
    if options.hosts and options.hostfile:
        raise UsageError("--hosts and --hostfile: give only one of them")
    if options.hosts:
        return expand(options.hosts, "--hosts"), {}
    if options.hostfile:
        return read_hostfile(options.hostfile)
    if environ.get("SLURM_JOB_ID"):
        from distcheck.launch.remote import slurm

        return slurm.hosts(environ), {}
    for variable in _OWN_HOSTFILES:
        if environ.get(variable):
            return read_hostfile(Path(environ[variable]))
    raise UsageError(f"--launcher {engine}: no nodes given; use --hosts or --hostfile")


def expand(text: str, option: str) -> tuple[str, ...]:
    """Return the hosts of a list such as ``a,b[1-4]``, in its order, each host once.

    Raises:
        UsageError: the list is malformed or names no host.
    """
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    found: dict[str, None] = {}
    if not all(letter.isprintable() or letter.isspace() for letter in text):
        raise UsageError(f"{option} {text!r} is not a list of hosts: host names have printable characters only")
    for part in text.split():  # ClusterShell would create all names before counting them
        spans = [[int(last) - int(first) for first, last in _SPAN.findall(b)] for b in re.findall(r"\[([^\]]*)", part)]
        if math.prod(max(1, *inner) for inner in spans if inner) >= _MOST_HOSTS:
            raise UsageError(f"{option} {part!r} is more than {_MOST_HOSTS} hosts; give a shorter list")
    try:
        for part in re.split(r",(?![^\[]*\])|\s+", text):  # NodeSet sorts; the first host named is rank 0's
            found |= dict.fromkeys(NodeSet(part))
    except NodeSetException as error:
        raise UsageError(
            f"{option} {text!r} is not a list of hosts ({error}); expected, for example, a,b[1-4]"
        ) from error
    if not found:
        raise UsageError(f"{option} {text!r} names no host; expected, for example, a,b[1-4]")
    for host in found:
        if host.startswith("-"):
            raise UsageError(f"{option} {text!r}: a host cannot begin with a dash")
        if re.fullmatch(r"[^:]+:\d*", host):
            raise UsageError(f"{option} {text!r}: give hosts without a number; --nproc sets the ranks of each host")
    return tuple(found)


def read_hostfile(path: Path) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the hosts and slots of a hostfile of Open MPI, MPICH, DeepSpeed or PBS.

    Lines are ``host``, ``host slots=8`` or ``host:8``; # begins a comment. The hosts are returned in order, the slots
    for hosts that have a number. A host on several lines without a number (PBS) has as many slots as lines.

    Raises:
        UsageError: the file cannot be read, or names no host.
    """
    from distcheck.facts.files import read

    try:
        raw = read(path, _LONGEST_HOSTFILE_BYTES, "--hostfile")
        if len(raw) > _LONGEST_HOSTFILE_BYTES:
            raise UsageError(f"--hostfile {path}: larger than 64 MiB; {_EXPECTED}")
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"--hostfile {path}: not a text file in UTF-8; {_EXPECTED}") from error
    except OSError as error:
        raise UsageError(f"--hostfile {path}: cannot be read: {error.strerror or error}; {_EXPECTED}") from error
    hosts: dict[str, int] = {}
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise UsageError(
                f"--hostfile {path}, line {number}: {text!r} is not a host; expected, for example, node1 slots=8"
            )
        stated = _SLOTS.search(found["settings"])
        count = stated[1] if stated else found["colon"]
        if count and not (count.isascii() and count.isdecimal() and 1 <= int(count) <= _MOST_RANKS):
            raise UsageError(
                f"--hostfile {path}, line {number}: {count} ranks; give 1 to {_MOST_RANKS}, or remove the line"
            )
        for host in expand(found["host"], f"--hostfile {path}, line {number}:"):
            hosts[host] = hosts.get(host, 0) + 1
            if count:
                slots[host] = slots.get(host, 0) + int(count)
    if not hosts:
        raise UsageError(f"--hostfile {path} names no host; {_EXPECTED}")
    if any(count > 1 for count in hosts.values()) and not slots:
        slots = hosts
    return tuple(hosts), slots


def _ranks(
    options: Options, environ: Mapping[str, str], engine: Engine, hosts: tuple[str, ...], slots: Mapping[str, int]
) -> tuple[tuple[int, ...], bool]:
    """Return the ranks per host, and whether a probe starts the ranks of its host."""
    if options.nproc is not None:
        number = rank_count(options.nproc, lambda: integer(environ.get("SLURM_GPUS_ON_NODE")))
        return (number,) * len(hosts), True
    if slots:
        return tuple(slots.get(host, 1) for host in hosts), True
    if engine == "slurm":
        from distcheck.launch.remote import slurm

        own = not (options.hosts or options.hostfile)
        return slurm.tasks_by_host(environ, len(hosts)) if own else (1,) * len(hosts), False
    return (1,) * len(hosts), True


def rank_count(nproc: str, count: Callable[[], int | None]) -> int:
    """Return the number of ranks that --nproc asks for; `count` returns that of auto, None if it is unknown.

    Raises:
        UsageError: it is not 1 to 4096, or unknown.
    """
    number = (count() or None) if nproc == "auto" else integer(nproc)
    if nproc == "auto" and number is None:
        raise UsageError(
            "--nproc auto: the number of ranks per node is unknown here; give a number, for example --nproc 8"
        )
    if number is None or not 1 <= number <= _MOST_RANKS:
        raise UsageError(f"--nproc {nproc}: give a number of ranks from 1 to {_MOST_RANKS}, or auto")
    return number


def _distribution(engine: Engine, environ: Mapping[str, str], arguments: tuple[str, ...]) -> tuple[str, int | None]:
    if engine != "slurm":
        return "", None
    from distcheck.launch.remote import slurm

    return slurm.distribution(environ, arguments)


def _default_port(engine: Engine, environ: Mapping[str, str]) -> int:
    if engine != "slurm":
        return _PORT
    from distcheck.launch.remote import slurm

    return slurm.default_port(environ)


def _words(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--launcher-args {text!r}: {error}") from error
    if text and not words:
        raise UsageError(f"--launcher-args {text!r} names no argument; drop it, or give, for example, --partition=gpu")
    return words


def carried(patterns: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names match one of the patterns, such as ``NCCL_*,UCX_*``.

    Raises:
        UsageError: the patterns are an empty list, such as ``,``.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    if patterns and not wanted:
        raise UsageError(f"--env {patterns!r} names no variable; give, for example, 'NCCL_*,UCX_*', or drop it")
    return {name: value for name, value in environ.items() if any(fnmatch.fnmatchcase(name, p) for p in wanted)}
