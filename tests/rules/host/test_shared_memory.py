"""Files of ended jobs in /dev/shm, and files that the login manager removes."""

from __future__ import annotations

import subprocess

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.host import Leftover
from distcheck.facts.storage import Space

FAMILY = "host_shared_memory"
GIB = 1 << 30


def files(*sizes):
    return tuple(Leftover(f"nccl-{n}", size, 1000 + n, 7200.0 * (n + 1)) for n, size in enumerate(sizes))


@pytest.mark.parametrize(("leftovers", "severity"), [(files(2 * GIB, GIB), "warning"), (files(GIB), "info"), ((), "")])
def test_host_shm_stale_files_by_their_share(on_hosts, change, judge, leftovers, severity):
    shm = Space(total_bytes=30 * GIB, free_bytes=20 * GIB, free_files=None, writable=True)
    job = change.node(on_hosts(states={1: {"leftovers": leftovers}}), None, shm=shm)
    found = judge(job, FAMILY).findings
    assert [(f.severity, f.nodes) for f in found] == ([(severity, ("node2",))] if severity else [])
    if severity == "warning":
        assert found[0].message == (
            "node2: 2 files of ended jobs in /dev/shm occupy 3 GiB of 30 GiB; the oldest is 4.0 h old"
        )
        assert found[0].evidence["files"] == "nccl-0 (2 GiB, uid 1000) and nccl-1 (1 GiB, uid 1001)"


def test_hidden_users_of_the_files_are_listed_as_not_checked(on_hosts, judge):
    said = judge(on_hosts(states={0: {"leftovers": Missing(reason="hidden")}}), FAMILY)
    assert (said.findings, said.verdict.exit_code) == ((), 0)
    assert [(n.rule, n.nodes, n.required) for n in said.not_checked] == [("host-shm-stale-files", ("node1",), False)]


@pytest.mark.parametrize(("launcher", "reported"), [("slurm", True), ("openmpi", True), ("by hand", False)])
def test_host_shm_removed_by_systemd_where_no_login_stays_open(on_hosts, said, launcher, reported):
    job = on_hosts(2, 2, launcher=launcher, states={1: {"removes_ipc": True}})
    found = said(job, FAMILY)
    assert found == ([("host-shm-removed-by-systemd", "info", (2, 3), ("node2",))] if reported else [])


@pytest.mark.process
def test_the_fix_writes_a_file_that_logind_reads_as_no(on_hosts, judge, tmp_path):
    (finding,) = judge(on_hosts(2, 2, launcher="slurm", states={1: {"removes_ipc": True}}), FAMILY).findings
    for command in finding.fix.commands[:2]:
        subprocess.run(command.replace("sudo ", "").replace("/etc", f"{tmp_path}/etc"), shell=True, check=True)
    assert (tmp_path / "etc/systemd/logind.conf.d/zz-jobs.conf").read_text() == "[Login]\nRemoveIPC=no\n"
