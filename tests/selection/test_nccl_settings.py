"""NCCL's settings are read as NCCL reads them."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.base import Missing
from distcheck.facts.nccl import NcclFile
from distcheck.selection.nccl_settings import Setting, in_use, settings, strtoll, version

LIBC = ctypes.CDLL(None)
LIBC.strtoll.restype = ctypes.c_longlong
LIBC.strtoll.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int)
ENV = NcclFile(path="/job/nccl.conf", origin="NCCL_CONF_FILE", library="nccl", lines=("NCCL_ALGO=Ring",))
HOME = NcclFile(path="/h/.nccl.conf", origin="HOME", library="nccl", lines=("NCCL_ALGO=Tree", "NCCL_NET=IB"))
LISTED = NcclFile(path="/p/.nccl.conf", origin="passwd", library="nccl", lines=("NCCL_ALGO=NVLS",))
SITE = NcclFile(path="/etc/nccl.conf", origin="system", library="nccl", lines=("NCCL_NET=Socket", "NCCL_DEBUG=WARN"))
RCCL = NcclFile(path="/p/.rccl.conf", origin="passwd", library="rccl", lines=("NCCL_ALGO=Ring",))


@given(st.text(alphabet=" \t+-0123456789xXabfFgMk\"'.", max_size=12))
def test_numbers_are_read_as_c_reads_them(text):
    rest, kept = ctypes.c_char_p(), text.encode()
    number = LIBC.strtoll(kept, ctypes.byref(rest), 0)
    assert strtoll(text) == (number, (rest.value or b"").decode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", 0), ("4M", 4), ("010", 8), ("0x10", 16), ('"1"', 0), (" 7", 7), ("9" * 30, (1 << 63) - 1)],
)
def test_the_usual_mistakes_are_read_as_nccl_reads_them(text, expected):
    assert strtoll(text)[0] == expected


def test_the_environment_goes_before_the_named_file_and_that_before_the_systems():
    files = in_use((ENV, HOME, SITE), ())
    assert settings({"NCCL_DEBUG": ""}, files) == {
        "NCCL_DEBUG": Setting(""),
        "NCCL_ALGO": Setting("Ring", "/job/nccl.conf"),
        "NCCL_NET": Setting("Socket", "/etc/nccl.conf"),
    }


@pytest.mark.parametrize(
    ("nccl", "expected"),
    [((), [ENV, SITE]), ((2, 23, 4), [ENV, SITE]), ((2, 22, 3), [LISTED, SITE])],
    ids=["unknown", "2.23", "before NCCL_CONF_FILE"],
)
def test_the_version_decides_whether_nccl_conf_file_counts(nccl, expected):
    assert in_use((ENV, HOME, LISTED, SITE), nccl) == expected


@pytest.mark.parametrize(("nccl", "expected"), [((), HOME), ((2, 30, 3), HOME), ((2, 29, 7), LISTED)])
def test_the_version_decides_which_home_counts(nccl, expected):
    assert in_use((HOME, LISTED, SITE), nccl) == [expected, SITE]


def test_rccl_reads_its_own_files_only():
    assert in_use((ENV, HOME, LISTED, SITE, RCCL), (), rccl=True) == [RCCL]
    assert RCCL not in in_use((ENV, HOME, LISTED, SITE, RCCL), ())


def test_an_unreadable_file_sets_nothing():
    assert settings({}, [NcclFile(path="/x", origin="system", library="nccl", lines=Missing(reason="denied"))]) == {}


@pytest.mark.parametrize(
    ("text", "expected"), [("2.27.3+cuda12.9", (2, 27, 3)), ("2.18", (2, 18)), ("", ()), ("unknown", ())]
)
def test_versions_are_read(text, expected):
    assert version(text) == expected
