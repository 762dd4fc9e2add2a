"""The Kubernetes manifests of the docs match their schemas and distcheck's exit codes."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "schedulers" / "kubernetes"
FILES = sorted(
    {*FOLDER.rglob("*.yaml")}
    - {*FOLDER.rglob("kustomization.yaml"), *FOLDER.glob("gate/*"), *FOLDER.glob("*-values.yaml")}
)
"""The complete manifests; test_kustomize has the others."""
CRDS = Path(__file__).parent / "crds"
VERSIONS = ("1.31", kubernetes_validate.latest_version())
"""The oldest Kubernetes with a stable podFailurePolicy, and the newest whose schemas are installed."""
NO_RETRY, RETRY = {2, 30}, {20, 40}


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


ALL = [pytest.param(document, id=f"{path.stem}-{document['kind']}") for path in FILES for document in documents(path)]


def schema_of(kind):
    return json.loads((CRDS / f"{kind.lower()}.json").read_text())


def validate(document):
    """Validate a manifest of any kind for the oldest and the newest Kubernetes; an unknown kind is an error."""
    for version in VERSIONS:
        validate_for(version, document)


def validate_for(version, document):
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        schema = schema_of(document["kind"])  # raises FileNotFoundError for an unknown kind
        jsonschema.Draft202012Validator(schema).validate(document)
        for spec in job_specs(document):
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "inner"}, "spec": spec}
            kubernetes_validate.validate(job, version, strict=True)
        for template in pod_templates(document):
            inner = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "inner"}, "template": template}
            kubernetes_validate.validate(inner, version, strict=True)


def job_specs(document):
    """Return the JobSpecs of a manifest or of its replicated jobs."""
    spec = document["spec"]
    if document["kind"] == "Job":
        return [spec]
    if document["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    return [replicated["template"]["spec"] for replicated in spec.get("replicatedJobs", ())]


def pod_templates(document):
    replicas = document["spec"].get("pytorchReplicaSpecs", {}).values()
    return [spec["template"] for spec in job_specs(document)] + [replica["template"] for replica in replicas]


def containers(template):
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]


def test_every_operator_has_a_manifest():
    kinds = {document["kind"] for path in FILES for document in documents(path)}
    assert kinds >= {"Service", "Job", "JobSet", "PyTorchJob", "TrainingRuntime", "TrainJob", "DaemonSet"}


@pytest.mark.parametrize("document", ALL)
def test_the_manifest_is_valid(document):
    validate(document)


def changed(document, path, value):
    """Return a copy with one changed value."""
    copied = copy.deepcopy(document)
    here = copied
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return copied


def of_kind(kind):
    return next(document for path in FILES for document in documents(path) if document["kind"] == kind)


POD = ("template", "spec", "containers", 0)
NODE = ("replicatedJobs", 0, "template", "spec")


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Job", ("spec", "completionmode"), "Indexed"),
        ("Job", ("spec", "podFailurePolicy", "rules", 0, "onExitCodes", "values"), "30"),
        ("Job", ("spec", *POD, "volumeMount"), []),
        ("Service", ("spec", "publishNotReadyAddresses"), "yes"),
        ("JobSet", ("spec", "failurePolicy", "rules", 0, "action"), "FailJob"),
        ("JobSet", ("spec", "failurePolicy", "rules", 0, "name"), "nothing-to-retry"),
        ("JobSet", ("spec", "failurePolicy", "maxRestart"), 1),
        ("JobSet", ("spec", *NODE, "podFailurePolicy", "rules", 0, "onExitCodes", "values"), 30),
        ("JobSet", ("spec", *NODE, *POD, "volumeMount"), []),
        ("PyTorchJob", ("spec", "nprocPerNode"), 8),
        ("PyTorchJob", ("spec", "pytorchReplicaSpecs", "master"), {"template": {}}),
        ("PyTorchJob", ("spec", "pytorchReplicaSpecs", "Worker", "restartPolicy"), "never"),
        ("PyTorchJob", ("spec", "pytorchReplicaSpecs", "Worker", *POD, "comand"), ["distcheck"]),
        ("TrainingRuntime", ("spec", "mlPolicy", "torch", "envInjection", "targets", 0, "containerNames"), ["node"]),
        ("TrainingRuntime", ("spec", "mlPolicy", "torch", "envinjection"), {}),
        ("TrainingRuntime", ("spec", "template", "spec", *NODE, *POD, "volumeMount"), []),
        ("TrainJob", ("spec", "runtimeRef"), "torch-gated"),
        ("TrainJob", ("spec", "trainer", "numProcPerNode"), 0),
        ("TrainJob", ("apiVersion",), "trainer.kubeflow.org/v1"),
        ("JobSet", ("kind",), "JobSets"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_a_mistake_in_a_manifest_is_detected(kind, path, value):
    errors = (
        jsonschema.ValidationError,
        kubernetes_validate.ValidationError,
        kubernetes_validate.SchemaNotFoundError,
        FileNotFoundError,
    )
    with pytest.raises(errors):
        validate(changed(of_kind(kind), path, value))


@pytest.mark.parametrize("document", [p for p in ALL if p.values[0]["kind"] in {"Job", "JobSet", "TrainingRuntime"}])
def test_the_failure_policy_matches_the_exit_codes(document):
    for spec in job_specs(document):
        actions = {}
        for each in spec["podFailurePolicy"]["rules"]:
            assert each["action"] in {"FailJob", "FailIndex", "Ignore", "Count"}, "the schema allows any string"
            codes = each.get("onExitCodes")
            if codes is not None:
                assert codes["operator"] == "In"
                assert codes["containerName"] in [c["name"] for c in containers(spec["template"])]
                actions |= dict.fromkeys(codes["values"], each["action"])
        assert {code for code, action in actions.items() if action == "FailJob"} == NO_RETRY
        assert {code for code, action in actions.items() if action != "FailJob"} <= RETRY
        assert spec["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy requires it"


@pytest.mark.parametrize("kind", ["JobSet", "TrainingRuntime"])
def test_a_failed_policy_fails_the_whole_set(kind):
    spec = of_kind(kind)["spec"]
    spec = spec["template"]["spec"] if kind == "TrainingRuntime" else spec
    (only,) = spec["failurePolicy"]["rules"]
    assert (only["action"], only["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert spec["failurePolicy"]["maxRestarts"] == 1
    assert spec["network"]["publishNotReadyAddresses"] is True
    assert [each["template"]["spec"]["backoffLimit"] for each in spec["replicatedJobs"]] == [0]


def test_the_pods_of_the_indexed_job_resolve_each_other():
    service, job = documents(ROOT / "docs" / "schedulers" / "kubernetes" / "indexed-job.yaml")
    spec = job["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert spec["completions"] == spec["parallelism"]


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_gate_and_training_have_the_same_placement(kind):
    (spec,) = job_specs(of_kind(kind))
    gate, train = containers(spec["template"])
    values = {each["name"]: each.get("value") for each in gate["env"]}
    assert gate["env"] == train["env"]
    assert values["PET_NNODES"] == str(spec["completions"])
    assert values["PET_NPROC_PER_NODE"] == str(gate["resources"]["limits"]["nvidia.com/gpu"])
    assert values["PET_MASTER_ADDR"] == {"Job": "train-0.train", "JobSet": "train-node-0-0.train"}[kind]


def test_the_runtime_injects_into_existing_containers():
    runtime, job = documents(ROOT / "docs" / "schedulers" / "kubernetes" / "trainjob.yaml")
    (target,) = runtime["spec"]["mlPolicy"]["torch"]["envInjection"]["targets"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert target["jobName"] == replicated["name"]
    names = [container["name"] for container in containers(replicated["template"]["spec"]["template"])]
    assert set(target["containerNames"]) <= set(names)
    assert job["spec"]["runtimeRef"] == {"kind": "TrainingRuntime", "name": runtime["metadata"]["name"]}
    assert job["spec"]["trainer"]["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"]


GATED = {"Job", "JobSet", "PyTorchJob", "TrainingRuntime"}


@pytest.mark.parametrize("document", [p for p in ALL if p.values[0]["kind"] in GATED])
def test_the_gate_runs_a_distcheck_command(document):
    for template in pod_templates(document):
        commands = [c.get("command", []) for c in containers(template)]
        assert [command[1] for command in commands if command[:1] == ["distcheck"]] == ["gate"]
