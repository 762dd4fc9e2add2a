"""A job with twenty faults of NCCL's settings, the fabric and the software at once."""

from __future__ import annotations

import msgspec
import pytest
from made import hcas

from distcheck.facts.libraries import Libraries, NcclPlugin
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import Installed
from distcheck.facts.storage import CommandFile, Storage
from distcheck.probe import infiniband
from distcheck.report import PLAIN, text
from distcheck.rules.finding import Fix

ERRORS = [
    "sw-torch-version-differs", "sw-nccl-version-differs", "nccl-net-plugin-on-some-ranks", "nccl-int-suffix",
    "nccl-comm-id-set", "nccl-env-differs", "ib-pkey", "ib-fork-or-memlock",
    "env-rank-missing",
]  # fmt: skip
"""In the order of the report; the last one is a consequence: node8 never joined."""
WARNINGS = [
    "sw-python-differs", "command-file-differs", "sw-ofed-kernel", "nccl-var-typo", "nccl-bool-text", "nccl-level-text",
    "torch-nccl-blocking-wait", "ib-port-down", "ib-no-subnet-manager", "ib-rate-degraded", "ib-hcas-differ",
    "gdr-on-some-nodes",
]  # fmt: skip
EVERYWHERE = {
    "nccl-int-suffix", "nccl-comm-id-set", "nccl-var-typo", "nccl-bool-text", "nccl-level-text",
    "torch-nccl-blocking-wait",
}  # fmt: skip
ODD = {
    "ib-hcas-differ": (0, 1),
    "ib-pkey": (2, 3),
    "sw-torch-version-differs": (2, 3),
    "ib-port-down": (4, 5),
    "command-file-differs": (4, 5),
    "nccl-env-differs": (5,),
    "sw-nccl-version-differs": (6,),
    "ib-no-subnet-manager": (6, 7),
    "ib-rate-degraded": (8, 9),
    "sw-ofed-kernel": (8, 9),
    "sw-python-differs": (8, 9),
    "ib-fork-or-memlock": (10, 11),
    "gdr-on-some-nodes": (12, 13),
    "nccl-net-plugin-on-some-ranks": (12, 13),
    "env-rank-missing": (14, 15),
}


def rails(root, **changed):
    """Read a node's four adapters from a made-up tree; `changed` are fields of one, or None to leave it out."""
    given = {f"mlx5_{n}": hcas.infiniband(f"mlx5_{n}") for n in range(4)}
    for name, fields in changed.items():
        given[name] = None if fields is None else given[name]._replace(**fields)
    read = infiniband.collect(hcas.write(root, [adapter for adapter in given.values() if adapter]), {})
    return msgspec.structs.replace(read, libibverbs="", peer_memory=("nvidia_peermem",), virtual=False)


TORCH = TorchBuild("2.8.0+cu128", "12.8", None)
NCCL = Libraries(nccl="/venv/nvidia/nccl/lib/libnccl.so.2", version="2.27.3", found_by="torch")
PLUGIN = NcclPlugin("net", "libnccl-net.so", "/opt/hpcx/lib/libnccl-net.so", ("ncclNetPlugin_v10",))


def with_script(sha256):
    return Storage(files=(CommandFile("train.py", "script", "/job/train.py", "file", size_bytes=9, sha256=sha256),))


@pytest.fixture
def healthy(job_of, change, tmp_path):
    """Return eight nodes of two ranks with GPUs and InfiniBand, on which nothing is wrong."""
    looks = ("environment", "meeting", "peers", "gpu")
    job = job_of(8, 2, "slurm", looks=looks, gpus=2, command="gate")
    job = change.node(
        job,
        None,
        infiniband=rails(tmp_path / "usual"),
        storage=with_script("1" * 64),
        torch=TORCH,
        modules={"mlx5_core": "24.10"},
    )
    return change.process(
        job,
        None,
        installed=Installed("3.11.7", "/venv", TORCH),
        libraries=NCCL,
        locked_memory_bytes=-1,
        shm_device=25,
        memory_policy_error="",
    )


@pytest.fixture
def broken(healthy, change, tmp_path):
    """Return the job with twenty faults, whose last node never joined."""
    job = change.environment(
        healthy,
        None,
        NCCL_IB_HCAS="mlx5",
        NCCL_DMABUF_ENABLE="true",
        NCCL_BUFFSIZE="4M",
        NCCL_P2P_LEVEL="nvl",
        NCCL_COMM_ID="10.0.0.1:4000",
        TORCH_NCCL_BLOCKING_WAIT="1",
    )
    job = change.environment(job, 5, NCCL_ALGO="Tree")
    fabric = {
        0: rails(tmp_path / "0", mlx5_3=None),
        1: rails(tmp_path / "1", mlx5_1={"keys": (0x8001, 0, 0)}),
        2: rails(tmp_path / "2", mlx5_1={"state": "DOWN", "physical": "Polling"}),
        3: rails(tmp_path / "3", mlx5_0={"state": "INIT"}),
        4: rails(tmp_path / "4", mlx5_2={"rate": "100 Gb/sec (4X EDR)"}),
        6: msgspec.structs.replace(rails(tmp_path / "6"), peer_memory=(), open_driver=False),
    }
    for number, adapters in fabric.items():
        job = change.node(job, number, infiniband=adapters)
    job = change.node(job, 4, modules={"mlx5_core": "23.10"})
    job = change.process(job, (10, 11), locked_memory_bytes=64 << 10)
    older = TorchBuild("2.7.1+cu128", "12.8", None)
    job = change.process(job, (2, 3), installed=Installed("3.11.7", "/venv", older))
    job = change.node(job, 2, storage=with_script("2" * 64))
    job = change.process(job, (8, 9), installed=Installed("3.12.1", "/venv", TORCH))
    preloaded = msgspec.structs.replace(NCCL, nccl="/opt/nccl/libnccl.so.2", version="2.26.2", found_by="LD_PRELOAD")
    job = change.process(job, 6, libraries=preloaded)
    job = change.process(job, (12, 13), libraries=msgspec.structs.replace(NCCL, plugins=(PLUGIN,)))
    return change.keep(job, *range(14))


def test_the_same_job_without_faults_has_no_finding(healthy, judge):
    assert judge(healthy).findings == ()


def test_twenty_faults_are_one_finding_each_and_their_consequence_comes_last(broken, judge):
    found = [(f.severity, f.rule) for f in judge(broken).findings]
    assert found == [*(("error", rule) for rule in ERRORS), *(("warning", rule) for rule in WARNINGS)]
    assert len(found) == 20 + 1


def test_each_fault_names_only_the_ranks_that_have_it(broken, judge):
    ranks = {f.rule: f.ranks for f in judge(broken).findings}
    assert {rule for rule, whose in ranks.items() if len(whose) == 14} == EVERYWHERE
    assert {rule: whose for rule, whose in ranks.items() if rule not in EVERYWHERE} == ODD


def test_the_text_report_of_twenty_faults_fits_on_two_screens(broken, judge):
    said = judge(broken)
    lines = text.render(broken, said, PLAIN).splitlines()
    assert sum(max(1, -(-len(line) // 120)) for line in lines) <= 2 * 50, "120 columns, 50 lines"
    shown = "\n".join(lines)
    assert all(f"{f.severity}: {f.rule} " in shown and f.fix.text.split()[0] in shown for f in said.findings)
    assert "`unset NCCL_COMM_ID`" in shown
    assert "shortened: -v shows" in shown


def test_a_shortened_finding_keeps_the_first_command_of_its_fix(broken, judge):
    said = judge(broken)
    shown = text.render(broken, said, PLAIN)
    assert all(f.fix.commands[0] in shown for f in said.findings if f.fix.commands)


def test_a_long_path_in_a_fix_without_a_command_is_shown_whole(broken, judge):
    said, path = judge(broken), "/opt/" + 30 * "long/"
    bare = [msgspec.structs.replace(f, fix=Fix(f"Repair {path}", ())) for f in said.findings]
    shown = text.render(broken, said._replace(findings=tuple(bare)), PLAIN)
    assert "shortened" in shown
    assert path in shown


def test_nothing_is_shortened_with_v_or_where_few_faults_are_found(broken, judge):
    said = judge(broken)
    whole = text.render(broken, said, PLAIN._replace(verbose=True))
    assert "shortened" not in whole
    assert all(command in whole for f in said.findings for command in f.fix.commands)
    assert whole.count("  why: ") == len(said.findings)
    few = said._replace(findings=said.findings[:5])
    assert text.render(broken, few, PLAIN).count("  why: ") == 5


def test_the_first_findings_keep_their_details_while_they_fit(broken, judge):
    said = judge(broken)
    shown = text.render(broken, said._replace(findings=said.findings[:9]), PLAIN)
    assert 0 < shown.count("  why: ") < 9
    assert shown.index("  why: ") < shown.index(said.findings[1].rule), "those of the first one"
    assert f"\n{9 - shown.count('  why: ')} findings shortened" in shown
