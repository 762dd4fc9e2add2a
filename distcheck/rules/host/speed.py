"""Rules about settings and states of the processors that make a node slower than it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules import rule
from distcheck.rules.finding import Fault
from distcheck.rules.host.shown import HostSeen, each_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distcheck.facts.job import Job

_OWN_CHOICE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers whose governor powersave lets the processor choose its frequency: docs.kernel.org/admin-guide/pm."""
_THROTTLED_SHARE = 0.05
_FULL_FREQUENCY, _LOW_FREQUENCY = 0.95, 0.5
"""Shares of the highest frequency from which a limit is none, and below which it slows every job."""


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
    if not 0 < limit < _FULL_FREQUENCY * possible:
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
