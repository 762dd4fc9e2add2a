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
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix, Severity
from distcheck.rules.gpu.nodes import gpu_nodes, not_seen
from distcheck.rules.host.folders import SHARED, lacks_temporary_space, shared_memory, temporary, unusable
from distcheck.rules.host.shown import each_node
from distcheck.rules.wording import brief, free_space, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIB = 1 << 20
_SHM_BYTES = 64 * _MIB
"""Default of Docker and Kubernetes; NCCL needs about 10 MiB of it per pair of ranks."""
_NOTHING_BYTES = _MIB
_OPEN_FILES = 4096


@rule("node", scope="node", owner="admin")
def gpu_fewer_than_needed(job: Job) -> Iterator[Outcome]:
    """The node has fewer GPUs than required.

    After a reboot the driver no longer counts a GPU that has disappeared from the bus, so no other check finds it. The
    scheduler still assigns it, and the job's last rank there fails with ``CUDA error: invalid device ordinal``.

    Found by comparing the number of GPUs that NVML or amdgpu lists with ``distcheck node --gpus N``. Without that
    option, found where a node has a vendor's hardware or driver and no GPU is listed. gpu-fell-off-bus reports GPUs
    that are listed but cannot be reached, gpu-nvml-init-failed and gpu-amdgpu-failed a driver that is not installed or
    cannot be loaded.

    Fix: search the kernel log for the GPU; power-cycle the node, or reboot it if its PCI bus still shows the GPU;
    replace the GPU.
    """
    asked = job.asked.gpus
    concerned = {node.key for node in gpu_nodes(job)}
    for node in job.nodes:
        needed = asked if asked is not None else int(node.key in concerned)
        if not isinstance(node.gpus, Gpus) or len(node.gpus.devices) >= needed:
            continue
        driver, vendor = ("amdgpu", "AMD") if node.accelerator == "amd" else ("NVML", "NVIDIA")
        there = len(node.gpus.devices)
        driven = {gpu.pci for gpu in node.gpus.devices if isinstance(gpu.pci, str)}
        undriven = sorted(node.pci.gpus.keys() - driven) if isinstance(node.pci, Pci) and len(driven) == there else []
        why = f"it has {vendor} hardware or a driver" if asked is None else f"expected {needed} ({job.asked.gpus_from})"
        text, last = "Search the PCI bus and the kernel log for the GPU, then power-cycle the node.", "sudo poweroff"
        if undriven:
            why += f"; its PCI bus shows {listed(undriven, most=3)} too"
            text = "Search the kernel log for why the driver does not start the GPU, then reboot the node."
            last = "sudo reboot"
        yield Fault(
            f"{node.name}: {driver} lists {count(there, 'GPU')}; {why}",
            Fix(text, ("lspci -d 10de:", "sudo dmesg | grep -iE 'nvrm|xid|pcie'", last)),
            {"gpus": there, "expected": asked, "accelerator": node.accelerator},
            confirmed=asked is not None,
            nodes=(node.name,),
        )
    yield from not_seen(job)


@rule("node", "host-shm-noexec-or-perm", scope="node", owner="admin", of=each_node)
def host_shm_not_writable(_: Job, node: NodeFacts) -> Answer:
    """The directory /dev/shm does not exist or is not writable.

    NCCL reports ``failed to create shared memory file /dev/shm/nccl-...`` and torch's data loaders ``unable to open
    shared memory object``. Found by reading the directory's mount and permissions as the user who runs distcheck.

    Fix: Mount it, writable for all users; in Kubernetes as an ``emptyDir`` with ``medium: Memory``.

        sudo mount -o remount,rw,mode=1777 /dev/shm || sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    """
    if not isinstance(node.state, NodeState):
        return node.state
    reason = unusable(SHARED, shared_memory(node))
    return Fault(f"{reason}; NCCL and torch need it for shared memory", confirmed=False) if reason else None


@rule("node", also=("collectives",), scope="node", owner="admin", of=each_node)
def host_shm_too_small(job: Job, node: NodeFacts) -> Answer:
    """The directory /dev/shm has too little free space for NCCL and data loaders.

    The job fails with ``NCCL WARN Error: failed to extend /dev/shm/nccl-XXXXXX ... No space left on device`` or
    ``DataLoader worker (pid 77) is killed by signal: Bus error``. The default in Docker and Kubernetes is 64 MB. On
    hosts, files of ended jobs fill it.

    Found by its free space: a warning at 64 MiB or less, an error at less than 1 MiB. The warning is an info finding
    where the job uses Gloo, which does not need it.

    Fix: ``docker run --shm-size=8g``; in Kubernetes an ``emptyDir`` with ``medium: Memory`` on /dev/shm; on a host
    remove the files of ended jobs.
    """
    space = shared_memory(node)
    if isinstance(node.state, Missing):
        return node.state
    # host-shm-not-writable covers `distcheck node`; ranks on CPUs, and many on GPUs, work without /dev/shm.
    if not isinstance(space, Space) or not space.writable:
        return None if node.state or space is None else Missing(reason=unusable(SHARED, space))
    given = job.asked.site(node.name).threshold.shm_free_MiB
    least = _SHM_BYTES if given is None else given * _MIB
    if space.free_bytes > least:
        return None
    if space.total_bytes > least:
        stale = "ls -la --time-style=long-iso /dev/shm | grep -E 'nccl-|torch_|psm_'"
        fix = Fix("Remove the files of ended jobs.", (stale,))
    else:
        commands = ("# add to docker run: --shm-size=8g", "sudo mount -o remount,size=50% /dev/shm")
        fix = Fix("Increase its size.", commands)
    backend = job.asked.backend
    nccl = backend == "nccl" or (backend == "auto" and node.accelerator != "none")
    return _full(SHARED, space, "warning" if nccl else "info", fix)


@rule("node", also=("collectives", "isolation"), scope="node", owner="admin", of=each_node)
def host_disk_full(job: Job, node: NodeFacts) -> Answer:
    """The directory for temporary files is full, read-only or does not exist.

    torchrun, compilers and data loaders write there and fail with ``No space left on device`` or
    ``Read-only file system``. The latter is often the first sign of a failing disk: search the kernel log for errors.

    Found in TMPDIR, else /tmp, by the free space (a warning below 100 MiB, an error below 1 MiB or without a free
    inode) and by write permission. Checked by `distcheck node`, and on every node of `bandwidth`, `gate` and `isolate`
    before they measure.

    Fix: Remove files that are no longer needed, or set TMPDIR to another folder.

        df -h {folder|/tmp}; df -i {folder|/tmp}
        sudo du -xsh {folder|/tmp}/* | sort -h | tail
    """
    space, folder = temporary(node)
    if isinstance(node.state, Missing):
        return node.state
    if space is None:
        return None
    if reason := unusable(folder, space):
        return Fault(
            f"{reason}; torchrun and data loaders write there",
            Fix(
                "Check the kernel log for disk errors, then remount it writable.",
                ("sudo dmesg | grep -iE 'i/o error|read-only|ext4|xfs'", f"findmnt --target {quote(folder)}"),
            ),
            confirmed=False,
        )
    full = not isinstance(space, Missing) and lacks_temporary_space(job, node, space)
    return _full(folder, space) if full and isinstance(space, Space) else None


@rule("node", severity="warning", scope="node", owner="admin", of=each_node)
def host_own_name_unresolvable(_: Job, node: NodeFacts) -> Answer:
    r"""The node's own host name does not resolve, or not to an address of the node.

    Gloo takes its address from that name: ``Unable to resolve hostname to a (local) address. Using the loopback
    address as fallback``, and the nodes then cannot reach each other. torchrun does not recognise that it runs on the
    rendezvous host. It is harmless with GLOO_SOCKET_IFNAME and with NCCL alone.

    Found by resolving the name, for at most 3 s, and comparing the result with the addresses of the interfaces. A name
    that resolves to a loopback address is Debian's default and only an info.

    Fix: Add the name with the node's own address to /etc/hosts or DNS, or name the interface for Gloo.

        getent ahosts {hostname|$(hostname)}
        export GLOO_SOCKET_IFNAME={interface|$(ip -o route get 1.1.1.1 | sed 's/.* dev \([^ ]*\).*/\1/')}
    """
    if not isinstance(node.state, NodeState):
        return node.state
    name = node.state.own_name
    interfaces = () if isinstance(node.interfaces, Missing) else node.interfaces
    own = {i.address for i in interfaces}
    outward = [i.name for i in interfaces if i.up and not _loopback(i.address)]
    severity: Severity | None = None
    if isinstance(name, Missing):
        message = f"its own host name does not resolve: {brief(name.reason, 120)}"
    elif all(map(_loopback, name.addresses)):
        message, severity = f"its own host name {name.name} resolves to loopback ({listed(name.addresses)})", "info"
    elif own and not any(address in own or _loopback(address) for address in name.addresses):
        message = f"its own host name {name.name} resolves to {listed(name.addresses)}, not an address of this node"
    else:
        return None
    return Fault(
        message,
        evidence={"host name": node.hostname, "own addresses": ", ".join(i.address for i in interfaces)},
        severity=severity,
        values={"hostname": (quote(node.hostname),), "interface": tuple(map(quote, outward[:1]))},
    )


@rule("node", severity="warning", scope="node", owner="admin", of=each_node)
def host_nofile(_: Job, node: NodeFacts) -> Answer:
    """The limit of open files per process is too low for the sockets of a large job.

    The job fails with ``Too many open files`` or ``Call to accept failed``. Found in the hard limit of distcheck's
    process; under Slurm this is slurmd's limit, which bounds every job. A warning below 4096.

    Fix: Raise the hard limit of the service that starts the jobs, or that of the container
    (``docker run --ulimit nofile=131072``).

        sudo systemctl edit slurmd  # [Service] LimitNOFILE=131072
        ulimit -Hn
    """
    if not isinstance(node.state, NodeState):
        return node.state
    hard = node.state.open_files[1]
    if not 0 <= hard < _OPEN_FILES:
        return None
    message = f"the hard limit of open files is {hard}; expected {_OPEN_FILES} or more"
    return Fault(message, evidence={"RLIMIT_NOFILE": hard})


def _full(folder: str, space: Space, low: Severity = "warning", fix: Fix | None = None) -> Fault:
    """Return an error about a full folder, a finding of severity `low` about one that is nearly full."""
    return Fault(
        f"{folder} has {free_space(space)}{'; no free inode' if space.free_files == 0 else ''}",
        fix,
        {"free_bytes": space.free_bytes, "total_bytes": space.total_bytes, "free_files": space.free_files},
        "error" if space.free_bytes < _NOTHING_BYTES or space.free_files == 0 else low,
        confirmed=False,
        values={"folder": (quote(folder),)},
    )


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
