"""The gate in front of vLLM and SGLang on two nodes, in whose place stubs say with which words they were started."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from cluster.inside import GATE, PATIENCE, finding, findings, reports
from real.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from real.ended import Ended

pytestmark = pytest.mark.without_slurm

_STUB = "import json, sys\nprint('started:', json.dumps(sys.argv[1:]))\n"
_IN_FRONT = ("distcheck", *GATE, "--")
_VLLM = (
    "/opt/engine/vllm",
    "serve",
    "/opt/model",
    "-tp",
    "2",
    "--nnodes",
    "2",
    "--master-addr",
    "node1",
    "--node-rank",
)
_SGLANG = (
    *(sys.executable, "-m", "sglang.launch_server", "--model-path", "/opt/model", "--tp", "2", "--nnodes", "2"),
    *("--dist-init-addr", "node1:20000", "--node-rank"),
)
_ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/opt/engine/lib"}


@pytest.fixture
def typed(cluster):
    """Type a line on node1 and node2, where an engine and its model are installed, with each node's own variables."""
    for node in ("node1", "node2"):
        cluster.write(node, "/opt/engine/vllm", f"#!{sys.executable}\n{_STUB}")
        cluster.write(node, "/opt/engine/lib/sglang/launch_server.py", _STUB)
        cluster.write(node, "/opt/engine/lib/vllm-0.33.0.dist-info/METADATA", "Name: vllm\n")
        cluster.write(node, "/opt/model/model.safetensors", "x" * 1000)

    def on_both(words: tuple[str, ...], *more: str, **env: str) -> list[Ended]:
        own = [{name: value.replace("{n}", str(n)) for name, value in env.items()} for n in (1, 2)]
        lines = [(*_IN_FRONT, *words, str(n), *more) for n in range(2)]
        running = [cluster.start(f"node{n + 1}", *line, env=_ENV | own[n]) for n, line in enumerate(lines)]
        return [each.wait(PATIENCE) for each in running]

    return on_both


def failed(ended: list[Ended], code: int = 30) -> dict[str, Any]:
    """Return the one report of a gate that let neither engine start."""
    assert [each.code for each in ended] == [code, code], ended
    assert "started:" not in "".join(each.out for each in ended)
    (report,) = reports(*ended)
    return report


@pytest.mark.parametrize(
    ("words", "env"),
    [(_VLLM, {"VLLM_HOST_IP": "10.77.0.1{n}"}), (_SGLANG, {"SGLANG_HOST_IP": "10.77.0.1{n}"})],
    ids=["vllm", "sglang"],
)
def test_engines_that_have_what_they_need_start_with_their_own_words(typed, words, env):
    ended = typed(words, **env)
    assert [each.code for each in ended] == [0, 0], ended
    (report,) = reports(*ended)
    assert findings(report, "error", "warning") == []
    own = words[words.index("serve") if "serve" in words else words.index("--model-path") :]
    for number, each in enumerate(ended):
        assert json.loads(each.out.partition("started: ")[2]) == [*own, str(number)]


def test_one_value_of_vllm_host_ip_for_all_nodes_is_named_on_the_node_that_has_not_the_address(typed):
    found = finding(failed(typed(_VLLM, VLLM_HOST_IP="10.77.0.11")), "engine-address-unusable")
    assert (found["nodes"], found["ranks"]) == (["node2"], [1])
    assert found["fix"]["commands"] == ["export VLLM_HOST_IP=10.77.0.12  # on node2"]


def test_without_a_route_vllm_has_no_address_on_any_node(typed):
    found = finding(failed(typed(_VLLM)), "engine-address-unusable")
    assert found["nodes"] == ["node1", "node2"]


def test_an_engines_own_network_is_tried_and_its_firewall_named(cluster, typed):
    closed = "table inet t { chain c { type filter hook input priority 0; iifname eth1 tcp flags syn drop\n }\n}\n"
    assert cluster.netns("node2", "nft", "-f", "-", text=closed).code == 0
    own = {"VLLM_HOST_IP": "10.78.0.1{n}", "GLOO_SOCKET_IFNAME": "eth0"}
    report = failed(typed(_VLLM, **own), code=20)
    assert findings(report, "error") == ["net-firewall-ephemeral"]
    assert "10.78.0.12" in json.dumps(finding(report, "net-firewall-ephemeral")), report["findings"]


def test_a_model_that_one_node_lacks_is_named_there(cluster, typed):
    assert cluster.run("node2", "rm", "-r", "/opt/model").code == 0
    report = failed(typed(_SGLANG, SGLANG_HOST_IP="10.77.0.1{n}"))
    assert findings(report) == ["engine-model-missing"]
    assert finding(report, "engine-model-missing")["nodes"] == ["node2"]


def test_a_port_of_attention_that_is_taken_on_the_second_node_is_named_with_its_process(cluster, typed):
    server = cluster.start("node2", sys.executable, "-m", "http.server", "20003")
    until(lambda: cluster.run("node2", "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/20003").code == 0)
    ended = typed(_SGLANG, "--attn-dp-size", "2", SGLANG_HOST_IP="10.77.0.1{n}")
    server.interrupt(signal.SIGKILL)
    server.wait()
    found = finding(failed(ended), "engine-port-in-use")
    assert found["nodes"] == ["node2"]
    assert "port 20003 (--dist-init-addr +3)" in found["message"]
    assert "http.server 20003" in found["message"]


def test_another_version_on_one_node_is_named(cluster, typed):
    assert cluster.run("node2", "mv", *(f"/opt/engine/lib/vllm-0.3{n}.0.dist-info" for n in (3, 2))).code == 0
    found = finding(failed(typed(_VLLM, VLLM_HOST_IP="10.77.0.1{n}")), "engine-packages-differ")
    assert found["message"].startswith("vllm is 0.33.0 on rank 0 (node1")


def test_a_line_copied_to_both_nodes_is_named_by_both(cluster, typed):
    report = failed(typed((*_VLLM, "0", "--port"), VLLM_HOST_IP="10.77.0.1{n}"))
    found = finding(report, "command-node-rank-duplicate")
    assert (found["nodes"], found["ranks"]) == (["node1", "node2"], [0])


def test_ranks_that_the_nodes_cannot_share_end_with_30_on_each(cluster, typed):
    ended = typed(("/opt/engine/vllm", "serve", "m", "-tp", "3", "--nnodes", "2", "--master-addr", "node1", "-r"))
    assert [each.code for each in ended] == [30, 30], ended
    assert [findings(report, "error") for report in reports(*ended)] == [["command-refused"]] * 2
