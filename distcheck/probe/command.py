"""Look at what COMMAND will need on this node: its script, and a module that its rendezvous needs."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from distcheck.facts.base import Missing
from distcheck.facts.rank import Script

_LARGEST_BYTES = 64 << 20


def script(path: str) -> Script | Missing:
    """Return a script's path and SHA-256, as this process reads it from its own folder."""
    try:
        file = Path(path)
        if not file.is_file() or file.stat().st_size > _LARGEST_BYTES:
            return Missing(reason=f"{path}: not a regular file here, or larger than {_LARGEST_BYTES >> 20} MiB")
        return Script(path, hashlib.sha256(file.read_bytes()).hexdigest())
    except OSError as error:
        return Missing(reason=f"{path}: {error.strerror}")


def etcd() -> bool:
    """Return whether the module etcd, which torchrun's etcd rendezvous imports, is installed."""
    return find_spec("etcd") is not None
