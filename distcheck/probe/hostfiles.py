"""Count the hosts in the files in which a scheduler lists the nodes of its job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from distcheck.facts.files import read
from distcheck.selection.counted import HOSTFILES

_MOST_BYTES = 1 << 22


def hosts_listed(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the number of different hosts by variable that names such a file; those that cannot be read are left out.

    Each line begins with a host, and one of several slots has several lines.
    """
    found = {}
    for name in HOSTFILES:
        path = environ.get(name, "")
        if not path:
            continue
        try:
            lines = read(Path(path), _MOST_BYTES, name).decode("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            continue
        hosts = {words[0].partition(":")[0] for line in lines if (words := line.partition("#")[0].split())}
        if hosts:
            found[name] = len(hosts)
    return found
