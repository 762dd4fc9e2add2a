"""The lists of docs/variables, and the script that compares them with wheels."""

import struct
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "docs"))

import compare_variables as compare
from build_variables import listed


def library(constants: bytes) -> bytes:
    """Return an ELF file whose section .rodata holds these constants."""
    names, head = b"\0.shstrtab\0.rodata\0", 64
    sections = [(1, head, len(names)), (11, head + len(names), len(constants))]
    table = b"".join(struct.pack("<IIQQQQ24x", name, 0, 0, 0, at, size) for name, at, size in sections)
    start = head + len(names) + len(constants)
    header = bytearray(head)
    struct.pack_into("<Q", header, 0x28, start)
    struct.pack_into("<HHH", header, 0x3A, 64, len(sections), 0)
    return bytes(header) + names + constants + table


@pytest.fixture
def wheel(tmp_path):
    def make(name: str, **members: bytes) -> compare.Wheel:
        path = tmp_path / f"{name}-py3-none-any.whl"
        with ZipFile(path, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        return compare.read(path)

    return make


def test_only_whole_constants_are_names_of_variables(wheel):
    made = library(b"\0NCCL_ALGO\0set by NCCL_WORD\0x?NCCL_PROTO\0NCCL_IB_HCA set to %s\0") + b"\0NCCL_ENUM\0"
    found = wheel("nvidia_nccl_cu13-2.32.3", **{"nvidia/nccl/lib/libnccl.so.2": made})
    assert found == ("nvidia-nccl-cu13", (2, 32, 3), {"NCCL_ALGO", "NCCL_PROTO"})


def test_torch_has_names_in_its_libraries_and_in_its_python(wheel):
    found = wheel(
        "torch-2.15.0",
        **{
            "torch/lib/libtorch_cuda.so": library(b"\0TORCH_NCCL_NAN_CHECK\0"),
            "torch/distributed/_watchdog.py": b'os.environ.get("TORCH_WATCHDOG_STUCK_ACTION", "log")  # TORCH_DIST_NO',
            "torch/nn/other.py": b'"TORCH_DIST_OTHER"',
        },
    )
    assert found.variables == {"TORCH_NCCL_NAN_CHECK", "TORCH_WATCHDOG_STUCK_ACTION"}


def test_what_a_list_lacks_or_states_wrongly_is_told(wheel):
    nccl = listed("nccl")
    there = {n for n, b in nccl.items() if b and b.first <= (2, 32, 3) <= b.last}
    right = compare.Wheel("nvidia-nccl-cu13", (2, 32, 3), frozenset(there))
    assert not list(compare.differences(right, nccl))
    changed = right._replace(variables=frozenset(there - {"NCCL_ALGO"} | {"NCCL_NEW", "NCCL_NET_GDR_MLOPART"}))
    assert list(compare.differences(changed, nccl)) == [
        "not listed: NCCL_NEW",
        "lacks NCCL_ALGO, which is listed for 2.5.6 and later",
        "has NCCL_NET_GDR_MLOPART, which is listed for 2.30.7..2.31.2",
    ]


def test_torchs_list_has_releases_where_they_are_known():
    torch = listed("torch")
    assert torch["TORCH_DIST_USE_NCCL2"] == ((2, 14), (999,))
    assert torch["TORCH_NCCL_AVOID_RECORD_STREAMS"] == ((2, 1), (2, 14))
    assert torch["MASTER_ADDR"] is None
