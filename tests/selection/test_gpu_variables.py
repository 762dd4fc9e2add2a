"""Which GPUs ROCm's three variables leave, as its runtime, HIP and torch read them."""

from __future__ import annotations

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu
from distcheck.selection.gpu_variables import CUDA, HIP, ROCR, deciding, selected

ALL = (0, 1, 2, 3)
IDS = ("00a1b2c3d4e5f601", "00a1b2c3d4e5f602", "f0a1b2c3d4e5f603", "ABCD000000000004".lower())


def gpu(index, lost=""):
    missing = Missing(reason="lost")
    return Gpu(index, missing if lost else f"GPU-{IDS[index]}", f"0000:0{index}:00.0", "x", 1, 0, mig=False, lost=lost)


GPUS = tuple(gpu(n) for n in range(4))


@pytest.mark.parametrize(
    ("variables", "visible", "kind"),
    [
        ({}, ALL, None),
        ({ROCR: "2,0"}, (2, 0), None),
        ({ROCR: " 1 , 3"}, (1, 3), None),
        ({ROCR: "0x3,02"}, (3, 2), None),
        ({ROCR: "GPU-F0,0"}, (2, 0), None),
        ({ROCR: "GPU-00a1"}, (), "bad-item"),  # fits two
        ({ROCR: "GPU-,0"}, (), "bad-item"),  # too short
        ({ROCR: "GPU-ffff"}, (), "stale"),
        ({ROCR: ""}, (), "empty"),
        ({ROCR: "1,1,2"}, (1,), "duplicate"),
        ({ROCR: "1,-1,2"}, (1,), "minus-one"),
        ({ROCR: "1,9,2"}, (1,), "bad-item"),
        ({ROCR: "1,x"}, (1,), "bad-item"),
        ({ROCR: "08"}, (), "bad-item"),
        ({ROCR: "0,1,2,3,9"}, ALL, None),  # not read so far
        ({HIP: "3,1"}, (3, 1), None),
        ({HIP: "01"}, (), "bad-item"),
        ({HIP: "0, 1"}, (0,), "bad-item"),
        ({HIP: "0,0,1"}, (), "duplicate"),
        ({HIP: "0,-1,1"}, (0,), "minus-one"),
        ({HIP: "0,4,1"}, (0,), "bad-item"),
        ({HIP: ""}, (), "empty"),
        ({HIP: "", CUDA: "1"}, (), "empty"),  # torch counts none
        ({HIP: "GPU-f0a1,GPU-abcd"}, (2, 3), None),
        ({HIP: "GPU-F0A1"}, (), "stale"),
        ({CUDA: "1,0"}, (1, 0), None),
        ({HIP: "2", CUDA: "1"}, (2,), None),
        ({ROCR: "3,2", HIP: "1"}, (2,), None),
        ({ROCR: "3,2", CUDA: "0"}, (3,), None),
        ({ROCR: "1", HIP: "1"}, (), "bad-item"),
        ({ROCR: "1,0", HIP: "0,1,2"}, (1, 0), "bad-item"),
        ({ROCR: "1,1", HIP: "0"}, (1,), "duplicate"),
    ],
)
def test_the_gpus_of_each_value(variables, visible, kind):
    found = selected(variables, GPUS, "amd")
    assert found.shown.uuids == tuple(f"GPU-{IDS[n]}" for n in visible)
    assert (found.fault and found.fault.kind) == kind
    assert bool(found.shown.stop) == (kind is not None)


def test_the_variable_that_is_wrong_is_named():
    assert selected({ROCR: "1,1", HIP: "0"}, GPUS, "amd")[:2] == (ROCR, "1,1")
    assert selected({ROCR: "1", HIP: "1"}, GPUS, "amd")[:2] == (HIP, "1")
    assert selected({CUDA: "x"}, GPUS, "amd")[:2] == (CUDA, "x")
    assert selected({}, GPUS, "amd")[:2] == (HIP, None)


def test_of_nvidias_gpus_only_cudas_variable_counts():
    assert deciding({HIP: "0", ROCR: "0"}, "nvidia") == (CUDA, None)
    assert selected({HIP: "0", CUDA: "1"}, GPUS, "nvidia").shown.uuids == (f"GPU-{IDS[1]}",)


def test_a_number_that_a_lost_gpu_explains_is_not_the_values_fault():
    some = (*GPUS[:3], gpu(3, lost="amdgpu: no driver is bound to it"))
    for variable, value in ((ROCR, "3,1,2"), (HIP, "0,1,2,3")):
        found = selected({variable: value}, some, "amd")
        assert found.fault is None
        assert "GPU 3 does not exist" in found.shown.stop


def test_the_partitions_of_a_card_share_its_id_which_then_fits_several():
    parts = tuple(Gpu(n, f"GPU-{IDS[0]}/{n}", "0000:01:00.0", "x", 1, 0, mig=False) for n in range(2))
    found = selected({ROCR: f"GPU-{IDS[0]}"}, parts, "amd")
    assert found.fault is not None
    assert found.fault.kind == "bad-item"
    assert selected({HIP: f"GPU-{IDS[0]}"}, parts, "amd").shown.uuids == (f"GPU-{IDS[0]}/0",)
    assert selected({HIP: "1,0"}, parts, "amd").shown.uuids == (f"GPU-{IDS[0]}/1", f"GPU-{IDS[0]}/0")


def test_without_gpus_no_value_is_wrong():
    assert selected({HIP: "x", ROCR: ""}, (), "amd").fault is None
