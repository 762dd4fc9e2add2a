"""Errors in words that no table has: their shape names the most likely rule, and yields to whatever is known better."""

from __future__ import annotations

import pytest
from explain.answered import found

from distcheck.explain.answer import spellings
from distcheck.explain.matching import Matcher
from distcheck.explain.reading import Piece
from distcheck.explain.spelling import told

MISTAKE = """Traceback (most recent call last):
  File "/job/train.py", line 3, in <module>
    step(None)
TypeError: 'NoneType' object is not callable
"""


def first_rule(text):
    return next((cause.rule for cause in found(text).causes), None)


@pytest.mark.parametrize(
    ("fault", "rule", "harmless"),
    [
        ("MyError: NODE_RANK has not been set", "env-rank-unset", "MASTER_PORT not set, using the default 29500"),
        ("launcher: please set WORLD_SIZE first", "env-rank-unset", "launcher: WORLD_SIZE is 8"),
        ("Error: timed out while 3 workers had yet to register", "env-rank-missing", "all workers register in time"),
        ("agent: 2 nodes did not join the job", "env-rank-missing", "agent: 2 nodes join the job"),
        ("barrier: only 3 of 4 workers came", "env-rank-missing", "barrier: 4 of 4 workers came"),
        ("port 29512 seems to be occupied", "net-port-in-use", "WARNING port 6006 seems occupied; 6007 serves"),
        ("failed to resolve the address of the master", "env-master-addr-unresolvable", "resolved the master"),
        ("could not connect to coordinator 10.0.0.1", "net-master-unreachable", "connected to coordinator 10.0.0.1"),
        (
            "connect 10.0.0.1: Operation timed out",
            "net-master-unreachable",
            "TimeoutError: The read operation timed out",
        ),
        ("store: connect: ECONNREFUSED", "net-master-refused", "store: connect: ok"),
        ("cannot find 'srun' on this machine", "launch-failed", "found /usr/bin/srun on this machine"),
        ("sbatch is not installed", "launch-failed", "sbatch is installed"),
        ("ssh to gpu2 timed out", "launch-node-unreachable", "ssh to gpu2 took 2 s"),
        ("OSError: [Errno 5] Input/output error: '/mnt/out'", "storage-hangs", "Input and output: '/mnt/out'"),
    ],
)
def test_an_error_in_unknown_words_is_named_by_its_shape_and_a_harmless_line_is_not(fault, rule, harmless):
    assert first_rule(f"step 1\n[rank3]: {fault}\n") == rule
    assert first_rule(f"step 1\n[rank3]: {harmless}\n") is None


def test_the_call_that_a_permission_error_comes_from_decides_between_reading_and_writing():
    trace = "Traceback (most recent call last):\n    {}(folder)\nPermissionError: [Errno 13] Permission denied: '/x'\n"
    assert first_rule(trace.format("os.chdir")) == "storage-path-missing"
    assert first_rule(trace.format("os.makedirs")) == "storage-read-only"
    assert first_rule(trace.format("bind")) is None


def test_a_known_message_goes_before_a_shape_wherever_they_stand():
    shape, table = "port 29512 seems to be occupied\n", "srun: error: gpu001: task 0: Out Of Memory\n"
    assert first_rule(shape + table) == first_rule(table + shape) == "host-memory-low"


def test_a_mistake_in_the_script_goes_before_a_shape_that_follows_it():
    shape = "port 29512 seems to be occupied\n"
    assert found(MISTAKE + shape).about == "application"
    assert first_rule(MISTAKE + shape) is None
    assert first_rule(shape + MISTAKE) == "net-port-in-use"


def test_a_download_or_a_service_beside_the_job_is_not_its_network():
    assert first_rule("could not connect to node of https://example.org\n") is None
    assert first_rule("pymongo.errors.AutoReconnect: port 27017 seems to be occupied\n") is None


@pytest.mark.parametrize("pattern", [r"\w+ (?:failed|died)", r"abc\d+", r"(?:one|other)"])
def test_a_pattern_whose_constant_part_is_short_is_refused(pattern):
    with pytest.raises(ValueError, match="no constant part"):
        told(pattern, "env-rank-unset", about="start-up")


def test_a_cause_is_found_after_many_lines_alike_that_have_only_a_word_of_it():
    alike = "".join(f"[rank0]: connect timeout is {n} s\n" for n in range(500)).encode()
    fault = b"[rank3]: store: connect: ECONNREFUSED\n" * 300
    pieces = [Piece(1, alike), Piece(501, alike), Piece(1001, alike + fault)]
    found = {seen.matched: seen for seen in Matcher(spellings()).search(pieces, "job.log")}
    assert list(found) == ["ECONNREFUSED"]
    assert (found["ECONNREFUSED"].line, found["ECONNREFUSED"].times) == (1501, 300)


RETRY = (
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [10.0.0.1]:29500 (errno: 111 - refused).\n"
)


def test_a_connection_that_torch_repeats_is_no_cause_if_the_ranks_then_met():
    later = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert first_rule(RETRY) == "net-master-refused"
    assert found(RETRY + later).about == "application"
    assert first_rule(RETRY + later) is None
    assert first_rule(RETRY + MISTAKE) is None


def test_a_connection_that_fails_for_good_stays_the_cause():
    timed_out = (
        "[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (h, 29500)\n"
    )
    assert first_rule(RETRY + timed_out) in {"net-master-refused", "net-master-unreachable"}


def test_a_mistake_in_the_script_goes_before_what_mpi_reports_at_its_end():
    pmix = "[node1:77] PMIX ERROR: UNREACHABLE in file server/pmix_server.c at line 1741\n"
    assert first_rule(pmix) == "launch-failed"
    assert first_rule(MISTAKE + pmix) is None
