"""The ranks' timings in the groups of a mesh, joined."""

import msgspec
import pytest

from distcheck.collectives.plan import GroupTiming, Timing
from distcheck.facts.base import SHORTEST_SECONDS
from distcheck.facts.mesh import Mesh
from distcheck.run.group_figures import figures

MESH = Mesh({"dp": 2, "tp": 2})


def timing(*bursts):
    return Timing("all_reduce", 4096, "float32", 5, bursts, "time")


def of(rank, *bursts, alone=()):
    return rank, GroupTiming("dp", "all_reduce", timing(*bursts), timing(*alone) if alone else None)


def test_a_groups_time_is_the_mean_over_its_ranks_and_the_median_over_its_bursts():
    said = [
        of(0, 1.0, 3.0, 2.0, alone=(0.5,)),
        of(1, 4.0, 4.0, 4.0),
        of(2, 3.0, 5.0, 4.0, alone=(0.7,)),
        of(3, 6.0, 5.0, 8.0),
    ]
    (figure,) = figures(MESH, said)
    assert (figure.dimension, figure.op, figure.bytes, figure.bursts) == ("dp", "all_reduce", 4096, 3)
    assert figure.seconds == (3.0, 5.0)
    assert figure.best_seconds == (2.0, 4.5)
    assert figure.alone_seconds == pytest.approx(0.6)


def test_the_time_for_which_a_rank_waited_for_cpus_is_not_its_groups_own():
    waits = {0: (0.5, 2.5, 0.0), 1: (0.0,) * 3, 2: (0.0, 1.0, 0.5), 3: (0.0, 9.0, 9.0)}
    said = [
        (rank, GroupTiming("dp", "all_reduce", msgspec.structs.replace(timing(3.0, 4.0, 2.0), waited=waited)))
        for rank, waited in waits.items()
    ]
    (figure,) = figures(MESH, said)
    assert figure.seconds == (3.0, 3.0)
    assert figure.own_seconds == (1.5, SHORTEST_SECONDS)


def test_a_group_without_one_of_its_ranks_has_no_figure():
    (figure,) = figures(MESH, [of(0, 1.0, alone=(1.0,)), of(1, 4.0), of(3, 6.0)])
    assert (figure.seconds, figure.best_seconds, figure.alone_seconds) == ((None, 5.0), (None, 5.0), None)


def test_what_a_backend_lacks_has_no_figure_but_a_reason():
    (figure,) = figures(MESH, [(rank, GroupTiming("dp", "all_reduce", lacks="no")) for rank in range(4)])
    assert (figure.lacks, figure.seconds, figure.bytes) == ("no", (), 0)


def test_without_a_mesh_there_are_no_groups():
    assert figures(None, [of(0, 1.0)]) == ()
    assert figures(MESH, []) == ()
