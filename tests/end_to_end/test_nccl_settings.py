"""Settings of NCCL and torch in the environment and in files of real processes."""

from __future__ import annotations

from collections import Counter

from distcheck.probe.network import free_port

TWENTY = {
    "NCCL_IB_HCAS": "mlx5",
    "NCCL_TREE_THRESHOLD": "0",
    "NCCL_IB_DISABLE": "true",
    "NCCL_BUFFSIZE": "4M",
    "NCCL_P2P_LEVEL": "nvl",
    "NCCL_PROTO": "Foo",
    "NCCL_NET": "RoCE",
    "NCCL_COMM_ID": "10.0.0.1:4000",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_FILE": "nccl.log",
    "NCCL_TOPO_FILE": "/nowhere/topology.xml",
    "NCCL_IB_TC": "106",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "true",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
}
RULES = [
    "nccl-algo-proto-invalid", "nccl-bool-text", "nccl-comm-id-set", "nccl-conf-file-surprise", "nccl-conf-file-syntax",
    "nccl-debug-file-shared", "nccl-debug-verbose", "nccl-debugging-vars-left", "nccl-efa-ib-vars", "nccl-int-suffix",
    "nccl-level-text", "nccl-net-name-invalid", "nccl-p2p-disable-and-level", "nccl-topo-file-stale",
    "nccl-var-removed", "nccl-var-typo", "torch-distributed-debug-detail", "torch-nccl-blocking-wait",
    "torch-nccl-var-deprecated", "torch-nccl-var-invalid",
]  # fmt: skip


def rules_of(ended):
    """Return the rules of all findings, of info too."""
    return [finding["rule"] for finding in ended.report["findings"]]


def test_twenty_wrong_settings_are_one_finding_each_for_both_ranks(distcheck, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".nccl.conf").write_text("export NCCL_MAX_CTAS=8\nNCCL_CROSS_NIC=1\n")
    ended = distcheck("env", "--nproc", "2", "--backend", "nccl", "--format", "json", env={**TWENTY, "HOME": str(home)})
    assert sorted(Counter(rules_of(ended)).items()) == [(rule, 1) for rule in RULES]
    assert all(finding["ranks"] == [0, 1] for finding in ended.report["findings"])
    assert ended.code == 30


def test_the_settings_of_a_well_run_cluster_are_no_finding_above_info(distcheck, tmp_path):
    (tmp_path / ".nccl.conf").write_text("# site\nNCCL_IB_QPS_PER_CONNECTION=4\n")
    settings = {
        "NCCL_SOCKET_IFNAME": "^docker,lo", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "NCCL_DEBUG": "WARN",
        "NCCL_IB_TC": "106", "NCCL_NET_PLUGIN": "none", "NCCL_ALGO": "^NVLS;allreduce:ring,tree",
        "NCCL_P2P_LEVEL": "NVL", "NCCL_BUFFSIZE": "8388608", "NCCL_VERSION": "2.27.3-1", "NCCL_NVLS_ENABLE": "0",
        "NCCL_DEBUG_FILE": f"{tmp_path}/nccl.%h.%p", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "HOME": str(tmp_path),
        "TORCH_NCCL_BLOCKING_WAIT": "false", "NCCL_IB_DISABLE": "0", "OFI_NCCL_PROTOCOL": "RDMA",
    }  # fmt: skip
    ended = distcheck("env", "--nproc", "2", "--backend", "nccl", "--format", "json", env=settings)
    assert {f["severity"] for f in ended.report["findings"]} <= {"info"}
    assert set(rules_of(ended)) == {"nccl-conf-file-surprise", "nccl-debugging-vars-left"}
    assert ended.code == 0


def test_nccl_algo_on_one_of_four_ranks_is_an_error_that_names_the_rank(start, tmp_path):
    port = free_port()
    common = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HOME": str(tmp_path)}
    four = [
        start("env", "--backend", "nccl", "--format", "json", env={
            **common, "RANK": str(rank), "LOCAL_RANK": str(rank), **({"NCCL_ALGO": "Tree"} if rank == 2 else {}),
        })
        for rank in range(4)
    ]  # fmt: skip
    ended = [run.wait() for run in four]
    assert {run.code for run in ended} == {30}
    (finding,) = ended[0].report["findings"]
    assert (finding["rule"], finding["severity"], finding["ranks"]) == ("nccl-env-differs", "error", [2])
    assert "NCCL_ALGO=Tree; the other 3 do not set NCCL_ALGO" in finding["message"]
    assert finding["fix"]["commands"] == ["unset NCCL_ALGO"]


def test_the_installed_nccl_decides_which_names_are_too_new_or_removed(distcheck, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.3.0+cu121'\ncuda = '12.1'\nhip = None\n")
    (tmp_path / "nvidia_nccl_cu12-2.20.5.dist-info").mkdir()
    one = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    more = {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "NCCL_MNNVL_ENABLE": "1", "NCCL_MNNVL": "1"}
    ended = distcheck("env", "--backend", "nccl", "--format", "json", env=one | more | {"LOCAL_RANK": "0"})
    assert ended.rules == ["nccl-var-too-new"], "2.20 reads NCCL_MNNVL, and 2.21 the other"
    assert "NCCL 2.20.5 does not read it; 2.21.5 is the first" in ended.report["findings"][0]["message"]
