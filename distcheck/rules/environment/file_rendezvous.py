"""Rules about a rendezvous file, which replaces MASTER_ADDR:MASTER_PORT."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from distcheck.facts.job import Job
from distcheck.facts.network import RendezvousFile
from distcheck.facts.quantities import size
from distcheck.rules import Outcome, rule
from distcheck.rules.job.agents import own_id
from distcheck.rules.wording import found, listed

_OF_ONE_NODE = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "ramfs", "zfs", "f2fs", "overlay"})


@rule("peers")
def net_file_rendezvous_nfs(job: Job) -> Iterator[Outcome]:
    """The file of init_method="file://…" cannot serve as the ranks' rendezvous.

    The ranks write to the file in turn, under a lock. A file from an earlier run holds that run's keys, and the ranks
    hang or connect to processes that no longer exist. On a node-local file system every node has its own file. If locks
    hold on one node only, as with NFS mounted nolock, the ranks overwrite each other's data.

    Found by a file:// URL in the arguments of ``gate -- COMMAND``, and by reading that file and its mount on every
    node.

    Fix: Use a new file for each job on a file system that all nodes share, or use MASTER_ADDR.

        {command|# on a shared file system: --init-method file:///shared/$SLURM_JOB_ID}
    """
    seen = [(n, n.network.rendezvous_file) for n in job.nodes if n.network]
    files = [(n, f) for n, f in seen if isinstance(f, RendezvousFile)]
    machines = {n.boot_id for n, _ in files if isinstance(n.boot_id, str)}  # containers of one host may share a folder
    own = [n for n, f in files if f.file_system in _OF_ONE_NODE] if len(machines) > 1 else []
    stale = [n for n, f in files if f.bytes]
    unlocked = [n for n, f in files if not f.locks]
    path = files[0][1].path if files else ""
    other = f"# on a shared file system: --init-method file:///shared/{own_id(job, job.ranks[0])}" if files else ""
    sizes = {n.name: f"{f.file_system}, {'not there' if f.bytes is None else size(f.bytes)}" for n, f in files}
    for nodes, problem, command in (
        (own, "is on a node-local file system, so every node has its own file", other),
        (stale, "already has data from an earlier run", f"rm {quote(path)}"),
        (unlocked, "is on a mount where locks hold on one node only (nolock)", other),
    ):
        if nodes:
            yield found(
                job,
                job.ranks_on(*nodes),
                f"the rendezvous file {path} on {listed([n.name for n in nodes])} {problem}",
                severity="error" if nodes is own else "warning",
                evidence=sizes,
                values={"command": [command]},
            )
