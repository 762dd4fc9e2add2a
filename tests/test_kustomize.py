"""The Kustomize base and component of the docs, NVSentinel's values, and the scripts in them."""

from __future__ import annotations

import copy
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from distcheck import __version__

FOLDER = Path(__file__).parent.parent / "docs" / "schedulers" / "kubernetes"
NODE = FOLDER / "node"
PLUGIN = json.loads((NODE / "node-problem-detector.json").read_text())
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl, which contains kustomize")


def rendered(folder):
    """Return the objects that `kubectl kustomize` prints, by kind; each is valid for the newest Kubernetes."""
    ended = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True)
    objects = list(yaml.safe_load_all(ended.stdout))
    for each in objects:
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
    return {(each["kind"], each["metadata"]["name"].rpartition("-")[0]): each for each in objects}


def overlay_of_the_page(folder):
    """Return the kustomization.yaml that the page shows for a folder of the docs."""
    blocks = re.findall(r"(?s)```yaml\n# kustomization.yaml\n(.*?)```", FOLDER.with_suffix(".md").read_text())
    (block,) = [block for block in blocks if f"[{folder}]" in block]
    return block


@needs_kubectl
@pytest.mark.process
def test_the_base_for_nodes_renders_a_daemonset_with_the_sites_values(tmp_path):
    (tmp_path / "kustomization.yaml").write_text(overlay_of_the_page("node"))
    (tmp_path / "policy.toml").write_text('mode = "enforce"\n')
    shutil.copytree(NODE, tmp_path / "node")
    objects = rendered(tmp_path)
    (pod,) = [each["spec"]["template"]["spec"] for (kind, _), each in objects.items() if kind == "DaemonSet"]
    check = pod["containers"][0]
    values = objects["ConfigMap", "distcheck-node-values"]
    assert check["image"] == f"ghcr.io/site/distcheck:{__version__}"
    assert values["data"] == {"INTERVAL": "300"}
    assert check["envFrom"] == [{"configMapRef": {"name": values["metadata"]["name"]}}]
    scripts = objects["ConfigMap", "distcheck-node-scripts"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "scripts"]
    assert volume["configMap"] == {"name": scripts["metadata"]["name"], "defaultMode": 0o555}
    policy = objects["ConfigMap", "distcheck-policy"]
    assert policy["data"] == {"policy.toml": 'mode = "enforce"\n'}
    assert {"name": "policy", "configMap": {"name": policy["metadata"]["name"]}} in pod["volumes"]
    assert {"name": "policy", "mountPath": "/etc/distcheck", "readOnly": True} in check["volumeMounts"]
    run = [*check["command"], *check["readinessProbe"]["exec"]["command"], *(rule["path"] for rule in PLUGIN["rules"])]
    assert {path.rpartition("/")[2] for path in run} < set(scripts["data"])
    assert {path.rpartition("/")[0] for path in run} == {"/scripts"}
    assert {each["metadata"]["namespace"] for each in objects.values() if "namespace" in each["metadata"]} == {
        "kube-system"
    }


@needs_kubectl
@pytest.mark.process
def test_the_component_makes_the_gated_job_of_a_plain_one(tmp_path):
    service, gated = yaml.safe_load_all((FOLDER / "indexed-job.yaml").read_text())
    plain = copy.deepcopy(gated)
    del plain["spec"]["podFailurePolicy"], plain["spec"]["template"]["spec"]["initContainers"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([service, plain]))
    (tmp_path / "kustomization.yaml").write_text(overlay_of_the_page("gate"))
    shutil.copytree(FOLDER / "gate", tmp_path / "gate")
    assert [each for each in rendered(tmp_path).values() if each["kind"] == "Job"] == [gated]


def test_the_plugin_has_the_fields_of_node_problem_detector():
    """Its names and rules: pkg/custompluginmonitor/types/config.go of node-problem-detector."""
    assert PLUGIN["plugin"] == "custom"
    assert set(PLUGIN) <= {"plugin", "pluginConfig", "source", "conditions", "rules", "metricsReporting"}
    assert set(PLUGIN["pluginConfig"]) <= {
        "invoke_interval", "timeout", "max_output_length", "concurrency", "skip_initial_status",
        "enable_message_change_based_condition_update",
    }  # fmt: skip
    assert [rule["condition"] for rule in PLUGIN["rules"]] == [each["type"] for each in PLUGIN["conditions"]]
    assert all(rule["type"] == "permanent" for rule in PLUGIN["rules"])


@pytest.fixture
def installed(tmp_path):
    """The scripts with folders of the test, and distcheck on the PATH."""
    for name in ("check.sh", "condition.sh"):
        text = (NODE / name).read_text()
        assert "result=/run/distcheck" in text
        text = text.replace("result=/run/distcheck", f"result={tmp_path}").replace("textfile=/textfile", f"textfile={tmp_path}")  # fmt: skip # noqa: E501
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o555)
    return tmp_path


def condition(folder):
    ended = subprocess.run([folder / "condition.sh"], capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    return ended.returncode, ended.stdout.strip()


@pytest.mark.process
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("0 {now} 300", (0, "distcheck node passed")),
        ("10 {now} 300", (0, "distcheck node passed")),
        ("40 {now} 300", (1, "GPU 3 is lost")),
        ("30 {now} 300", (1, "GPU 3 is lost")),
        ("20 {now} 300", (2, "GPU 3 is lost")),
        ("70 {now} 300", (2, "GPU 3 is lost")),
        ("0 {old} 300", (2, "the last result of distcheck node is 3600 s old")),
        (None, (2, "distcheck node has not run yet")),
    ],
)
def test_the_condition_is_unhealthy_only_for_a_recent_bad_result(installed, result, expected):
    (installed / "reason").write_text("GPU 3 is lost\n")
    now = int(time.time())
    if result is not None:
        (installed / "code").write_text(result.format(now=now, old=now - 3600) + "\n")
    code, message = condition(installed)
    assert (code, message.replace("3601", "3600")) == expected


@pytest.mark.process
@pytest.mark.without_gpus
@pytest.mark.parametrize(
    ("mode", "codes", "healthy", "line"),
    [("observe", (0, 40), 0, "would have been exit code 40"), ("enforce", (40, 40), 1, "exit code 40: drain")],
)
def test_the_daemonset_observes_or_enforces_by_one_word_of_the_bases_policy(installed, mode, codes, healthy, line):
    volume = installed / "volume"  # as Kubernetes mounts a ConfigMap
    (volume / "..2026").mkdir(parents=True)
    (volume / "..data").symlink_to("..2026")
    (volume / "policy.toml").symlink_to("..data/policy.toml")
    base = (NODE / "policy.toml").read_text()
    assert 'mode = "observe"' in base
    (volume / "..data" / "policy.toml").write_text(base.replace('"observe"', f'"{mode}"').replace("= 8", "= 1023"))
    environment = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "DISTCHECK_POLICY": str(volume), "INTERVAL": "600"}
    with subprocess.Popen([installed / "check.sh"], env=environment, stdout=subprocess.PIPE, text=True) as check:
        try:
            assert line in check.stdout.readline()
            code, message = condition(installed)
            assert (code, "1023" in message) == (healthy, mode == "enforce"), "none of the GPUs that it should have"
        finally:
            check.send_signal(signal.SIGTERM)
        assert check.wait(5) == 0
    read = text_string_to_metric_families((installed / "distcheck.prom").read_text())
    values = {each.name: each.samples[0].value for each in read if each.samples}
    assert (values["distcheck_exit_code"], values["distcheck_would_exit_code"]) == codes


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "strategy", "expected"),
    [
        *((code, "EXECUTE_REMEDIATION", 0) for code in (0, 10)),
        *((code, "EXECUTE_REMEDIATION", 1) for code in (20, 30, 40)),
        *((code, "EXECUTE_REMEDIATION", 2) for code in (2, 70, 127)),
        (40, "STORE_ONLY", 0),
    ],
)
def test_a_check_of_nvsentinel_has_its_exit_codes(tmp_path, code, strategy, expected):
    (check,) = yaml.safe_load((FOLDER / "nvsentinel-values.yaml").read_text())["preflight"]["initContainers"]
    (tmp_path / "distcheck").write_text(f'#!/bin/sh\n[ "$1" = node ] || exit 99\nexit {code}\n')
    (tmp_path / "distcheck").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PROCESSING_STRATEGY": strategy}
    assert subprocess.run(check["command"], env=environment, check=False).returncode == expected
    container = {name: check[name] for name in check if name != "defaultEnabled"}
    container["image"] = ":".join(check["image"].values())  # what the chart makes of both
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
