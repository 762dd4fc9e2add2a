"""How the kernel writes the names of mount points."""

from __future__ import annotations

import re


def unescaped(name: str) -> str:
    """Return a mount point of /proc/self/mountinfo as it is: the kernel writes blanks and backslashes as octals.

    Source: proc_pid_mountinfo(5), fs/proc_namespace.c (mangle).
    """
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), name)
