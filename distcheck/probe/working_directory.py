"""The working directory, which may have been removed since it was entered."""

from __future__ import annotations

import os


def working_directory() -> str:
    """Return the path of the working directory, '' if it is gone or may not be read."""
    try:
        return os.getcwd()  # noqa: PTH109 only text
    except OSError:
        return ""
