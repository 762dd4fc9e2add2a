"""What is read from the kernel log: Xids with GPU and age, or why it could not be read."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Xid
from distcheck.probe import xids

BOOTED = 200_000.0
"""Seconds since boot at which the log is read."""


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: BOOTED)


def record(ago, text, level=3):
    """Return a record of /dev/kmsg that was written this many seconds ago."""
    return f"{level},1234,{int((BOOTED - ago) * 1e6)},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n"


def log(tmp_path, *records):
    path = tmp_path / "kmsg"
    path.write_text("".join(records))
    return path


@pytest.mark.parametrize(
    ("line", "number", "pci", "text"),
    [
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
         79, "0000:1b:00.0", "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        ("NVRM: Xid (PCI:0000:9D:00): 31, pid=77, name=python3, Ch 00000008", 31, "0000:9d:00.0",
         "pid=77, name=python3, Ch 00000008"),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00.0", "Channel 00000001"),
        ("NVRM: Xid (PCI:0000:06:00 GPU-I:05): 43, pid=1, name=a", 43, "0000:06:00.0", "pid=1, name=a"),
        ("NVRM: Xid (PCI:0009:01:00): 119, Timeout after 6s of waiting for RPC response", 119, "0009:01:00.0",
         "Timeout after 6s of waiting for RPC response"),
        ("NVRM: Xid (PCI:10000:41:00): 999", 999, "10000:41:00.0", ""),
    ],
)  # fmt: skip
def test_each_form_of_the_line_is_read(tmp_path, line, number, pci, text):
    other = record(5, "eth0: link up", 6)
    assert xids.recent(log(tmp_path, other, record(90, line), other)) == (Xid(number, pci, 90.0, text),)


def test_the_newest_xid_of_each_number_and_gpu_is_kept_newest_last(tmp_path):
    storm = [record(1000 - n, f"NVRM: Xid (PCI:0000:1b:00): {13 + n % 2}, n={n}") for n in range(900)]
    late = record(1, "NVRM: Xid (PCI:0000:43:00): 13, late")
    found = xids.recent(log(tmp_path, *storm, late))
    assert [(x.number, x.pci, x.seconds_ago) for x in found] == [
        (13, "0000:1b:00.0", 102.0),
        (14, "0000:1b:00.0", 101.0),
        (13, "0000:43:00.0", 1.0),
    ]


def test_xids_older_than_a_day_are_left_out(tmp_path):
    assert xids.recent(log(tmp_path, record(90_000, "NVRM: Xid (PCI:0000:1b:00): 79, gone"))) == ()


def test_a_record_of_another_clock_has_no_age(tmp_path):
    assert xids.recent(log(tmp_path, record(-500, "NVRM: Xid (PCI:0000:1b:00): 79, x"))) == (
        Xid(79, "0000:1b:00.0", None, "x"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        record(3, "usb 1-1: new device"),
        record(3, "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal"),
        record(3, "NVRM: GPU at PCI:0000:1b:00: GPU-b850f46d"),
        record(3, "NVRM: Xid (PCI:0000:1b:00): what"),
        "NVRM: Xid (PCI:zz",
        "\xff\xfe\0",
    ],
)
def test_other_lines_are_not_xids(tmp_path, text):
    assert xids.recent(log(tmp_path, text)) == ()


def test_a_long_text_is_cut_and_a_last_line_may_lack_its_end(tmp_path):
    (found,) = xids.recent(log(tmp_path, record(3, "NVRM: Xid (PCI:0000:1b:00): 13, " + "x" * 3000).split("\n")[0]))
    assert (found.number, len(found.text)) == (13, 160)


def test_records_overwritten_during_the_read_are_skipped(tmp_path, monkeypatch):
    path = log(tmp_path, record(9, "NVRM: Xid (PCI:0000:1b:00): 79, x"))
    read, first = os.read, [OSError(errno.EPIPE, "Broken pipe")]

    def overwritten(descriptor, count):
        if first:
            raise first.pop()
        return read(descriptor, count) or (_ for _ in ()).throw(BlockingIOError())

    monkeypatch.setattr(os, "read", overwritten)
    assert [x.number for x in xids.recent(path)] == [79]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(errno.EPERM, "Operation not permitted"), "dmesg_restrict"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "as in containers"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    ],
)
def test_an_unreadable_log_has_a_reason(tmp_path, monkeypatch, error, words):
    def refuse(*_):
        raise error

    monkeypatch.setattr(os, "open", refuse)
    answer = xids.recent(tmp_path / "kmsg")
    assert isinstance(answer, Missing)
    assert words in answer.reason
    assert str(tmp_path / "kmsg") in answer.reason


def test_a_kmsg_that_is_another_file_is_not_read():
    """Container runtimes link /dev/kmsg to a terminal or /dev/null; a terminal's input must not be consumed."""
    assert xids.recent(Path("/dev/null")) == Missing(reason="/dev/null is not the kernel log here, as in containers")


def test_reading_an_endless_log_stops_in_time(tmp_path):
    path = log(tmp_path, record(9, "NVRM: Xid (PCI:0000:1b:00): 79, x"))
    assert xids.recent(path, seconds=0.0) == Missing(reason=f"reading {path} to its end took too long")
