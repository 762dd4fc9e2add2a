"""The fork server of local ranks: ``python -m distcheck.launch.local.forkserver SPEC``.

Every rank is a real process. Each is forked once before torch is imported, to report its variables, because the import
itself may fail. To measure, each is forked again after a single import of torch, before any CUDA or OpenMP use: 8 ranks
are then ready in the time of one import.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from distcheck.facts.placement import Placement
from distcheck.launch.local.channel import Born, Exited, Imported, RankEnd
from distcheck.probe import environment
from distcheck.selection.placement import rank_environment

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_IOLBF = 1
TELL_STACK = signal.SIGUSR2
"""Makes a process here write its Python stack, even while a call into C holds the interpreter."""


class Spec(msgspec.Struct, frozen=True):
    """What to fork: one channel's descriptor per rank, and one for the fork server itself."""

    placements: tuple[Placement, ...]
    channels: tuple[int, ...]
    control: int
    torch: bool
    training: bool
    """Whether the ranks will take training steps."""
    inherit: bool
    """True if this process already is the rank, so its environment stays unchanged."""
    parent: int
    """The pid of distcheck; everything here ends with it."""


def main() -> None:
    """Fork the ranks, import torch, fork them again, and report how each one ends."""
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    _die_with(spec.parent)
    os.dup2(2, 1)  # NCCL and other libraries write to stdout, which is for the report only
    _write_lines_at_once()
    faulthandler.enable(all_threads=False)
    faulthandler.register(TELL_STACK, all_threads=False)
    control = RankEnd(spec.control)
    children = [_fork(spec, i, _introduce, control) for i in range(len(spec.placements))]
    for pid in children:
        os.waitpid(pid, 0)
    if spec.torch:
        start = time.monotonic()
        gc.disable()  # the import makes objects that stay, and would look at all of them again and again
        try:
            from distcheck.collectives import worker  # noqa: F401 imported before the fork, for all ranks

            if spec.training:
                with contextlib.suppress(Exception):  # the ranks' own import shows what is wrong
                    from distcheck.collectives.training import steps  # noqa: F401 as above
        except BaseException as error:  # noqa: BLE001 an import may raise anything, even SystemExit
            control.tell(Imported(time.monotonic() - start, f"{type(error).__name__}: {error}"))
            return
        gc.freeze()  # the ranks then do not touch, and so do not copy, what was imported
        gc.enable()
        control.tell(Imported(time.monotonic() - start))
        _hold_rounds(spec, control)


def _hold_rounds(spec: Spec, control: RankEnd) -> None:
    """Fork the ranks for each round that distcheck asks for; report how each process ends."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    number, channels = 0, spec.channels
    running = _fork_all(spec, channels, control, number)
    while True:
        ready, _, _ = select.select([woken, control.fileno()], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(running, control)
        if control.fileno() in ready:
            wish = control.hear_again(len(channels))
            if wish is None:
                return
            # Kill without waiting: a process that hangs in the kernel ends when it can.
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            again, fds = wish
            number, channels = again.round, tuple(fds)
            running |= _fork_all(spec, channels, control, number)


def _fork_all(spec: Spec, channels: tuple[int, ...], control: RankEnd, number: int) -> dict[int, tuple[int, int]]:
    """Fork every rank and return each pid's rank and round; close the channels here."""
    mine = msgspec.structs.replace(spec, channels=channels)
    forked = {_fork(mine, i, _measure, control): (i, number) for i in range(len(channels))}
    for channel in channels:
        os.close(channel)
    return forked


def _reap(running: dict[int, tuple[int, int]], control: RankEnd) -> None:
    for pid in tuple(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            index, number = running.pop(pid)
            control.tell(Exited(index, os.waitstatus_to_exitcode(status), number))


def _fork(spec: Spec, index: int, be: Callable[[RankEnd], None], control: RankEnd) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        _die_with(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()  # its end must close when this program ends, even if ranks live on
        for other, fd in enumerate(spec.channels):
            if other != index:
                os.close(fd)
        if not spec.inherit:
            mine = rank_environment(os.environ, spec.placements[index])
            os.environ.clear()
            os.environ.update(mine)
        # ps and top then show each process's rank; the kernel keeps 15 characters.
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"distcheck r{spec.placements[index].rank}".encode())
        be(RankEnd(spec.channels[index]))
        code = 0
    finally:
        os._exit(code)


def _introduce(channel: RankEnd) -> None:
    channel.tell(Born(os.getpid(), environment.collect(os.environ)))


def _measure(channel: RankEnd) -> None:
    from distcheck.collectives import worker

    channel.tell(Born(os.getpid(), {}))
    task = channel.wait_for_task()
    if task is not None:
        os.environ.update(task.variables)  # the libraries read them when the group is created
        worker.run(task, channel.tell)


def _write_lines_at_once() -> None:
    """Have C's stdout, a pipe, flush every line: the ranks leave without flushing, and NCCL's diagnostics do not."""
    c = ctypes.CDLL(None)
    with contextlib.suppress(ValueError):  # this C library has no such symbol
        c.setvbuf(ctypes.c_void_p.in_dll(c, "stdout"), None, _IOLBF, ctypes.c_size_t(0))


def _die_with(parent: int) -> None:
    """Have the kernel send SIGKILL when the parent ends; end now if it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(70)


if __name__ == "__main__":
    main()
