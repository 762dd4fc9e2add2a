"""The fork server of local ranks: ``python -m distcheck.launch.local.forkserver PARENT CHANNEL [torch]``.

Every rank is a real process. Each is forked once without torch, to report its variables, because the import itself may
fail. To measure, each is forked again after a single import of torch, before any CUDA or OpenMP use: 8 ranks are then
ready in the time of one import. The import begins before it is known what to fork. So another process, forked before
the import, waits for the `Spec` to fork the first ones; the same Spec then comes a second time, for the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from distcheck.facts.errors import unstarted
from distcheck.launch.local.channel import Born, Exited, Imported, RankEnd, Spec
from distcheck.probe import environment
from distcheck.selection.placement import rank_environment

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_IOLBF = 1
TELL_STACK = signal.SIGUSR2
"""Makes a process here write its Python stack, even while a call into C holds the interpreter."""


def main() -> None:
    """Fork the ranks, import torch, fork them again, and report how each one ends."""
    _die_with(int(sys.argv[1]))
    control = RankEnd(int(sys.argv[2]))
    os.dup2(2, 1)  # NCCL and other libraries write to stdout, which is for the report only
    _write_lines_at_once()
    faulthandler.enable(all_threads=False)
    faulthandler.register(TELL_STACK, all_threads=False)
    if sys.argv[3:] != ["torch"]:
        _introduce_all(control)
        return
    try:
        introducer = _child(partial(_introduce_all, control))  # the import may kill this process, but not that one
    except OSError as reason:
        control.hear_spec()  # it comes twice
        _give_up(control, control.hear_spec(), reason)
    start = time.monotonic()
    gc.disable()  # the import makes objects that stay, and would look at all of them again and again
    error = ""
    try:
        from distcheck.collectives import worker  # noqa: F401 imported before the fork, for all ranks
    except BaseException as reason:  # noqa: BLE001 an import may raise anything, even SystemExit
        error = f"torch cannot be imported: {type(reason).__name__}: {reason}"
    seconds = time.monotonic() - start
    if os.waitpid(introducer, 0)[1] != 0:
        sys.exit(1)  # it has said why
    known = control.hear_spec()
    if known is not None and known[0].training and not error:
        start = time.monotonic()
        with contextlib.suppress(Exception):  # the ranks' own import shows what is wrong
            from distcheck.collectives.training import steps  # noqa: F401 as above
        seconds += time.monotonic() - start
    gc.freeze()  # the ranks then do not touch, and so do not copy, what was imported
    gc.enable()
    if known is not None:
        control.tell(Imported(seconds, error))
    if known is not None and not error:
        _hold_rounds(*known, control)


def _introduce_all(control: RankEnd) -> None:
    """Fork every rank, to report its variables, and wait until all have ended."""
    known = control.hear_spec()
    if known is None:
        return
    try:
        for pid in _fork_all(*known, control, _introduce):
            os.waitpid(pid, 0)
    except OSError as error:
        _give_up(control, known, error)


def _give_up(control: RankEnd, known: tuple[Spec, tuple[int, ...]] | None, error: OSError) -> NoReturn:
    """Report that a process could not be forked, because there are too many or no memory is left, and end."""
    control.tell(Imported(0.0, unstarted(error)))
    for channel in known[1] if known else ():
        with contextlib.suppress(OSError), socket.socket(fileno=channel) as end:
            end.shutdown(socket.SHUT_RDWR)  # the Spec that is under way keeps the channel open
    sys.exit(1)


def _hold_rounds(spec: Spec, channels: tuple[int, ...], control: RankEnd) -> None:
    """Fork the ranks for each round that distcheck asks for; report how each process ends."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    number = 0
    running = {pid: (i, number) for i, pid in enumerate(_fork_all(spec, channels, control, _measure))}
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
            number = again.round
            running |= {pid: (i, number) for i, pid in enumerate(_fork_all(spec, channels, control, _measure))}


def _fork_all(
    spec: Spec, channels: tuple[int, ...], control: RankEnd, be: Callable[[RankEnd], None]
) -> tuple[int, ...]:
    """Fork every rank and return their pids in order; close the channels here."""
    parent = os.getpid()
    forked = tuple(_child(partial(_become, parent, spec, channels, i, control, be)) for i in range(len(channels)))
    for channel in channels:
        os.close(channel)
    return forked


def _reap(running: dict[int, tuple[int, int]], control: RankEnd) -> None:
    for pid in tuple(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            index, number = running.pop(pid)
            control.tell(Exited(index, os.waitstatus_to_exitcode(status), number))


def _child(be: Callable[[], None]) -> int:
    """Fork a process that does this and ends; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        be()
        code = 0
    finally:
        os._exit(code)


def _become(
    parent: int, spec: Spec, channels: tuple[int, ...], index: int, control: RankEnd, be: Callable[[RankEnd], None]
) -> None:
    """Be a rank."""
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
    be(RankEnd(channels[index]))


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
