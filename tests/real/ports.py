"""Ports that no other test takes."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator

_numbers = itertools.count()


@contextlib.contextmanager
def claimed_port(worker_id: str) -> Iterator[int]:
    """Give a free port below the ephemeral range that no test takes meanwhile, also of another run of the tests."""
    worker = int(worker_id.removeprefix("gw")) if worker_id.startswith("gw") else 0
    while True:
        candidate = 11000 + worker * 800 + next(_numbers) % 800
        with socket.socket(socket.AF_UNIX) as claim, socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                claim.bind(f"\0distcheck-test-port-{candidate}")
                sock.bind(("0.0.0.0", candidate))
            except OSError:
                continue
            sock.close()
            yield candidate
            return
