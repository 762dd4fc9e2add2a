"""What a process that has no report says at the end."""

from types import SimpleNamespace

import pytest

from distcheck.facts.placement import Placement
from distcheck.rollcall.protocol import Bye
from distcheck.run import follower

SAID = "distcheck: FAIL: it is bad. exit code 30; report: rank 0, node a, process 7\n"


@pytest.mark.parametrize(
    ("launcher", "local_rank", "node", "code", "environ", "speaks"),
    [
        ("by hand", 1, "a", 30, {}, True),
        ("by hand", 1, "b", 0, {}, True),
        ("kubernetes", 0, "b", 30, {}, True),
        ("torchrun", 0, "b", 30, {}, True),
        ("torchrun", 0, "b", 0, {}, False),
        ("torchrun", 1, "b", 30, {}, False),
        ("torchrun", 0, "a", 30, {}, False),
        ("torchrun", 0, "b", 30, {"SLURM_STEP_ID": "0"}, False),
        ("slurm", 0, "b", 30, {"SLURM_STEP_ID": "0"}, False),
        ("openmpi", 0, "b", 30, {}, False),
        ("distcheck", 0, "b", 30, {}, False),
    ],
)
def test_it_points_to_the_report_where_the_user_may_not_see_it(
    capsys, launcher, local_rank, node, code, environ, speaks
):
    request = SimpleNamespace(
        placements=(Placement(rank=9, local_rank=local_rank, launcher=launcher),), environ=environ
    )
    run = SimpleNamespace(
        request=request,
        record=SimpleNamespace(node=SimpleNamespace(name=node)),
        progress=SimpleNamespace(close=lambda: None),
    )
    follower._show_end(run, Bye(code, "FAIL: it is bad. exit code 30", "a", 7), 0)
    assert capsys.readouterr().err == (SAID if speaks else "")
