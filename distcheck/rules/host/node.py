"""Rules about a node by itself, without a job: `distcheck node`."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts import Gpus, Job, Missing, NodeFacts, NodeState, Space
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Finding, Fix, NotChecked
from distcheck.rules.gpu.nodes import nvidia_nodes
from distcheck.rules.gpu.nvml_errors import NO_DRIVER, error_code
from distcheck.rules.wording import brief, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHM, _TMP = "/dev/shm", "/tmp"  # noqa: S108 names only, nothing is written
_MIB = 1 << 20
_SHM_BYTES = 64 * _MIB
"""What Docker and Kubernetes give unless told otherwise; NCCL wants about 10 MiB of it per pair of ranks."""
_TMP_BYTES = 100 * _MIB
_NOTHING_BYTES = _MIB
_OPEN_FILES = 4096
_STALE = "ls -la --time-style=long-iso /dev/shm | grep -E 'nccl-|torch_|psm_'"


@rule("node")
def gpu_fewer_than_needed(job: Job) -> Iterator[Outcome]:
    """The node has fewer GPUs than it must have.

    A GPU that is gone from the bus altogether is no longer counted by NVML after a reboot, so nothing else notices:
    the scheduler still believes in it, and the job's last rank there ends with ``CUDA error: invalid device ordinal``.

    Found by counting what NVML lists against ``distcheck node --gpus N``, and without that option where a node shows
    NVIDIA's hardware or driver and NVML lists no GPU at all. GPUs that NVML lists and cannot reach are
    gpu-fell-off-bus.

    Fix: look for the GPU on the PCI bus and in the kernel's log; power the node off and on; have the GPU replaced.
    """
    asked = job.asked.gpus
    concerned = {node.key for node in nvidia_nodes(job)}
    for node in job.nodes:
        needed = asked if asked is not None else int(node.key in concerned)
        if not needed or (isinstance(node.gpus, Missing) and node.key in concerned):
            continue  # why NVML told nothing is said by gpu-nvml-init-failed, or listed as not checked
        if node.accelerator == "amd":
            yield NotChecked(nodes=(node.name,), reason=f"{node.name} has AMD's GPUs, which NVML does not count")
            continue
        said = node.gpus.reason if isinstance(node.gpus, Missing) else ""
        if said and error_code(said) not in NO_DRIVER:
            yield NotChecked(nodes=(node.name,), reason=said)
            continue
        there = len(node.gpus.devices) if isinstance(node.gpus, Gpus) else 0
        if there >= needed:
            continue
        why = f"expected {needed} (--gpus)" if asked is not None else "it shows NVIDIA's hardware or driver"
        why += f"; {brief(said)}" if said else ""
        yield Finding(
            scope="node",
            owner="admin",
            confirmed=asked is not None and not said,
            nodes=(node.name,),
            message=f"{node.name} has {there} {'GPU' if there == 1 else 'GPUs'} by NVML's count; {why}",
            evidence={"gpus": there, "expected": asked, "accelerator": node.accelerator},
            fix=Fix(
                "Look for the GPU on the bus and in the kernel's log, then power the node off and on.",
                ("lspci -d 10de:", "sudo dmesg | grep -iE 'nvrm|xid|pcie'", "sudo poweroff"),
            ),
        )


@rule("node", "host-shm-noexec-or-perm")
def host_shm_not_writable(job: Job) -> Iterator[Outcome]:
    """The folder /dev/shm is not there or cannot be written.

    NCCL says ``failed to create shared memory file /dev/shm/nccl-...`` and torch's data loaders ``unable to open
    shared memory object``. Found by looking at the folder's mount and permissions as the user who runs distcheck.

    Fix: ``mount -t tmpfs -o mode=1777 tmpfs /dev/shm``; in Kubernetes an ``emptyDir`` with ``medium: Memory``.
    """
    for node, state in _states(job):
        space = state.spaces.get(_SHM)
        if space is None or (isinstance(space, Space) and space.writable):
            continue
        what = space.reason if isinstance(space, Missing) else f"{_SHM} may not be written"
        yield _suspected(
            node,
            f"{what}; NCCL and torch need it for shared memory",
            Fix("Mount it, writable for everybody.", ("sudo mount -o remount,rw,mode=1777 /dev/shm",)),
        )
    yield from _unseen(job)


@rule("node", also=("collectives",))
def host_shm_too_small(job: Job) -> Iterator[Outcome]:
    """The folder /dev/shm has too little room for NCCL and for data loaders.

    The user would have seen ``NCCL WARN Error: failed to extend /dev/shm/nccl-XXXXXX ... No space left on device`` or
    ``DataLoader worker (pid 77) is killed by signal: Bus error``. Docker and Kubernetes give 64 MB unless told
    otherwise; on hosts it is filled by what dead jobs left behind.

    Found by its size and its free room: a warning at 64 MiB or less, an error when less than 1 MiB is free.

    Fix: ``docker run --shm-size=8g``; in Kubernetes an ``emptyDir`` with ``medium: Memory`` on /dev/shm; on a host
    remove the files of jobs that are gone.
    """
    for node in job.nodes:
        space = node.state.spaces.get(_SHM) if isinstance(node.state, NodeState) else node.shm
        if not isinstance(space, Space) or not space.writable or space.free_bytes > _SHM_BYTES:
            continue
        filled = space.total_bytes > _SHM_BYTES
        commands = (
            (_STALE,) if filled else ("# add to docker run: --shm-size=8g", "sudo mount -o remount,size=50% /dev/shm")
        )
        words = "Remove the files of jobs that are gone." if filled else "Give it more room."
        yield _room(node, _SHM, space, Fix(words, commands))
    # `distcheck node` has a rule of its own for it; ranks on CPUs, and many on GPUs, work without.
    absent = grouped(
        (node for node in job.nodes if node.state is None and _unusable(node.shm)), lambda n: _unusable(n.shm)
    )
    for reason, nodes in absent.items():
        yield NotChecked(nodes=tuple(node.name for node in nodes), reason=reason, required=False)
    yield from _unseen(job)


@rule("node", also=("collectives", "isolation"))
def host_disk_full(job: Job) -> Iterator[Outcome]:
    """The folder for temporary files is full, read-only or not there.

    torchrun, compilers and data loaders write there: the user would have seen ``No space left on device`` or
    ``Read-only file system``, the latter often the first sign of a disk that fails.

    Found in TMPDIR, else /tmp, by the free room (a warning below 100 MiB, an error below 1 MiB or without a free file)
    and by whether it may be written; by `distcheck node`, and on every node of `bandwidth`, `gate` and `isolate` before
    they measure.

    Fix: remove old files; look for the disk's errors in the kernel's log when it became read-only.
    """
    for node in job.nodes:
        space, folder = node.tmp, brief(node.tmp_folder)
        if isinstance(node.state, NodeState):
            space, folder = node.state.spaces.get(_TMP), _TMP
        if space is None:
            continue
        if isinstance(space, Missing) or not space.writable:
            what = space.reason if isinstance(space, Missing) else f"{folder} may not be written"
            yield _suspected(
                node,
                f"{what}; torchrun and data loaders write there",
                Fix(
                    "Look for errors of the disk; mount it writable again.",
                    ("sudo dmesg | grep -iE 'i/o error|read-only|ext4|xfs'", f"findmnt --target {quote(folder)}"),
                ),
            )
        elif space.free_bytes < _TMP_BYTES or space.free_files == 0:
            place = quote(folder)
            look = (f"df -h {place}; df -i {place}", f"sudo du -xsh {place}/* | sort -h | tail")
            yield _room(node, folder, space, Fix(f"Remove from {node.name} what is not needed.", look))
    yield from _unseen(job)


@rule("node")
def host_own_name_unresolvable(job: Job) -> Iterator[Outcome]:
    """The node's own host name does not resolve on it, or to an address that it does not have.

    Gloo takes its address from that name: ``Unable to resolve hostname to a (local) address. Using the loopback
    address as fallback``, and the nodes then cannot reach each other; torchrun does not recognise that it is the
    rendezvous's host. With GLOO_SOCKET_IFNAME and with NCCL alone it does no harm.

    Found by looking the name up for at most 3 s, and comparing with the addresses of the interfaces. A name
    that resolves to a loopback address is as Debian installs it, and only mentioned.

    Fix: put the name and the node's address into /etc/hosts or DNS, or ``export GLOO_SOCKET_IFNAME=eth0``.
    """
    for node, state in _states(job):
        name = state.own_name
        own = {} if isinstance(node.interfaces, Missing) else {i.address: i.name for i in node.interfaces}
        fix = Fix(
            "Put the name with the node's own address into /etc/hosts or DNS.",
            (f"getent ahosts {node.hostname}", *(f"export GLOO_SOCKET_IFNAME={way}" for way in _outward(node)[:1])),
        )
        if isinstance(name, Missing):
            message = f"{node.name}: the node's own name does not resolve: {brief(name.reason, 120)}"
        elif all(_loopback(address) for address in name.addresses):
            yield Finding(
                severity="info",
                scope="node",
                owner="admin",
                nodes=(node.name,),
                message=f"{node.name}: its own name {name.name} is {listed(name.addresses)} there",
                fix=fix,
            )
            continue
        elif own and not any(address in own or _loopback(address) for address in name.addresses):
            message = f"{node.name}: its own name {name.name} is {listed(name.addresses)}, which it does not have"
        else:
            continue
        yield Finding(
            severity="warning",
            scope="node",
            owner="admin",
            nodes=(node.name,),
            message=message,
            evidence={"host name": node.hostname, "own addresses": ", ".join(own)},
            fix=fix,
        )
    yield from _unseen(job)


@rule("node")
def host_nofile(job: Job) -> Iterator[Outcome]:
    """No process may open more than a few thousand files, which large jobs need for their sockets.

    The user would have seen ``Too many open files`` or ``Call to accept failed``. Found in the hard limit of the
    process that looks: under Slurm slurmd's, which bounds that of every job; a warning below 4096.

    Fix: ``LimitNOFILE=131072`` in slurmd's unit, ``docker run --ulimit nofile=131072``, or limits.conf.
    """
    for node, state in _states(job):
        hard = state.open_files[1]
        if 0 <= hard < _OPEN_FILES:
            yield Finding(
                severity="warning",
                scope="node",
                owner="admin",
                nodes=(node.name,),
                message=f"{node.name}: a process may open {hard} files at most; expected {_OPEN_FILES} or more",
                evidence={"RLIMIT_NOFILE": hard},
                fix=Fix(
                    "Raise the hard limit of what starts the jobs.",
                    ("sudo systemctl edit slurmd  # [Service] LimitNOFILE=131072", "ulimit -Hn"),
                ),
            )
    yield from _unseen(job)


def _unusable(space: Space | Missing | None) -> str:
    """Say why there is no shared memory to have; empty where there is some, and where nobody has looked."""
    if isinstance(space, Missing):
        return space.reason
    return "" if space is None or space.writable else f"{_SHM} may not be written"


def _states(job: Job) -> Iterator[tuple[NodeFacts, NodeState]]:
    for node in job.nodes:
        if isinstance(node.state, NodeState):
            yield node, node.state


def _unseen(job: Job) -> Iterator[NotChecked]:
    """Yield where the node itself gave no answer."""
    silent = [node for node in job.nodes if isinstance(node.state, Missing)]
    for reason, nodes in grouped(silent, lambda n: n.state.reason if isinstance(n.state, Missing) else "").items():
        yield NotChecked(nodes=tuple(node.name for node in nodes), reason=reason)


def _suspected(node: NodeFacts, what: str, fix: Fix) -> Finding:
    """Return an error that speaks against the node, not confirmed: a container has mounts of its own."""
    return Finding(
        scope="node", owner="admin", confirmed=False, nodes=(node.name,), message=f"{node.name}: {what}", fix=fix
    )


def _room(node: NodeFacts, folder: str, space: Space, fix: Fix) -> Finding:
    full = space.free_bytes < _NOTHING_BYTES or space.free_files == 0
    files = "; no further file can be made" if space.free_files == 0 else ""
    return Finding(
        severity="error" if full else "warning",
        scope="node",
        owner="admin",
        confirmed=False,
        nodes=(node.name,),
        message=(
            f"{node.name}: {folder} has {space.free_bytes / _MIB:.1f} MiB free of {space.total_bytes / _MIB:.0f}{files}"
        ),
        evidence={"free_bytes": space.free_bytes, "total_bytes": space.total_bytes, "free_files": space.free_files},
        fix=fix,
    )


def _outward(node: NodeFacts) -> list[str]:
    """Return the interfaces of a node that are up and lead out of it."""
    interfaces = () if isinstance(node.interfaces, Missing) else node.interfaces
    return list(dict.fromkeys(i.name for i in interfaces if i.up and not _loopback(i.address)))


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
