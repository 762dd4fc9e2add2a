"""The report of a history: which nodes failed most often, in every format that it has."""

from __future__ import annotations

import json

import pytest
from report.test_html import Tags

from distcheck.facts.history import Failure, NodeTotal, Totals
from distcheck.report.history import FORMATS, document, render

NOW = 1_795_000_000.0
RULES = {"gpu-xid": 3, "isolation-bad-node": 1}
TOTALS = Totals(
    nodes=(
        NodeTotal("node3", 12, 3, NOW - 86400, NOW, Failure(NOW - 3600, ("gpu-xid", "isolation-bad-node")), RULES),
        NodeTotal("<b>|*", 4, 1, NOW, NOW, Failure(NOW, ("gpu-xid",)), {"gpu-xid": 1}),
        NodeTotal("node1", 20, 0, NOW, NOW),
    ),
    lines=36,
    unreadable=2,
    newer=1,
    unread=("node7.jsonl: Permission denied",),
)


def test_the_text_shows_the_failed_nodes_in_their_order_and_what_was_not_read():
    assert render("text", document("/h", TOTALS)) == (
        "history of /h\n"
        "36 runs of 3 nodes\n"
        "2 lines could not be read\n"
        "not checked: 1 line of a newer distcheck; install its version to read them\n"
        "not checked: node7.jsonl: Permission denied\n"
        "\n"
        "node   failed  of runs  share  last failure (UTC)  rule                         last run (UTC)\n"
        "-----  ------  -------  -----  ------------------  ---------------------------  ----------------\n"
        "node3       3       12    25%  2026-11-18 10:06    gpu-xid, isolation-bad-node  2026-11-18 11:06\n"
        "<b>|*       1        4    25%  2026-11-18 11:06    gpu-xid                      2026-11-18 11:06\n"
        "1 node never failed (-v shows it)\n"
    )


def test_a_history_without_a_failure_has_no_table():
    healthy = Totals(nodes=TOTALS.nodes[2:], lines=20)
    assert render("text", document("/h", healthy)) == (
        "history of /h\n20 runs of 1 node\n\n1 node never failed (-v shows it)\n"
    )
    assert "node1       0" in render("text", document("/h", healthy), everything=True)
    assert render("text", document("/h", Totals())) == "history of /h\n0 runs of 0 nodes\n"


def test_json_has_every_node_with_times_in_iso_8601():
    found = json.loads(render("json", document("/h", TOTALS)))
    assert [node["node"] for node in found["nodes"]] == ["node3", "<b>|*", "node1"]
    assert found["nodes"][0] == {
        "node": "node3",
        "runs": 12,
        "failed": 3,
        "first": "2026-11-17T11:06:40Z",
        "last": "2026-11-18T11:06:40Z",
        "last_failure": {"time": "2026-11-18T10:06:40Z", "rules": ["gpu-xid", "isolation-bad-node"]},
        "rules": RULES,
    }
    assert (found["schema"], found["lines"], found["unreadable"], found["newer"]) == (1, 36, 2, 1)
    assert found["unread"] == ["node7.jsonl: Permission denied"]


def test_html_and_markdown_show_the_same_table_and_escape_the_names():
    page, parsed = render("html", document("/h<i>", TOTALS)), Tags()
    parsed.feed(page)
    assert parsed.open == []
    cells = [text.strip() for text in parsed.text if text.strip()]
    assert cells.index("node3") < cells.index("<b>|*")
    assert {"gpu-xid, isolation-bad-node", "2 lines could not be read", "history of /h<i>"} <= {
        cell.removeprefix("distcheck: ") for cell in cells
    }
    lines = render("markdown", document("/h", TOTALS)).splitlines()
    assert "| node3 | 3 | 12 | 25% | 2026-11-18 10:06 | gpu-xid, isolation-bad-node | 2026-11-18 11:06 |" in lines
    assert any(line.startswith(r"| \<b\>\|\* | 1 |") for line in lines)


@pytest.mark.parametrize("name", FORMATS)
def test_control_characters_of_a_name_reach_no_terminal(name):
    totals = Totals(nodes=(NodeTotal("a\x1b[31m\nb", 1, 1, NOW, NOW, Failure(NOW, ("x\x07",)), {}),), lines=1)
    text = render(name, document("/h\x1b", totals), everything=True)
    assert "\x1b" not in text
    assert "\x07" not in text


SPARED = Totals(
    nodes=(
        NodeTotal("node3", 12, 3, NOW, NOW, Failure(NOW, ("gpu-xid",)), RULES, {"gpu-xid": 2, "isolation-bad-node": 1}),
        NodeTotal("node4", 8, 1, NOW, NOW, Failure(NOW, ("gpu-xid",)), {"gpu-xid": 1}, {"gpu-xid": 1}),
        NodeTotal("node1", 20, 0, NOW, NOW),
    ),
    lines=40,
)


def test_the_rules_that_would_have_drained_nodes_are_a_table_for_who_decides_to_enforce():
    assert render("text", document("/h", SPARED), would=True) == (
        "history of /h\n40 runs of 3 nodes\n\n"
        "rule                nodes      times  share of runs\n"
        "------------------  ---------  -----  -------------\n"
        "gpu-xid             node[3-4]      3             8%\n"
        "isolation-bad-node  node3          1             2%\n"
    )
    found = json.loads(render("json", document("/h", SPARED)))["would"]
    assert found[0] == {"rule": "gpu-xid", "nodes": ["node3", "node4"], "times": 3, "share": 0.075}
    assert "no run would have excluded a node" in render("text", document("/h", TOTALS), would=True)
    assert "| gpu-xid | node\\[3-4\\] | 3 |" in render("markdown", document("/h", SPARED), would=True)
    assert "node[3-4]" in render("html", document("/h", SPARED), would=True)
