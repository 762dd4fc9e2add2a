"""Count the hosts in the files in which a scheduler lists the nodes of its job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from distcheck.facts.files import read
from distcheck.facts.storage import is_network
from distcheck.probe.mounts import mount_at
from distcheck.selection.counted import HOSTFILES

_MOST_BYTES = 1 << 22


def hosts_listed(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the number of different hosts by variable that names such a file; those that cannot be read are left out.

    Each line begins with a host, and one of several slots has several lines. A file on a network file system, which
    may not answer, is not read.
    """
    found = {}
    for name in HOSTFILES:
        path = environ.get(name, "")
        try:
            mount = mount_at(os.path.abspath(path)) if path else None  # noqa: PTH100 it touches nothing
            if mount is None or is_network(mount.file_system):
                continue
            lines = read(Path(path), _MOST_BYTES).decode("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            continue
        hosts = {words[0].partition(":")[0] for line in lines if (words := line.partition("#")[0].split())}
        if hosts:
            found[name] = len(hosts)
    return found
