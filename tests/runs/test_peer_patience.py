"""How long the leader of a peer round waits for the others' reports."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from distcheck.rollcall.protocol import PeerDoor, PeerReport
from distcheck.run import peer_round


class Server:
    """One follower that never reports."""

    def __init__(self) -> None:
        self.patience = 0.0
        report = SimpleNamespace(peer_doors=(PeerDoor("b", "10.0.0.2", 1),), process=SimpleNamespace(node="node2"))
        self.followers = {
            "b": SimpleNamespace(report=report, met_at="10.0.0.1", address="10.0.0.2", say=lambda _: None)
        }

    async def hear_all(self, _kind: type, patience: float, _here: object) -> dict[str, object]:
        self.patience = patience
        return {}


@pytest.mark.parametrize(
    ("connect_seconds", "remaining_seconds", "patience"), [(3.0, 1000.0, 15.0), (1.0, 1000.0, 7.0), (3.0, 6.0, 6.0)]
)
def test_a_report_is_awaited_for_four_connects_and_3_s_and_never_beyond_the_run(
    monkeypatch, connect_seconds, remaining_seconds, patience
):
    async def nothing(*_arguments: object) -> tuple[()]:
        return ()

    async def report(*_arguments: object) -> PeerReport:
        return PeerReport(())

    monkeypatch.setattr(peer_round, "open_doors", nothing)
    monkeypatch.setattr(peer_round, "take_part", report)
    run = Mock(uid="a", record=Mock(followers=["b"], node=None), request=Mock(connect_seconds=connect_seconds))
    run.remaining.return_value = remaining_seconds
    server = Server()
    asyncio.run(peer_round.hold(run, server))
    assert server.patience == patience
    (_, silent, _) = run.record.note_silent.call_args.args
    assert silent == {"b"}
