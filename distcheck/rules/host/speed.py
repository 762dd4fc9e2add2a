"""Rules about settings and states of the processors that make a node slower than it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.quantities import count, size
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.host.shown import HostSeen, each_host, hosts, unread
from distcheck.rules.wording import grouped, listed, majority

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distcheck.facts.job import Job
    from distcheck.facts.node import NodeFacts
    from distcheck.rules.finding import Severity

_OWN_CHOICE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers whose governor powersave lets the processor choose its frequency: docs.kernel.org/admin-guide/pm."""
_THROTTLED_SHARE = 0.05
_FEWER, _OTHER_KIND = 0.95, 0.6
"""A failed part leaves a node less than the first share of what the others have, and more than the second."""
_LOW_FREQUENCY = 0.5
_SPEED = ("scaling_governor", "scaling_max_freq", "intel_pstate/no_turbo", "cpufreq/boost")
"""Settings whose difference slows a node; that of others costs less."""
_IDENTITY = ("ptrace_scope", "cpuinfo_max_freq")
"""What says nothing about speed, or is no setting."""


@rule("node", also=("collectives", "isolation"), severity="warning", scope="node", owner="admin", of=each_host)
def perf_cpu_governor(_: Job, host: HostSeen) -> Fault | None:
    """The CPUs of a node are held at a low frequency.

    Kernel launches, data loading and the proxies of NCCL's network then take several times as long on that node, and
    every collective waits for it.

    Found by the governor powersave, which holds the lowest frequency, and by scaling_max_freq below half of
    cpuinfo_max_freq; above half it is an info finding, because some sites do without turbo frequencies. With the
    drivers intel_pstate and amd-pstate-epp the governor powersave is the default and is not reported.

    Fix: Let the CPUs run at full frequency.

        sudo cpupower frequency-set --governor performance
        sudo cpupower frequency-set --max 9GHz

    See: https://docs.kernel.org/admin-guide/pm/cpufreq.html
    """
    settings, evidence = host.facts.settings, {"cpus": host.node.cpus or 0}
    own_choice = settings.get("cpufreq driver", "") in _OWN_CHOICE
    if "powersave" in settings.get("scaling_governor", "") and not own_choice:
        return Fault("the CPU governor is powersave, which holds the lowest frequency", evidence=evidence)
    limit, possible = _highest(settings, "scaling_max_freq"), _highest(settings, "cpuinfo_max_freq")
    if not 0 < limit < _FEWER * possible:
        return None
    return Fault(
        f"scaling_max_freq is {limit / 1e6:.1f} GHz; the CPUs can do {possible / 1e6:.1f} GHz",
        evidence=evidence,
        severity="warning" if limit < _LOW_FREQUENCY * possible else "info",
    )


@rule("node", also=("collectives", "isolation"), severity="warning", scope="node", owner="admin", of=each_host)
def host_numa_balancing(_: Job, host: HostSeen) -> str | None:
    """The kernel moves memory between NUMA nodes by itself on a node with AMD GPUs.

    Each move stops work on the pages. Collectives then vary from one to the next, and RCCL warns at its start: ``NUMA
    auto balancing enabled which can lead to variability in the RCCL performance!``

    Found by kernel.numa_balancing.

    Fix: Turn it off, also at the next boot.

        sudo sysctl kernel.numa_balancing=0
        echo kernel.numa_balancing=0 | sudo tee /etc/sysctl.d/90-numa.conf

    See: https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/system-optimization/mi300x.html
    """
    on = host.node.accelerator == "amd" and host.facts.settings.get("numa_balancing", "0") not in {"", "0"}
    return f"kernel.numa_balancing is {host.facts.settings['numa_balancing']}; 0 expected with AMD GPUs" if on else None


def _highest(settings: Mapping[str, str], name: str) -> int:
    """Return the highest value of a setting of each CPU, 0 without one."""
    return max((int(value) for value in settings.get(name, "").split(", ") if value.isdecimal()), default=0)


@rule("node", also=("collectives", "isolation"), severity="warning", scope="node", owner="admin", of=each_host)
def host_cpu_throttled(_: Job, host: HostSeen) -> Fault | None:
    """The processors of a node were slowed down by heat or power for a good part of its uptime.

    A failed fan, a wrong position in the rack, or a power limit. The node is a straggler under load even if it looks
    healthy now. Found by the time that its hottest CPU was throttled since the boot
    (thermal_throttle/*_throttle_total_time_ms): a twentieth of it or more.

    Fix: Check the fans, the inlet temperature and the power limit; drain the node until then.

        sudo ipmitool sdr type fan
        sudo ipmitool sdr type temperature
        sudo turbostat -n 1

    See: https://docs.kernel.org/admin-guide/abi-testing.html
    """
    throttled, uptime = host.facts.throttled_seconds or 0.0, host.facts.uptime_seconds
    share = throttled / uptime if uptime else 0.0
    if share < _THROTTLED_SHARE:
        return None
    return Fault(
        f"a CPU was throttled for {share:.0%} of {uptime / 86400:.1f} days of uptime; expected less than "
        f"{_THROTTLED_SHARE:.0%}",
        evidence={"throttled_seconds": throttled, "uptime_seconds": uptime},
    )


@rule("node", also=("collectives", "isolation"), severity="warning", scope="node", owner="admin")
def host_differs(job: Job) -> Iterator[Outcome]:
    """A node has fewer CPUs or less memory than the others of its kind, or other settings of the kernel.

    A memory module or a processor has failed, or the node was set up differently. Its ranks are slower than the
    others, and every collective waits for them.

    Found by comparing nodes with the same CPU model: the number of CPUs, the memory, the frequency settings, huge
    pages, NUMA balancing and hyper-threading. Reported where more than half of at least 3 such nodes agree. A missing
    part of the CPUs or the memory (up to 40 %) and other frequency settings are a warning, another difference is an
    info finding.

    Fix: compare the node's hardware and boot settings with those of another node.
    """
    for alike in grouped(hosts(job), lambda host: host.facts.cpu_model).values():
        if len(alike) >= 3:
            yield from _fewer(alike)
            yield from _other_settings(alike)
    yield from unread(job)


def _fewer(alike: Sequence[HostSeen]) -> Iterator[Fault]:
    cpus = majority(grouped(alike, lambda host: host.node.cpus))
    memory = majority(grouped(alike, lambda host: round(host.facts.memory_bytes / (1 << 30))))
    for node, host in alike:
        if cpus is not None and 0 < (node.cpus or 0) < cpus:
            look = ("lscpu", "cat /sys/devices/system/cpu/offline", "sudo dmesg -T | grep -iE 'mce|hardware error'")
            fix = Fix("Find out which CPUs are offline, and why.", look)
            what = f"{count(node.cpus or 0, 'CPU')}; most nodes of this kind have {cpus}"
            yield _about([node], what, fix, {"cpus": node.cpus or 0}, _weight((node.cpus or 0) / cpus))
        share = host.memory_bytes / (memory << 30) if memory else 1.0
        if share < _FEWER:
            commands = ("sudo dmidecode -t memory", "sudo ipmitool sel list")
            fix = Fix("Find out which memory module is missing.", commands)
            what = f"{size(host.memory_bytes, 3)} memory; most nodes of this kind have {memory} GiB"
            yield _about([node], what, fix, {"memory_bytes": host.memory_bytes}, _weight(share))


def _weight(share: float) -> Severity:
    """Return the severity of a node that has this share of what the others have: with much less it is another kind."""
    return "warning" if share > _OTHER_KIND else "info"


def _other_settings(alike: Sequence[HostSeen]) -> Iterator[Fault]:
    if all(host.facts.settings == alike[0].facts.settings for host in alike):
        return
    for name in sorted({name for host in alike for name in host.facts.settings} - {*_IDENTITY}):
        values = grouped(alike, lambda host, name=name: host.facts.settings.get(name, ""))  # type: ignore[misc]
        most = majority(values)
        for value, others in values.items() if most is not None else ():
            if value != most:
                yield _about(
                    [host.node for host in others],
                    f"{name} is {value or 'not set'}; most nodes of this kind have {most or 'none'}",
                    Fix("Set it as on the other nodes.", ("sudo cpupower frequency-info", "cat /proc/cmdline")),
                    {name: value, "others": most},
                    "warning" if name in _SPEED else "info",
                )


def _about(
    nodes: Sequence[NodeFacts], what: str, fix: Fix, evidence: dict[str, str | int | None], severity: Severity
) -> Fault:
    names = tuple(node.name for node in nodes)
    return Fault(f"{listed(names)}: {what}", fix, evidence, severity, nodes=names)
