"""Asking NCCL's RAS over real sockets: whatever stands there, an answer or a reason within the deadline."""

from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace

import pytest
from fakes.ras import FakeRas, document, text

from distcheck.collectives.plan import Plan, Software, Task
from distcheck.facts.base import Missing
from distcheck.facts.nccl import Ras
from distcheck.facts.placement import Placement
from distcheck.rollcall.protocol import RunReport, StartTrial
from distcheck.run import ras, stall, trials

BOTH = {"text": text(4, missing=(2,)), "json": document(4, missing=(2,))}


def rank_of(number, nccl="2.28.9", heard=0.0):
    known = Software(torch="2.9.0", nccl=nccl, device="cuda")
    return SimpleNamespace(placement=SimpleNamespace(rank=number), software=known, over=False, heard=heard)


def asked(ranks, ports, remaining=30.0):
    """Return what the question of these ranks' process finds, and its seconds."""

    async def ask():
        run = SimpleNamespace(
            remaining=lambda reserve=0.0: max(0.0, remaining - reserve),
            record=SimpleNamespace(world_size=4),
        )
        question = ras.RasQuestion(run, SimpleNamespace(ranks=ranks), ports)
        await question.ask()
        return question.answer

    start = time.monotonic()
    return asyncio.run(ask()), time.monotonic() - start


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch, tmp_path):
    for name in ("NCCL_RAS_ADDR", "NCCL_RAS_ENABLE", "NCCL_CONF_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(("version", "form"), [("2.24.3", "text"), ("2.28.3", "text"), ("2.28.7", "json")])
def test_the_form_follows_the_version(version, form):
    with FakeRas({form: BOTH[form]}) as server:
        said, _ = asked([rank_of(0, version)], {0: server.port})
    assert isinstance(said, Ras)
    assert said.missing == (2,)
    assert ("SET FORMAT JSON" in server.heard) == (form == "json")


@pytest.mark.parametrize("version", ["2.23.4", "2.7.8", ""])
def test_a_version_without_ras_is_not_asked(version):
    with FakeRas(BOTH) as server:
        said, _ = asked([rank_of(0, version)], {0: server.port})
    assert isinstance(said, Missing)
    assert said.reason.startswith("not asked: ")
    assert server.heard == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("other", "it answered b'\\xff\\xfeSSH-2.0\\r\\n' to CLIENT PROTOCOL 2"),
        ("close", "incomplete"),
        ("endless", "its answer has more than"),
        ("drip", "no answer within 3 s"),
        ("mute", "it did not answer in time"),
    ],
)
def test_a_broken_ras_is_a_reason_within_the_deadline(how, why):
    with FakeRas(BOTH, how) as server:
        said, seconds = asked([rank_of(0)], {0: server.port})
    assert isinstance(said, Missing)
    assert why in said.reason
    assert seconds < ras.ASK_SECONDS + 5


def test_no_ras_at_the_address_is_a_reason():
    with ras.addresses("nccl", [0]) as ports:
        said, seconds = asked([rank_of(0)], ports)
    assert isinstance(said, Missing)
    assert "rank 0's RAS: " in said.reason
    assert seconds < ras.ASK_SECONDS


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("2.21.5", "NCCL 2.21.5 has no RAS"),
        ("", "the version of NCCL is unknown"),
        ("2.28.9", "no port was free for the RAS of NCCL 2.28.9"),
    ],
)
def test_a_question_that_cannot_be_asked_says_why(version, why):
    said, _ = asked([rank_of(0, version)], {})
    assert said == Missing(reason=f"not asked: {why}")


def test_a_frozen_rank_is_passed_over_for_one_that_answers():
    with FakeRas(BOTH, "mute") as frozen, FakeRas(BOTH) as alive:
        said, _ = asked([rank_of(0, heard=2.0), rank_of(1, heard=1.0)], {0: frozen.port, 1: alive.port})
    assert isinstance(said, Ras)
    assert said.rank == 1


def test_the_rank_heard_last_is_asked_first():
    with FakeRas(BOTH) as early, FakeRas(BOTH) as late:
        asked([rank_of(0, heard=1.0), rank_of(1, heard=2.0)], {0: early.port, 1: late.port})
    assert (early.heard, late.heard[-1]) == ([], "VERBOSE STATUS")


def test_the_question_ends_with_the_run():
    with FakeRas(BOTH, "drip") as server:
        said, seconds = asked([rank_of(0)], {0: server.port}, remaining=1.5)
    assert isinstance(said, Missing)
    assert seconds < ras.ASK_SECONDS


def test_it_is_asked_before_the_end_only_without_progress():
    async def wait(silent):
        run = SimpleNamespace(remaining=lambda _reserve: 0.0)
        question = ras.RasQuestion(run, SimpleNamespace(ranks=[]), {})
        await question.before_the_end(SimpleNamespace(silent_seconds=lambda: silent), 3.0)
        return question.answer

    assert asyncio.run(wait(1.0)) is None
    assert asyncio.run(wait(9.0)) == Missing(reason="not asked: no rank of the leader's process runs any more")


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_hang_is_reported_when_ras_has_answered(monkeypatch, backend):
    monkeypatch.setattr(stall, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(stall, "STALL_SECONDS", 0.5)
    plan = Plan(backend=backend, operations=(), sizes_bytes=(), deadline_seconds=9.0)
    troubles = []

    async def hang():
        run = SimpleNamespace(
            remaining=lambda reserve: 30.0 - reserve,
            record=SimpleNamespace(world_size=4),
        )
        question = ras.RasQuestion(run, SimpleNamespace(ranks=[rank_of(0)]), {0: server.port})
        pace = stall.Pace(lambda _text, _figures: None)
        await question.at_a_hang(pace, plan, stall.Patience(0.1), lambda text: troubles.append((text, question.answer)))
        await question.ask()  # at the end: RAS is not asked again
        return question.answer

    with FakeRas(BOTH) as server:
        asyncio.run(hang())
    ((text, answer),) = troubles
    assert text.startswith("no figure within ")
    assert isinstance(answer, Ras) == (backend == "nccl")
    assert server.heard.count("VERBOSE STATUS") == 1


def test_every_rank_gets_its_own_port_that_only_ras_can_take():
    plan = Plan(backend="nccl", operations=("all_reduce",), sizes_bytes=(1 << 20,), deadline_seconds=9.0)
    tasks = [Task(plan=plan, rank=n, world_size=3, local_rank=n, store=None, variables={"A": "1"}) for n in range(3)]
    with ras.addresses("nccl", [0, 1]) as ports:
        assert [task.variables for task in ras.addressed(tasks, ports)] == [
            {"A": "1", "NCCL_RAS_ADDR": f"127.0.0.1:{ports[0]}"},
            {"A": "1", "NCCL_RAS_ADDR": f"127.0.0.1:{ports[1]}"},
            {"A": "1"},
        ]
        assert ports[0] != ports[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", ports[0]))
        with FakeRas(BOTH, port=ports[0]):
            assert isinstance(asked([rank_of(0)], ports)[0], Ras)


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("NCCL_RAS_ADDR", "localhost:4000", True),
        ("NCCL_RAS_ENABLE", "0", True),
        ("NCCL_RAS_ENABLE", "1" * 5000, False),
        ("NCCL_RAS_ENABLE", "true", True),  # NCCL reads a number: this is 0
        ("NCCL_RAS_ENABLE", "1", False),
    ],
)
@pytest.mark.parametrize("in_a_file", [False, True])
def test_the_jobs_own_settings_stay(monkeypatch, tmp_path, name, value, refused, in_a_file):
    if in_a_file:
        (tmp_path / "nccl.conf").write_text(f"{name}={value}\n")
        monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    else:
        monkeypatch.setenv(name, value)
    with ras.addresses("nccl", [0]) as ports, FakeRas(BOTH) as server:
        assert (ports == {}) == refused
        said, _ = asked([rank_of(0)], {0: server.port})
    assert isinstance(said, Missing if refused else Ras)
    if refused:
        assert said.reason.startswith(f"not asked: {name}={value} ")


def test_other_backends_get_no_address():
    with ras.addresses("gloo", [0, 1]) as ports:
        assert ports == {}


def test_in_a_group_of_a_search_the_ranks_have_addresses_too():
    tasks = []

    async def measure(given, **_):
        tasks.extend(given)

    async def nothing(*_):
        return ""

    placements = [Placement(launcher="torchrun", rank=n, world_size=8, local_rank=n - 4) for n in (4, 5)]
    local = SimpleNamespace(
        placements=placements, measure=measure, wait_imported=nothing, again=nothing, report=lambda: RunReport({}, ())
    )
    run = SimpleNamespace(local=local, cuda_ordinals=lambda _backend: {})
    plan = Plan(backend="nccl", operations=("all_reduce",), sizes_bytes=(1 << 20,), deadline_seconds=9.0)
    trial = StartTrial(1, plan, 9.0, {4: (0, 2), 5: (1, 2)}, ("127.0.0.1", 1), {"NCCL_ALGO": "Ring"})
    asyncio.run(trials.take_part(run, trial, "", asyncio.Event(), lambda _port: None))
    given = [task.variables for task in tasks]
    assert [task.rank for task in tasks] == [0, 1]
    assert [variables["NCCL_ALGO"] for variables in given] == ["Ring", "Ring"]
    assert len({variables["NCCL_RAS_ADDR"] for variables in given}) == 2
