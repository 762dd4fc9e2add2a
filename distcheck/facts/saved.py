"""Job files: saved atomically, loaded as untrusted data, merged if they are of one launch."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from distcheck.facts.errors import UsageError
from distcheck.facts.files import LONGEST_NAME, read
from distcheck.facts.job import Job
from distcheck.facts.merge import combine
from distcheck.facts.node import NodeFacts
from distcheck.facts.outputs import write
from distcheck.facts.quantities import count
from distcheck.facts.rank import ProcessFacts, RankFacts
from distcheck.facts.touch import touch

SCHEMA = 1
_LARGEST_BYTES = 1 << 30
_MOST_LAUNCHES = 4
"""Named in an error."""


def save(job: Job, path: Path) -> Path:
    """Save a job and return the file's path; in a folder, each process has its own file name."""
    if is_folder(path):
        first = min((r.placement.rank for r in job.ranks if r.placement.rank is not None), default=0)
        own = job.processes[0].uid[:8] if job.processes else "0"
        path = path / f"distcheck-{_plain(job.run)}-rank{first}-{_plain(own)}.json"
    write(path, msgspec.json.encode(job).decode() + "\n")
    return path


def is_folder(path: Path) -> bool:
    """Return whether each process writes a file of its own there; what does not answer is none."""
    try:
        return touch(path, "--save", path.is_dir)
    except OSError:
        return False


def _plain(name: str) -> str:
    """Return a name that is safe in a file name, because another process may have chosen it."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name[:LONGEST_NAME])


def load(path: Path) -> Job:
    """Return the job in a file.

    Raises:
        UsageError: the file cannot be read, is not a job, has an invalid value, is truncated, or has a newer schema.
    """
    try:
        raw = read(path, _LARGEST_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; give a file written by --save") from error
    if len(raw) > _LARGEST_BYTES:
        raise UsageError(f"{path} is larger than 1 GiB and not a distcheck job file")
    try:
        header = msgspec.json.decode(raw, type=_Header)
        schema = header.schema
        if header.verdict:
            raise UsageError(f"{path} is a report (--format json), not a saved job; give a file written by --save")
        if schema != SCHEMA:
            raise UsageError(
                f"{path} is a job of schema {schema}; this distcheck reads schema {SCHEMA}: install a matching version"
            )
        job = msgspec.json.decode(raw, type=Job)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a distcheck job file, or is truncated ({error}); save it again with --save"
        ) from error
    return consistent(job, path)


class _Header(msgspec.Struct):
    schema: int
    verdict: str = ""
    """A report has one."""


def consistent(job: Job, path: Path) -> Job:
    """Return a job whose ranks, processes and nodes refer to each other.

    Raises:
        UsageError: a reference leads nowhere.
    """
    nodes = {n.key for n in job.nodes}
    uids = {p.uid for p in job.processes}
    for process in job.processes:
        if process.node not in nodes:
            raise UsageError(f"{path} is incomplete: the node of process {process.pid} is not in the file")
    for rank in job.ranks:
        if rank.process not in uids:
            raise UsageError(f"{path} is incomplete: the process of rank {rank.placement.rank} is not in the file")
    return job


def find(paths: Sequence[Path]) -> list[Path]:
    """Return the job files: files as given, and the .json files in folders.

    Raises:
        UsageError: a folder has none, or cannot be read.
    """
    found: list[Path] = []
    for path in paths:
        try:
            inside = [Path(os.fsdecode(file)) for file in touch(path, "DIR", partial(_inside, path))]
        except OSError as error:
            remedy = "correct the name" if error.errno == errno.ENAMETOOLONG else "change its permissions"
            raise UsageError(f"{path} cannot be read: {error.strerror or error}; {remedy}") from error
        if not inside:
            raise UsageError(f"{path} contains no .json file; give a folder written by --save")
        found += inside
    return found


def _inside(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.suffix == ".json") if path.is_dir() else [path]


def load_launch(paths: Sequence[Path]) -> Job:
    """Return the job of one launch, from the files that its processes wrote and folders of them.

    Raises:
        UsageError: a file is not a job, or the files are from different launches; the message groups them.
    """
    jobs = {path: load(path) for path in find(paths)}
    worlds = {job.asked.command: job.world_size for job in jobs.values() if job.world_size is not None}
    by_launch: dict[str, list[Path]] = {}
    one = _started_as_one(jobs.values())
    for path, job in jobs.items():
        # A process whose WORLD_SIZE is malformed meets nobody and may belong to any world.
        world = job.world_size if job.met or job.world_size is not None else worlds.get(job.asked.command)
        ranks = "" if world is None or one else f" of {count(world, 'rank')}"
        by_launch.setdefault(f"{job.asked.command}{ranks}", []).append(path)
    met = [job for job in jobs.values() if job.met]
    commands = {job.asked.command for job in jobs.values()}
    if len(by_launch) == 1 and not one and _are_apart(met):
        by_launch = {f"run {run}": [path for path in jobs if jobs[path].run == run] for run in _runs(met)}
    if len(by_launch) > 1:
        groups = [f"{name} ({_some(files, 1)})" for name, files in by_launch.items()]
        remedy = "report on one launch at a time"
        if len(commands) == 1 and len({job.world_size for job in jobs.values()} - {None}) > 1:
            remedy += ", or, if this is one launch, set the same WORLD_SIZE for all of its ranks"
        raise UsageError(f"the files are from different launches: {_some(groups, _MOST_LAUNCHES)}; {remedy}")
    return merge(tuple(jobs.values()))


def _some(things: Sequence[object], most: int) -> str:
    more = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(map(str, things[:most])) + more


def merge(jobs: Sequence[Job]) -> Job:
    """Return the merged job of the processes of one launch; a single job stays unchanged.

    A process that did not reach the others wrote its own run. Of two records of one process, the one in the more
    complete job is kept.
    """
    ordered = sorted(jobs, key=lambda j: (not j.met, -len(j.ranks), j.run))
    whole = ordered[0]
    facts = [(job.nodes, job.processes, job.ranks) for job in ordered[1:]]
    known = {p.uid for p in whole.processes}
    # A job without further facts only ended a little later.
    seconds = (job.seconds for job in ordered[1:] if not known.issuperset(p.uid for p in job.processes))
    return msgspec.structs.replace(join(whole, facts), seconds=max([whole.seconds, *seconds]))


def join(whole: Job, others: Iterable[tuple[Sequence[NodeFacts], Sequence[ProcessFacts], Sequence[RankFacts]]]) -> Job:
    """Return a job with the processes of others that it lacks, with their ranks and nodes.

    Of a process in several of the others, the first one counts.
    """
    nodes = {n.key: n for n in whole.nodes}
    pairs = [(nodes[p.node], p) for p in whole.processes]
    uids, more = {p.uid for p in whole.processes}, list[RankFacts]()
    for its_nodes, its_processes, its_ranks in others:
        here = {n.key: n for n in its_nodes}
        new = {p.uid: p for p in its_processes if p.uid not in uids and p.node in here}
        if new:
            uids.update(new)
            nodes |= here
            pairs += [(here[p.node], p) for p in new.values()]
            more += [r for r in its_ranks if r.process in new]
    if len(pairs) == len(whole.processes):
        return whole
    combined, processes = combine(pairs)
    return msgspec.structs.replace(
        whole,
        processes=processes,
        ranks=tuple(sorted((*whole.ranks, *more), key=_order)),
        nodes=tuple((nodes | combined).values()),
    )


def _order(rank: RankFacts) -> tuple[bool, int, str]:
    return rank.placement.rank is None, rank.placement.rank or 0, rank.process


def _started_as_one(jobs: Iterable[Job]) -> bool:
    """Return whether the launcher's name of the job is the same in all files, and no rank is of two processes.

    Then they are of one launch, even if its ranks have different world sizes: rules report that.
    """
    names: set[tuple[str, ...]] = set()
    processes: dict[int | None, str] = {}
    for job in jobs:
        for rank in job.ranks:
            names.add(_name_of_launch(rank))
            number = rank.placement.rank
            if number is None or processes.setdefault(number, rank.process) != rank.process:
                return False
    return len(names) == 1 and names != {()}


def _name_of_launch(rank: RankFacts) -> tuple[str, ...]:
    """Return what the launcher of a rank names the launch and no other one; empty if it has no such name."""
    variables, place = rank.environment, rank.placement
    if (step := variables.get("SLURM_STEP_ID")) and (job := variables.get("SLURM_JOB_ID")):
        return "slurm", job, step, variables.get("SLURM_RESTART_COUNT", "")
    if (run := variables.get("TORCHELASTIC_RUN_ID", "none")) != "none" and place.master_addr and place.master_port:
        return "torchrun", run, f"{place.master_addr}:{place.master_port}"
    space = variables.get("PMIX_NAMESPACE")
    return ("mpi", space) if space else ()


def _runs(jobs: Iterable[Job]) -> tuple[str, ...]:
    """Return the names of the runs."""
    return tuple(dict.fromkeys(job.run for job in jobs))


def _are_apart(met: Sequence[Job]) -> bool:
    """Return whether roll calls are of different launches, and not of parts of one that could not reach each other.

    A part lacks ranks, and no rank of a node is in two of them.
    """
    if len(_runs(met)) < 2:
        return False
    places: dict[tuple[int | None, str], str] = {}
    for job in met:
        for rank in job.ranks:
            if places.setdefault((rank.placement.rank, job.node_of(rank).key), job.run) != job.run:
                return True
    return any(0 < (job.world_size or 0) <= len({r.placement.rank for r in job.ranks}) for job in met)
