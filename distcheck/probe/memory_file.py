"""A file in memory, which a child process may write and nobody has to read meanwhile."""

from __future__ import annotations

import os
from contextlib import suppress


def memory_file(name: str) -> int:
    """Return the descriptor of a new file, which goes with its last descriptor; raises OSError.

    A Python that was built with a C library before 2.27 has no memfd_create, and a seccomp filter may refuse it: then
    it is a file without a name in the folder for temporary files.
    Source: https://github.com/globus/globus-compute/issues/2204 (miniforge and uv)
    """
    with suppress(AttributeError, OSError):
        return os.memfd_create(name)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
