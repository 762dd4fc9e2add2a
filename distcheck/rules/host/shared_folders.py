"""The rule about folders that are the same on all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.rank import Role
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import NotChecked
from distcheck.rules.host.folders import FolderSeen, asked, by_path, folder_fault, mount, on_network

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@rule("storage", scope=("job", "node"), owner="admin")
def storage_not_shared(job: Job) -> Iterator[Outcome]:
    """A folder that the nodes should share is not the same file system on all of them.

    A file system is not mounted, or another one is mounted at the same path. Every node then writes to a folder of its
    own: checkpoints are incomplete, ``file://`` rendezvous never completes, and data or code differ between ranks.

    Found by a file that the leader keeps in the folder while distcheck runs, and that every other node must see with
    its content. Judged for the folders of ``--path``, and for others that are on a network file system (NFS, Lustre,
    GPFS, CephFS, BeeGFS, WekaFS, FUSE, ...) on some node, where it is a warning. If all nodes have a local file system
    of the same type at a path of ``--path``, this is a warning too.

    Fix: Mount the same file system on all nodes. No action if each node needs only its own folder:
    ``--ignore storage-not-shared``.

        findmnt --target {path|PATH}
        df -T {path|PATH}
    """
    leader = next((process.node for process in job.processes if process.role is Role.LEADER), "")
    for path, seen in by_path(job).items():
        first = next((s for s in seen if s.node.key == leader), None)
        compared = [s for s in seen if s.node.key != leader and s.folder.state == "folder"]
        if first is None or not compared:
            continue
        if not first.folder.holds_sentinel:
            if asked(seen) and first.folder.state == "folder":
                reason = f"{first.node.name} cannot write in {path}, so it is unknown whether the nodes share it"
                yield NotChecked(reason=reason, nodes=tuple(s.node.name for s in compared), required=False)
            continue
        blind = [s for s in compared if s.folder.sees_sentinel is False]
        unknown = [s for s in compared if s.folder.sees_sentinel is None]
        if unknown and asked(seen):
            reason = f"no answer whether {path} shows the leader's file"
            yield NotChecked(reason=reason, nodes=tuple(s.node.name for s in unknown), required=False)
        everywhere = (first, *compared)
        network = any(on_network(s.folder) for s in everywhere)
        if not blind or not (asked(seen) or network):
            continue
        own = not network and len({s.folder.file_system for s in everywhere}) == 1 and len(blind) == len(compared)
        good = len(everywhere) - len(blind)
        yield folder_fault(
            job,
            blind,
            f"{path} is not the file system that {first.node.name} has there: {_mounts([first, *blind])}",
            severity="error" if asked(seen) and not own else "warning",
            scope="node" if 2 * good > len(everywhere) else "job",
            evidence={s.node.name: mount(s.folder) for s in everywhere[:16]},
        )


def _mounts(seen: Sequence[FolderSeen]) -> str:
    return "; ".join(f"{mount(s.folder)} on {s.node.name}" for s in seen[:3])
