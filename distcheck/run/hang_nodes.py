"""Looks at a job on several nodes: by ssh, by srun inside the job's allocation, or by kubectl in its pods."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from distcheck.facts.errors import UsageError
from distcheck.facts.hang import HangNode, RunningJob
from distcheck.launch.remote import engine
from distcheck.launch.remote.engine import Wish
from distcheck.launch.remote.frames import Reader, Seen
from distcheck.launch.remote.spec import Command, Outside, probe_argv
from distcheck.probe.hang.look import Wanted
from distcheck.rules.wording import grouped
from distcheck.run.hang_probe import encode
from distcheck.run.interrupts import Interruption

_MODULE = "distcheck.run.hang_probe"
_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 12.0
"""To start a probe, to find the ranks and to read their stacks, beside the time between the samples."""
_QUIET_SECONDS = 5.0
"""After the latest answer: the logins of a thousand nodes begin one after the other."""
_LONGEST = 160


class JobNodes(NamedTuple):
    """How to look at the nodes of a job."""

    launch: Outside
    """Its hosts are the nodes, or the pods."""
    job: str = ""
    """The Slurm job of --job."""
    pods: tuple[str, ...] = ()
    """kubectl with the options that name namespace and container; empty without --pods."""
    container: str = ""


def commands(where: JobNodes, wanted: Wanted) -> list[Command]:
    """Return what looks at each node; srun is one command for all."""
    argv = probe_argv(where.launch, encode(wanted), _MODULE)
    hosts = where.launch.hosts
    if where.pods:
        container = ("-c", where.container) if where.container else ()
        return [Command(key=pod, argv=(*where.pods, "exec", pod, *container, "--", *argv)) for pod in hosts]
    if where.job:
        number = str(len(hosts))
        layout = ("--nodes", number, "--ntasks", number, "--ntasks-per-node", "1", "--nodelist", ",".join(hosts))
        beside = ("--overlap", "--kill-on-bad-exit=0", "--cpu-bind", "none", "--mem", "0")
        return [Command(key="srun", argv=("srun", "--jobid", where.job, "--label", *beside, *layout, *argv))]
    return [Command(key=host, line=shlex.join(argv)) for host in hosts]


class _Heard:
    """What the probes sent."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[RunningJob, ...]] = {}
        """By the node's own name, or the key of its command."""
        self.words: dict[str, deque[str]] = {}
        self.codes: dict[str, int] = {}
        self.latest = 0.0
        """When a command last said something, by time.monotonic()."""
        self._reader = Reader()

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        """Process a line of a command's output."""
        self.latest = time.monotonic()
        line = None if error else self._reader.take(words)
        if line is not None and isinstance(line.message, Seen):
            name = line.message.jobs[0].nodes[0].name if line.message.jobs and key == "srun" else key
            self.seen[name] = line.message.jobs
        elif line is None or not line.sender:
            self.words.setdefault(key, deque(maxlen=4)).append(words.decode("utf-8", "replace").strip())

    def ended(self, key: str, code: int) -> None:
        """Record that a command has ended."""
        self.codes[key] = code


def look(where: JobNodes, wanted: Wanted, left_seconds: float, stop: Interruption) -> list[RunningJob]:
    """Return the jobs on all nodes, those of one meeting place as one; a node without an answer says why.

    Raises:
        UsageError: this machine lacks ssh, srun or kubectl.
    """
    heard = _Heard()
    ours = commands(where, wanted)
    began = time.monotonic()

    def wish() -> Wish:
        now = time.monotonic()
        late = max(began + wanted.seconds + _LOOK_SECONDS, heard.latest + _QUIET_SECONDS)
        return "end" if stop.came or now >= min(late, began + left_seconds) else "go on"

    try:
        engine.run(ours, heard, wish, connect_seconds=_CONNECT_SECONDS, environment=where.launch.environment)
    except OSError as error:
        raise UsageError(f"{ours[0].key} could not be started: {error}") from error
    silent = [host for host in where.launch.hosts if host not in heard.seen]
    nodes = [HangNode(host, problem=_why(heard, host)) for host in silent]
    return merged([job for jobs in heard.seen.values() for job in jobs], nodes)


def _why(heard: _Heard, host: str) -> str:
    key = host if host in heard.codes or host in heard.words else "srun"
    words = " ".join(heard.words.get(key, ()))[-_LONGEST:]
    code = heard.codes.get(key)
    return words or ("no answer in time" if code is None else f"exit code {code}, without a word")


def merged(seen: Sequence[RunningJob], silent: Sequence[HangNode]) -> list[RunningJob]:
    """Return jobs of one name as one, with the nodes that have none of its ranks, or did not answer."""
    by_name = grouped(seen, lambda job: job.name)
    beside = [node for job in by_name.pop("", []) for node in job.nodes]
    answered = len({node.name for job in seen for node in job.nodes})
    if not by_name:
        return [RunningJob(name="", nodes=(*beside, *silent))]
    return [_one(parts, beside, silent, answered) for parts in by_name.values()]


def _one(parts: list[RunningJob], beside: Sequence[HangNode], silent: Sequence[HangNode], answered: int) -> RunningJob:
    first = parts[0]
    ranks = sorted((rank for part in parts for rank in part.ranks), key=lambda rank: (rank.rank or 0, rank.node))
    # Without LOCAL_WORLD_SIZE, as many as the fullest node that was seen; titles do not name ranks of other nodes.
    seen = (max(len(part.ranks), (rank.local_rank or 0) + 1) for part in parts for rank in part.ranks)
    titled = any(rank.numbered == "title" for rank in ranks)
    enough = not titled and answered * (first.ranks_per_node or max(seen, default=0)) >= (first.world_size or 0)
    return msgspec.structs.replace(
        first,
        nodes=(*(node for part in parts for node in part.nodes), *beside, *silent),
        ranks=tuple(ranks),
        local=not silent and (first.local or enough),
    )


def pods_of(kubectl: Sequence[str], selector: str) -> tuple[str, ...]:
    """Return the pods that a selector names.

    Raises:
        UsageError: kubectl is not there, fails, or finds none.
    """
    return _listed((*kubectl, "get", "pods", "-l", selector, "-o", "name"), f"--pods {selector}", "pod/")


def nodes_of(job: str) -> tuple[str, ...]:
    """Return the nodes of a Slurm job.

    Raises:
        UsageError: squeue is not there, fails, or the job does not run.
    """
    from distcheck.selection import nodelist

    found = _listed(("squeue", "--noheader", "--jobs", job, "--states", "RUNNING", "--format", "%N"), f"--job {job}")
    return tuple(host for text in found for host in nodelist.expand(text))


def _listed(argv: Sequence[str], option: str, prefix: str = "") -> tuple[str, ...]:
    try:
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=15, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UsageError(f"{option}: PATH has no {argv[0]}") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{option}: {argv[0]} gave no answer in 15 s") from None
    found = tuple(line.strip().removeprefix(prefix) for line in ended.stdout.splitlines() if line.strip())
    if ended.returncode or not found:
        why = ended.stderr.strip().splitlines()[-1:] or ["it names nothing that runs"]
        raise UsageError(f"{option}: {why[0]}")
    return found
