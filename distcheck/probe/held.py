"""Look whether other processes hold what the debugging aids of this job's ranks use; nothing is opened for reading.

A child looks, because other processes' environments and the folders of files may not answer. Only what the job uses
is looked at: variables that it sets, and a debug server that COMMAND's script starts.

Source: torch/distributed/debug/__init__.py of 2.15 (port 25999); DumpPipe in ProcessGroupNCCL.hpp, which removes what
is at the pipe's path and makes its own; rasClientInitSocket in NVIDIA/nccl, src/ras/client_support.cc.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distcheck.facts.held import PIPE, RAS, SERVER, Held, HeldFile
from distcheck.facts.network import Bind
from distcheck.probe import ports
from distcheck.probe.child import Question

if TYPE_CHECKING:
    from distcheck.facts.placement import Placement

_DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_PORT = re.compile(r"(?:^|:)(\d{1,5})$")


class Uses(msgspec.Struct, frozen=True):
    """What the ranks of this process would use."""

    ports: dict[str, int]
    pipe: str
    dump: tuple[str, str]
    """The variable, and its value."""
    ranks: tuple[int, ...]
    job: dict[str, str]
    """Variables that are the same for all processes of this job."""


def uses(environ: Mapping[str, str], placements: Sequence[Placement], server: int | None) -> Uses | None:
    """Return what to look at, None if the job uses nothing of it; `server` is the port of its debug server."""
    recorder = next((environ[name] for name in _SIZES if environ.get(name)), "1") != "0"
    address = _PORT.search(environ.get(RAS, "")) if environ.get("NCCL_RAS_ENABLE") != "0" else None
    wanted = {RAS: int(address[1])} if address else {}
    wanted |= {SERVER: server} if server is not None and any(place.rank == 0 for place in placements) else {}
    dump = next(((name, environ[name]) for name in _DUMPS if recorder and environ.get(name)), ("", ""))
    pipe = environ.get(PIPE, "") if recorder else ""
    if not wanted and not pipe and not dump[1]:
        return None
    port = placements[0].master_port
    own = {"SLURM_JOB_ID": environ.get("SLURM_JOB_ID", ""), "MASTER_PORT": "" if port is None else str(port)}
    ranks = tuple(place.rank for place in placements if place.rank is not None)
    return Uses(wanted, pipe, dump, ranks, own)


def question(task: Uses) -> Question:
    """Return what to start for this."""
    line = msgspec.json.encode(task).decode()
    return Question(__name__, "what other jobs on the node use", "a process or a file system hangs", (line,))


def collect(task: str, proc: Path = Path("/proc")) -> Held:
    """Look at everything."""
    used = msgspec.json.decode(task, type=Uses)
    held = {name: _bind(port) for name, port in used.ports.items() if ports.listens_at(port, "")}
    files = [found for rank in used.ranks for found in _pipe(used.pipe, rank)] if used.pipe else []
    return Held(held, (*files, *(_shared(used, proc) if used.dump[1] else ())))


def _bind(port: int) -> Bind:
    from distcheck.probe.network import port_owner

    owner, connection = port_owner(port)
    return Bind(port, "in-use", "", owner, connection)


def _pipe(prefix: str, rank: int) -> Iterator[HeldFile]:
    """Yield a rank's pipe if a process reads it, or if torch cannot replace it."""
    path = f"{prefix}{rank}.pipe"
    try:
        there, folder = os.lstat(path), os.stat(os.path.dirname(path) or ".")  # noqa: PTH116, PTH120 it may be any text
    except OSError:
        return
    sticky = folder.st_mode & stat.S_ISVTX and os.geteuid() not in {0, there.st_uid, folder.st_uid}
    if sticky or not os.access(os.path.dirname(path) or ".", os.W_OK):  # noqa: PTH120 as above
        yield HeldFile(rank, PIPE, path, "foreign", _name(there.st_uid))
    elif stat.S_ISFIFO(there.st_mode):
        with suppress(OSError):  # ENXIO: nobody reads
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
            yield HeldFile(rank, PIPE, path, "read", _name(there.st_uid))


def _shared(used: Uses, proc: Path) -> Iterator[HeldFile]:
    """Yield the files of dumps that a process of another job writes too, by the processes' environments."""
    name, prefix = used.dump
    seen: set[int] = set()
    for entry in os.scandir(proc):
        environ: dict[str, str] = {}
        with suppress(OSError, ValueError):  # it has ended, or is another user's
            pairs = Path(entry.path, "environ").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            environ = dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)
        rank = environ.get("RANK", "")
        if environ.get(name) != prefix or not rank.isdecimal() or int(rank) not in {*used.ranks} - seen:
            continue
        if any(own and environ.get(variable, own) != own for variable, own in used.job.items()):
            from distcheck.probe.network import owner_of

            seen.add(int(rank))
            owner = owner_of(int(entry.name))
            yield HeldFile(int(rank), name, f"{prefix}{rank}", "shared", process=owner)


def _name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
