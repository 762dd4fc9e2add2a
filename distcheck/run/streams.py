"""Standard streams that are closed, as a daemon may start its programs."""

from __future__ import annotations

import os
from contextlib import suppress


def hold_standard_streams() -> None:
    """Open /dev/null for closed standard streams, so that none becomes a file or a connection of ours.

    The ranks' processes replace theirs. `sys.stdout` stays None if it was closed: nothing can be printed.
    """
    for descriptor in range(3):
        with suppress(OSError):
            try:
                os.fstat(descriptor)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
