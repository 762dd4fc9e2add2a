"""The fork server of local ranks: ``python -m distcheck.launch.local.forkserver PARENT CHANNEL``.

Every rank is a real process. All are forked after a single import of torch, before any CUDA or OpenMP use: 8 ranks are
then ready in the time of one import. The import begins before it is known what to fork.
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
from functools import partial
from typing import NoReturn

from distcheck.facts.errors import unstarted
from distcheck.launch.local.channel import Born, Exited, Imported, RankEnd, Spec
from distcheck.selection.placement import rank_environment

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_IOLBF = 1
TELL_STACK = signal.SIGUSR2
"""Makes a process here write its Python stack, even while a call into C holds the interpreter."""


def main() -> None:
    """Import torch, fork the ranks, and report how each one ends."""
    _die_with(int(sys.argv[1]))
    control = RankEnd(int(sys.argv[2]))
    os.dup2(2, 1)  # NCCL and other libraries write to stdout, which is for the report only
    _write_lines_at_once()
    faulthandler.enable(all_threads=False)
    faulthandler.register(TELL_STACK, all_threads=False)
    start = time.monotonic()
    gc.disable()  # the import makes objects that stay, and would look at all of them again and again
    error = ""
    try:
        from distcheck.collectives import worker  # noqa: F401 imported before the fork, for all ranks
    except BaseException as reason:  # noqa: BLE001 an import may raise anything, even SystemExit
        cause = reason.__cause__  # of a plugin of torch that cannot be loaded
        error = f"torch cannot be imported: {f'{type(cause).__name__}: {cause}: ' if cause else ''}"
        error += f"{type(reason).__name__}: {reason}"
    seconds = time.monotonic() - start
    known = control.hear_spec()
    if known is None:
        return
    if known[0].training and not error:
        start = time.monotonic()
        with contextlib.suppress(Exception):  # the ranks' own import shows what is wrong
            from distcheck.collectives.training import steps  # noqa: F401 as above
        seconds += time.monotonic() - start
    gc.freeze()  # the ranks then do not touch, and so do not copy, what was imported
    gc.enable()
    if error:
        control.tell(Imported(seconds, error))
    else:
        _hold_rounds(*known, control, seconds)


def _hold_rounds(spec: Spec, channels: tuple[int, ...], control: RankEnd, seconds: float) -> None:
    """Fork the ranks for each round that distcheck asks for; report how each process ends."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    try:
        running = {pid: (i, 0) for i, pid in enumerate(_fork_all(spec, channels, control))}
    except OSError as error:  # there are too many processes, or no memory is left
        control.tell(Imported(0.0, unstarted(error)))
        return
    control.tell(Imported(seconds))
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
            again, channels = wish
            running |= {pid: (i, again.round) for i, pid in enumerate(_fork_all(spec, channels, control))}


def _fork_all(spec: Spec, channels: tuple[int, ...], control: RankEnd) -> tuple[int, ...]:
    """Fork every rank and return their pids in order; close the channels here."""
    become = partial(_become, os.getpid(), spec, channels, control)
    forked = tuple(os.fork() or become(index) for index in range(len(channels)))
    for channel in channels:
        os.close(channel)
    return forked


def _reap(running: dict[int, tuple[int, int]], control: RankEnd) -> None:
    for pid in tuple(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            index, number = running.pop(pid)
            control.tell(Exited(index, os.waitstatus_to_exitcode(status), number))


def _become(parent: int, spec: Spec, channels: tuple[int, ...], control: RankEnd, index: int) -> NoReturn:
    """Be a rank, and end."""
    code = 70
    try:
        _die_with(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()  # its end must close when this program ends, even if ranks live on
        for other, fd in enumerate(channels):
            if other != index:
                os.close(fd)
        if not spec.inherit:
            mine = rank_environment(os.environ, spec.placements[index])
            os.environ.clear()
            os.environ.update(mine)
        # ps and top then show each process's rank; the kernel keeps 15 characters.
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"distcheck r{spec.placements[index].rank}".encode())
        _measure(RankEnd(channels[index]))
        code = 0
    finally:
        os._exit(code)


def _measure(channel: RankEnd) -> None:
    from distcheck.collectives import worker

    channel.tell(Born(os.getpid()))
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
