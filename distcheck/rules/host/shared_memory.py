"""Rules about files in /dev/shm: those of ended jobs, and those that logind removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.quantities import count, size
from distcheck.facts.storage import Space
from distcheck.rules import Answer, rule
from distcheck.rules.finding import Fault
from distcheck.rules.host.folders import shared_memory
from distcheck.rules.host.shown import HostSeen, each_host
from distcheck.rules.wording import listed, numbers_of, table_of

if TYPE_CHECKING:
    from distcheck.facts.job import Job

_MUCH = 0.1
"""Share of /dev/shm from which leftovers are a warning."""


@rule("node", also=("collectives", "isolation"), severity="warning", scope="node", of=each_host)
def host_shm_stale_files(_: Job, host: HostSeen) -> Answer:
    r"""Files of ended jobs in /dev/shm occupy memory.

    NCCL, torch's data loaders and PSM remove their files when they end; a killed rank cannot. The files count as used
    memory until the node is rebooted, and when /dev/shm is full NCCL fails with ``No space left on device``.

    Found by the files' names (nccl-*, torch_*, psm*, sem.* and others), an age of 10 minutes or more, and the maps and
    open files of all processes of their owner: none uses them. A warning if they occupy a tenth of /dev/shm, otherwise
    an info finding. In a container this is not checked: the host's processes are hidden.

    Fix: Remove the files that no process uses.

        sudo find /dev/shm -type f -regex '.*/\(nccl-\|torch_\|psm\|sem[.]\).*' -mmin +10 ! -exec fuser -s {} \; -delete

    See: https://github.com/NVIDIA/nccl/issues/1518
    """
    files = host.facts.leftovers
    if isinstance(files, Missing):
        return files
    if not files:
        return None
    total = sum(file.bytes for file in files)
    space = shared_memory(host.node)
    much = isinstance(space, Space) and total >= _MUCH * space.total_bytes
    owners = sorted({file.uid for file in files})
    occupy = "occupies" if len(files) == 1 else "occupy"
    of = f" of {size(space.total_bytes, 3)}" if isinstance(space, Space) else ""
    return Fault(
        f"{count(len(files), 'file')} of ended jobs in /dev/shm {occupy} {size(total, 3)}{of}; the oldest is "
        f"{max(file.age_seconds for file in files) / 3600:.1f} h old",
        evidence={
            "files": listed([f"{file.name} ({size(file.bytes, 3)}, uid {file.uid})" for file in files], most=8),
            "bytes": total,
            "uids": ", ".join(map(str, owners)),
        },
        severity="warning" if much else "info",
        owner="admin" if len(owners) > 1 else "user",
    )


@rule("node", also=("collectives", "isolation"), severity="info", scope="rank", owner="admin", of=each_host)
def host_shm_removed_by_systemd(job: Job, host: HostSeen) -> Fault | None:
    r"""The login manager (logind) may remove the ranks' shared memory while they run.

    With RemoveIPC=yes it removes all files of a user in /dev/shm when the last login session of that user on the node
    ends, for example after a look at the job by ssh. NCCL then reports ``unlink shared memory /dev/shm/nccl-d5rTd0
    failed, error: No such file or directory``, and ranks that start later fail.

    Found in logind's configuration, for ordinary users, where a scheduler or MPI started the ranks, so that no login
    session of their user stays open.

    Fix: Keep the user's shared memory: ``RemoveIPC=no`` in a file of /etc/systemd/logind.conf.d, or
    ``loginctl enable-linger``; or do not log in to the nodes while the job runs.

        sudo mkdir -p /etc/systemd/logind.conf.d
        printf '[Login]\nRemoveIPC=no\n' | sudo tee /etc/systemd/logind.conf.d/zz-jobs.conf
        sudo systemctl restart systemd-logind
        loginctl enable-linger

    See: https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html
    """
    ranks = [rank for rank in job.ranks_on(host.node) if table_of(rank) is not None]
    if not ranks or not host.facts.removes_ipc:
        return None
    return Fault(
        "logind removes the ranks' shared memory when their user logs out (RemoveIPC=yes)",
        evidence={"RemoveIPC": "yes"},
        ranks=numbers_of(ranks),
    )
