"""States of a host, its processors, memory and processes: reported at the node that is at fault, and nowhere else."""

from __future__ import annotations

import subprocess

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.host import Leftover, StuckProcess
from distcheck.facts.storage import Space

OURS = ("host.speed", "host.load", "host.memory", "host.shared_memory")
MIB, GIB = 1 << 20, 1 << 30
SLOW = {"cpufreq driver": "acpi-cpufreq", "scaling_governor": "powersave"}
SHM = Space(total_bytes=30 * GIB, free_bytes=20 * GIB, free_files=None, writable=True)
BLOCKED = (StuckProcess(77, "python3", "blocked", "rpc_wait_bit_killable"), StuckProcess(78, "ls", "blocked"))


def frequency(most, possible="3500000"):
    return {"settings": {"scaling_max_freq": most, "cpuinfo_max_freq": possible}}


def stale(*sizes):
    return {"leftovers": tuple(Leftover(f"nccl-{n}", s, 1000 + n, 7200.0 * (n + 1)) for n, s in enumerate(sizes))}


def beside(state):
    """Return two nodes, of which the second one has this state."""
    return [{"settings": {}}, state]


def each(name, *values, **more):
    """Return nodes that differ in one value."""
    return [{name: value, **more} for value in values]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (beside({"settings": SLOW}), "perf-cpu-governor warning node2"),
        (beside({"settings": {**SLOW, "cpufreq driver": "intel_pstate"}}), ""),
        (beside({"settings": {**SLOW, "scaling_governor": "schedutil"}}), ""),
        (beside({"settings": {}}), ""),
        (beside(frequency("1200000")), "perf-cpu-governor warning node2"),
        (beside(frequency("2000000")), "perf-cpu-governor info node2"),
        (beside(frequency("3500000")), ""),
        (beside({"throttled_seconds": None}), ""),
        (beside({"throttled_seconds": 49_000}), ""),
        (beside({"throttled_seconds": 60_000}), "host-cpu-throttled warning node2"),
        (beside({"stuck": BLOCKED}), "host-stuck-processes warning node2"),
        (beside(stale(2 * GIB, GIB)), "host-shm-stale-files warning node2"),
        (beside(stale(GIB)), "host-shm-stale-files info node2"),
        (beside(stale()), ""),
        # beside idle nodes only, and not after a job that has just ended
        (beside({"load": 80, "running": 80}), "host-busy warning node2"),
        (beside({"load": 50, "running": 80}), ""),
        (beside({"load": 80, "running": 3}), ""),
        (each("load", 70, 0.5, 0.5, running=80), "host-busy warning node1"),
        (each("load", 0.5, 0.0, 200.0, 1.0, running=80), "host-busy warning node3"),
        (each("load", 70, 60, 65, running=80), ""),
        (each("load", 70, 40, running=80), ""),
        (each("load", 200, running=80), ""),
        (beside({"oom_kills": 500}), "host-oom-kills info node2"),
        (each("oom_kills", 3, 500, None), "host-oom-kills info node2"),
        (each("oom_kills", 500), ""),
        (each("oom_kills", 500, 500, 500), ""),
    ],
)  # fmt: skip
def test_a_state_of_a_host_is_reported_at_its_node(on_hosts, change, judge, states, expected):
    job = change.node(on_hosts(len(states), 2, states=dict(enumerate(states))), None, shm=SHM)
    found = [" ".join((f.rule, f.severity, *f.nodes)) for f in judge(job, *OURS).findings]
    assert found == ([expected] if expected else [])


@pytest.mark.parametrize(("value", "vendor", "rules"), [
    ("1", "amd", ["host-numa-balancing"]), ("2", "amd", ["host-numa-balancing"]), ("0", "amd", []), ("1", "nvidia", []),
])  # fmt: skip
def test_numa_balancing_is_reported_beside_amd_gpus(on_hosts, change, judge, value, vendor, rules):
    states = {n: {"settings": {"numa_balancing": value}} for n in range(2)}
    job = change.node(on_hosts(2, 2, states=states), None, accelerator=vendor, shm=SHM)
    assert [f.rule for f in judge(job, "host.speed").findings] == rules


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (frequency("1200000, 2000000"), "scaling_max_freq is 2.0 GHz; the CPUs can do 3.5 GHz"),
        ({"stuck": BLOCKED}, "python3 (pid 77) and ls (pid 78) are stuck in the kernel, in rpc_wait_bit_killable"),
        ({"stuck": (StuckProcess(5, "python3", "ending"),)}, "python3 (pid 5) cannot end after a signal"),
        ({"load": 64.0}, "load 64.0 on 64 CPUs before the job, 1.00 for each; the other node has 0.01 or less"),
        (stale(2 * GIB, GIB), "2 files of ended jobs in /dev/shm occupy 3 GiB of 30 GiB; the oldest is 4.0 h old"),
        ({"oom_kills": 500}, "500 processes were OOM-killed in 11.6 days; the other node has 3 or fewer"),
    ],
)
def test_the_message_shows_what_was_found(on_hosts, change, only, state, message):
    found, _ = only(change.node(on_hosts(2, 2, states={0: state}), None, shm=SHM))
    assert found.message == f"node1: {message}"


def test_the_fixes_name_the_process_and_the_files_of_the_finding(on_hosts, only):
    found, _ = only(on_hosts(2, 2, states={0: {"stuck": BLOCKED}}))
    assert "sudo cat /proc/77/stack" in found.fix.commands
    found, _ = only(on_hosts(2, 2, states={0: stale(2 * GIB, GIB)}))
    assert found.evidence["files"] == "nccl-0 (2 GiB, uid 1000) and nccl-1 (1 GiB, uid 1001)"


# -- memory for the ranks


@pytest.mark.parametrize(
    ("available", "memory", "options", "severity"),
    [
        (900 * MIB, 64 * GIB, {}, "warning"),
        (60 * MIB, 64 * GIB, {}, "error"),
        (5 * GIB, 64 * GIB, {}, "warning"),
        (5 * GIB, 6 * GIB, {}, ""),
        (3 * GIB, 4 * GIB, {}, ""),
        (3 * GIB, 4 * GIB, {"gpus": 4}, "warning"),
        (3 * GIB, 4 * GIB, {"gpus": 4, "backend": "gloo"}, ""),
    ],
)
def test_host_memory_low_on_one_node_by_what_its_ranks_need_or_the_others_have(
    on_hosts, said, available, memory, options, severity
):
    job = on_hosts(states={1: {"available_bytes": available, "memory_bytes": memory}}, **options)
    assert said(job, "host.memory") == ([("host-memory-low", severity, (4, 5, 6, 7), ("node2",))] if severity else [])


def test_memory_reserved_for_huge_pages_is_evidence(on_hosts, only):
    found, _ = only(on_hosts(2, states={0: {"available_bytes": 2 * GIB, "huge_page_bytes": 56 * GIB}}))
    assert found.evidence["unused huge pages"] == "56 GiB"
    found, _ = only(on_hosts(states={0: {"available_bytes": 5 * GIB}}))
    assert "half of the nodes have 60 GiB or more" in found.message


# -- what is not known, and what may be removed


@pytest.mark.parametrize(
    ("state", "rules"),
    [
        (
            Missing(reason="hidden"),
            {"perf-cpu-governor", "host-numa-balancing", "host-cpu-throttled", "host-busy",
             "host-stuck-processes", "host-memory-low", "host-oom-kills", "host-shm-stale-files",
             "host-shm-removed-by-systemd"},
        ),
        ({"leftovers": Missing(reason="hidden")}, {"host-shm-stale-files"}),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_listed_and_fails_no_run(on_hosts, judge, state, rules):
    said = judge(on_hosts(states={1: state}), *OURS)
    assert (said.findings, said.verdict.exit_code) == ((), 0)
    assert {(n.rule, n.nodes, n.required) for n in said.not_checked} == {(name, ("node2",), False) for name in rules}


@pytest.mark.parametrize(("launcher", "reported"), [("slurm", True), ("openmpi", True), ("by hand", False)])
def test_host_shm_removed_by_systemd_where_no_login_stays_open(on_hosts, said, launcher, reported):
    found = said(on_hosts(2, 2, launcher=launcher, states={1: {"removes_ipc": True}}), *OURS)
    assert found == ([("host-shm-removed-by-systemd", "info", (2, 3), ("node2",))] if reported else [])


@pytest.mark.process
def test_the_fix_writes_a_file_that_logind_reads_as_no(on_hosts, only, tmp_path):
    finding, _ = only(on_hosts(2, 2, launcher="slurm", states={1: {"removes_ipc": True}}))
    for command in finding.fix.commands[:2]:
        subprocess.run(command.replace("sudo ", "").replace("/etc", f"{tmp_path}/etc"), shell=True, check=True)
    assert (tmp_path / "etc/systemd/logind.conf.d/zz-jobs.conf").read_text() == "[Login]\nRemoveIPC=no\n"
