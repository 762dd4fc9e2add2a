"""Imports torch once and forks ranks, which look from outside as if they had been started with their environment.

Each line of the standard input is an order: {"argv": […], "environs": [{…}, …]}; the answer is the ranks' pids. As
under torchrun the parent has torch and is no rank, and each rank leads a session of its own. One that ended is gone.

/proc/PID/environ and cmdline show the memory in which the process found them when it was started. The parent was given
room there, into which each rank writes its own, as programs do that change their title.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
from pathlib import Path

ROOM = {"ROOM_FOR_THE_ENVIRONMENT_OF_RANKS": "x" * 16_000}
COMMAND = [sys.executable, __file__, "room for the arguments of ranks" * 20]


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        pids = []
        for environ in order["environs"]:
            if (pid := os.fork()) == 0:
                become(order["argv"], environ)
                return
            pids.append(pid)
        print(json.dumps(pids), flush=True)


def become(argv: list[str], environ: dict[str, str]) -> None:
    """Be a rank; returns when its program ends, so that Python ends as it always does."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: none survives a run of tests that was ended
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null, log = os.open(os.devnull, os.O_RDONLY), os.open(environ["LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()  # libc's pointers into that memory
    show(47, [sys.executable, *argv])
    show(49, [f"{name}={value}" for name, value in environ.items()])
    os.environ.update(environ)
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    runpy.run_path(argv[0], run_name="__main__")


def show(field: int, words: list[str]) -> None:
    """Write arguments or environment where /proc shows them; field is that of the start in stat, proc_pid_stat(5)."""
    start, end = map(int, Path("/proc/self/stat").read_text().split()[field : field + 2])
    shown = b"".join(f"{word}\0".encode() for word in words)
    assert len(shown) <= end - start
    ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
