"""Rules about what the site's policy expects of a node: GPUs, adapters, driver, kernel."""

from __future__ import annotations

from distcheck.facts.base import Missing
from distcheck.facts.infiniband import Hca, Infiniband
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts
from distcheck.facts.policy import matching
from distcheck.facts.quantities import count, tally
from distcheck.rules import Answer, rule
from distcheck.rules.finding import Fault
from distcheck.rules.host.shown import each_node
from distcheck.rules.wording import listed

_NO_GPU = Missing(reason="no NVIDIA GPU was found; the site's policy expects some")


@rule("node", scope="node", also=("gpu",), owner="admin", of=each_node)
def gpu_model_not_expected(job: Job, node: NodeFacts) -> Answer:
    """The node has GPUs of another model than the site's policy expects.

    A replaced card or a node in the wrong partition gives jobs other memory and other speed than they asked for.

    Found by comparing NVML's names of all GPUs with ``expect.gpu-model`` of the policy.

    Fix: Replace the GPU, move the node to the partition of its kind, or correct the policy.

        nvidia-smi -L
        distcheck policy
    """
    pattern, gpus = job.asked.site(node.name).expect.gpu_model, node.gpus or _NO_GPU
    if not pattern or isinstance(gpus, Missing):
        return gpus if pattern and isinstance(gpus, Missing) else None
    names = [gpu.name for gpu in gpus.devices]
    if others := [name for name in names if isinstance(name, str) and not matching(name, pattern)]:
        return f"{tally(others)}; the site's policy expects {pattern}"
    return next((name for name in names if isinstance(name, Missing)), None)


@rule("node", scope="node", also=("gpu",), owner="admin", of=each_node)
def gpu_driver_not_expected(job: Job, node: NodeFacts) -> Answer:
    """NVIDIA's driver has another version than the site's policy expects.

    A node that missed an update, or got one too early, runs jobs with other NCCL paths and other bugs than the rest.

    Found by comparing NVML's driver version with ``expect.driver`` of the policy.

    Fix: Install the expected driver and reboot, or correct the policy.

        cat /proc/driver/nvidia/version
        distcheck policy
    """
    patterns, gpus = job.asked.site(node.name).expect.driver, node.gpus or _NO_GPU
    if not patterns:
        return None
    found = gpus if isinstance(gpus, Missing) else gpus.driver
    if isinstance(found, Missing) or matching(found, patterns):
        return found if isinstance(found, Missing) else None
    return f"driver {found}; the site's policy expects {_listed(patterns)}"


@rule("node", scope="node", also=("gpu",), owner="admin", of=each_node)
def host_kernel_not_expected(job: Job, node: NodeFacts) -> Answer:
    """The node runs another kernel than the site's policy expects.

    It has not been rebooted since an update, or booted an old image: drivers and modules may not fit its kernel.

    Found by comparing the kernel's release with ``expect.kernel`` of the policy.

    Fix: Reboot the node into the expected kernel, or correct the policy.

        uname -r
        distcheck policy
    """
    patterns = job.asked.site(node.name).expect.kernel
    if not patterns or matching(node.kernel, patterns):
        return None
    return f"kernel {node.kernel}; the site's policy expects {_listed(patterns)}"


@rule("node", scope="node", owner="admin", of=each_node)
def ib_fewer_adapters_than_expected(job: Job, node: NodeFacts) -> Answer:
    """The node has fewer RDMA adapters than the site's policy expects.

    An adapter that fell off the bus is gone without an error: NCCL uses the others, and every job there is slower.

    Found by comparing the adapters in /sys/class/infiniband with ``expect.adapters`` of the policy.

    Fix: Search the kernel log and the PCI bus for the adapter, then power-cycle the node; or correct the policy.

        ls /sys/class/infiniband; lspci | grep -i -E 'infiniband|ethernet'
        sudo dmesg | grep -i -E 'mlx5|bnxt|irdma|efa'
    """
    expected = job.asked.site(node.name).expect.adapters
    if not expected or not isinstance(node.infiniband, Infiniband):
        return node.infiniband if expected and isinstance(node.infiniband, Missing) else None
    if node.infiniband.unread:
        return Missing(reason=node.infiniband.unread)
    names = [hca.name for hca in node.infiniband.hcas]
    if len(names) >= expected:
        return None
    which = f" ({listed(names)})" if names else ""
    return f"{count(len(names), 'RDMA adapter')}{which}; the site's policy expects {expected}"


@rule("node", scope="node", owner="admin", of=each_node)
def ib_fewer_active_adapters_than_expected(job: Job, node: NodeFacts) -> Answer:
    """Fewer RDMA adapters have an active port than the site's policy expects.

    NCCL leaves out ports that are not active, without a warning: every job there is slower, or uses TCP sockets where
    no port is active, and does not start if the other nodes use InfiniBand.

    Found by the ports' states in /sys/class/infiniband: as many adapters as ``expect.adapters`` of the policy says must
    have a port in state ACTIVE. It is confirmed where ports are physically down: no cable, a switch port that is off,
    an interface that is not up. A port with a link that nobody has activated is not: it may be the subnet manager.

    Fix: Check cable, switch port and interface of each adapter, or correct the policy.

        grep . /sys/class/infiniband/*/ports/*/phys_state
        ibstat
        distcheck policy
    """
    expected = job.asked.site(node.name).expect.adapters
    if not expected or not isinstance(node.infiniband, Infiniband) or node.infiniband.unread:
        return None
    idle = [hca for hca in node.infiniband.hcas if all(port.state != "ACTIVE" for port in hca.ports)]
    there, shown = len(node.infiniband.hcas), [f"{hca.name} {_states(hca)}".rstrip() for hca in idle]
    if there - len(idle) >= min(expected, there):
        return None
    if unknown := [hca.name for hca in idle if all(not port.state for port in hca.ports)]:
        return Missing(reason=f"the state of {listed(unknown)} is not readable")
    down = [hca for hca in idle if all(port.physical_state not in {"", "LinkUp"} for port in hca.ports)]
    return Fault(
        f"{len(idle)} of {count(there, 'RDMA adapter')} without an active port ({listed(shown)}); the site's policy "
        f"expects {expected}",
        confirmed=there - len(down) < min(expected, there),
    )


def _states(hca: Hca) -> str:
    return ", ".join(f"{port.state}/{port.physical_state}" for port in hca.ports)


def _listed(patterns: str | tuple[str, ...]) -> str:
    return patterns if isinstance(patterns, str) else " or ".join(patterns)
