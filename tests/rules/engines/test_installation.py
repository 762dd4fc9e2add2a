"""What the nodes of an engine must share: the model, the versions, the sizes."""

from __future__ import annotations

import pytest
from rules.engines.conftest import engine

from distcheck.facts.rank import Role

OURS = ("engines.installation",)
THERE = engine(model="/models/m", model_state="folder")


def test_one_model_and_one_version_are_silent(in_front, silent):
    assert silent(in_front(THERE))
    assert silent(in_front(engine(versions={"vllm": "0.33.0", "ray": "2.50"})))


@pytest.mark.parametrize(
    ("state", "words"),
    [("absent", "does not exist"), ("unreadable", "cannot be read"), ("silent", "is on a file system that does not")],
)
def test_a_model_that_a_node_lacks_is_an_error_there(in_front, only, state, words):
    finding, code = only(in_front(THERE, engine(model="/models/m", model_state=state)))
    assert (finding.rule, finding.nodes, finding.scope, code) == ("engine-model-missing", ("node2",), "rank", 30)
    assert f"vLLM's model /models/m {words}" in finding.message
    assert finding.message.endswith("; it exists on node1")
    assert finding.fix.commands == ("ls -d /models/m",)


def test_a_model_that_no_node_has_is_a_fault_of_the_job(in_front, only):
    finding, code = only(in_front(engine(model="./nosuch", model_state="absent")))
    assert (finding.rule, finding.scope, finding.ranks, code) == ("engine-model-missing", "job", (0, 1, 2, 3), 30)
    assert finding.fix.commands == ("ls .",)


@pytest.mark.parametrize(("package", "severity"), [("vllm", "error"), ("ray", "error"), ("nixl", "warning")])
def test_versions_that_differ_are_named_with_their_nodes(in_front, only, package, severity):
    finding, _ = only(in_front(engine(versions={package: "1.0"}), engine(versions={package: "1.1"})))
    assert (finding.rule, finding.severity) == ("engine-packages-differ", severity)
    assert finding.message == f"{package} is 1.0 on ranks 0-1 (node1) and 1.1 on ranks 2-3 (node2)"


def test_a_package_that_only_one_node_has_differs(in_front, only):
    finding, _ = only(in_front(engine(versions={"vllm": "1", "nixl": "1.0"}), engine(versions={"vllm": "1"})))
    assert finding.message == "nixl is 1.0 on ranks 0-1 (node1) and none on ranks 2-3 (node2)"


def test_sizes_that_differ_are_named_with_their_nodes(in_front, only):
    finding, code = only(in_front(engine(), mesh=["tp=4", "pp=2,tp=2"]))
    assert (finding.rule, finding.nodes, code) == ("engine-sizes-differ", ("node1", "node2"), 30)
    assert "vLLM's sizes differ: 2 nodes, tp=4 on ranks 0-1 (node1) and 2 nodes, pp=2,tp=2" in finding.message


def test_a_job_without_an_engine_is_silent(job_of, silent):
    assert silent(job_of(2, 2, "distcheck", told="placement from torchrun's arguments: …"))


def test_who_leads_does_not_matter(in_front, change, only):
    job = in_front(THERE, engine(model="/models/m", model_state="absent"))
    assert only(change.process(job, 2, role=Role.ALONE))[0].nodes == ("node2",)
