"""The mesh in every report: the ranks' coordinates, and what the groups of each dimension span."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.asked import Asked
from distcheck.report import Detail, render
from distcheck.report.document import document
from distcheck.report.tables import dimensions, ranks
from distcheck.rules.diagnose import diagnose
from distcheck.selection.meshes import parse


@pytest.fixture
def reported(job_of):
    """Return a job with this mesh, judged by no rules."""

    def made(text, nodes=2, per_node=4, order=""):
        asked = Asked("env", ("environment",), mesh=parse(text, order))
        job = msgspec.structs.replace(job_of(nodes, per_node), asked=asked)
        return job, diagnose(job, rules=())

    return made


def test_the_rank_table_has_a_column_for_each_dimension(reported):
    table = ranks(document(*reported("pp=2,dp=2,tp=2")), everything=True, whole_uuids=False)

    assert table.names[:6] == ("rank", "node", "local", "pp", "dp", "tp")
    assert [row[3:6] for row in table.rows] == [
        (str(rank >> 2), str(rank >> 1 & 1), str(rank & 1)) for rank in range(8)
    ]


def test_a_dimension_with_the_name_of_a_column_is_told_apart(reported):
    table = ranks(document(*reported("node")), everything=True, whole_uuids=False)

    assert table.names[:5] == ("rank", "node", "local", "rail", "mesh node")


def test_the_groups_of_each_dimension_are_counted_with_what_they_span(reported):
    table = dimensions(document(*reported("dp=2,cp=2,tp=2")))

    assert table.names == ("dimension", "size", "groups", "first group", "nodes per group")
    assert table.rows == (
        ("dp", "2", "4", "ranks 0,4", "2"),
        ("cp", "2", "4", "ranks 0,2", "1"),
        ("tp", "2", "4", "ranks 0-1", "1"),
    )


def test_json_has_the_group_and_group_rank_of_each_rank(reported, healthy):
    report = msgspec.to_builtins(document(*reported("pp=2,dp=4,ep=2,etp=1", order="tp-ep-dp-pp")))

    assert report["mesh"]["mesh"] == "pp=2,dp=4"
    assert report["mesh"]["experts"] == "pp=2,edp=2,ep=2"
    assert report["mesh"]["dimensions"][3] == {
        "name": "ep", "size": 2, "groups": 4, "example": (0, 1), "nodes": {"min": 1, "max": 1}, "domains": None,
    }  # fmt: skip
    places = report["ranks"][6]["mesh"]
    assert {name: (place["group"], place["rank"]) for name, place in places.items()} == {
        "pp": (2, 1), "dp": (1, 2), "edp": (2, 1), "ep": (3, 0),
    }  # fmt: skip
    without = msgspec.to_builtins(document(*healthy))
    assert (without["mesh"], without["ranks"][0]["mesh"]) == (None, None)


def test_a_mesh_that_does_not_fit_has_no_columns(reported):
    report = document(*reported("dp=3,tp=2"))

    assert report.mesh is None
    assert report.ranks[0].mesh is None
    assert dimensions(report).rows == ()


@pytest.mark.parametrize("kind", ["text", "markdown", "html"])
def test_every_format_shows_the_dimensions(reported, kind):
    page = render(kind, *reported("dp=4,tp=2"), options=Detail())

    assert "ranks 0,2,4,6" in page
    assert "nodes per group" in page
