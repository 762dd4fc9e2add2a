"""The answers of NCCL's RAS, in text and JSON, and what cannot be one."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from fakes.ras import HEALTHY, document, text
from hypothesis import given
from hypothesis import strategies as st

from distcheck.facts.base import Missing
from distcheck.facts.nccl import Ras, RasBehind
from distcheck.probe.ras import parse

# From NCCL's user guide, troubleshooting/ras: outputs of 2.24, shortened.
GUIDE = b"""\
NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
"""


RECORDED = Path(__file__).parents[1] / "recorded" / "ras"
NOTHING = dict.fromkeys(HEALTHY, 0)
HANGS = {
    "counts": {0: {**NOTHING, "Broadcast": 1, "AllReduce": 11}, 1: {**NOTHING, "Broadcast": 1, "AllReduce": 10}},
    "later": [{rank: {**NOTHING, "AllGather": 1} for rank in range(2)}],
}
"""What the recorded job had launched."""


def recorded(form, version="2.28.9"):
    """Return the lines with which a real RAS answered the commands, and its status."""
    replies, status = [], (RECORDED / f"{version}_h200_vm_{form}.txt").read_bytes().partition(b"\n")[2]
    while status.startswith((b"SERVER ", b"OK\n")):
        reply, _, status = status.partition(b"\n")
        replies.append(reply)
    return replies, status


def both(size, **told):
    """Return what the two forms of the same state are parsed to."""
    return [parse(form(size, **told), 0, size) for form in (text, document)]


def test_the_guides_own_output_is_understood():
    said = parse(GUIDE, 3, 32)
    assert isinstance(said, Ras)
    assert (said.rank, said.missing, said.missing_number) == (3, (21,), 1)
    assert said.behind == (RasBehind(operation="collective", launched=6649, most=6650, number=6, ranks=(0, 2)),)
    assert "Encountered 2 communication timeouts while gathering communicator data" in said.words


def test_a_healthy_job_names_no_rank():
    for said in both(8):
        assert said == Ras(rank=0)


def test_a_rank_without_data_is_missing():
    for said in both(8, missing=(2, 5)):
        assert (said.missing, said.missing_number, said.behind) == ((2, 5), 2, ())
    early = parse(text(8, missing=(2, 5), version="2.24.3"), 0, 8)
    assert early.missing == (2, 5)


def test_a_rank_that_launched_fewer_operations_is_behind():
    behind = RasBehind(operation="AllReduce", launched=41, most=42, number=1, ranks=(3,))
    for said in both(8, counts={3: {"AllReduce": 41}}):
        assert (said.missing, said.behind) == ((), (behind,))
    for said in both(8, counts={3: {"AllReduce": 0}}):
        assert [(group.launched, group.ranks) for group in said.behind] == [(0, (3,))]


def test_ranks_that_the_text_only_counts_are_counted():
    ahead = {"AllReduce": 43}
    as_text, as_json = both(8, counts={3: ahead})
    assert [(b.launched, b.most, b.number, b.ranks) for b in as_text.behind] == [(42, 43, 7, ())]
    assert [b.ranks for b in as_json.behind] == [(0, 1, 2, 4, 5, 6, 7)]


@pytest.mark.parametrize(("version", "first"), [("2.28.9", "61e368d9c8d72bdc"), ("2.30.7", "f3d8a412937595a5")])
def test_a_real_job_names_the_rank_that_is_behind_in_one_of_two_communicators(version, first):
    behind = RasBehind(operation="AllReduce", launched=10, most=11, number=1, ranks=(1,))
    as_text, as_json = (parse(recorded(form, version)[1], 0, 2) for form in ("text", "json"))
    assert as_json == Ras(rank=0, behind=(behind,))
    assert (as_text.missing, as_text.behind) == ((), (behind,))
    assert as_text.words[0] == f"#0-0 ({first}) MISMATCH"


def test_operations_are_compared_within_a_communicator():
    """The first made has launched much more than the later ones, and another rank is behind in each."""
    first, second = {3: {"AllReduce": 41}}, {rank: {"AllReduce": 6 if rank == 1 else 7} for rank in range(8)}
    for said in both(8, counts=first, later=[{}, second]):
        assert said.behind == (
            RasBehind(operation="AllReduce", launched=41, most=42, number=1, ranks=(3,)),
            RasBehind(operation="AllReduce", launched=6, most=7, number=1, ranks=(1,)),
        )
    for said in both(8, later=[{}, {rank: {"AllReduce": 7} for rank in range(8)}]):
        assert said.behind == ()


def test_what_two_communicators_both_show_is_told_once():
    behind = {3: {"AllReduce": 41}}
    for said in both(8, counts=behind, later=[behind]):
        assert [(group.launched, group.ranks) for group in said.behind] == [(41, (3,))]


def test_a_rank_is_missing_in_whichever_communicator_lacks_it():
    for said in both(8, missing=(2,), later=[{}]):
        assert (said.missing, said.missing_number, said.behind) == ((2,), 1, ())


def shape(value):
    """Return the keys and types of a document, in order."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    return [shape(inner) for inner in value] if isinstance(value, list) else type(value)


def test_the_fakes_answers_have_the_form_of_the_real_ones():
    def without_values(status):
        return re.sub(r"\b(?:[0-9a-f]{16}|\d+(?:\.\d+){3}|\d{4})\b|GPU \d", "#", status.decode())

    assert without_values(text(2, **HANGS)) == without_values(recorded("text")[1])
    assert shape(json.loads(document(2, **HANGS))) == shape(json.loads(recorded("json")[1]))


def test_json_has_the_dead_and_the_errors():
    said = parse(document(4, missing=(1,), dead=(1,), errors={2: 6, 3: 7}), 0, 4)
    assert (said.dead, said.words) == ((1,), ("rank 2: async_error 6",)), "7 is ncclInProgress"


def test_a_communicator_of_other_ranks_says_nothing_about_the_jobs():
    for form in (text, document):
        assert parse(form(4, missing=(1,)), 0, 8) == Missing(reason="it knows no communicator of 8 ranks")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\xfe\x00",
        b"{}",
        b"[1]",
        b"{" * 100_000,
        text(4)[:-30],
        document(4)[:-10],
        document(4).replace(b'"size": 4', b'"size": "four"'),
        document(4).replace(b'"AllReduce": 42', b'"AllReduce": ' + b"9" * 5000),
    ],
)
def test_what_is_incomplete_or_of_another_format_is_missing(answer):
    assert isinstance(parse(answer, 0, 4), Missing)


def test_a_long_answer_without_an_end_is_refused_at_once():
    start = time.monotonic()
    assert isinstance(parse(b"\nCommunicators...\nErrors\n" * 100_000, 0, 4), Missing)
    assert time.monotonic() - start < 2


@given(st.sampled_from([text, document]), st.data())
def test_no_answer_raises_or_names_a_rank_outside_of_the_job(form, data):
    whole = form(4, missing=(1,), counts={2: {"AllReduce": 7}})
    at, length = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 30))
    said = parse(whole[:at] + data.draw(st.binary(max_size=30)) + whole[at + length :], 0, 4)
    if isinstance(said, Ras):
        assert {*said.missing, *(n for group in said.behind for n in group.ranks)} <= {0, 1, 2, 3}
        assert all(word.isprintable() and len(word) <= 160 for word in said.words)
