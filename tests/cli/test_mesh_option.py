from __future__ import annotations

import pytest

from distcheck.cli.options import Options
from distcheck.cli.request import request_of
from distcheck.facts.errors import UsageError
from distcheck.facts.mesh import Mesh

LOOKS = ("environment", "meeting")


def mesh_of(**options):
    return request_of("env", LOOKS, Options(**options), {"RANK": "0", "WORLD_SIZE": "2"}).asked.mesh


def test_the_mesh_is_part_of_what_the_user_asked():
    assert mesh_of() is None
    assert mesh_of(mesh="dp=4,tp=2") == Mesh({"dp": 4, "tp": 2})
    assert mesh_of(mesh="tp=2", mesh_order="tp-dp") == Mesh({"dp": 0, "tp": 2}, order="tp-dp")


def test_an_order_needs_sizes():
    with pytest.raises(UsageError, match="--mesh-order tp-dp without --mesh"):
        mesh_of(mesh_order="tp-dp")
