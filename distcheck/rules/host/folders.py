"""The folders of a job as its nodes find them, and findings about them."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts, NodeState
from distcheck.facts.storage import ASKED, Folder, Space, Storage, is_network
from distcheck.rules.finding import Fault, NotChecked
from distcheck.rules.wording import brief, grouped, listed, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class FolderSeen(NamedTuple):
    """A folder as one node finds it."""

    node: NodeFacts
    folder: Folder


SHARED, _TEMPORARY = "/dev/shm", "/tmp"  # noqa: S108 names only
_TEMPORARY_BYTES = 100 << 20


def temporary(node: NodeFacts) -> tuple[Space | Missing | None, str]:
    """Return a node's folder for temporary files: its space, None if nothing looked, and its path."""
    if isinstance(node.state, NodeState):
        return node.state.spaces.get(_TEMPORARY), _TEMPORARY
    return node.tmp, brief(node.tmp_folder)


def shared_memory(node: NodeFacts) -> Space | Missing | None:
    """Return the space of a node's /dev/shm, None if nothing looked."""
    return node.state.spaces.get(SHARED) if isinstance(node.state, NodeState) else node.shm


def unusable(folder: str, space: Space | Missing | None) -> str:
    """Return why a folder cannot be used, '' if it can or if nothing looked."""
    if isinstance(space, Missing):
        return space.reason
    return "" if space is None or space.writable else f"{folder} is not writable"


def lacks_temporary_space(job: Job, node: NodeFacts, space: Space) -> bool:
    """Return whether the folder for temporary files is full or nearly full."""
    least = job.asked.site(node.name).threshold.tmp_free_MiB
    return space.free_bytes < (_TEMPORARY_BYTES if least is None else least << 20) or space.free_files == 0


def looked(job: Job) -> Iterator[tuple[NodeFacts, Storage]]:
    """Yield the nodes that looked at their folders, with what they found."""
    for node in job.nodes:
        if isinstance(node.storage, Storage):
            yield node, node.storage


def by_path(job: Job) -> dict[str, list[FolderSeen]]:
    """Return every folder as its nodes find it, by path."""
    pairs = (FolderSeen(node, folder) for node, storage in looked(job) for folder in storage.folders)
    return grouped(pairs, lambda s: s.folder.path)


def unseen(job: Job) -> Iterator[NotChecked]:
    """Yield the nodes that could not look; this matters if the user named a folder.

    Where ranks are missing, a node's process that looks may be among them: it is missed already.
    """
    silent = [
        node
        for node in job.nodes
        if isinstance(node.storage, Missing) or (node.storage is None and (job.asked.paths or not job.missing_ranks))
    ]
    reasons = grouped(silent, lambda n: n.storage.reason if isinstance(n.storage, Missing) else "no process looked")
    for reason, nodes in reasons.items():
        yield NotChecked(nodes=tuple(n.name for n in nodes), reason=reason, required=bool(job.asked.paths))


def names(seen: Iterable[FolderSeen]) -> set[str]:
    """Return what names a folder on some nodes."""
    return {name for s in seen for name in s.folder.named_by}


def asked(seen: Iterable[FolderSeen]) -> bool:
    """Whether --path names a folder on some nodes."""
    return any(ASKED in s.folder.named_by for s in seen)


def mount(folder: Folder) -> str:
    """Return what is mounted: nfs4 nas:/export at /data."""
    where = f" at {folder.mount}" if folder.mount else ""
    return brief(f"{folder.file_system or 'unknown'} {folder.source}{where}", 120)


def folder_fault(job: Job, seen: Sequence[FolderSeen], what: str, **fields: Any) -> Fault:
    """Return a fault of a folder on some nodes; {path} in the commands of its rule's fix is the folder."""
    nodes, first = tuple(s.node.name for s in seen), seen[0].folder
    named_by = {"named by": listed(sorted(names(seen))), "file system": mount(first)}
    return Fault(
        f"{listed(nodes)}: {brief(what, 200)}",
        evidence=named_by | fields.pop("evidence", {}),
        ranks=numbers_of(job.ranks_on(*(s.node for s in seen))),
        nodes=nodes,
        values={"path": (quote(first.path),)},
        **fields,
    )


def on_network(folder: Folder) -> bool:
    """Whether nodes usually share a folder's file system.

    The root of a virtual machine or a sandbox may be 9p or virtiofs and still its own.
    """
    return is_network(folder.file_system) and folder.mount != "/"
