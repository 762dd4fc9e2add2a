"""A file in memory, which a child process may write and nobody has to read meanwhile."""

from __future__ import annotations

import os


def memory_file(name: str) -> int:
    """Return the descriptor of a new file, which goes with its last descriptor; raises OSError.

    A Python that was built with a C library before 2.27, such as conda's, has no memfd_create: then it is a file in the
    folder for temporary files that has no name.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
