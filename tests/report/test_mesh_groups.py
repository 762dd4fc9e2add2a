"""The figures of the groups of a mesh in every format."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.groups import GroupFigure
from distcheck.facts.job import Collectives
from distcheck.facts.mesh import Mesh
from distcheck.facts.rank import RankRun
from distcheck.report import render
from distcheck.report.document import document
from distcheck.report.tables import groups

MESH = Mesh({"dp": 2, "tp": 2})
MB = 1_000_000


@pytest.fixture
def meshed(job_of, judge):
    """A job of 2 x 2 ranks: dp is measured, of tp one group has no figure, and one operation is lacking."""
    figures = (
        GroupFigure(
            "dp", "all_reduce", MB, bursts=3, alone_seconds=0.001, seconds=(0.002, 0.004), best_seconds=(0.002, 0.003)
        ),
        GroupFigure(
            "tp", "reduce_scatter", MB, bursts=3, alone_seconds=0.001, seconds=(None, 0.001), best_seconds=(None, 0.001)
        ),
        GroupFigure("tp", "all_gather", lacks="gloo of this torch: no"),
    )
    job = job_of(2, 2, gpus=False, measured=False)
    runs = [
        RankRun(1, "done", "done", wrong={"all_reduce in dp": 0 if n < 3 else 7, "all_reduce": 5}) for n in range(4)
    ]
    ranks = tuple(msgspec.structs.replace(rank, run=run) for rank, run in zip(job.ranks, runs, strict=True))
    return judge(msgspec.structs.replace(job, ranks=ranks, collectives=Collectives("gloo", mesh=MESH, groups=figures)))


def test_a_row_has_the_first_group_alone_all_groups_together_and_the_slowest(meshed):
    dp, scatter, gather = document(*meshed).groups
    assert (dp.groups, dp.ranks, dp.wrong) == (2, 2, 7)
    assert dp.alone_busbw_GBps == pytest.approx(1.0)
    assert dp.busbw_GBps == (pytest.approx(0.5), pytest.approx(0.25))
    assert dp.share_of_alone == pytest.approx(0.5)
    assert dp.slowest == (1, 3)
    assert (scatter.busbw_GBps, scatter.share_of_alone, scatter.slowest) == ((None, pytest.approx(0.5)), None, ())
    assert (gather.busbw_GBps, gather.lacks) == ((), "gloo of this torch: no")


def test_the_table_has_a_row_for_each_operation_with_a_figure(meshed):
    table = groups(document(*meshed))
    assert table.rows == (
        ("dp", "2", "2", "all_reduce", "976.56 KiB", "1.00", "0.375", "50%", "0.250", "1,3", "7"),
        ("tp", "2", "2", "reduce_scatter", "976.56 KiB", "0.500", "0.500", "n/a", "0.500", "-", "-"),
    )


@pytest.mark.parametrize("kind", ["text", "markdown", "html"])
def test_every_format_has_the_table_only_with_a_mesh(kind, meshed, healthy):
    assert "Groups of the mesh" in render(kind, *meshed)
    assert "1,3" in render(kind, *meshed)
    assert "Groups of the mesh" not in render(kind, *healthy)
