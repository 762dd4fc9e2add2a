"""A running job as samples show it: ranks that wait, sleep, compute or are blocked."""

from __future__ import annotations

from msgspec.structs import replace

from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.hang import Frame, GpuUse, HangNode, Moment, RankProcess, RunningJob, SystemCall, Thread
from distcheck.facts.job import Job

PACKAGES = "/opt/venv/lib/python3.11/site-packages"
C10D = f"{PACKAGES}/torch/distributed/distributed_c10d.py"
NATIVE = ("libstdc++.so.6.0.30", "libtorch_cpu.so", "libtorch_python.so", "libpython3.11.so.1.0")
PYTHON = ("libpython3.11.so.1.0",)
DENIED = Missing(reason="py-spy: Error: Permission Denied: Try running again with elevated permissions")
SECONDS = 2.0


def frames(*names: str) -> tuple[Frame, ...]:
    """Return frames, innermost first, of texts such as `/home/me/train.py:88 step`."""
    found = []
    for name in names:
        place, _, function = name.rpartition(" ")
        file, _, line = place.rpartition(":")
        found.append(Frame(file, int(line), function))
    return tuple(found)


def thread(*names: str, main: bool = True, name: str = "MainThread", gil: bool = False) -> Thread:
    return Thread(name, main, gil, frames(*names))


def rank(
    number: int,
    *stack: str,
    state: str = "S",
    waits_in: str = "futex_do_wait",
    call: SystemCall | None = None,
    others: tuple[Thread, ...] = (),
    node: str = "node1",
    after: dict[str, object] | None = None,
    **fields: object,
) -> RankProcess:
    """Return a rank with two samples, the second of which differs from the first by `after`."""
    moment = Moment(100.0, state, waits_in, call, threads=(thread(*stack), *others) if stack else DENIED)
    later = replace(moment, age_seconds=moment.age_seconds + SECONDS, **(after or {}))
    return RankProcess(number, node, 4700 + number, "train.py", number, moments=(moment, later), **fields)


def collective(operation: str = "all_reduce", line: str = "/home/me/train.py:88 step") -> tuple[str, ...]:
    """Return the stack of a rank in a collective."""
    return f"{C10D}:3252 {operation}", f"{PACKAGES}/torch/distributed/c10d_logger.py:83 wrapper", line


def waiter(number: int, operation: str = "all_reduce", line: str = "/home/me/train.py:88 step", **more) -> RankProcess:
    return rank(number, *collective(operation, line), call=SystemCall("futex", libraries=NATIVE), **more)


def sleeper(number: int, line: str = "/home/me/data.py:41 load_shard", **more) -> RankProcess:
    call = SystemCall("clock_nanosleep", libraries=PYTHON)
    return rank(number, line, waits_in="hrtimer_nanosleep", call=call, **more)


def busy(number: int, line: str = "/home/me/eval.py:7 evaluate", share: float = 0.9, **more) -> RankProcess:
    after = {"run_seconds": share * SECONDS, "switches": 400}
    return rank(number, line, state="R", waits_in="", call=SystemCall("running"), after=after, **more)


def spinning(number: int, *percent: int, watts: float = 90.0, line: str = "/home/me/train.py:91 step", **more):
    """Return a rank whose main thread spins at a line; the GPU's readings, one for each sample, are of an H100."""
    use = GpuUse(number, percent, (70 << 30,) * len(percent), (watts,) * len(percent), 700.0)
    gpus = (replace(use, **more.pop("gpu", {})),)
    return busy(number, line, share=1.0, cuda=True, gpus=gpus, **more)


def blocked(number: int, call: SystemCall, line: str = "/home/me/data.py:41 load_shard", **more) -> RankProcess:
    return rank(number, line, waits_in=more.pop("waits_in", "wait_for_partner"), call=call, **more)


def unreadable(process: RankProcess, *, wchan: bool = True) -> RankProcess:
    """Return a rank as it is seen without the right to attach, or without any."""
    moments = (
        replace(m, threads=DENIED, call=None, waits_in=m.waits_in if wchan else "", moved_bytes=None)
        for m in process.moments
    )
    return replace(process, moments=tuple(moments))


def running(*ranks: RankProcess, world: int | None = None, local: bool = True, **more: object) -> RunningJob:
    """Return a running job of these ranks."""
    nodes = tuple(HangNode(name) for name in sorted({process.node for process in ranks}) or ["node1"])
    size = len(ranks) if world is None else world
    fields = {"name": "node1:29511", "nodes": nodes, **more}
    return RunningJob(world_size=size, local=local, launcher="torchrun", ranks=ranks, **fields)


def job_of(hang: RunningJob) -> Job:
    return Job("0.1.0", "run", Asked("hang", ("hang",)), met=True, hang=hang)
