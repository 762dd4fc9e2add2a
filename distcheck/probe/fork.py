"""A child of `child.ask` as a fork of this process, which need not start Python and import everything once more.

Only where the caller says so: a process that has threads, besides ones that merely sleep, must not fork, because a
thread that is not there in the child may hold a lock that the child needs.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING

from distcheck.facts.touch import detach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_forks: ContextVar[bool] = ContextVar("forks", default=False)
may_fork = _forks.get


@contextmanager
def forking() -> Iterator[None]:
    """Let the body's questions be asked by forks of this process; its threads, if any, must only sleep."""
    token = _forks.set(True)
    try:
        yield
    finally:
        _forks.reset(token)


class Fork:
    """A process that runs `main`; has of `subprocess.Popen` what is needed of a child."""

    def __init__(
        self,
        main: Callable[[], None],
        words: tuple[str, ...],
        source: int | None,
        output: int,
        environ: Mapping[str, str] | None,
    ) -> None:
        """Fork the process, in its own group; without `source` its standard input is a pipe.

        Raises:
            OSError: too many processes or files, or no memory.
        """
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        read, written = (source, None) if source is not None else os.pipe()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads: see the module
                self.pid = os.fork()
            if not self.pid:
                _be(main, words, read, output, environ)
        except OSError:
            if written is not None:
                os.close(written)
            raise
        finally:
            if source is None:
                os.close(read)
        with suppress(OSError):  # both sides do it, so that neither has to wait for the other
            os.setpgid(self.pid, self.pid)
        if written is not None:
            self.stdin = os.fdopen(written, "wb")

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _be(
    main: Callable[[], None], words: tuple[str, ...], source: int, output: int, environ: Mapping[str, str] | None
) -> None:
    """Be the child: as a program of its own with these words and streams, then end."""
    code = 1
    try:
        detach(source, output, output)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 they stay open
        sys.argv = [main.__module__, *words]
        if environ is not None:
            own = dict(environ)  # it may be os.environ
            os.environ.clear()
            os.environ.update(own)
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 as the interpreter does
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
