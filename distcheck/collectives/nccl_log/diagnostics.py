"""Reads the results of NCCL's own diagnostics, which it prints on standard output: lines with ``NCCL DIAG``.

They exist since NCCL 2.31, with NCCL_RUN_DIAGNOSTICS=1 or NCCL_RUN_RAS_DIAGNOSTICS=1 in the job's own environment.
A result begins with [OK], or with [INFO] if it needs a look. NCCL does not flush them.

Source: NCCL's user guide, troubleshooting/diagnostics; NVIDIA/nccl, DIAG_PRINT in src/include/diagnostics_log.h
(``host:pid NCCL DIAG ...``), src/diagnostics.cc and src/diagnostics/p2p.cc.
"""

from __future__ import annotations

import re
from collections import defaultdict

from distcheck.collectives.nccl_log.reading import LONGEST

_RESULT = re.compile(r"^[^\s:]{1,255}:(\d{1,9}) NCCL DIAG \[INFO\] +(\S.*)$", re.MULTILINE)
_MOST = 16


def diagnostics(text: str) -> dict[int, tuple[str, ...]]:
    """Return the results that need a look, without their prefix, by the pid of the process that printed them."""
    found: dict[int, dict[str, None]] = defaultdict(dict)
    for result in _RESULT.finditer(text):
        of_process = found[int(result[1])]
        if len(of_process) < _MOST:
            of_process["".join(c for c in result[2][:LONGEST] if c.isprintable())] = None
    return {pid: tuple(lines) for pid, lines in found.items()}
