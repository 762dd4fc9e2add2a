"""A rule about file systems that do not answer; their users wait in the kernel."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.job import Job
from distcheck.facts.quantities import count
from distcheck.facts.storage import PATIENCE_SECONDS, Silent, Storage
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.wording import brief, grouped, listed, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.node import NodeFacts


@rule("storage", scope=("job", "node", "system"), also=("environment",), owner="admin")
def storage_hangs(job: Job) -> Iterator[Outcome]:
    """A folder or a file of the job does not answer.

    Usually its file server is down or unreachable. Processes that touch it block in the kernel (state D), so that the
    job hangs without an error and cannot be killed.

    Found by looking at each folder, and at each file that COMMAND names, in a thread of a child process, which may
    take 5 s. Other paths, such as NCCL's configuration files and those of ``--output`` and ``--save``, are looked at by
    a process that may be left behind after 3 s. Folders that only the environment names count too: a process that
    starts looks at its home.

    Fix: Restore the connection to its file server, or unmount it.

        grep -E ' (nfs4?|lustre|ceph|fuse[.a-z]*) ' /proc/mounts
        ps -eo pid,stat,wchan:32,args | awk '$2 ~ /D/'
        sudo dmesg | grep -iE 'not responding|timed out'
        sudo umount -f -l {mount|MOUNT}
    """
    seen = _unanswered(job)
    states = [state for node in job.nodes for state in _states(node)] if seen else []
    for some in grouped(seen, lambda one: one[1].mount or one[1].path).values():
        nodes = list({node.key: node for node, _ in some}.values())
        first, paths = some[0][1], list(dict.fromkeys(silent.path for _, silent in some))
        names = sorted({name for _, silent in some for name in silent.named_by})
        good = max(sum(path == there and state != "silent" for there, state in states) for path in paths)
        place = brief(f"{first.file_system} {first.source} at {first.mount}", 120) if first.mount else ""
        seconds = max(silent.seconds for _, silent in some)
        where = f" ({place})" if place else ""
        others = f"; it answers on {count(good, 'other node')}" if good else ""
        yield Fault(
            f"{listed([node.name for node in nodes])}: {brief(listed(paths), 200)}{where} did not answer within "
            f"{seconds:g} s{others}",
            evidence={"named by": listed(names)},
            scope="system" if not good and len(nodes) > 1 else "node",
            confirmed=good > len(nodes),
            ranks=numbers_of(job.ranks_on(*nodes)),
            nodes=tuple(node.name for node in nodes),
            values={"mount": (quote(first.mount),) if first.mount else ()},
        )


def _unanswered(job: Job) -> list[tuple[NodeFacts, Silent]]:
    """Return what did not answer on each node, without the paths inside of another one."""
    found = []
    by_node: dict[str, list[Silent]] = {}
    for process in job.processes:
        if process.silent:
            by_node.setdefault(process.node, []).extend(process.silent)
    for node in job.nodes:
        storage = node.storage if isinstance(node.storage, Storage) else Storage()
        silent = [
            Silent(f.path, f.named_by, f.file_system, f.source, f.mount, PATIENCE_SECONDS)
            for f in storage.folders
            if f.state == "silent"
        ]
        files = [f.path or f.word for f in storage.files if f.state == "silent"]
        silent += by_node.get(node.key, ())
        silent += [Silent(path, ("COMMAND",), seconds=PATIENCE_SECONDS) for path in files]
        inside = tuple(f"{one.path.rstrip('/')}/" for one in silent)
        by_path = {one.path: one for one in reversed(silent)}
        found += [(node, one) for path, one in reversed(by_path.items()) if not path.startswith(inside)]
    return found


def _states(node: NodeFacts) -> Iterator[tuple[str, str]]:
    """Yield the folders and files at which a node looked, and how it found them."""
    if isinstance(node.storage, Storage):
        yield from {f.path: f.state for f in node.storage.folders}.items()
        yield from {f.path or f.word: f.state for f in node.storage.files}.items()
