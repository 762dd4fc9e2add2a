"""distcheck's own failures; a fault of the job is a finding, never an exception."""

from __future__ import annotations

import errno


class UsageError(Exception):
    """Invalid input (exit code 2); the message names the value, the place and the fix."""


class WriteError(Exception):
    """A report or a job file could not be written (exit code 70)."""


def exhausted(error: BaseException) -> str:
    """Return which limit of this process an error comes from, and how to raise it; '' for another error.

    It imports no module of distcheck: the process may be unable to open another file.
    """
    files = isinstance(error, OSError) and error.errno == errno.EMFILE
    if files or (isinstance(error, ImportError) and str(error).endswith("Too many open files")):
        return _limit("NOFILE", "open files", "ulimit -n", "65536")
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return processes()
    return ""


def processes() -> str:
    """Return the limit that keeps this user from starting another process or thread, and how to raise it."""
    return _limit(
        "NPROC", "processes and threads", "ulimit -u", "unlimited; in a container: docker run --pids-limit=-1"
    )


def unstarted(error: OSError) -> str:
    """Return why a process could not be started: the limit that is reached, with what raises it, else the error."""
    return limit_behind(error) or f"no process could be started: {error.strerror or error}"


def limit_behind(error: OSError) -> str:
    """Return which limit kept a process from being started, and how to raise it; '' for another error."""
    return processes() if error.errno == errno.EAGAIN else exhausted(error)


def _limit(name: str, things: str, command: str, value: str) -> str:
    """Return a limit, the command that raises it, and the hard limit if it must be raised first."""
    try:
        import resource

        soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    except (ImportError, OSError):
        return f"the limit of {things} is reached; raise it with: {command} {value}"
    text = "unlimited" if soft == -1 else soft  # -1: no limit
    first = f" (an administrator must first raise the hard limit of {hard})" if soft == hard != -1 else ""
    return f"the limit of {things} ({command}) is {text}; raise it with: {command} {value}{first}"
