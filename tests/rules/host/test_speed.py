"""Settings and states of processors that make a node slower than it should be."""

from __future__ import annotations

import pytest

FAMILY = "host_speed"
SLOW = {"cpufreq driver": "acpi-cpufreq", "scaling_governor": "powersave"}
FAST = {"cpufreq driver": "acpi-cpufreq", "scaling_governor": "performance"}


@pytest.mark.parametrize(
    ("settings", "severity"),
    [
        (SLOW, "warning"),
        ({**SLOW, "cpufreq driver": "intel_pstate"}, ""),
        ({**FAST, "scaling_governor": "schedutil"}, ""),
        ({"scaling_max_freq": "1200000", "cpuinfo_max_freq": "3500000"}, "warning"),
        ({"scaling_max_freq": "2000000", "cpuinfo_max_freq": "3500000"}, "info"),
        ({"scaling_max_freq": "3500000", "cpuinfo_max_freq": "3500000"}, ""),
        ({}, ""),
    ],
)
def test_perf_cpu_governor(on_hosts, said, settings, severity):
    found = said(on_hosts(2, states={1: {"settings": settings}, 0: {"settings": {}}}), FAMILY)
    assert found == ([("perf-cpu-governor", severity, (), ("node2",))] if severity else [])


def test_two_frequencies_are_shown_in_the_message(on_hosts, judge):
    settings = {"scaling_max_freq": "1200000, 2000000", "cpuinfo_max_freq": "3500000"}
    (found,) = judge(on_hosts(1, states={0: {"settings": settings}}), FAMILY).findings
    assert found.message == "node1: scaling_max_freq is 2.0 GHz; the CPUs can do 3.5 GHz"


@pytest.mark.parametrize(("seconds", "reported"), [(None, False), (49_000, False), (60_000, True)])
def test_host_cpu_throttled_by_its_share_of_the_uptime(on_hosts, said, seconds, reported):
    found = said(on_hosts(states={0: {"throttled_seconds": seconds}}), FAMILY)
    assert found == ([("host-cpu-throttled", "warning", (), ("node1",))] if reported else [])


@pytest.mark.parametrize(("defrag", "reported"), [("always", True), ("madvise", False)])
def test_host_hugepages_thp_where_both_are_always(on_hosts, said, defrag, reported):
    settings = {"transparent_hugepage": "always", "transparent_hugepage/defrag": defrag}
    states = {n: {"settings": settings} for n in (0, 1)}
    found = said(on_hosts(2, states=states), FAMILY)
    assert found == ([("host-hugepages-thp", "info", (), ("node1", "node2"))] if reported else [])


@pytest.mark.parametrize(("gib", "cpus", "severity"), [(56, 60, "warning"), (32, 32, "info")])
def test_host_differs_in_cpus_and_memory(on_hosts, change, said, gib, cpus, severity):
    job = on_hosts(4, states={1: {"memory_bytes": gib << 30}})
    found = said(change.node(job, 2, cpus=cpus), FAMILY)
    assert found == [("host-differs", severity, (), (name,)) for name in ("node2", "node3")]


@pytest.mark.parametrize(
    ("name", "usual", "odd", "severity"),
    [
        ("scaling_governor", "performance", "schedutil", "warning"),
        ("numa_balancing", "0", "1", "info"),
        ("ptrace_scope", "0", "1", ""),
    ],
)
def test_host_differs_in_a_setting(on_hosts, said, name, usual, odd, severity):
    states = {n: {"settings": {name: odd if n == 1 else usual}} for n in range(3)}
    assert said(on_hosts(states=states), FAMILY) == ([("host-differs", severity, (), ("node2",))] if severity else [])


@pytest.mark.parametrize("states", [{1: {"cpu_model": "other", "memory_bytes": 1 << 30}}, {}])
def test_nodes_of_another_kind_and_alike_nodes_are_silent(on_hosts, said, states):
    assert said(on_hosts(states=states), FAMILY) == []


def test_of_two_different_nodes_none_is_the_odd_one(on_hosts, said):
    assert said(on_hosts(2, states={1: {"memory_bytes": 32 << 30, "available_bytes": 30 << 30}}), FAMILY) == []
