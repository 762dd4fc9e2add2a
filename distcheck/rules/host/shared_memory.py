"""Rules about files in /dev/shm: those of ended jobs, and those that logind removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.node import NodeState
from distcheck.facts.quantities import count, size
from distcheck.facts.storage import Space
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.host.shown import hosts, unread
from distcheck.rules.wording import found, grouped, listed, named, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distcheck.facts.host import Leftover
    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts

_SHM = "/dev/shm"  # noqa: S108 a name only
_MUCH = 0.1
"""Share of /dev/shm from which leftovers are a warning."""
_REMOVE = (
    "cd /dev/shm && find . -maxdepth 1 -regex './\\(nccl-\\|torch_\\|psm\\|sem[.]\\).*' -mmin +10 | "
    'while read -r f; do sudo fuser -s "$f" 2>/dev/null || sudo rm -f "$f"; done'
)


@rule("node", also=("collectives", "isolation"), severity="warning", scope="node")
def host_shm_stale_files(job: Job) -> Iterator[Outcome]:
    """Files of ended jobs in /dev/shm occupy memory.

    NCCL, torch's data loaders and PSM remove their files when they end; a killed rank cannot. The files count as used
    memory until the node is rebooted, and when /dev/shm is full NCCL fails with ``No space left on device``.

    Found by the files' names (nccl-*, torch_*, psm*, sem.* and others), an age of 10 minutes or more, and the maps and
    open files of all processes of their owner: none uses them. A warning if they occupy a tenth of /dev/shm, otherwise
    an info finding. In a container this is not checked: the host's processes are hidden.

    Fix: remove the files that no process uses.

    See: https://github.com/NVIDIA/nccl/issues/1518
    """
    for node, host in hosts(job):
        if isinstance(host.leftovers, Missing):
            yield NotChecked(nodes=(node.name,), reason=host.leftovers.reason, required=False)
        elif host.leftovers:
            yield _stale(node, host.leftovers)
    yield from unread(job)


def _stale(node: NodeFacts, files: Sequence[Leftover]) -> Fault:
    total = sum(file.bytes for file in files)
    space = node.state.spaces.get(_SHM) if isinstance(node.state, NodeState) else node.shm
    much = isinstance(space, Space) and total >= _MUCH * space.total_bytes
    owners = sorted({file.uid for file in files})
    occupy = "occupies" if len(files) == 1 else "occupy"
    of = f" of {size(space.total_bytes, 3)}" if isinstance(space, Space) else ""
    return Fault(
        severity="warning" if much else "info",
        owner="admin" if len(owners) > 1 else "user",
        nodes=(node.name,),
        message=f"{node.name}: {count(len(files), 'file')} of ended jobs in {_SHM} {occupy} {size(total, 3)}{of}; the "
        f"oldest is {max(file.age_seconds for file in files) / 3600:.1f} h old",
        evidence={
            "files": listed([f"{file.name} ({size(file.bytes, 3)}, uid {file.uid})" for file in files], most=8),
            "bytes": total,
            "uids": ", ".join(map(str, owners)),
        },
        fix=Fix(
            "Remove the files that no process uses.",
            (_REMOVE,),
        ),
    )


@rule("node", also=("collectives", "isolation"), severity="info", scope="rank", owner="admin")
def host_shm_removed_by_systemd(job: Job) -> Iterator[Outcome]:
    """The login manager (logind) may remove the ranks' shared memory while they run.

    With RemoveIPC=yes it removes all files of a user in /dev/shm when the last login session of that user on the node
    ends, for example after a look at the job by ssh. NCCL then reports ``unlink shared memory /dev/shm/nccl-d5rTd0
    failed, error: No such file or directory``, and ranks that start later fail.

    Found in logind's configuration, for ordinary users, where a scheduler or MPI started the ranks, so that no login
    session of their user stays open.

    Fix: ``RemoveIPC=no`` in a file of /etc/systemd/logind.conf.d, or ``loginctl enable-linger``.

    See: https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html
    """
    removing = {node.key for node, host in hosts(job) if host.removes_ipc}
    at_risk = [r for r in job.ranks if job.node_of(r).key in removing and table_of(r) is not None] if removing else []
    for ranks in grouped(at_risk, lambda _: "").values():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: logind removes their user's shared memory when the user logs out (RemoveIPC=yes)",
            Fix(
                "Keep the user's shared memory, or do not log in to the nodes while the job runs.",
                (
                    "sudo mkdir -p /etc/systemd/logind.conf.d",
                    r"printf '[Login]\nRemoveIPC=no\n' | sudo tee /etc/systemd/logind.conf.d/zz-jobs.conf",
                    "sudo systemctl restart systemd-logind",
                    "loginctl enable-linger",
                ),
            ),
            evidence={"RemoveIPC": "yes"},
        )
