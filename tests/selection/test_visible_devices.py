"""CUDA_VISIBLE_DEVICES as CUDA and torch read it."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu
from distcheck.selection.visible_devices import device_of, fault_in, visible

GONE = Missing(reason="not read")


def gpu_of(index, uuid=None, **more):
    uuid = f"GPU-{index}{index}{index}{index}-{'ab' if index % 2 else 'cd'}" if uuid is None else uuid
    return Gpu(index, uuid, f"0000:{index + 1:02x}:00.0", "NVIDIA H100", 80 << 30, 0, **{"mig": False, **more})


EIGHT = tuple(gpu_of(i) for i in range(8))
A, B = EIGHT[0].uuid, EIGHT[1].uuid


def seen(value, gpus=EIGHT):
    names = [gpu.uuid for gpu in gpus]
    return [names.index(uuid) for uuid in visible(value, gpus).uuids]


@pytest.mark.parametrize(
    ("value", "indices", "kind"),
    [
        (None, list(range(8)), None),
        ("0", [0], None),
        ("3,1,0", [3, 1, 0], None),
        (" 2 ,\t3", [2, 3], None),
        ("0, 1", [0, 1], None),
        ("0,1,", [0, 1], None),
        ("0,1, ,", [0, 1], None),
        ("+1,007", [1, 7], None),
        ("", [], "empty"),
        ("  ", [], "empty"),
        (",", [], "empty"),
        ("-1", [], "minus-one"),
        ("0,-1,1", [0], "minus-one"),
        ("0,2,-1,1", [0, 2], "minus-one"),
        (f"{A},-1", [0], "minus-one"),
        ("0,0", [], "duplicate"),
        ("1,2,1", [], "duplicate"),
        ("0,99,0", [], "duplicate"),
        (f"{A},{A}", [], "duplicate"),
        (f"{A},GPU-0000", [], "duplicate"),
        ("0,-1,0", [0], "minus-one"),
        ("0 1", [0], "bad-item"),
        ("0;1", [0], "bad-item"),
        ("0-3", [0], "bad-item"),
        ("1gpu2,2ampere", [1, 2], "bad-item"),
        ("00000000:07:00.0", [0], "bad-item"),
        ("[0,1]", [], "bad-item"),
        ('"0,1"', [], "bad-item"),
        ("all", [], "bad-item"),
        ("none", [], "bad-item"),
        ("void", [], "bad-item"),
        ("NoDevFiles", [], "bad-item"),
        ("gpu-0000", [], "bad-item"),
        ("-", [], "bad-item"),
        ("0,,1", [0], "bad-item"),
        (",0", [], "bad-item"),
        ("0,99,1", [0], "bad-item"),
        ("8", [], "bad-item"),
        ("8932f937", [], "bad-item"),
        ("9" * 5000, [], "bad-item"),
        (f" {A}", [], "bad-item"),
        (f"{A}, {B}", [0], "bad-item"),
        (f"{A} ,{B}", [], "bad-item"),
        ("GPU-", [], "bad-item"),
        (f"{A},1", [0], "mixed"),
        (f"1,{A}", [1], "mixed"),
        (f"{A},MIG-1", [0], "mixed"),
        (A, [0], None),
        (f"{B},{A}", [1, 0], None),
        (f"{A},", [0], None),
        ("GPU-3,GPU-5", [3, 5], None),
        ("GPU-ffff", [], "stale"),
        (f"{A},GPU-ffff,{B}", [0], "stale"),
        (f"{A.lower()[:4].upper()}0000-CD", [], "stale"),
        ("MIG-1", [], "stale"),
    ],
)
def test_a_value_shows_these_gpus(value, indices, kind):
    assert seen(value) == indices
    fault = fault_in(value, EIGHT)
    assert (fault.kind if fault else None) == kind
    if len(indices) < len((value or "").strip(" ,").split(",")) and value:
        assert visible(value, EIGHT).stop


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0,-1,1", "item 2 ('-1'): a negative number ends the list"),
        ("0 1", "item 1 ('0 1'): CUDA reads 0 and ignores ' 1'"),
        ("0,9", "item 2 ('9'): GPU 9 does not exist, only GPUs 0 to 7; it ends the list"),
        ("[0,1]", "item 1 ('[0'): a bracket or quote ends the list"),
        ("all", "item 1 ('all'): CUDA does not accept 'all'; it ends the list"),
        ("0,,1", "item 2 (''): an empty item ends the list"),
        ("", "it is set but names no GPU"),
        (f"{A},1", "item 2 ('1'): an index in a list of UUIDs ends the list"),
        (f"1,{A}", f"item 2 ('{A}'): a GPU UUID in a list of indices ends the list"),
        ("GPU-x", "item 1 ('GPU-x'): no GPU of this node has this UUID; it ends the list"),
    ],
)
def test_each_fault_has_its_text(value, words):
    assert str(fault_in(value, EIGHT)) == words


def test_a_misleading_item_does_not_end_the_list():
    assert visible("0 1,2", EIGHT).stop == ""
    assert visible("0,9", EIGHT).stop == str(fault_in("0,9", EIGHT))


def test_an_ambiguous_prefix_names_its_matches():
    pair = (gpu_of(0, "GPU-ab1"), gpu_of(1, "GPU-ab2"))
    assert visible("GPU-ab", pair).uuids == ()
    assert "GPU-ab1 and GPU-ab2" in visible("GPU-ab", pair).stop
    assert visible("GPU-", pair[:1]).uuids == ("GPU-ab1",)


def test_a_lost_gpu_shifts_the_rest_and_no_item_is_blamed():
    gpus = (*EIGHT[:3], gpu_of(3, GONE, lost="NVML error 15: lost"), *EIGHT[4:])
    assert seen("3,6", gpus) == [4, 7]
    assert seen(None, gpus) == [0, 1, 2, 4, 5, 6, 7]
    full = visible("0,1,2,3,4,5,6,7", gpus)
    assert len(full.uuids) == 7
    assert full.stop
    assert fault_in("0,1,2,3,4,5,6,7", gpus) is None
    assert fault_in("8", gpus).kind == "bad-item"
    assert fault_in("GPU-3333-ab", gpus) is None
    assert fault_in("0 1,7", gpus).item == 1


def test_gpus_without_a_uuid_are_named_by_address():
    gpus = (gpu_of(0, GONE), gpu_of(1))
    assert visible(None, gpus).uuids == ("PCI-0000:01:00.0", B)
    assert visible("0", gpus).uuids == ("PCI-0000:01:00.0",)
    assert fault_in("GPU-0000", gpus) is None
    fenced = Gpu(0, GONE, GONE, GONE, GONE, GONE)
    assert visible("0", (fenced, EIGHT[1])).uuids == (B,)


def test_it_is_unknown_what_a_uuid_shows_that_may_be_one_that_nvml_does_not_report():
    gpus = (gpu_of(0, GONE), gpu_of(1), gpu_of(2, GONE))
    for value, uuids in ((A, ()), (f"{B},{A}", (B,)), ("MIG-aa", ())):
        item = f"item {len(uuids) + 1} ({value.split(',')[-1]!r})"
        assert visible(value, gpus).uuids == uuids
        assert visible(value, gpus).unknown == f"{item} may name GPUs 0, 2, whose UUID NVML does not report"
    for value in (None, "0", "0,9", B, f"{B},{B}"):
        assert visible(value, gpus).unknown == ""
    assert visible(A, (gpu_of(0, GONE, lost="NVML error 15: lost"), gpu_of(1))).unknown == ""


def test_without_gpus_nothing_is_visible_and_no_item_is_blamed():
    for value in (None, "", "0", "0,0", "GPU-1", "MIG-1"):
        assert visible(value, ()) == ((), "", "")
        assert fault_in(value, ()) is None


DIVIDED = gpu_of(0, mig=True, mig_uuids=("MIG-aa", "MIG-bb"))


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        ("MIG-aa", ("MIG-aa",)),
        ("MIG-b", ("MIG-bb",)),
        ("MIG-bb,MIG-aa", ("MIG-bb",)),
        ("MIG-", ()),
        ("MIG-aa,MIG-aa", ()),
        (f"MIG-{DIVIDED.uuid}/1/0", (f"MIG-{DIVIDED.uuid}/1/0",)),
        ("MIG-GPU-ffff/1/0", ()),
        ("0", ("MIG-aa",)),
        ("1", (B,)),
        ("1,0", ("MIG-aa",)),
        (A, ("MIG-aa",)),
        (None, ("MIG-aa",)),
    ],
)
def test_a_process_sees_one_mig_device(value, uuids):
    assert visible(value, (DIVIDED, EIGHT[1])).uuids == uuids


def test_why_the_other_mig_devices_are_not_seen():
    assert visible("MIG-aa,MIG-bb", (DIVIDED,)).stop == "item 2: a process sees only one MIG device"
    assert visible(None, (DIVIDED,)).stop.startswith("a process sees only one MIG device")
    assert visible("MIG-aa", (DIVIDED,)).stop == ""
    assert visible("MIG-bb,MIG-aa", (DIVIDED,)).uuids == ("MIG-bb",)
    assert fault_in("MIG-bb,MIG-aa", (DIVIDED,)) is None


def test_a_gpu_in_mig_mode_without_devices_is_not_visible():
    empty = gpu_of(0, mig=True)
    assert visible(None, (empty,)) == ((), "a GPU in MIG mode without a MIG device is not visible", "")
    assert visible("0,1", (empty, EIGHT[1])).uuids == (B,)


@pytest.mark.parametrize(
    ("local_rank", "uuids", "uuid"),
    [(0, (A, B), A), (1, (A, B), B), (2, (A, B), None), (None, (A, B), None), (-1, (A, B), None),
     (5, (A,), A), (None, (A,), A), (0, (), None), (None, (), None)],
)  # fmt: skip
def test_the_device_of_a_local_rank(local_rank, uuids, uuid):
    assert device_of(local_rank, uuids) == uuid


# -- against torch's own parser

POOL = ("GPU-00000000-aa", "GPU-00000000-ab", "GPU-0fff", "GPU-abcd", "GPU-abcd-1")
NODE = tuple(gpu_of(i, uuid) for i, uuid in enumerate(POOL))
ITEMS = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from(POOL),
    st.sampled_from(POOL).flatmap(lambda uuid: st.integers(0, len(uuid)).map(lambda n: uuid[:n])),
    st.text(alphabet="0123456789", min_size=1, max_size=3),
    st.sampled_from(["", " ", "1gpu2", "0 1", "0;1", "[0", "all", "gpu-0fff", "00:07.0", "GPU-x", "-0", "+2", "0x1"]),
    st.text(alphabet=" -+019GPUabcdefx.:", max_size=6),
)
VALUES = st.lists(
    st.tuples(st.sampled_from(["", "", "", " ", "\t"]), ITEMS, st.sampled_from(["", "", "", " "])).map("".join),
    max_size=6,
).map(",".join)


@pytest.fixture(scope="module")
def torch_reads():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns if NumPy is not installed
        import torch.cuda

    def read(value):
        """Do what torch.cuda._device_count_nvml does, with NVML's answers given."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", value)
            items = torch.cuda._parse_visible_devices()
        if items and isinstance(items[0], str):
            return torch.cuda._transform_uuid_to_ordinals(items, list(POOL))
        beyond = next((i for i, index in enumerate(items) if index >= len(POOL)), len(items))
        return items[:beyond]

    return read


@given(VALUES)
@example("0,1,")
@example("0,99,0")
@example("GPU-0000,GPU-abcd")
@example("GPU-abcd-1,GPU-abcd-")
@example("GPU-abcd, GPU-0fff")
@example("9,-1,9")
@example("GPU-")
def test_torch_sees_the_same_gpus(torch_reads, value):
    try:
        expected = torch_reads(value)
    except ValueError:
        assert any(re.match(r"[+-](?![0-9])", item.strip()) for item in value.split(","))
    else:
        assert seen(value, NODE) == expected


@given(st.one_of(VALUES, st.text(max_size=40), st.text(alphabet="GPUMIG-/0123456789,ab ", max_size=40)))
def test_any_text_can_be_read(value):
    gpus = (*NODE, DIVIDED)
    result, fault = visible(value, gpus), fault_in(value, gpus)
    assert len(set(result.uuids)) == len(result.uuids)
    if fault is not None:
        assert str(fault)
        assert 0 <= fault.item <= len(value.split(","))
    if not result.uuids:
        assert fault is not None
