"""Look at the folders, files and packages that a job needs, in a child process that may hang.

The child answers once by itself, then once for each line of its standard input, and ends with it. Each folder and file
has a thread of its own, so that a dead file server costs its own folders only.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from distcheck.facts.base import Facts, Missing
from distcheck.facts.mounts import Mount, mount_at, remote_mount
from distcheck.facts.storage import (
    ASKED,
    PATIENCE_SECONDS,
    SCRIPT,
    WORKING_DIRECTORY,
    CommandFile,
    Folder,
    Packages,
    Storage,
    is_network,
    is_text,
)
from distcheck.probe import disk_rates
from distcheck.probe.child import Question
from distcheck.probe.command import files_of, look_at, look_for_module, packages
from distcheck.probe.state import space

VARIABLES = (
    "HOME", "TMPDIR", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME",
    "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME", "XDG_CACHE_HOME",
    "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "WANDB_DIR", "WANDB_CACHE_DIR", "VLLM_CACHE_ROOT",
)  # fmt: skip
"""Variables that name a folder to which jobs write or from which they read."""
_ERASE_SECONDS = 1.0
_PAUSES = (0.0, 0.2, 0.4)
"""Seconds before each look for the leader's file: some network file systems show it late."""
_NAME = re.compile(r"[0-9a-f]{16}")


class StorageTask(msgspec.Struct, frozen=True):
    """What the child looks at."""

    name: str
    """Names this process's own files: 16 hexadecimal digits."""
    folders: dict[str, tuple[str, ...]]
    """What names each folder."""
    words: tuple[str, ...] = ()
    """COMMAND's words."""
    script: str = ""
    """The one that is its script."""
    module: tuple[str, ...] = ()
    """How it runs a module: the interpreter, then the module."""
    safe_path: bool = False
    """Whether Python does not look for it in the working directory."""
    here: str = ""
    """What relative words are relative to."""
    packages: bool = False
    """Whether the installed distributions matter."""
    keeps: bool = False
    """Whether a file stays in every folder until the end, for other nodes to see."""
    rate_bytes: int = disk_rates.MOST_BYTES
    seconds: float = PATIENCE_SECONDS


class Order(msgspec.Struct, frozen=True):
    """A line of standard input."""

    see: str = ""
    """Look for the file of this name in all folders that answered."""
    erase: str = ""
    """Remove the file of this name, whose owner died."""


class SentinelSeen(Facts, frozen=True):
    """The answer to `see`, by folder; folders without an answer are left out."""

    folders: dict[str, bool]


def question(task: StorageTask) -> Question:
    """Return what to start for this task."""
    line = msgspec.json.encode(task).decode()
    return Question(__name__, "the job's folders and files", "a file system hangs", (line,), "answers")


def folders_of(environ: Mapping[str, str], here: str, script: str) -> dict[str, tuple[str, ...]]:
    """Return the folders that a job with this environment uses, and what names each of them.

    `here` is the working directory, empty if there is none; `script` is COMMAND's.
    """
    named = [(here, WORKING_DIRECTORY), (environ.get("PWD", ""), "PWD")] if here else []
    named += [(os.path.dirname(os.path.join(here, script)), SCRIPT)] if script else []  # noqa: PTH118, PTH120 only text
    return by_path(named + [(environ.get(name, ""), name) for name in VARIABLES])


def by_path(named: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return what names each folder, by its path; paths that are not absolute are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for path, name in named:
        if path.startswith("/") and "\0" not in path and is_text(path):
            normal = os.path.normpath(path)
            found[normal] = tuple(dict.fromkeys((*found.get(normal, ()), name)))
    return found


class _Looker:
    """The looks of one child, and the files that it must remove."""

    def __init__(self, task: StorageTask) -> None:
        self.task = task
        self.file = f".distcheck-{task.name}"
        self.found = {
            path: Folder(path, named_by, "silent", **_shown(partial(remote_mount, path)))
            for path, named_by in task.folders.items()
        }
        self.rated: set[int] = set()
        self.made: dict[str, None] = {}
        """Files that were created, or may be."""
        self.lock = threading.Lock()

    def storage(self) -> Storage:
        """Look at everything, for as long as the task allows."""
        files = [*files_of(self.task.words, self.task.script, self.task.here)]
        seen: dict[str, tuple[CommandFile, ...]] = {file.word: (file,) for file in files}
        installed: list[Packages] = []

        def keep(word: str, find: Callable[[], tuple[CommandFile, ...]]) -> None:
            seen[word] = find()

        jobs: list[Callable[[], object]] = [partial(self.look, path) for path in self.found]
        jobs += [partial(keep, file.word, partial(look_at, file)) for file in files]
        module = partial(look_for_module, self.task.module, safe_path=self.task.safe_path)
        jobs += [partial(keep, "-m", module)] if self.task.module else []
        jobs += [lambda: installed.append(packages())] if self.task.packages else []
        _together(jobs, self.task.seconds)
        shown = dict.fromkeys(file for group in tuple(seen.values()) for file in group)
        return Storage(tuple(self.found.values()), tuple(shown), installed[0] if installed else None)

    def look(self, path: str) -> None:
        """Look at one folder; what is known by the deadline counts."""
        folder = self.found[path]
        try:
            # With the last part a file system that is mounted on demand is mounted; a FIFO or a socket is refused.
            device = os.stat(f"{path}/.").st_dev  # noqa: PTH116 pathlib drops the last part
        except OSError as error:
            state = {errno.ENOENT: "absent", errno.ENOTDIR: "other"}.get(error.errno or 0, "unreadable")
            self.found[path] = replace(folder, state=state, error="" if state == "absent" else error.strerror or "")
            return
        room = space(path)
        folder = replace(
            folder,
            state="folder",
            device=device,
            space=None if isinstance(room, Missing) else room,
            **_shown(partial(mount_at, os.path.realpath(path))),
        )
        failure = self.create(f"{path}/{self.file}")
        holds = self.task.keeps and not failure
        if not holds:
            self.erase(f"{path}/{self.file}")
        folder = self.found[path] = replace(folder, write_error=failure, holds_sentinel=holds)
        with self.lock:
            measured = bool(failure) or device in self.rated
            if not failure:
                self.rated.add(device)
        if measured or folder.space is None or folder.space.free_bytes < disk_rates.LEAST_FREE_BYTES:
            return
        place = f"{path}/{self.file}-rate"
        self.made[place] = None
        try:
            with suppress(OSError):  # then it has no rates
                write, read = disk_rates.measure(place, self.task.rate_bytes)
                self.found[path] = replace(folder, write_MBps=write, read_MBps=read)
        finally:
            self.erase(place)

    def create(self, place: str) -> str:
        """Create this child's file with its name as content; return the error, empty if there was none."""
        self.made[place] = None
        try:
            with suppress(FileExistsError):  # two of the paths lead to one folder
                descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    os.write(descriptor, self.task.name.encode())
                finally:
                    os.close(descriptor)  # a network file system may report a full disk only now
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def erase(self, place: str) -> None:
        """Remove a file of this child."""
        with suppress(OSError):
            os.unlink(place)  # noqa: PTH108 this must not depend on imports
        self.made.pop(place, None)

    def erase_all(self) -> None:
        """Remove all files of this child, as far as their file systems answer."""
        _together([partial(self.erase, place) for place in tuple(self.made)], _ERASE_SECONDS)

    def answer(self, order: Order) -> Iterator[SentinelSeen]:
        """Do what a line of standard input says."""
        here = [path for path, folder in self.found.items() if folder.state == "folder"]
        if _NAME.fullmatch(order.see):
            seen: dict[str, bool] = {}

            def look(path: str) -> None:
                folder = self.found[path]
                late = ASKED in folder.named_by or is_network(folder.file_system)
                seen[path] = _sees(path, order.see, _PAUSES if late else _PAUSES[:1])

            _together([partial(look, path) for path in here], self.task.seconds)
            yield SentinelSeen(dict(seen))
        if _NAME.fullmatch(order.erase):
            _together([partial(self.erase, f"{path}/.distcheck-{order.erase}") for path in here], _ERASE_SECONDS)


def _sees(path: str, name: str, pauses: Sequence[float]) -> bool:
    """Return whether another process's file is here, with its content."""
    for pause in pauses:
        time.sleep(pause)
        with suppress(OSError):
            descriptor = os.open(f"{path}/.distcheck-{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode) and os.read(descriptor, 64) == name.encode():
                    return True
            finally:
                os.close(descriptor)
    return False


def _together(jobs: Sequence[Callable[[], object]], seconds: float) -> None:
    """Run each job in a thread of its own; return when all have ended, or after `seconds`."""
    until = time.monotonic() + seconds
    threads = []
    for job in jobs:
        try:
            (thread := threading.Thread(target=job, daemon=True)).start()
            threads.append(thread)
        except RuntimeError:  # no further thread may start; who waits for this process ends a job that hangs
            job()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _shown(find: Callable[[], Mount | None]) -> dict[str, Any]:
    """Return a mount as a folder's facts; none if the mounts cannot be read.

    A file system that the kernel made read-only after an error shows ``ro`` among its own options and still ``rw``
    among those of the mount.
    """
    from distcheck.probe.environment import hidden

    try:
        mount = find()
    except OSError:
        return {}
    return (
        {}
        if mount is None
        else {
            "file_system": mount.file_system,
            "source": hidden(mount.source)[:200],
            "mount": mount.point,
            "remounted": "rw" in mount.options and "ro" in mount.super_options,
        }
    )


def answers(task: str) -> Iterator[Storage | SentinelSeen]:
    """Look, obey standard input, and remove the own files whatever ends this process."""
    looker = _Looker(msgspec.json.decode(task, type=StorageTask))

    def end(*_: object) -> None:
        looker.erase_all()
        os._exit(0)

    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    yield looker.storage()
    for line in sys.stdin:
        with suppress(msgspec.DecodeError):
            yield from looker.answer(msgspec.json.decode(line, type=Order))
    looker.erase_all()
