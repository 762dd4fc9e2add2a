"""Files that distcheck writes: whatever is at their path keeps its kind, and no write waits without end.

| at the path | written |
|---|---|
| a file, or nothing | atomically, by a temporary file beside it; in place if its folder does not allow that |
| a link | where it leads to, also if nothing is there yet |
| /dev/stdout, /proc/self/fd/3, a link to one | to the open descriptor: opened anew, a redirected log is overwritten |
| a pipe, a terminal, another device | directly |
| a folder, a socket, a disk | not at all |
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
import time
from functools import partial
from pathlib import Path

from distcheck.facts.errors import UsageError, WriteError
from distcheck.facts.files import LONGEST_NAME, PIPE_SECONDS
from distcheck.facts.touch import PATIENCE_SECONDS, touch

_READER_SECONDS = 2.0
"""For the program that reads an output; a run has 4 s for its outputs if it used all of --timeout."""
_BYTES_PER_SECOND = 20e6
"""At which a file server is written to, at least."""
_MOST_LINKS = 40
"""As the kernel follows (path_resolution(7))."""
_IN_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY}
"""A folder that takes no other file, or a file that is itself mounted, as containers have them."""
_UNFIT = {stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a disk"}


def write(path: Path, text: str) -> None:
    """Write a text in UTF-8.

    Raises:
        WriteError: it could not be written, or no program reads the pipe; the message says why.
    """
    content = text.encode("utf-8", "backslashreplace")
    try:
        place = _place(path, "an output")
        if isinstance(place, int):
            _pour(place, content)
        else:
            touch(
                place, "an output", partial(_put, place, content), PATIENCE_SECONDS + len(content) / _BYTES_PER_SECOND
            )
    except OSError as error:
        raise WriteError(f"{path} could not be written: {error.strerror or error}; choose another file") from error


def check_writable(path: Path, option: str) -> str | None:
    """Check, before anything is measured, that an output can be written.

    Return the real path that will be created or replaced, None for what takes several outputs. A file system that does
    not answer is no error of the command line: the run reports it, and prints its report.

    Raises:
        UsageError: it cannot.
    """
    try:
        place = _place(path, option)
        if isinstance(place, int):
            replaced, problem = None, _why_not_open(place)
        else:
            real, problem = touch(place, option, partial(_look, place, option))
            replaced = None if real is None else os.fsdecode(real)
    except TimeoutError:
        return None
    except OSError as error:  # a folder on the way to it may not be entered, or a name is too long
        too_long = error.errno == errno.ENAMETOOLONG
        remedy = "choose a shorter name" if too_long else "choose another or change the permissions of its folders"
        raise UsageError(f"{option} {path}: {error.strerror or error}; {remedy}") from error
    if problem:
        leads = f"this link leads to {place}; " if isinstance(place, Path) and place != path else ""
        raise UsageError(f"{option} {path}: {leads}{problem}")
    return replaced


def _place(path: Path, named_by: str) -> int | Path:
    """Return `_destination` of a path that may not answer."""
    place = touch(path, named_by, partial(_destination, path))
    return place if isinstance(place, int) else Path(os.fsdecode(place))


def _destination(path: Path) -> int | Path:
    """Return the number of an own descriptor that a path means, else the path at the end of its links.

    Only its last part is followed here. The links of a descriptor are the kernel's: what they show is no path.

    Raises:
        OSError: a folder on the way may not be entered, or somebody else put the link into a folder such as /tmp.
    """
    own = {os.path.realpath("/proc/self/fd"), os.path.realpath("/proc/thread-self/fd")}
    for _ in range(_MOST_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) in own:
            return int(path.name)
        if _is_of_process(path) or not path.is_symlink():
            return path
        _refuse_planted(path)
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _is_of_process(path: Path) -> bool:
    """Return whether a path is a descriptor of a process: /proc/1/fd/1, the output of a container."""
    return path.parent.name == "fd" and path.is_relative_to("/proc")


def _refuse_planted(link: Path) -> None:
    """Refuse a link as the kernel does (fs.protected_symlinks), also where that is off.

    Raises:
        OSError: it was put by another user into a sticky folder to which all users may write.
    """
    owner, folder = link.lstat().st_uid, link.parent.stat()
    if folder.st_mode & 0o1002 == 0o1002 and owner not in {os.geteuid(), folder.st_uid}:
        raise OSError(errno.EACCES, f"{link} is a link that user {owner} put into a folder of all users")


def _kind(path: Path) -> int:
    """Return the type of a file, as of stat.S_IFMT; 0 if there is none."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _why_not_open(descriptor: int) -> str:
    """Return why a descriptor takes no output; the ones that distcheck opened itself are not inherited."""
    try:
        given = not fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        reads = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    except (OSError, OverflowError):
        given = reads = False
    if not given:
        return f"descriptor {descriptor} is not open; open it, for example: {descriptor}>FILE"
    return f"descriptor {descriptor} is open for reading only; name another" if reads else ""


def _look(path: Path, option: str) -> tuple[Path | None, str]:
    """Return the real path of the file that will be there, None if that is no file; and why it cannot be written."""
    kind = _kind(path)
    replaced = path.resolve() if kind in {0, stat.S_IFREG} and not _is_of_process(path) else None
    return replaced, _why_not_writable(path, kind, option)


def _why_not_writable(path: Path, kind: int, option: str) -> str:
    """Return why a file cannot be written, and the remedy; empty if it can."""
    if kind in _UNFIT and (kind != stat.S_IFDIR or option != "--save"):
        return f"this is {_UNFIT[kind]}; name a file" + (
            f" in it, for example {path / 'FILE'}" if path.is_dir() else ""
        )
    if kind not in {0, stat.S_IFDIR}:
        writable = os.access(path, os.W_OK)
        return "" if writable else "the file is not writable; choose another or change its permissions"
    folder = path if kind else path.parent
    if not folder.is_dir():
        there = next(part for part in (folder, *folder.parents) if part.exists())
        if not there.is_dir():
            return f"{there} is a file and not a folder; choose another folder"
        return f"the folder {folder} does not exist; create it with: mkdir -p {folder}"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"the folder {folder} is not writable; choose another"


def _put(place: Path, content: bytes) -> None:
    """Write to where no link is.

    Raises:
        OSError: it cannot be written, or no program reads the pipe.
    """
    kind = _kind(place)
    if kind in _UNFIT:
        raise OSError(errno.EINVAL, f"it is {_UNFIT[kind]}")
    if kind in {0, stat.S_IFREG} and not _is_of_process(place):
        _replace(place, content, exists=kind != 0)
        return
    descriptor = _opened(place)
    try:
        _pour(descriptor, content)
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes, *, exists: bool) -> None:
    """Write a file under another name and rename it; one that exists in place if that is not possible."""
    temporary = path.with_name(f".{path.name[:LONGEST_NAME]}.{os.urandom(4).hex()}")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        if not exists or error.errno not in _IN_PLACE:
            raise
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
            file.write(content)


def _opened(path: Path) -> int:
    """Open a pipe or a device; the reader of a pipe may come a moment later.

    Raises:
        OSError: it cannot be opened, or no program opens the pipe to read it.
    """
    until = time.monotonic() + _READER_SECONDS
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO or _kind(path) != stat.S_IFIFO:
                raise
            if time.monotonic() > until:
                reason = f"no program opened the pipe to read it within {_READER_SECONDS:g} s"
                raise TimeoutError(errno.ETIMEDOUT, reason) from error
            time.sleep(0.05)


def _pour(descriptor: int, content: bytes) -> None:
    """Write to what is open; if it is a pipe, its reader must go on reading.

    Raises:
        OSError: it cannot be written, or nothing is read from it.
    """
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    rest = memoryview(content)
    while rest:
        if not poller.poll(PIPE_SECONDS * 1000):
            raise TimeoutError(errno.ETIMEDOUT, f"nothing was read from it for {PIPE_SECONDS} s")
        rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]  # more of it may wait for the reader
