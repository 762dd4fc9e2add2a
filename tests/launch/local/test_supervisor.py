"""Local ranks: started, given tasks, watched, and ended without leftovers."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest
from real.spoiling import planted
from real.waiting import soon

from distcheck.collectives.plan import Plan, Task
from distcheck.facts.errors import processes
from distcheck.launch.local import channel
from distcheck.launch.local.supervisor import LocalRanks
from distcheck.launch.local.tasks import tasks_for
from distcheck.probe import ending
from distcheck.selection.placement import local_placements

PLAN = Plan("gloo", ("all_reduce",), (65536,), 30.0, iterations=3)
LONG = Plan("gloo", ("all_reduce",), (16 << 20,), 30.0, iterations=2000)


class Running:
    """Ranks, and what a test wants to know of them."""

    def __init__(self, ranks: LocalRanks) -> None:
        self.ranks = ranks
        self.trouble: list[str] = []
        self.aborted = asyncio.Event()

    @property
    def program(self) -> int:
        assert self.ranks.group is not None
        return self.ranks.group

    async def measure(self, plan: Plan, seconds: float = 20) -> float:
        """Run a plan to its end; returns how long it took."""
        count = len(self.ranks.ranks)
        assert await self.ranks.wait_imported(30, self.aborted) == ""
        template = Task(plan=plan, rank=0, world_size=count, local_rank=0, store=None)
        first = tasks_for(self.ranks.placements, template, store=None, gpus={})
        port = await self.ranks.open_store(first, 20, self.aborted)
        if port is None:
            return 0.0
        start = time.monotonic()
        tasks = tasks_for(self.ranks.placements, template, store=("127.0.0.1", port), gpus={})
        await self.ranks.measure(tasks, seconds=seconds, aborted=self.aborted, on_trouble=self._end_soon)
        return time.monotonic() - start

    def _end_soon(self, trouble: str) -> None:
        """End the plan as a run does: others have a moment to report; a collective may wait much longer."""
        self.trouble.append(trouble)
        asyncio.get_running_loop().call_later(1.0, self.aborted.set)

    async def until_busy(self) -> list[int]:
        """Wait until every rank is in the middle of the long plan; returns their pids."""
        await soon(lambda: all(r.step.startswith("all_reduce") for r in self.ranks.ranks), 60)
        return [r.pid for r in self.ranks.ranks if r.pid]

    @property
    def outcomes(self) -> list[str]:
        return [run.outcome for run in self.ranks.report().runs.values()]


@asynccontextmanager
async def ranks(count: int) -> AsyncIterator[Running]:
    """Start ranks for the body; afterwards not one of their processes is left."""
    running = Running(LocalRanks(local_placements(count, "127.0.0.1", 29500), inherit=False))
    await running.ranks.start()
    program = running.ranks.group
    seen = {program} if program else set()
    try:
        yield running
        seen |= {r.pid for r in running.ranks.ranks if r.pid}
    finally:
        start = time.monotonic()
        await running.ranks.close()
        took = time.monotonic() - start
    assert took < 8
    left = [pid for pid in seen if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert left == []


@pytest.mark.process
async def test_healthy_ranks_measure_and_are_done():
    async with ranks(2) as running:
        await running.measure(PLAN)
        report = running.ranks.report()
        assert running.outcomes == ["done", "done"]
        assert {rank for rank, _ in report.timings} == {0, 1}
        assert all(0.01 < run.import_seconds < 60 for run in report.runs.values())
        assert report.software is not None
        assert running.trouble == []
        assert running.ranks.first_figure is not None


@pytest.mark.process
async def test_a_stopped_rank_is_reported_after_some_seconds():
    async with ranks(2) as running:
        measuring = asyncio.ensure_future(running.measure(LONG, seconds=30))
        pids = await running.until_busy()
        os.kill(pids[1], signal.SIGSTOP)
        await soon(lambda: running.trouble)
        assert running.trouble == ["rank 1: its process is stopped"]
        running.aborted.set()
        await asyncio.wait_for(measuring, 10)
        assert running.outcomes == ["stalled", "stopped"]


@pytest.mark.process
async def test_the_death_of_the_program_that_forks_ends_all_ranks_at_once():
    async with ranks(2) as running:
        measuring = asyncio.ensure_future(running.measure(LONG, seconds=40))
        await running.until_busy()
        os.kill(running.program, signal.SIGKILL)
        await asyncio.wait_for(measuring, 15)
        runs = running.ranks.report().runs.values()
        assert [r.outcome for r in runs] == ["died", "died"]
        assert all("was killed by SIGKILL" in r.detail for r in runs)


@pytest.mark.process
async def test_a_program_that_is_killed_before_it_forks_is_not_waited_for():
    async with ranks(2) as running:
        os.kill(running.program, signal.SIGKILL)
        start = time.monotonic()
        error = await running.ranks.wait_imported(20, running.aborted)
        assert "was killed by SIGKILL" in error
        assert time.monotonic() - start < 10


@pytest.fixture
def torch_that(tmp_path, monkeypatch):
    """Have `import torch` do this instead."""

    def does(body):
        monkeypatch.setenv("PYTHONPATH", planted(tmp_path, body, "torch.py")["PYTHONPATH"])

    return does


@pytest.mark.process
async def test_a_failing_import_of_torch_is_reported_with_its_error(torch_that):
    torch_that("raise ImportError('libcudart.so.13: no such file')")
    async with ranks(2) as running:
        error = await running.ranks.wait_imported(20, running.aborted)
        assert "libcudart.so.13" in error
        report = running.ranks.report(error=error)
        assert [(r.outcome, r.import_seconds) for r in report.runs.values()] == [("not started", None)] * 2


@pytest.mark.process
@pytest.mark.parametrize("early", [False, True])
async def test_a_crashing_import_of_torch_is_reported_with_its_signal(torch_that, monkeypatch, early):
    """Also one that comes before the program has heard of the ranks."""
    torch_that("import os; os.kill(os.getpid(), 11)")
    ask, asked = channel.ask, []

    def ask_late(control, wish, channels):
        if asked:
            assert select.select([control], [], [], 20)[0]  # the import has begun; now its end is closed
        asked.append(wish)
        ask(control, wish, channels)

    if early:
        monkeypatch.setattr(channel, "ask", ask_late)
    async with ranks(1) as running:
        assert "SIGSEGV" in await running.ranks.wait_imported(20, running.aborted)


@pytest.mark.process
async def test_waiting_for_the_import_ends_with_the_run(torch_that):
    torch_that("import time; time.sleep(60)")
    async with ranks(1) as running:
        error = await running.ranks.wait_imported(0.3, running.aborted)
        assert re.search(r"not imported within (0\.\d|\d)", error)
        assert "within 0 s" not in error
        asyncio.get_running_loop().call_later(0.3, running.aborted.set)
        assert "was ended" in await running.ranks.wait_imported(20, running.aborted)


@pytest.mark.process
@pytest.mark.parametrize("at", [("subprocess", "Popen"), ("os", "fork")])
async def test_a_limit_of_processes_is_named_and_not_torch(tmp_path, monkeypatch, at):
    """The ranks themselves cannot be started, or the process that forks them cannot fork."""

    def refused(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    if at == ("os", "fork"):
        (tmp_path / "sitecustomize.py").write_text(
            "import os\n\ndef fork():\n    raise BlockingIOError(11, '')\n\nos.fork = fork\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    else:
        monkeypatch.setattr(subprocess, "Popen", refused)

    async with ranks(2) as running:
        error = await running.ranks.wait_imported(20, running.aborted)
        assert error == processes()
        report = running.ranks.report(error=error)
        assert {(r.outcome, r.detail) for r in report.runs.values()} == {("not started", processes())}


@pytest.mark.process
async def test_a_group_that_the_kernel_does_not_let_go_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(ending, "group_lives", lambda _group: True)

    async with ranks(1):
        pass


def test_tasks_name_rank_store_and_gpu():
    places = local_placements(3, "127.0.0.1", 29500)
    template = Task(plan=PLAN, rank=0, world_size=3, local_rank=0, store=None)
    tasks = tasks_for(places, template, store=("h", 5), gpus={1: 7})
    assert [(t.rank, t.local_rank, t.store, t.gpu) for t in tasks] == [
        (0, 0, ("h", 5), None),
        (1, 1, ("h", 5), 7),
        (2, 2, ("h", 5), None),
    ]


@pytest.mark.process
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_round_goes_on_after_one_whose_rank_died_or_hangs(signum):
    async with ranks(2) as running:
        measuring = asyncio.ensure_future(running.measure(LONG, seconds=8))
        old = await running.until_busy()
        os.kill(old[1], signum)
        await measuring
        assert "done" not in running.outcomes
        await running.ranks.again()
        running.aborted = asyncio.Event()
        await running.measure(PLAN)
        assert running.outcomes == ["done", "done"]
        assert all(not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie" for pid in old)


@pytest.mark.process
async def test_a_round_that_cannot_be_started_is_reported_for_every_rank():
    async with ranks(2) as running:
        await running.measure(PLAN)
        os.kill(running.program, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(running.program)], timeout=10)
        await running.ranks.again()
        await running.measure(PLAN)
        assert set(running.outcomes) <= {"died", "not started"}
        assert all("could not start another round" in rank.trouble() for rank in running.ranks.ranks)
