"""Rules about a single node without a job: `distcheck node`."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts, NodeState
from distcheck.facts.pci import Pci
from distcheck.facts.quantities import count
from distcheck.facts.storage import Space
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked, Severity
from distcheck.rules.gpu.nodes import not_seen, nvidia_nodes
from distcheck.rules.host.folders import lacks_temporary_space, temporary
from distcheck.rules.wording import brief, free_space, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHM = "/dev/shm"  # noqa: S108 a name only, nothing is written
_MIB = 1 << 20
_SHM_BYTES = 64 * _MIB
"""Default of Docker and Kubernetes; NCCL needs about 10 MiB of it per pair of ranks."""
_NOTHING_BYTES = _MIB
_OPEN_FILES = 4096
_STALE = "ls -la --time-style=long-iso /dev/shm | grep -E 'nccl-|torch_|psm_'"


@rule("node", scope="node", owner="admin")
def gpu_fewer_than_needed(job: Job) -> Iterator[Outcome]:
    """The node has fewer GPUs than required.

    After a reboot NVML no longer counts a GPU that has disappeared from the bus, so no other check finds it. The
    scheduler still assigns it, and the job's last rank there fails with ``CUDA error: invalid device ordinal``.

    Found by comparing the number of GPUs in NVML with ``distcheck node --gpus N``. Without that option, found where a
    node has NVIDIA hardware or a driver and NVML lists no GPU. gpu-fell-off-bus reports GPUs that NVML lists but
    cannot reach, gpu-nvml-init-failed a driver that is not installed or cannot be loaded.

    Fix: search the kernel log for the GPU; power-cycle the node, or reboot it if its PCI bus still shows the GPU;
    replace the GPU.
    """
    asked = job.asked.gpus
    concerned = {node.key for node in nvidia_nodes(job)}
    for node in job.nodes:
        needed = asked if asked is not None else int(node.key in concerned)
        if needed and node.accelerator == "amd":
            yield NotChecked(nodes=(node.name,), reason=f"{node.name} has AMD GPUs, which NVML does not count")
        if not isinstance(node.gpus, Gpus) or len(node.gpus.devices) >= needed:
            continue
        there = len(node.gpus.devices)
        why = f"expected {needed} (--gpus)" if asked is not None else "it has NVIDIA hardware or a driver"
        driven = {gpu.pci for gpu in node.gpus.devices if isinstance(gpu.pci, str)}
        undriven = sorted(node.pci.gpus.keys() - driven) if isinstance(node.pci, Pci) and len(driven) == there else []
        why += f"; its PCI bus shows {listed(undriven, most=3)} too" if undriven else ""
        yield Fault(
            confirmed=asked is not None,
            nodes=(node.name,),
            message=f"{node.name}: NVML lists {count(there, 'GPU')}; {why}",
            evidence={"gpus": there, "expected": asked, "accelerator": node.accelerator},
            fix=Fix(
                "Search the kernel log for why the driver does not start the GPU, then reboot the node."
                if undriven
                else "Search the PCI bus and the kernel log for the GPU, then power-cycle the node.",
                (
                    "lspci -d 10de:",
                    "sudo dmesg | grep -iE 'nvrm|xid|pcie'",
                    "sudo reboot" if undriven else "sudo poweroff",
                ),
            ),
        )
    yield from not_seen(job)


@rule("node", "host-shm-noexec-or-perm", scope="node", owner="admin")
def host_shm_not_writable(job: Job) -> Iterator[Outcome]:
    """The directory /dev/shm does not exist or is not writable.

    NCCL reports ``failed to create shared memory file /dev/shm/nccl-...`` and torch's data loaders ``unable to open
    shared memory object``. Found by reading the directory's mount and permissions as the user who runs distcheck.

    Fix: ``mount -t tmpfs -o mode=1777 tmpfs /dev/shm``; in Kubernetes an ``emptyDir`` with ``medium: Memory``.
    """
    for node, state in _states(job):
        space = state.spaces.get(_SHM)
        if space is None or (isinstance(space, Space) and space.writable):
            continue
        what = space.reason if isinstance(space, Missing) else f"{_SHM} is not writable"
        yield _suspected(
            node,
            f"{what}; NCCL and torch need it for shared memory",
            Fix("Mount it, writable for all users.", ("sudo mount -o remount,rw,mode=1777 /dev/shm",)),
        )
    yield from _unseen(job)


@rule("node", also=("collectives",), scope="node", owner="admin")
def host_shm_too_small(job: Job) -> Iterator[Outcome]:
    """The directory /dev/shm has too little free space for NCCL and data loaders.

    The job fails with ``NCCL WARN Error: failed to extend /dev/shm/nccl-XXXXXX ... No space left on device`` or
    ``DataLoader worker (pid 77) is killed by signal: Bus error``. The default in Docker and Kubernetes is 64 MB. On
    hosts, files of ended jobs fill it.

    Found by its free space: a warning at 64 MiB or less, an error at less than 1 MiB. The warning is an info finding
    where the job uses Gloo, which does not need it.

    Fix: ``docker run --shm-size=8g``; in Kubernetes an ``emptyDir`` with ``medium: Memory`` on /dev/shm; on a host
    remove the files of ended jobs.
    """
    for node in job.nodes:
        space = node.state.spaces.get(_SHM) if isinstance(node.state, NodeState) else node.shm
        if not isinstance(space, Space) or not space.writable or space.free_bytes > _SHM_BYTES:
            continue
        filled = space.total_bytes > _SHM_BYTES
        commands = (
            (_STALE,) if filled else ("# add to docker run: --shm-size=8g", "sudo mount -o remount,size=50% /dev/shm")
        )
        text = "Remove the files of ended jobs." if filled else "Increase its size."
        backend = job.asked.backend
        nccl = backend == "nccl" or (backend == "auto" and node.accelerator != "none")
        yield _full(node, _SHM, space, Fix(text, commands), "warning" if nccl else "info")
    # host-shm-not-writable covers `distcheck node`; ranks on CPUs, and many on GPUs, work without /dev/shm.
    absent = grouped(
        (node for node in job.nodes if node.state is None and _unusable(node.shm)), lambda n: _unusable(n.shm)
    )
    for reason, nodes in absent.items():
        yield NotChecked(nodes=tuple(node.name for node in nodes), reason=reason, required=False)
    yield from _unseen(job)


@rule("node", also=("collectives", "isolation"), scope="node", owner="admin")
def host_disk_full(job: Job) -> Iterator[Outcome]:
    """The directory for temporary files is full, read-only or does not exist.

    torchrun, compilers and data loaders write there and fail with ``No space left on device`` or
    ``Read-only file system``. The latter is often the first sign of a failing disk.

    Found in TMPDIR, else /tmp, by the free space (a warning below 100 MiB, an error below 1 MiB or without a free
    inode) and by write permission. Checked by `distcheck node`, and on every node of `bandwidth`, `gate` and `isolate`
    before they measure.

    Fix: remove old files; if it became read-only, search the kernel log for disk errors.
    """
    for node in job.nodes:
        space, folder = temporary(node)
        if space is None:
            continue
        if isinstance(space, Missing) or not space.writable:
            what = space.reason if isinstance(space, Missing) else f"{folder} is not writable"
            yield _suspected(
                node,
                f"{what}; torchrun and data loaders write there",
                Fix(
                    "Check the kernel log for disk errors, then remount it writable.",
                    ("sudo dmesg | grep -iE 'i/o error|read-only|ext4|xfs'", f"findmnt --target {quote(folder)}"),
                ),
            )
        elif lacks_temporary_space(space):
            place = quote(folder)
            look = (f"df -h {place}; df -i {place}", f"sudo du -xsh {place}/* | sort -h | tail")
            yield _full(node, folder, space, Fix(f"Remove unneeded files from {node.name}.", look))
    yield from _unseen(job)


@rule("node", severity="warning", scope="node", owner="admin")
def host_own_name_unresolvable(job: Job) -> Iterator[Outcome]:
    """The node's own host name does not resolve, or not to an address of the node.

    Gloo takes its address from that name: ``Unable to resolve hostname to a (local) address. Using the loopback
    address as fallback``, and the nodes then cannot reach each other. torchrun does not recognise that it runs on the
    rendezvous host. It is harmless with GLOO_SOCKET_IFNAME and with NCCL alone.

    Found by resolving the name, for at most 3 s, and comparing the result with the addresses of the interfaces. A name
    that resolves to a loopback address is Debian's default and only an info.

    Fix: add the name and the node's address to /etc/hosts or DNS, or ``export GLOO_SOCKET_IFNAME=eth0``.
    """
    for node, state in _states(job):
        name = state.own_name
        own = {} if isinstance(node.interfaces, Missing) else {i.address: i.name for i in node.interfaces}
        fix = Fix(
            "Add the name with the node's own address to /etc/hosts or DNS.",
            (
                f"getent ahosts {quote(node.hostname)}",
                *(f"export GLOO_SOCKET_IFNAME={quote(name)}" for name in _outward(node)[:1]),
            ),
        )
        if isinstance(name, Missing):
            message = f"{node.name}: its own host name does not resolve: {brief(name.reason, 120)}"
        elif all(_loopback(address) for address in name.addresses):
            yield Fault(
                severity="info",
                nodes=(node.name,),
                message=f"{node.name}: its own host name {name.name} resolves to loopback ({listed(name.addresses)})",
                fix=fix,
            )
            continue
        elif own and not any(address in own or _loopback(address) for address in name.addresses):
            message = f"{node.name}: its own host name {name.name} resolves to {listed(name.addresses)}, "
            message += "not an address of this node"
        else:
            continue
        yield Fault(
            nodes=(node.name,),
            message=message,
            evidence={"host name": node.hostname, "own addresses": ", ".join(own)},
            fix=fix,
        )
    yield from _unseen(job)


@rule("node", severity="warning", scope="node", owner="admin")
def host_nofile(job: Job) -> Iterator[Outcome]:
    """The limit of open files per process is too low for the sockets of a large job.

    The job fails with ``Too many open files`` or ``Call to accept failed``. Found in the hard limit of distcheck's
    process; under Slurm this is slurmd's limit, which bounds every job. A warning below 4096.

    Fix: ``LimitNOFILE=131072`` in slurmd's unit, ``docker run --ulimit nofile=131072``, or limits.conf.
    """
    for node, state in _states(job):
        hard = state.open_files[1]
        if 0 <= hard < _OPEN_FILES:
            yield Fault(
                nodes=(node.name,),
                message=f"{node.name}: the hard limit of open files is {hard}; expected {_OPEN_FILES} or more",
                evidence={"RLIMIT_NOFILE": hard},
                fix=Fix(
                    "Raise the hard limit of the service that starts the jobs.",
                    ("sudo systemctl edit slurmd  # [Service] LimitNOFILE=131072", "ulimit -Hn"),
                ),
            )
    yield from _unseen(job)


def _unusable(space: Space | Missing | None) -> str:
    """Return why shared memory is unusable; empty if it is usable or was not checked."""
    if isinstance(space, Missing):
        return space.reason
    return "" if space is None or space.writable else f"{_SHM} is not writable"


def _states(job: Job) -> Iterator[tuple[NodeFacts, NodeState]]:
    for node in job.nodes:
        if isinstance(node.state, NodeState):
            yield node, node.state


def _unseen(job: Job) -> Iterator[NotChecked]:
    """Yield the nodes whose own state could not be collected."""
    silent = [node for node in job.nodes if isinstance(node.state, Missing)]
    for reason, nodes in grouped(silent, lambda n: n.state.reason if isinstance(n.state, Missing) else "").items():
        yield NotChecked(nodes=tuple(node.name for node in nodes), reason=reason)


def _suspected(node: NodeFacts, what: str, fix: Fix) -> Fault:
    """Return an unconfirmed error about a node: a container has its own mounts."""
    return Fault(confirmed=False, nodes=(node.name,), message=f"{node.name}: {what}", fix=fix)


def _full(node: NodeFacts, folder: str, space: Space, fix: Fix, low: Severity = "warning") -> Fault:
    """Return an error about a full folder, a finding of severity `low` about one that is nearly full."""
    full = space.free_bytes < _NOTHING_BYTES or space.free_files == 0
    files = "; no free inode" if space.free_files == 0 else ""
    return Fault(
        severity="error" if full else low,
        confirmed=False,
        nodes=(node.name,),
        message=(f"{node.name}: {folder} has {free_space(space)}{files}"),
        evidence={"free_bytes": space.free_bytes, "total_bytes": space.total_bytes, "free_files": space.free_files},
        fix=fix,
    )


def _outward(node: NodeFacts) -> list[str]:
    """Return the interfaces of a node that are up and not loopback."""
    interfaces = () if isinstance(node.interfaces, Missing) else node.interfaces
    return list(dict.fromkeys(i.name for i in interfaces if i.up and not _loopback(i.address)))


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
