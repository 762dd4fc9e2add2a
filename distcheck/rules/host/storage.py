"""Rules about the folders that a job uses: there, writable, not full, answering and fast.

A folder that the user names with --path is required. A folder that only the environment names is not: it may be
created later, or never be used, so that most of its faults are warnings, and only where the nodes differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.storage import SCRIPT, WORKING_DIRECTORY, Folder, Space
from distcheck.rules import Outcome, rule
from distcheck.rules.host.folders import (
    FolderSeen,
    asked,
    by_path,
    folder_fault,
    lacks_temporary_space,
    names,
    on_network,
    temporary,
    unseen,
)
from distcheck.rules.wording import free_space, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_MIB = 1 << 20
_NOTHING_BYTES, _LITTLE_BYTES = _MIB, 100 * _MIB
_SLOW_MBPS, _SLOWER_MBPS, _SLOWER_FACTOR = 1.0, 5.0, 10
_FULL = ("No space left on device", "Disk quota exceeded")
_DISKS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs"})
_PLACES = frozenset({WORKING_DIRECTORY, SCRIPT, "PWD", "HOME"})
"""Folders that exist before a job starts; others may be created by it."""


@rule("storage", "host-shared-fs-missing", scope=("job", "node"))
def storage_path_missing(job: Job) -> Iterator[Outcome]:
    """A folder that the job needs does not exist on a node, is not a folder, or cannot be opened.

    Usually a file system is not mounted there. The job fails with ``FileNotFoundError``, ``Stale file handle`` or
    ``Transport endpoint is not connected``, or silently fills the node's own disk below the empty mount point.

    Found on every node for the folders of ``--path``. Other folders (the working directory, the script's, HOME and
    variables such as HF_HOME) are a warning, and only if other nodes have them.

    Fix: Mount the file system on the node, or correct the path.

        ls -ld {path|PATH}
        findmnt --target {path|PATH}
    """
    for path, seen in by_path(job).items():
        here = [s for s in seen if s.folder.state in {"folder", "silent"}]
        bad = [s for s in seen if s.folder.state in {"absent", "other", "unreadable"}]
        if not bad or not (asked(seen) or (here and _expected(here))):
            continue
        for what, some in grouped(bad, lambda s: _trouble(s.folder)).items():
            others = f"; {_others(here, len(seen))} it" if here else ""
            yield folder_fault(
                job,
                some,
                f"{path} {what}{others}",
                severity="error" if asked(seen) else "warning",
                scope="node" if here or job.asked.command == "node" else "job",
                owner="admin" if here else "user",
                confirmed=2 * len(here) > len(seen) or len(job.nodes) == 1,
            )
    yield from unseen(job)


@rule("storage", scope=("job", "node"), owner="admin")
def storage_read_only(job: Job) -> Iterator[Outcome]:
    """No file can be created in a folder that the job uses.

    Checkpoints, caches and logs fail with ``Read-only file system`` or ``Permission denied``, often hours after the
    start. The kernel also makes a failing disk read-only.

    Found by creating a file. An error if other nodes can write there, or if the kernel made the file system read-only
    after an error. A warning if no node can write in a folder of ``--path``, because a data set may be read-only, and
    for the other folders that nodes treat differently.

    Fix: Check the kernel log, the mount and the permissions. No action if the job only reads it.

        sudo dmesg | grep -iE 'i/o error|read-only|ext4|xfs|nfs'
        findmnt --target {path|PATH}
    """
    for path, seen in by_path(job).items():
        bad = [s for s in seen if s.folder.write_error and not s.folder.write_error.startswith(_FULL)]
        good = [s for s in seen if s.folder.state == "folder" and not s.folder.write_error]
        failing = any(s.folder.remounted and s.folder.file_system in _DISKS for s in bad)
        if not bad or not (asked(seen) or good or failing):
            continue
        for error, some in grouped(bad, lambda s: s.folder.write_error).items():
            why = "; the kernel made it read-only after it was mounted" if failing else ""
            others = f"; {_others(good, len(seen), 'can')}" if good else ""
            yield folder_fault(
                job,
                some,
                f"no file can be created in {path}: {error}{why}{others}",
                severity="error" if failing or (asked(seen) and good) else "warning",
                scope="node" if good or failing else "job",
                confirmed=2 * len(good) > len(seen),
            )


@rule("storage", scope=("job", "node"), owner="unknown")
def storage_full(job: Job) -> Iterator[Outcome]:
    """A file system that the job uses is full or nearly full.

    Checkpoints and caches fail with ``No space left on device`` or ``Disk quota exceeded``. A full file system also
    has no free inode, although it has free space.

    Found by the free space and inodes (an error below 1 MiB or without an inode, a warning below 100 MiB) and by
    creating a file. host-disk-full reports the file system that has the folder for temporary files. Folders that only
    variables name are warnings.

    Fix: Remove files that are no longer needed, or use another folder.

        df -h {path|.}; df -i {path|.}
        sudo du -xsh {path|.}/* | sort -h | tail
    """
    reported: set[tuple[str, int | None]] = set()
    for path, seen in by_path(job).items():
        short = [s for s in seen if _short(job, s) and (s.node.key, s.folder.device) not in reported]
        reported |= {(s.node.key, s.folder.device) for s in short}
        for empty, some in grouped(short, lambda s: _is_full(s.folder)).items():
            shared = any(on_network(s.folder) for s in some)
            space = some[0].folder.space
            room = some[0].folder.write_error or (free_space(space) if space else "")
            files = "; no free inode" if space is not None and space.free_files == 0 else ""
            yield folder_fault(
                job,
                some,
                f"{path} is {'full' if empty else 'nearly full'}: {room}{files}",
                severity="error" if empty and (asked(seen) or WORKING_DIRECTORY in names(seen)) else "warning",
                scope="job" if shared else "node",
                confirmed=False,
            )


@rule("storage", severity="warning", scope=("job", "node"), owner="admin")
def storage_slow(job: Job) -> Iterator[Outcome]:
    """A file system that the job uses is very slow.

    Loading data and writing checkpoints then take longer than the computation, and importing torch from it may exceed
    the timeouts of the start. Causes are a failing disk, an overloaded file server, or a slow network to it.

    Found by writing a few megabytes in chunks, each synchronised to the disk, and reading them; the best chunk counts.
    Slow is below 1 MB/s, or below 5 MB/s and a tenth of the median of the other nodes. Not measured where less than
    64 MiB are free, and once per file system.

    Fix: Check the disk and the file server; use a local disk for caches and environments.

        findmnt --target {path|PATH}
        iostat -x 1 3
    """
    for path, seen in by_path(job).items():
        for what in ("written", "read"):
            rates = [
                (s, rate)
                for s in seen
                if (rate := s.folder.write_MBps if what == "written" else s.folder.read_MBps) is not None
            ]
            usual = sorted(rate for _, rate in rates)[len(rates) // 2] if len(rates) > 2 else 0.0
            slow = [(s, r) for s, r in rates if r < _SLOW_MBPS or r < min(_SLOWER_MBPS, usual / _SLOWER_FACTOR)]
            if not slow:
                continue
            rest = f"; the median of {len(rates)} nodes is {usual:.3g} MB/s" if usual else ""
            yield folder_fault(
                job,
                [s for s, _ in slow],
                f"{path} is {what} at {min(r for _, r in slow):.2g} MB/s{rest}; expected {_SLOW_MBPS:g} MB/s or more",
                scope="job" if len(slow) == len(rates) > 1 else "node",
                evidence={s.node.name: f"{rate:.3g} MB/s" for s, rate in rates[:16]},
            )


def _expected(here: Sequence[FolderSeen]) -> bool:
    """Whether the other nodes should have a folder: it is on a network, or exists before a job."""
    return not _PLACES.isdisjoint(names(here)) or any(on_network(s.folder) for s in here)


def _trouble(folder: Folder) -> str:
    if folder.state == "absent":
        return "does not exist"
    return "is not a folder" if folder.state == "other" else f"cannot be opened: {folder.error}"


def _short(job: Job, seen: FolderSeen) -> bool:
    """Whether a folder has too little space, and host-disk-full does not report that file system."""
    folder, (tmp, _) = seen.folder, temporary(seen.node)
    if folder.state != "folder" or folder.space is None or not folder.space.total_bytes:
        return False
    match tmp:  # of the same size: the same file system
        case Space(total_bytes=folder.space.total_bytes, writable=True) if lacks_temporary_space(job, seen.node, tmp):
            return False
    if folder.write_error:
        return folder.write_error.startswith(_FULL)
    return _is_full(folder) or folder.space.free_bytes < _LITTLE_BYTES


def _is_full(folder: Folder) -> bool:
    space = folder.space
    return bool(folder.write_error) or (
        space is not None and (space.free_bytes < _NOTHING_BYTES or space.free_files == 0)
    )


def _others(good: Sequence[FolderSeen], total: int, verb: str = "have") -> str:
    """Return which nodes are fine: the other 3 nodes have."""
    if len(good) == 1:
        return f"{good[0].node.name} {'has' if verb == 'have' else verb}"
    return f"the other {len(good)} nodes {verb}" if len(good) < total else f"all nodes {verb}"
