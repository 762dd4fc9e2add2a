"""The look of `distcheck hang` at one node of several: ``python -m distcheck.run.hang_probe WHAT``."""

from __future__ import annotations

import base64
import os
import sys

import msgspec

from distcheck.launch.remote import frames
from distcheck.probe.hang.look import Wanted, look

_BROKEN = 70


def encode(wanted: Wanted) -> str:
    """Return what to look at as one word of a command line."""
    return base64.urlsafe_b64encode(msgspec.json.encode(wanted)).decode()


def main() -> int:
    """Look, and send what was seen home on standard output."""
    home = os.dup(1)
    os.dup2(2, 1)  # other output must not mix with the frames
    try:
        wanted = msgspec.json.decode(base64.urlsafe_b64decode(sys.argv[1]), type=Wanted)
        seen = frames.Seen(tuple(look(wanted)))
    except Exception as error:  # noqa: BLE001 the report shows this line where a traceback would fill it
        sys.stderr.write(f"distcheck: the look failed: {type(error).__name__}: {error}\n")
        return _BROKEN
    frames.write(home, frames.encode(os.urandom(4).hex(), 0, seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
