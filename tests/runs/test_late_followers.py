"""What the leader does about processes that report after the roll call."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from made.jobs import healthy_job

from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.rollcall.brief import brief
from distcheck.rollcall.protocol import NodeReport, Report
from distcheck.run import leader
from distcheck.run.record import Record


class Server:
    """A server whose followers answer or do not."""

    def __init__(self, report: Report, answer: NodeReport | None) -> None:
        uid = report.process.uid
        self.followers = {uid: SimpleNamespace(report=report, gone=False)}
        self.answers = {} if answer is None else {uid: answer}
        self.asked = 0

    def say_to_all(self, _word, uids) -> None:
        self.asked += len(uids)

    async def hear_all(self, _kind, _seconds, _uids):
        return self.answers


@pytest.mark.parametrize("answers", [True, False])
def test_a_late_process_that_is_alone_on_its_node_is_asked_for_it_once(answers):
    job = healthy_job(2, 2, launcher="slurm")
    own, late = (
        Report(next(n for n in job.nodes if n.key == process.node), process, (rank,))
        for process, rank in ((job.processes[n], job.ranks[n]) for n in (0, 3))
    )
    record = Record(
        SimpleNamespace(asked=Asked(command="env", looks=("environment", "meeting")), start=0.0, placements=())
    )
    record.uid, record.node, record.process, record.ranks = own.process.uid, own.node, own.process, own.ranks
    server = Server(brief(late), NodeReport(late.node) if answers else None)
    run = SimpleNamespace(record=record, remaining=lambda _reserve: 5.0)
    for _ in range(2):
        asyncio.run(leader._take_note_of_followers(run, server))
    found = record.job()
    assert server.asked == 1
    assert isinstance(found.nodes[1].interfaces, Missing) is not answers
    assert bool(found.processes[1].lost) is not answers
