"""Frames of facts: they survive other output on the lines, and damage is detected."""

from __future__ import annotations

import os
import random
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.jobs import healthy_job, reports_of

from distcheck.launch.remote import frames
from distcheck.launch.remote.frames import Arrived, Collected, Reader
from distcheck.rollcall.protocol import Report

ARRIVED = Arrived("0.1.0")


def report_of(rank: int, *, noise: int = 0) -> Report:
    """Return a report of a rank; noise is the number of characters that cannot be compressed."""
    whole = reports_of(healthy_job(4, 1))[rank]
    command = ("python", random.Random(rank).randbytes(noise).hex())
    return msgspec.structs.replace(whole, process=msgspec.structs.replace(whole.process, command=command))


def lines_of(sender: str, *messages) -> list[bytes]:
    """Return the lines, without newlines, in which a probe sends these messages."""
    return [
        frame.rstrip(b"\n") for n, message in enumerate(messages) for frame in frames.encode(sender, n, message)
    ]  # fmt: skip


def messages(reader: Reader, lines) -> list:
    taken = [reader.take(line) for line in lines]
    return [line.message for line in taken if line.message is not None]


@given(st.integers(0, 20_000))
def test_every_frame_is_one_line_and_open_mpi_reads_whole_lines(noise):
    for frame in frames.encode("0a1b2c3d", 999_999, Collected(report_of(3, noise=noise))):
        assert len(frame) == 512
        assert frame.count(b"\n") == 1
        assert frame.endswith(b"\n")


@given(st.integers(0, 3000), st.randoms(use_true_random=False))
def test_frames_of_many_ranks_in_any_order_give_every_message_once(noise, order):
    said = [Collected(report_of(rank, noise=noise)) for rank in range(4)]
    lines = [line for rank in range(4) for line in lines_of(f"0000000{rank}", said[rank], ARRIVED)]
    order.shuffle(lines)
    reader = Reader()
    heard = messages(reader, lines)
    assert sorted(m.report.process.uid for m in heard if isinstance(m, Collected)) == [f"process-{n}" for n in range(4)]
    assert [m for m in heard if isinstance(m, Arrived)] == [ARRIVED] * 4
    assert all(m in said for m in heard if isinstance(m, Collected))


@pytest.mark.parametrize("label", [b"3: ", b"[1,3]<stdout>: ", b"[3] ", b"some words that were printed before "])
def test_labels_and_text_beside_a_frame_are_kept_as_output(label):
    (line,) = lines_of("0a1b2c3d", ARRIVED)
    taken = Reader().take(label + line + b" and after")
    assert (taken.sender, taken.message, taken.words) == ("0a1b2c3d", ARRIVED, label + b"and after")


@pytest.mark.parametrize(
    "line", [b"", b"a warning of the site's profile", b"\x1eDCF1 short", b"\xff\xfe\x00", b"DCF1 0a1b2c3d 0 0/1 0 AA=="]
)
def test_other_lines_are_output(line):
    taken = Reader().take(line)
    assert (taken.sender, taken.message, taken.words) == ("", None, line)


@given(st.data())
def test_a_frame_in_which_a_character_was_changed_is_never_believed(data):
    said = Collected(report_of(1, noise=800))
    lines = lines_of("0a1b2c3d", said)
    number = data.draw(st.integers(0, len(lines) - 1))
    line = lines[number].rstrip()
    at = data.draw(st.integers(line.rindex(b" ") + 1, len(line) - 1))
    other = data.draw(st.sampled_from(b"ABCxyz019+/ =\x00").filter(lambda c: c != lines[number][at]))
    changed = lines[number][:at] + bytes([other]) + lines[number][at + 1 :]
    reader = Reader()
    assert all(m == said for m in messages(reader, [*lines[:number], changed, *lines[number + 1 :]]))


@pytest.mark.parametrize("at", [10, 60, 300, 505])
def test_a_label_in_the_middle_of_a_line_is_harmless(at):
    reader, messages = Reader(), []
    for frame in frames.encode("0a1b2c3d", 0, Collected(report_of(3, noise=900))):
        labelled = b"[1,0]<stdout>:" + frame[:at] + b"[1,0]<stdout>:" + frame[at:].rstrip(b"\n")
        messages.append(reader.take(labelled).message)
    assert messages[-1] == Collected(report_of(3, noise=900))


def test_a_missing_frame_tears_only_its_own_message():
    lines = lines_of("0a1b2c3d", Collected(report_of(1, noise=2000)), ARRIVED)
    reader = Reader()
    assert messages(reader, lines[1:]) == [ARRIVED]


def test_a_frame_that_comes_twice_changes_nothing():
    said = Collected(report_of(1, noise=2000))
    lines = lines_of("0a1b2c3d", said)
    assert messages(Reader(), [lines[0], *lines]) == [said]


def test_a_message_of_another_version_is_unread_and_not_silence():
    body = zlib.compress(b"\x81\xa4type\xa6future")
    line = b"\x1eDCF1 0a1b2c3d 0 0/1 %08x " % zlib.crc32(body) + frames.base64.b64encode(body)
    taken = Reader().take(line)
    assert (taken.sender, taken.message) == ("0a1b2c3d", None)
    assert taken.unread


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_arbitrary_bytes_do_not_crash_the_reader(lines):
    reader = Reader()
    for line in lines:
        assert reader.take(b"\x1eDCF1 " + line).message is None


def test_frames_are_written_whole_and_a_closed_pipe_is_no_error():
    lines = frames.encode("0a1b2c3d", 0, Collected(report_of(1, noise=3000)))
    read_end, write_end = os.pipe()
    frames.write(write_end, lines)
    assert os.read(read_end, 1 << 16) == b"".join(lines)
    os.close(read_end)
    frames.write(write_end, lines)
    os.close(write_end)
