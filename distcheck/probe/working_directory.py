"""The working directory, which may have been removed since it was entered, or may not answer."""

from __future__ import annotations

import os
import sys

_RUN = "import sys; del sys.path[0]; import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"


def working_directory() -> str:
    """Return the path of the working directory, '' if it is gone or may not be read."""
    try:
        return os.getcwd()  # noqa: PTH109 only text
    except OSError:
        return ""


def python(module: str, *words: str) -> list[str]:
    """Return the command that runs a module of distcheck, which looks for no module in the working directory.

    One there may hide the standard library's, and a directory that does not answer stops the start. Those who develop
    distcheck import it from there. distcheck.pyz runs its modules itself (.ci/pyz_start.py).
    """
    if archive := getattr(__spec__.loader, "archive", ""):
        return [sys.executable, archive, "-m", module, *words]
    how = ["-P", "-m", module] if sys.version_info >= (3, 11) else ["-c", _RUN.format(module)]
    return [sys.executable, *(["-m", module] if working_directory() in sys.path else how), *words]
