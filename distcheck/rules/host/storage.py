"""Rules about the folders that a job uses: there, writable, not full, answering, fast, and the same on all nodes.

A folder that the user names with --path is required. A folder that only the environment names is not: it may be
created later, or never be used, so that most of its faults are warnings, and only where the nodes differ.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.rank import Role
from distcheck.facts.storage import ASKED, SCRIPT, WORKING_DIRECTORY, Folder, Storage, is_network
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Finding, Fix, NotChecked
from distcheck.rules.wording import brief, free_space, grouped, listed, numbers_of, once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from distcheck.facts.node import NodeFacts
    from distcheck.rules.finding import Owner, Scope, Severity

_MIB = 1 << 20
_NOTHING_BYTES, _LITTLE_BYTES = _MIB, 100 * _MIB
_SLOW_MBPS, _SLOWER_MBPS, _SLOWER_FACTOR = 1.0, 5.0, 10
_FULL = ("No space left on device", "Disk quota exceeded")
_DISKS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs"})
_PLACES = frozenset({WORKING_DIRECTORY, SCRIPT, "PWD", "HOME"})
"""Folders that exist before a job starts; others may be created by it."""


class _Seen(NamedTuple):
    """A folder as one node finds it."""

    node: NodeFacts
    folder: Folder


@rule("storage", "host-shared-fs-missing", scope=("job", "node"))
def storage_path_missing(job: Job) -> Iterator[Outcome]:
    """A folder that the job needs does not exist on a node, is not a folder, or cannot be opened.

    Usually a file system is not mounted there. The job fails with ``FileNotFoundError``, ``Stale file handle`` or
    ``Transport endpoint is not connected``, or silently fills the node's own disk below the empty mount point.

    Found on every node for the folders of ``--path``. Other folders (the working directory, the script's, HOME and
    variables such as HF_HOME) are a warning, and only if other nodes have them.

    Fix: mount the file system on the node, or correct the path.
    """
    for path, seen in _by_path(job).items():
        here = [s for s in seen if s.folder.state in {"folder", "silent"}]
        bad = [s for s in seen if s.folder.state in {"absent", "other", "unreadable"}]
        if not bad or not (_asked(seen) or (here and _expected(here))):
            continue
        for what, some in grouped(bad, lambda s: _trouble(s.folder)).items():
            others = f"; {_others(here, len(seen))} it" if here else ""
            yield _found(
                job,
                some,
                f"{path} {what}{others}",
                Fix(
                    "Mount the file system on the node, or correct the path.",
                    (f"ls -ld {quote(path)}", f"findmnt --target {quote(path)}"),
                ),
                severity="error" if _asked(seen) else "warning",
                scope="node" if here or job.asked.command == "node" else "job",
                owner="admin" if here else "user",
                confirmed=2 * len(here) > len(seen) or len(job.nodes) == 1,
            )
    yield from _unseen(job)


@rule("storage", scope=("job", "node"))
def storage_read_only(job: Job) -> Iterator[Outcome]:
    """No file can be created in a folder that the job uses.

    Checkpoints, caches and logs fail with ``Read-only file system`` or ``Permission denied``, often hours after the
    start. The kernel also makes a failing disk read-only.

    Found by creating a file. An error if other nodes can write there, or if the kernel made the file system read-only
    after an error. A warning if no node can write in a folder of ``--path``, because a data set may be read-only, and
    for the other folders that nodes treat differently.

    Fix: check the kernel log for disk errors, remount it writable, or correct the permissions.
    """
    for path, seen in _by_path(job).items():
        bad = [s for s in seen if s.folder.write_error and not s.folder.write_error.startswith(_FULL)]
        good = [s for s in seen if s.folder.state == "folder" and not s.folder.write_error]
        failing = any(s.folder.remounted and s.folder.file_system in _DISKS for s in bad)
        if not bad or not (_asked(seen) or good or failing):
            continue
        for error, some in grouped(bad, lambda s: s.folder.write_error).items():
            why = "; the kernel made it read-only after it was mounted" if failing else ""
            others = f"; {_others(good, len(seen), 'can')}" if good else ""
            yield _found(
                job,
                some,
                f"no file can be created in {path}: {error}{why}{others}",
                Fix(
                    "Check the kernel log, the mount and the permissions. No action if the job only reads it.",
                    ("sudo dmesg | grep -iE 'i/o error|read-only|ext4|xfs|nfs'", f"findmnt --target {quote(path)}"),
                ),
                severity="error" if failing or (_asked(seen) and good) else "warning",
                scope="node" if good or failing else "job",
                owner="admin",
                confirmed=2 * len(good) > len(seen),
            )


@rule("storage", scope=("job", "node"))
def storage_full(job: Job) -> Iterator[Outcome]:
    """A file system that the job uses is full or nearly full.

    Checkpoints and caches fail with ``No space left on device`` or ``Disk quota exceeded``. A full file system also
    has no free inode, although it has free space.

    Found by the free space and inodes (an error below 1 MiB or without an inode, a warning below 100 MiB) and by
    creating a file. host-disk-full reports the folder for temporary files. Folders that only variables name are
    warnings.

    Fix: remove files, or use another folder.
    """
    reported: set[tuple[str, int | None]] = set()
    for path, seen in _by_path(job).items():
        short = [s for s in seen if _short(s) and (s.node.key, s.folder.device) not in reported]
        reported |= {(s.node.key, s.folder.device) for s in short}
        for empty, some in grouped(short, lambda s: _is_full(s.folder)).items():
            shared = any(is_network(s.folder.file_system) for s in some)
            space = some[0].folder.space
            room = some[0].folder.write_error or (free_space(space) if space else "")
            files = "; no free inode" if space is not None and space.free_files == 0 else ""
            yield _found(
                job,
                some,
                f"{path} is {'full' if empty else 'nearly full'}: {room}{files}",
                Fix(
                    "Remove files that are no longer needed, or use another folder.",
                    (f"df -h {quote(path)}; df -i {quote(path)}", f"sudo du -xsh {quote(path)}/* | sort -h | tail"),
                ),
                severity="error" if empty and (_asked(seen) or WORKING_DIRECTORY in _names(seen)) else "warning",
                scope="job" if shared else "node",
                owner="unknown",
                confirmed=False,
            )


@rule("storage", scope=("job", "node", "system"))
def storage_hangs(job: Job) -> Iterator[Outcome]:
    """A folder or a file of the job does not answer.

    Usually its file server is down or unreachable. Processes that touch it block in the kernel (state D), so that the
    job hangs without an error and cannot be killed.

    Found by looking at each folder, and at each file that COMMAND names, in a thread of a child process, which may
    take 5 s. Folders that only the environment names count too: a process that starts looks at its home.

    Fix: restore the connection to the file server, or unmount the file system: ``umount -f -l``.
    """
    hanging: dict[str, list[NodeFacts]] = {}
    answered: dict[str, int] = {}
    for node, storage in _looked(job):
        silent = [f.path for f in storage.folders if f.state == "silent"]
        inside = tuple(f"{path.rstrip('/')}/" for path in silent)
        silent += [f.path for f in storage.files if f.state == "silent" and not f.path.startswith(inside or "\0")]
        for path in dict.fromkeys(silent):
            hanging.setdefault(path, []).append(node)
    for _, storage in _looked(job) if hanging else ():
        states = {f.path: f.state for f in storage.folders} | {f.path: f.state for f in storage.files}
        for path in hanging.keys() & {path for path, state in states.items() if state != "silent"}:
            answered[path] = answered.get(path, 0) + 1
    for path, nodes in hanging.items():
        good = answered.get(path, 0)
        rest = f"; it answers on {good} other {'node' if good == 1 else 'nodes'}" if good else ""
        yield Finding(
            scope="system" if not good and len(nodes) > 1 else "node",
            owner="admin",
            confirmed=good > len(nodes),
            ranks=numbers_of(rank for node in nodes for rank in job.ranks_on(node)),
            nodes=tuple(node.name for node in nodes),
            message=f"{listed([node.name for node in nodes])}: {brief(path, 200)} did not answer within 5 s{rest}",
            fix=Fix(
                "Restore the connection to its file server, or unmount it.",
                (
                    "grep -E ' (nfs4?|lustre|ceph|fuse[.a-z]*) ' /proc/mounts",
                    "ps -eo pid,stat,wchan:32,args | awk '$2 ~ /D/'",
                    "sudo dmesg | grep -iE 'not responding|timed out'",
                ),
            ),
        )


@rule("storage", severity="warning", scope=("job", "node"))
def storage_slow(job: Job) -> Iterator[Outcome]:
    """A file system that the job uses is very slow.

    Loading data and writing checkpoints then take longer than the computation, and importing torch from it may exceed
    the timeouts of the start. Causes are a failing disk, an overloaded file server, or a slow network to it.

    Found by writing a few megabytes in chunks, each synchronised to the disk, and reading them; the best chunk counts.
    Slow is below 1 MB/s, or below 5 MB/s and a tenth of the median of the other nodes. Not measured where less than
    64 MiB are free, and once per file system.

    Fix: check the disk and the file server; use a local disk for caches and environments.
    """
    for path, seen in _by_path(job).items():
        for what in ("write_MBps", "read_MBps"):
            rates = [(s, rate) for s in seen if (rate := getattr(s.folder, what)) is not None]
            usual = _middle([rate for _, rate in rates]) if len(rates) > 2 else 0.0
            slow = [(s, r) for s, r in rates if r < _SLOW_MBPS or r < min(_SLOWER_MBPS, usual / _SLOWER_FACTOR)]
            if not slow:
                continue
            rest = f"; the median of {len(rates)} nodes is {usual:.3g} MB/s" if usual else ""
            yield _found(
                job,
                [s for s, _ in slow],
                f"{path} {'is written' if what == 'write_MBps' else 'is read'} at {min(r for _, r in slow):.2g} MB/s"
                f"{rest}; expected {_SLOW_MBPS:g} MB/s or more",
                Fix(
                    "Check the disk and the file server.",
                    (
                        f"findmnt --target {quote(path)}",
                        "iostat -x 1 3",
                    ),
                ),
                severity="warning",
                scope="job" if len(slow) == len(rates) > 1 else "node",
                owner="admin",
                evidence={s.node.name: f"{rate:.3g} MB/s" for s, rate in rates[:16]},
            )


@rule("storage", scope=("job", "node"))
def storage_not_shared(job: Job) -> Iterator[Outcome]:
    """A folder that the nodes should share is not the same file system on all of them.

    A file system is not mounted, or another one is mounted at the same path. Every node then writes to a folder of its
    own: checkpoints are incomplete, ``file://`` rendezvous never completes, and data or code differ between ranks.

    Found by a file that the leader keeps in the folder while distcheck runs, and that every other node must see with
    its content. Judged for the folders of ``--path``, and for others that are on a network file system (NFS, Lustre,
    GPFS, CephFS, BeeGFS, WekaFS, FUSE, ...) on some node, where it is a warning. If all nodes have a local file system
    of the same type at a path of ``--path``, this is a warning too.

    Fix: mount the same file system on all nodes; ``--ignore storage-not-shared`` if each node needs only its own.
    """
    leader = next((process.node for process in job.processes if process.role is Role.LEADER), "")
    for path, seen in _by_path(job).items():
        first = next((s for s in seen if s.node.key == leader), None)
        compared = [s for s in seen if s.node.key != leader and s.folder.state == "folder"]
        if first is None or not compared:
            continue
        if not first.folder.holds_sentinel:
            if _asked(seen) and first.folder.state == "folder":
                reason = f"{first.node.name} cannot write in {path}, so it is unknown whether the nodes share it"
                yield NotChecked(reason=reason, nodes=tuple(s.node.name for s in compared), required=False)
            continue
        blind = [s for s in compared if s.folder.sees_sentinel is False]
        unknown = [s for s in compared if s.folder.sees_sentinel is None]
        if unknown and _asked(seen):
            reason = f"no answer whether {path} shows the leader's file"
            yield NotChecked(reason=reason, nodes=tuple(s.node.name for s in unknown), required=False)
        everywhere = (first, *compared)
        network = any(is_network(s.folder.file_system) for s in everywhere)
        if not blind or not (_asked(seen) or network):
            continue
        own = not network and len({s.folder.file_system for s in everywhere}) == 1 and len(blind) == len(compared)
        good = len(everywhere) - len(blind)
        yield _found(
            job,
            blind,
            f"{path} is not the file system that {first.node.name} has there: {_mounts([first, *blind])}",
            Fix(
                "Mount the same file system on all nodes. No action if each node needs only its own folder: "
                "--ignore storage-not-shared.",
                (f"findmnt --target {quote(path)}", f"df -T {quote(path)}"),
            ),
            severity="error" if _asked(seen) and not own else "warning",
            scope="node" if 2 * good > len(everywhere) else "job",
            owner="admin",
            evidence={s.node.name: _mount(s.folder) for s in everywhere[:16]},
        )


def _looked(job: Job) -> Iterator[tuple[NodeFacts, Storage]]:
    for node in job.nodes:
        if isinstance(node.storage, Storage):
            yield node, node.storage


@once
def _by_path(job: Job) -> dict[str, list[_Seen]]:
    """Return every folder as its nodes find it, by path."""
    pairs = (_Seen(node, folder) for node, storage in _looked(job) for folder in storage.folders)
    return grouped(pairs, lambda s: s.folder.path)


def _unseen(job: Job) -> Iterator[NotChecked]:
    """Yield the nodes that could not look; this matters if the user named a folder."""
    silent = [node for node in job.nodes if not isinstance(node.storage, Storage)]
    reasons = grouped(silent, lambda n: n.storage.reason if isinstance(n.storage, Missing) else "no process looked")
    for reason, nodes in reasons.items():
        yield NotChecked(nodes=tuple(n.name for n in nodes), reason=reason, required=bool(job.asked.paths))


def _names(seen: Iterable[_Seen]) -> set[str]:
    return {name for s in seen for name in s.folder.named_by}


def _asked(seen: Iterable[_Seen]) -> bool:
    return any(ASKED in s.folder.named_by for s in seen)


def _expected(here: Sequence[_Seen]) -> bool:
    """Whether the other nodes should have a folder: it is on a network, or exists before a job."""
    return not _PLACES.isdisjoint(_names(here)) or any(is_network(s.folder.file_system) for s in here)


def _trouble(folder: Folder) -> str:
    if folder.state == "absent":
        return "does not exist"
    return "is not a folder" if folder.state == "other" else f"cannot be opened: {folder.error}"


def _short(seen: _Seen) -> bool:
    """Whether a folder has too little space, and host-disk-full does not report that file system."""
    folder, tmp = seen.folder, seen.node.tmp
    if folder.state != "folder" or folder.space is None or not folder.space.total_bytes:
        return False
    if folder.write_error:
        return folder.write_error.startswith(_FULL)
    temporary = not isinstance(tmp, Missing) and tmp is not None and tmp.total_bytes == folder.space.total_bytes
    return not temporary and (_is_full(folder) or folder.space.free_bytes < _LITTLE_BYTES)


def _is_full(folder: Folder) -> bool:
    space = folder.space
    return bool(folder.write_error) or (
        space is not None and (space.free_bytes < _NOTHING_BYTES or space.free_files == 0)
    )


def _others(good: Sequence[_Seen], total: int, verb: str = "have") -> str:
    """Return which nodes are fine: the other 3 nodes have."""
    if len(good) == 1:
        return f"{good[0].node.name} {'has' if verb == 'have' else verb}"
    return f"the other {len(good)} nodes {verb}" if len(good) < total else f"all nodes {verb}"


def _mount(folder: Folder) -> str:
    """Return what is mounted: nfs4 nas:/export at /data."""
    where = f" at {folder.mount}" if folder.mount else ""
    return brief(f"{folder.file_system or 'unknown'} {folder.source}{where}", 120)


def _mounts(seen: Sequence[_Seen]) -> str:
    return "; ".join(f"{_mount(s.folder)} on {s.node.name}" for s in seen[:3])


def _middle(numbers: Sequence[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


def _found(
    job: Job,
    seen: Sequence[_Seen],
    what: str,
    fix: Fix,
    *,
    severity: Severity,
    scope: Scope,
    owner: Owner,
    confirmed: bool = True,
    evidence: dict[str, Any] | None = None,
) -> Finding:
    """Return a finding about a folder on some nodes."""
    names = tuple(s.node.name for s in seen)
    named_by = sorted(_names(seen))
    return Finding(
        severity=severity,
        scope=scope,
        owner=owner,
        confirmed=confirmed,
        ranks=numbers_of(rank for s in seen for rank in job.ranks_on(s.node)),
        nodes=names,
        message=f"{listed(names)}: {brief(what, 300)}",
        evidence={"named by": listed(named_by), "file system": _mount(seen[0].folder)} | (evidence or {}),
        fix=fix,
    )
