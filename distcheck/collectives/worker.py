"""One rank's work in its own process: join the group, check operations, time sizes.

It reports each step before the step, so that distcheck knows where it stopped. It reports that it is alive while a
collective blocks, which separates a waiting process from a hanging one. Every end is reported as `Failed` or
`Finished`. Only then does it leave the group: a process that has delivered its results and cannot leave is killed, and
that is not a fault of the job.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

# Before torch: this import silences torch's warnings at import.
from distcheck.collectives.software import device_type, implementation, lack_of, software  # isort: split

import torch
import torch.distributed as dist

from distcheck.collectives import devices, nccl_debug
from distcheck.collectives.compute import compute
from distcheck.collectives.figure import check, measure
from distcheck.collectives.operations import EXACT, Group
from distcheck.collectives.plan import (
    DEVICE_TEST,
    TRAINING,
    Alive,
    DeviceTested,
    Failed,
    Finished,
    Joined,
    NcclSaid,
    RankMessage,
    Step,
    StoreOpen,
    Task,
    Trained,
    label,
    moved_bytes,
)
from distcheck.collectives.store import AbsentError, agree, await_all, farewell, open_store, part_of, reach_store
from distcheck.facts.base import Missing
from distcheck.facts.device import DeviceTest
from distcheck.facts.held import PIPE
from distcheck.facts.training import Training

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Tell = Callable[[RankMessage], None]

ALIVE_SECONDS = 0.5
_DEVICE_TEST_SECONDS = 8.0
"""With less time left there is no device test: busy CPUs make it several times as long as it should be."""
_TRAINING_SECONDS = 8.0
"""The same for the training steps."""


def run(task: Task, tell: Tell) -> None:
    """Do a rank's task in this process, its own; the caller ends the process afterwards.

    `tell` is called from two threads, never from both at once. Only exceptions of `tell` are raised.
    """
    with _breathing(tell) as say:
        debug = nccl_debug.prepare(os.environ) if task.plan.backend == "nccl" else None
        result = _work(task, say, debug)
        if debug is not None:
            say(NcclSaid(nccl_debug.read(debug)))
    if isinstance(result, Failed):
        tell(result)
    else:
        tell(Finished())
        _leave(task, result)


@contextlib.contextmanager
def _breathing(tell: Tell) -> Iterator[Tell]:
    """Send `Alive` from a thread while the body runs; collectives release the interpreter."""
    lock = threading.Lock()
    over = threading.Event()

    def say(message: RankMessage) -> None:
        with lock:
            tell(message)

    def breathe() -> None:
        # A closed pipe: the main thread gets the same error and can report it.
        with contextlib.suppress(OSError):
            while not over.wait(ALIVE_SECONDS):
                say(Alive())

    thread = threading.Thread(target=breathe, name="distcheck-alive", daemon=True)
    thread.start()
    try:
        yield say
    finally:
        over.set()
        thread.join()


def _work(task: Task, say: Tell, debug: nccl_debug.Debug | Missing | None) -> Failed | Store:
    """Do the plan; return the store of the process group, or what failed."""
    plan, begin = task.plan, time.monotonic()
    try:
        say(Step("process group"))
        store: Store | None = None
        if task.store is None and dist.is_available():
            # Open it even without the backend: the other ranks wait for it and will report the same.
            opened = open_store(plan.deadline_seconds)
            say(StoreOpen(opened.port))
            store = opened
        if lack := lack_of(plan.backend, plan.backend_name):
            return Failed(lack, unavailable=True)
        device = _take_device(task)
        say(software(device))
        if plan.compute:
            say(Step("compute"))
            say(compute(device))
        if store is None:
            store = reach_store(task.store, plan.deadline_seconds)
        start = time.perf_counter()
        _join_group(task, store, device)
        say(Joined(time.perf_counter() - start, implementation(device)))
        todo = [(op, dtype) for op in plan.operations for dtype in plan.dtypes]
        for op, dtype in todo:
            say(Step(f"check {label(op, dtype)}"))
            say(check(op, dtype, _group(task, dtype, device)))
        for op, dtype in todo:
            for size in plan.sizes_bytes:
                moved = moved_bytes(op, size, task.world_size, dtype)
                say(Step(f"{label(op, dtype)} {moved} B"))
                say(measure(plan, op, dtype, moved, _group(task, dtype, device), store, say=say))
        _measure_groups(task, device, store, begin, say, debug)
        if plan.device_seconds:
            left = plan.deadline_seconds - (time.monotonic() - begin)
            say(DeviceTested(_test_device(task, device, store, left, say)))
        if plan.training:
            left = plan.deadline_seconds - (time.monotonic() - begin)
            _train(task, device, store, left, say)
    except AbsentError as error:
        return Failed(one_line(error), absent=error.ranks)
    except Exception as error:  # noqa: BLE001 any exception that ends a rank is a fact about it
        return Failed(one_line(error))
    return store


def _take_device(task: Task) -> torch.device:
    kind = device_type(task.plan.backend, task.plan.backend_name)
    if kind != "cpu":
        device = torch.device(kind, task.local_rank if task.gpu is None else task.gpu)
        getattr(torch, kind).set_device(device)
        return device
    # Torch would start a thread per core in every rank, and the ranks of a node share its cores.
    torch.set_num_threads(1)
    return torch.device("cpu")


def _join_group(task: Task, store: Store, device: torch.device) -> None:
    timeout = timedelta(seconds=task.plan.deadline_seconds)
    os.environ.pop(PIPE, None)  # it would replace the pipe of a job that runs here
    if task.plan.backend == "mpi":
        # MPI numbers the processes itself; torch then takes neither a store nor a rank.
        dist.init_process_group("mpi", timeout=timeout)
        if (dist.get_rank(), dist.get_world_size()) != (task.rank, task.world_size):
            raise RuntimeError(
                f"MPI calls this rank {dist.get_rank()} of {dist.get_world_size()}, "
                f"the launcher's variables call it rank {task.rank} of {task.world_size}"
            )
        return
    options: dict[str, Any] = {}
    if device.type == "cuda" and torch.__version__ >= "2.7.1":
        # Connects now, not in the first collective; torch 2.6.1 to 2.7.0 hang with it (pytorch #153960).
        options["device_id"] = device
    dist.init_process_group(
        task.plan.backend_name or task.plan.backend,
        store=part_of(store, "group"),
        rank=task.rank,
        world_size=task.world_size,
        timeout=timeout,
        **options,
    )


def _group(task: Task, dtype: str, device: torch.device) -> Group:
    return Group(task.rank, task.world_size, device, EXACT[dtype], task.plan.stride)


def _measure_groups(
    task: Task, device: torch.device, store: Store, begin: float, say: Tell, debug: nccl_debug.Debug | Missing | None
) -> None:
    """Measure the groups of the mesh, if there is one."""
    if task.plan.mesh is None or task.plan.mesh.ranks != task.world_size:
        return
    from distcheck.collectives import mesh_groups

    if debug is not None:
        # The log of the world, before the groups have communicators of their own.
        say(NcclSaid(nccl_debug.read(debug, last=False)))
    mesh_groups.measure_all(task, device, store, begin, say)


def _test_device(task: Task, device: torch.device, store: Store, left: float, say: Tell) -> DeviceTest | Missing:
    """Test this rank's device if rank 0 has enough time left; all ranks begin at the same time."""
    plan = task.plan
    if device.type not in {"cpu", "cuda"}:
        return Missing(reason=f"there is no test for {device.type} devices")
    enough = int(left >= plan.burn_seconds + _DEVICE_TEST_SECONDS) if task.rank == 0 else None
    if not agree(store, DEVICE_TEST, enough):
        return Missing(reason=f"less than {plan.burn_seconds + _DEVICE_TEST_SECONDS:g} s of the time limit were left")
    return devices.test(
        device,
        task.local_rank,
        plan.device_seconds,
        plan.burn_seconds,
        lambda text: say(Step(f"{DEVICE_TEST}: {text}")),
    )


def _train(task: Task, device: torch.device, store: Store, left: float, say: Tell) -> None:
    """Take training steps in every way if rank 0 has enough time left, and report them."""
    if not agree(store, TRAINING, int(left >= _TRAINING_SECONDS) if task.rank == 0 else None):
        say(Trained("DDP", Missing(reason=f"less than {_TRAINING_SECONDS:g} s of the time limit were left")))
        return
    say(Step(f"{TRAINING}: import"))
    # A second of CPU time, which nothing else needs.
    from distcheck.collectives.training import model, steps, ways

    me = model.TrainingRank(device, task.rank, task.world_size)
    for way in ways.WAYS:

        def note(text: str, way: str = way) -> None:
            say(Step(f"{TRAINING}: {way} {text}"))

        def keep(known: Training | Missing, way: str = way) -> None:
            say(Trained(way, known))

        keep(steps.train(way, me, store, note, keep))


def _leave(task: Task, store: Store) -> None:
    """Wait until every rank has its results, then leave the group while rank 0's store exists.

    A Gloo group is not destroyed: the process ends and the kernel closes its sockets. Up to torch 2.7 its destructor
    sometimes deadlocks: it joins Gloo's thread while it holds the interpreter lock, which that thread needs to release
    a tensor. An NCCL group removes its shared memory when it is destroyed, and its threads complain if the store is
    gone. All results are delivered already, so errors here are ignored.
    """
    with contextlib.suppress(Exception):
        await_all(store, "delivered", task.world_size)
        if task.plan.backend != "gloo":
            dist.destroy_process_group()
        farewell(store, task.world_size, host=task.store is None)


def one_line(error: Exception) -> str:
    """Return an error's type and message on one line, without torch's C++ stack."""
    text = str(error).partition("Exception raised from ")[0]
    return f"{type(error).__name__}: {' '.join(text.split())}"[:600]
