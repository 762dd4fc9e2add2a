"""The rules about settings of NCCL and torch, on values: the rank they name, and where they are silent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made.jobs import LAUNCHERS, replace

from distcheck.facts.base import Missing
from distcheck.facts.gpu import PeerAccess
from distcheck.facts.job import Collectives
from distcheck.facts.nccl import NamedPath, NcclFile, NcclLog
from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.facts.rank import Installed, RankRun
from distcheck.rules.nccl.grammar import problem_of, without_algorithm
from distcheck.rules.nccl.tables import current, known, suggestion, tables

OURS = ("nccl.names", "nccl.values", "nccl.files", "nccl.differences", "nccl.leftovers", "nccl.networks",
        "nccl.torch_settings")  # fmt: skip
ALL = (0, 1, 2, 3)


@pytest.fixture
def says(judge):
    """Return (rule, severity, ranks) of each finding."""
    return lambda job: [(f.rule, f.severity, f.ranks) for f in judge(job, *OURS).findings]


@pytest.fixture
def finding_of(judge):
    """Return the one finding of a rule."""

    def one(job, rule):
        (finding,) = (f for f in judge(job, *OURS).findings if f.rule == rule)
        return finding

    return one


@pytest.fixture
def job(job_of):
    """Return a job of two nodes with two ranks each."""
    return job_of(2, 2)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_healthy_jobs_are_silent(job_of, change, silent, launcher):
    usual = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    assert silent(job_of(2, 2, launcher))
    assert silent(change.environment(job_of(2, 2, launcher), None, **usual))


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_another_backend_reads_none_of_them(job_of, change, silent, backend):
    wrong = {"NCCL_IB_DISABLE": "true", "NCCL_ALGO": "Foo", "NCCL_COMM_ID": "x:1", "TORCH_NCCL_BLOCKING_WAIT": "7"}
    assert silent(change.environment(job_of(1, 2, backend=backend), 1, **wrong))


def test_a_run_that_used_gloo_by_itself_reports_them_as_info(job, change, says):
    job = change.environment(job, None, NCCL_ALGO="Foo", NCCL_IB_DISABLE="true")
    ran = replace(job, collectives=Collectives(backend="gloo"))
    assert {severity for _, severity, _ in says(job)} == {"error", "warning"}
    assert {severity for _, severity, _ in says(ran)} == {"info"}


# -- names


MEANT = {
    "NCCL_IB_HCAS": "NCCL_IB_HCA", "NCCL_SOCKET_IFACE": "NCCL_SOCKET_IFNAME", "NCCL_IFNAME": "NCCL_SOCKET_IFNAME",
    "NCCL_DEBUG_LEVEL": "NCCL_DEBUG", "NCCL_P2P_DISABLED": "NCCL_P2P_DISABLE", "nccl_debug": "NCCL_DEBUG",
    "NCCL_GDR_LEVEL": "NCCL_NET_GDR_LEVEL", "NCLL_DEBUG": "NCCL_DEBUG",
    "TORCH_NCCL_BLOCKING_WAITS": "TORCH_NCCL_BLOCKING_WAIT", "RCCL_MSCCL_ENABLED": "RCCL_MSCCL_ENABLE",
}  # fmt: skip


@pytest.mark.parametrize(("name", "meant"), MEANT.items())
def test_nccl_var_typo_names_the_variable_that_is_meant(job, change, only, name, meant):
    finding, _ = only(change.environment(job, None, **{name: "1"}))
    assert (finding.rule, finding.severity, finding.ranks) == ("nccl-var-typo", "warning", ALL)
    assert f"did you mean {meant}?" in finding.message
    assert finding.fix.commands == (f"unset {name}; export {meant}=1",)


def test_a_name_like_no_other_is_an_info_and_names_of_other_software_are_silent(job, change, says, silent):
    assert says(change.environment(job, 1, NCCL_OUR_SITES_PLUGIN_X="1")) == [("nccl-var-typo", "info", (1,))]
    others = ("NCCL_VERSION", "NCCL_HOME", "NCCL_FASTRAK_IFNAME", "NCCL_TESTS_DEVICE", "RCCL_X", "OFI_NCCL_PROTOCOL")
    assert silent(change.environment(job, None, **dict.fromkeys(others, "1"), TORCH_NCCL_NEW_THING="1"))


@pytest.mark.process
def test_the_table_is_what_the_lists_in_the_docs_say():
    script = Path(__file__).parents[3] / "docs" / "build_variables.py"
    run = subprocess.run([sys.executable, script, "--check"], check=False)
    assert run.returncode == 0, "run python docs/build_variables.py"


def test_every_name_in_the_tables_is_known():
    t = tables()
    assert len([name for name in t.nccl if current(name)]) > 240
    assert all(known(name) for name in (*t.nccl, *t.torch, *t.deprecated, *t.others))
    assert suggestion("NCCL_XYZZY_PLUGH") == ""


@pytest.mark.parametrize(
    ("name", "nccl", "expected"),
    [
        ("NCCL_TREE_THRESHOLD", "", ["nccl-var-removed"]),
        ("NCCL_MNNVL", "", []),
        ("NCCL_MNNVL", "2.20.5", []),
        ("NCCL_MNNVL", "2.21.5", ["nccl-var-removed"]),
        ("NCCL_MNNVL_ENABLE", "2.20.5", ["nccl-var-too-new"]),
        ("NCCL_MNNVL_ENABLE", "2.21.5", []),
        ("NCCL_MNNVL_ENABLE", "", []),
        ("NCCL_MAX_NRINGS", "2.27.3", []),
    ],
)
def test_nccl_var_removed_and_nccl_var_too_new_go_by_the_version(job, change, rules, name, nccl, expected):
    installed = Installed(python="3.11", prefix="/venv", torch=job.nodes[0].torch, nccl=nccl)
    assert rules(change.process(change.environment(job, None, **{name: "1"}), None, installed=installed)) == expected


@pytest.mark.parametrize(("torch", "expected"), [("2.1.2+cu121", []), ("2.2.0", ["torch-nccl-var-deprecated"])])
def test_a_torch_before_the_new_names_is_right_to_have_the_old_ones(job, change, rules, torch, expected):
    """torchrun of torch 2.1 sets this one itself."""
    build = replace(job.nodes[0].torch, version=torch)
    installed = Installed(python="3.11", prefix="/venv", torch=build)
    old = change.environment(job, None, NCCL_ASYNC_ERROR_HANDLING="1")
    assert rules(change.process(old, None, installed=installed)) == expected


# -- values


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("NCCL_CROSS_NIC=true", "nccl-bool-text warning"),
        ("NCCL_CROSS_NIC='yes'", "nccl-bool-text warning"),
        *((f"NCCL_CROSS_NIC={value}", "") for value in ("false", "0x1", " 1 ", "")),
        ("NCCL_SET_THREAD_NAME=true", ""),
        ("NCCL_BUFFSIZE=4M", "nccl-int-suffix error"),
        ("NCCL_P2P_NET_CHUNKSIZE=128k", "nccl-int-suffix warning"),
        ("NCCL_IB_TIMEOUT=022", "nccl-int-suffix warning"),
        ('NCCL_IB_TIMEOUT="22"', "nccl-int-suffix warning"),
        ("NCCL_P2P_LEVEL=nvl", "nccl-level-text warning"),
        ("NCCL_NET_GDR_LEVEL=PHB", ""),
        ("NCCL_NET_GDR_LEVEL=5", ""),
        ("NCCL_NET=lo", "nccl-net-name-invalid error"),
        ("NCCL_NET=tcp", "nccl-net-name-invalid error"),
        *((f"NCCL_NET={name}", "") for name in ("AWS Libfabric", "Libfabric", "OFI", "ib")),
        ("NCCL_COMM_ID=10.0.0.1:4000", "nccl-comm-id-set error"),
        ("NCCL_PROTO=LL256", "nccl-algo-proto-invalid error"),
        ("NCCL_ALGO=Tree", "nccl-algo-proto-invalid warning"),
        ("TORCH_NCCL_BLOCKING_WAIT=2", "torch-nccl-var-invalid error"),
        ("TORCH_WATCHDOG_POLL_INTERVAL_SECS=1s", "torch-nccl-var-invalid error"),
        ("TORCH_WATCHDOG_POLL_INTERVAL_SECS=.5", ""),
        ("TORCH_NCCL_BLOCKING_WAIT=True", "torch-nccl-blocking-wait warning"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=true", "torch-nccl-var-invalid error"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "torch-nccl-blocking-wait warning"),
        ("NCCL_DESYNC_DEBUG=1", "torch-nccl-var-deprecated info"),
        ("TORCH_DISTRIBUTED_DEBUG=detail", "torch-distributed-debug-detail warning"),
        ("TORCH_DISTRIBUTED_DEBUG=2", "torch-distributed-debug-detail error"),
        ("TORCH_DISTRIBUTED_DEBUG=info", ""),
        ("NCCL_DEBUG=info", "nccl-debug-verbose info"),
        ("NCCL_P2P_DISABLE=1", "nccl-debugging-vars-left info"),
        ("NCCL_SHM_DISABLE=1", "nccl-debugging-vars-left warning"),
        ("NCCL_IB_DISABLE=1", "nccl-debugging-vars-left info"),
        ("NCCL_NVLS_ENABLE=0", "nccl-debugging-vars-left info"),
        ("NCCL_PROTO=Simple", "nccl-debugging-vars-left info"),
        *((setting, "") for setting in ("NCCL_P2P_DISABLE=0", "NCCL_NVLS_ENABLE=1", "NCCL_IB_DISABLE=0")),
    ],
)
def test_a_value_on_all_ranks_is_judged_as_nccl_or_torch_reads_it(job, change, says, setting, expected):
    name, _, value = setting.partition("=")
    found = says(change.environment(job, None, **{name: value}))
    assert found == ([(*expected.split(), ALL)] if expected else [])


@pytest.mark.parametrize(
    ("setting", "commands"),
    [
        ("TORCH_NCCL_BLOCKING_WAIT=1", ("unset TORCH_NCCL_BLOCKING_WAIT",)),
        ("NCCL_COMM_ID=x:1", ("unset NCCL_COMM_ID",)),
        ("NCCL_BLOCKING_WAIT=0", ("unset NCCL_BLOCKING_WAIT; export TORCH_NCCL_BLOCKING_WAIT=0",)),
        ("NCCL_DEBUG=INFO", ("export NCCL_DEBUG=WARN",)),
        ("NCCL_ALGO=Tree", ("unset NCCL_ALGO",)),
        *((f"NCCL_BUFFSIZE={value}", (f"export NCCL_BUFFSIZE={meant}",)) for value, meant in (
            ("4M", 4194304), ("8MB", 8388608), ("1KiB", 1024), ('"4194304"', 4194304),
        )),
    ],
)  # fmt: skip
def test_the_fix_is_what_is_meant(job, change, only, setting, commands):
    name, _, value = setting.partition("=")
    finding, _ = only(change.environment(job, None, **{name: value}))
    assert finding.fix.commands == commands


@pytest.mark.parametrize(
    ("setting", "nccl", "problem"),
    [
        ("NCCL_ALGO=Ring,Tree", (), ""),
        ("NCCL_ALGO=^NVLS", (), ""),
        ("NCCL_ALGO=ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring", (), ""),
        ("NCCL_ALGO=allreduce:^tree", (2, 24, 3), ""),
        ("NCCL_ALGO=Ring;Tree", (), "no function before 'Tree'"),
        ("NCCL_ALGO=Collnet", (2, 24), "the unknown word 'Collnet'"),
        ("NCCL_ALGO=alltoall:ring", (), "the unknown function 'alltoall'"),
        ("NCCL_ALGO=PAT", (2, 22, 3), "the unknown word 'PAT'"),
        ("NCCL_ALGO=PAT", (2, 23, 4), ""),
        ("NCCL_PROTO=^LL128;allreduce:LL128", (), ""),
        ("NCCL_PROTO=simple", (2, 20), ""),
        ("NCCL_PROTO= LL", (), "the unknown word ' LL'"),
    ],
)
def test_the_grammar_of_nccl_algo_is_nccls(setting, nccl, problem):
    name, _, value = setting.partition("=")
    assert problem_of(name, value, nccl) == problem


def test_broadcast_needs_the_ring():
    for value in ("Tree", "^Ring"):
        assert without_algorithm(value, ())
    for value in ("Tree,Ring", "^Tree", "allreduce:tree", "tree;broadcast:ring", "", "Foo"):
        assert not without_algorithm(value, ())
    assert not without_algorithm("Tree", (2, 23))


# -- differences


@pytest.mark.parametrize(
    ("variables", "where", "severity"),
    [
        ({"NCCL_ALGO": "Ring"}, (1,), "error"),
        ({"NCCL_COLLNET_ENABLE": "1"}, (2, 3), "error"),
        ({"NCCL_NET": "Socket"}, (2,), "error"),
        ({"NCCL_P2P_DISABLE": "1"}, (1,), "error"),
        ({"NCCL_P2P_DISABLE": "1"}, (2, 3), "warning"),
        ({"NCCL_IB_QPS_PER_CONNECTION": "4"}, (2, 3), "warning"),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, (3,), "info"),
        ({"NCCL_IB_DISABLE": "1", "NCCL_CROSS_NIC": "1"}, (2, 3), "error"),
        # defaults, other spellings of a value, and what each node may choose
        *(({name: value}, (2, 3), "") for name, value in {
            "NCCL_IB_DISABLE": "0", "NCCL_CROSS_NIC": "0x2", "NCCL_SOCKET_IFNAME": "eth1", "NCCL_IB_HCA": "mlx5_1",
            "NCCL_DEBUG": "WARN", "NCCL_HOME": "/opt", "NCCL_DEBUG_FILE": "/tmp/%p",
        }.items()),
    ],
)  # fmt: skip
def test_nccl_env_differs_weighs_what_hangs_and_what_only_slows(job, change, says, variables, where, severity):
    found = says(change.environment(job, where, **variables))
    assert found == ([("nccl-env-differs", severity, where if len(where) == 1 else ALL)] if severity else [])


def test_one_spelling_of_a_value_is_no_difference(job, change, silent):
    assert silent(change.environment(change.environment(job, None, NCCL_IB_TC="106"), 1, NCCL_IB_TC="0x6a"))


def test_a_wrong_value_or_detail_on_one_rank_is_one_finding(job, job_of, change, says):
    assert says(change.environment(job, 2, NCCL_ALGO="Rnig")) == [("nccl-algo-proto-invalid", "error", (2,))]
    gloo = change.environment(job_of(1, 4, backend="gloo"), 3, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert says(gloo) == [("torch-distributed-debug-detail", "error", (3,))]


def test_each_setting_that_differs_is_removed_where_it_is_set(job, change, finding_of):
    job = change.process(job, 3, nccl_files=(file("NCCL_PROTO=Simple", path="/etc/nccl.conf", origin="system"),))
    finding = finding_of(job, "nccl-env-differs")
    assert (finding.severity, finding.ranks) == ("error", (3,))
    assert "NCCL_PROTO=Simple (in /etc/nccl.conf); the other 3 do not set NCCL_PROTO" in finding.message
    assert finding.fix.commands == ("sudo sed -i '/^NCCL_PROTO=/d' /etc/nccl.conf",)
    job = change.environment(job, 3, NCCL_ALGO="Ring")
    for ranks in (ALL, (0, 3)):
        finding = finding_of(change.keep(job, *ranks), "nccl-env-differs")
        assert finding.fix.commands == ("unset NCCL_ALGO", "sudo sed -i '/^NCCL_PROTO=/d' /etc/nccl.conf")


# -- files


def file(*lines, path="/home/eve/.nccl.conf", origin="HOME"):
    return NcclFile(path=path, origin=origin, library="nccl", lines=lines)


@pytest.mark.process
def test_a_line_that_nccl_does_not_read_as_intended_is_rewritten_by_its_fix(job, change, finding_of, tmp_path):
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_DEBUG_FILE = '/logs/a&b|c\\d'\n")
    own = file(*conf.read_text().splitlines(), path=str(conf))
    finding = finding_of(change.process(job, None, nccl_files=(own,)), "nccl-conf-file-syntax")
    subprocess.run(["sh", "-c", finding.fix.commands[0]], check=True)
    assert conf.read_text() == "NCCL_DEBUG_FILE=/logs/a&b|c\\d\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("export NCCL_NET=IB", "NCCL reads the name as 'export NCCL_NET'"),
        (" NCCL_NET=IB", "NCCL reads the name as ' NCCL_NET'"),
        ("NCCL_NET = IB", "NCCL reads the name as 'NCCL_NET '"),
        ("NCCL_CROSS_NIC =1", "NCCL reads the name as 'NCCL_CROSS_NIC '"),
        ('NCCL_PLUGIN_P2P="ib"', "NCCL reads the value as '\"ib\"'"),
        ('NCCL_BUFFSIZE="4"', "NCCL reads the value as '\"4\"'"),
        ("NCCL_HOME=/opt # note", "NCCL reads the value as '/opt # note'"),
        ("NCCL_CROSS_NIC=true # note", "NCCL reads the value as 'true # note'"),
        ("NCCL_NET", "NCCL needs NAME=value"),
    ],
)
def test_nccl_conf_file_syntax_shows_how_nccl_reads_the_line_and_no_other_rule_does(job, change, judge, line, why):
    findings = judge(change.process(job, None, nccl_files=(file(line),)), *OURS).findings
    (finding,) = (f for f in findings if f.severity != "info")
    assert (finding.rule, finding.severity, finding.ranks) == ("nccl-conf-file-syntax", "warning", ALL)
    assert why in finding.message


def test_nccl_conf_file_surprise_is_an_info_and_a_lost_file_a_warning(job, change, says, only):
    plain = change.process(job, None, nccl_files=(file("NCCL_CROSS_NIC=1"),))
    assert says(plain) == [("nccl-conf-file-surprise", "info", ALL)]
    assert says(change.environment(plain, None, NCCL_CROSS_NIC="1")) == []
    lost = file(path="/nowhere", origin="NCCL_CONF_FILE")
    seen = {"NCCL_CONF_FILE": NamedPath(path="/nowhere", state="missing", folder="writable")}
    finding, _ = only(change.process(job, 1, nccl_files=(lost,), named_paths=seen))
    assert (finding.rule, finding.severity, finding.ranks) == ("nccl-conf-file-surprise", "warning", (1,))
    assert "NCCL_CONF_FILE=/nowhere does not exist" in finding.message


@pytest.mark.parametrize(
    ("path", "folder", "reported"),
    [
        ("/tmp/log", "writable", True),
        ("/tmp/%p", "writable", False),
        ("~/log.%p", "writable", True),
        ("/nowhere/log.%p", "missing", True),
        ("/dev/stderr", "writable", False),
    ],
)
def test_nccl_debug_file_shared_goes_by_pattern_and_folder(job, change, says, path, folder, reported):
    seen = {"NCCL_DEBUG_FILE": NamedPath(path=path, state="missing", folder=folder)}
    job = change.process(change.environment(job, None, NCCL_DEBUG_FILE=path), None, named_paths=seen)
    assert says(job) == ([("nccl-debug-file-shared", "warning", ALL)] if reported else [])


def topology(state, absent=()):
    return {"NCCL_TOPO_FILE": NamedPath(path="/t.xml", state=state, folder="writable", absent_devices=absent)}


@pytest.mark.parametrize(
    ("state", "absent", "reported"),
    [("readable", (), False), ("missing", (), True), ("readable", ("0000:47:00.0",), True)],
)
def test_nccl_topo_file_stale_names_the_node_of_the_file(job, change, says, state, absent, reported):
    job = change.process(job, (2, 3), named_paths=topology(state, absent))
    job = change.environment(job, None, NCCL_TOPO_FILE="/t.xml")
    assert says(job) == ([("nccl-topo-file-stale", "warning", (2, 3))] if reported else [])


def test_a_stale_topology_file_is_unset_where_it_is_set(job, change, finding_of):
    job = change.process(job, None, named_paths=topology("missing"))
    conf = file("NCCL_TOPO_FILE=/t.xml", path="/etc/nccl.conf", origin="system")
    for where, owner, command in (
        (change.environment(job, None, NCCL_TOPO_FILE="/t.xml"), "user", "unset NCCL_TOPO_FILE"),
        (change.process(job, None, nccl_files=(conf,)), "admin", "sudo sed -i '/^NCCL_TOPO_FILE=/d' /etc/nccl.conf"),
        (job, "admin", "ls -l /t.xml"),
    ):
        finding = finding_of(where, "nccl-topo-file-stale")
        assert (finding.owner, finding.fix.commands) == (owner, (command,))


# -- leftovers


def with_adapter(job, change, link_layer):
    nic = Nic(name="mlx5_0", place=PciPlace(path=(), numa_node=None), kind="ib", link_layer=link_layer)
    return change.node(job, None, pci=Pci(gpus={}, nics=(nic,)))


@pytest.mark.parametrize(
    ("per_node", "read", "severity"),
    [(2, 0, "warning"), (1, 0, "info"), (2, 1, "info"), (2, Missing(reason="NVML error 999: Unknown Error"), "info")],
)
def test_p2p_that_is_off_is_a_warning_where_gpus_could_use_it(job_of, change, says, per_node, read, severity):
    job = change.environment(job_of(2, per_node, gpus=2), None, NCCL_P2P_DISABLE="1")
    pair = PeerAccess(gpus=(0, 1), read=read, write=0, nvlink=1)
    for n, node in enumerate(job.nodes):
        job = change.node(job, n, gpus=replace(node.gpus, peer_access=(pair,)))
    assert says(job) == [("nccl-debugging-vars-left", severity, tuple(range(2 * per_node)))]


def test_infiniband_turned_off_beside_an_adapter_is_a_warning(job, change, says):
    job = with_adapter(change.environment(job, None, NCCL_IB_DISABLE="1"), change, "InfiniBand")
    assert says(job) == [("nccl-debugging-vars-left", "warning", ALL)]


def test_nccl_efa_ib_vars_are_unused_where_another_network_is_selected(job, change, says):
    job = change.environment(job, None, NCCL_IB_TC="106")
    expected = [("nccl-efa-ib-vars", "info", ALL)]
    assert says(job) == says(with_adapter(job, change, "InfiniBand")) == []
    assert says(with_adapter(job, change, "Unspecified")) == expected
    assert says(change.environment(job, None, NCCL_NET="AWS Libfabric")) == expected


def test_nccl_p2p_disable_and_level_is_an_info_that_removes_both_where_they_are(job, change, finding_of):
    level = change.environment(job, None, NCCL_P2P_LEVEL="NVL")
    job = change.process(level, None, nccl_files=(file("NCCL_P2P_DISABLE=1"),))
    finding = finding_of(job, "nccl-p2p-disable-and-level")
    assert (finding.severity, finding.ranks) == ("info", ALL)
    assert finding.fix.commands == ("unset NCCL_P2P_LEVEL", "sed -i '/^NCCL_P2P_DISABLE=/d' /home/eve/.nccl.conf")


# -- logs


def test_nccl_ib_on_some_nodes_names_the_odd_ranks(job_of, change, says):
    job = job_of(2, 2, looks=("environment", "meeting", "collectives"))

    def ran(job, where, network):
        log = NcclLog(version="2.27.3", ranks=4, nodes=2, network=network)
        return change.rank(job, where, run=RankRun(pid=1, step="done", outcome="done", nccl=log))

    alike = ran(job, None, "IB")
    assert says(alike) == []
    assert says(ran(alike, 3, "Socket")) == [("nccl-ib-on-some-nodes", "error", (3,))]
