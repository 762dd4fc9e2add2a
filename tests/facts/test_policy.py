"""A site's policy on one node: which sections count, and what a later one changes."""

from __future__ import annotations

import pytest
from made.policies import policy

from distcheck.facts.asked import Asked
from distcheck.facts.policy import named


@pytest.mark.parametrize(
    ("nodes", "inside", "outside"),
    [
        ("gpu[001-128],login1", ["gpu001", "gpu128", "login1"], ["gpu1", "gpu129", "gpu0001", "login", "gpu001x"]),
        ("n[8-12,20]", ["n8", "n10", "n20"], ["n7", "n13", "n08", "n21"]),
        ("r[1-2]n[0-3]-ib", ["r1n0-ib", "r2n3-ib"], ["r3n0-ib", "r1n4-ib", "r1n0"]),
        ("a b", ["a", "b"], ["c", "ab"]),
        ("n[1-999999999999]", ["n1", "n123456789"], ["n0", "m1"]),
    ],
)
def test_a_list_of_nodes_names_what_slurm_would(nodes, inside, outside):
    assert [name for name in (*inside, *outside) if named(nodes, name)] == inside


def test_a_later_section_changes_what_it_names_and_leaves_the_rest():
    found = policy(
        {"mode": "observe", "rule": {"a-rule": {"ignore": "why", "severity": "info"}}, "expect": {"gpus": 8}},
        {"rule": {"a-rule": {"severity": "error"}, "b-rule": {"mode": "enforce"}}, "required-paths": ["/a"]},
        {"nodes": "node[2-3]", "expect": {"gpus": 4, "kernel": "6.*"}, "required-paths": ["/b"]},
    )
    here, there = found.on(), found.on("node3")
    assert (here.mode, here.expect.gpus, here.required_paths) == ("observe", 8, ("/a",))
    assert (here.rule["a-rule"].ignore, here.rule["a-rule"].severity) == ("why", "error")
    assert (there.mode, there.expect.gpus, there.expect.kernel) == ("observe", 4, "6.*")
    assert (there.required_paths, there.rule) == (("/a", "/b"), here.rule)


@pytest.mark.parametrize(
    ("sections", "mode", "rule", "expected"),
    [
        ([], None, "", "enforce"),
        ([{"mode": "observe"}], None, "", "observe"),
        ([{"mode": "observe", "command": {"node": {"mode": "enforce"}}}], None, "", "enforce"),
        ([{"mode": "observe", "command": {"gate": {"mode": "enforce"}}}], None, "", "observe"),
        ([{"mode": "enforce"}], "observe", "", "observe"),
        ([{"mode": "observe", "rule": {"a-rule": {"mode": "enforce"}}}], None, "a-rule", "enforce"),
        ([{"mode": "observe", "rule": {"a-rule": {"mode": "enforce"}}}], None, "b-rule", "observe"),
        ([{"rule": {"a-rule": {"mode": "observe"}}}], "enforce", "a-rule", "observe"),
        ([{"rule": {"a-rule": {"ignore": "w", "until": "2026-11-30"}}}], None, "a-rule", "observe"),
        ([{"rule": {"a-rule": {"ignore": "w", "until": "2026-12-01"}}}], None, "a-rule", "enforce"),
    ],
)
def test_the_mode_of_a_rule_counts_before_the_options_that_of_the_command_and_of_the_file(
    sections, mode, rule, expected
):
    asked = Asked("node", ("node",), mode=mode, policy=policy(*sections))
    assert asked.mode_of((rule,) if rule else ()) == expected


def test_a_policy_that_cannot_be_used_sets_nothing_and_observes():
    asked = Asked("node", ("node",), policy=policy({"expect": {"gpus": 8}}, problem="p.toml is no valid TOML"))
    assert (asked.site().expect.gpus, asked.mode_of()) == (None, "observe")
    assert Asked("node", ("node",), mode="enforce", policy=asked.policy).mode_of() == "enforce"
