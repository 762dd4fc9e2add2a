"""Warns about variables that look like misspelt ones of distcheck."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping

from distcheck.cli.options import GateOptions, HangOptions, NodeOptions
from distcheck.cli.publish import print_to
from distcheck.facts.errors import WriteError
from distcheck.report.harmless import harmless

_PREFIX = "DISTCHECK_"
_OTHERS = ("TOKEN", "TERMINATION_LOG", "TRACEBACK")
"""Variables that are no options."""
_ALIKE = 0.75
"""How alike two names must be, as difflib counts it: a site may have variables of its own with this prefix."""


def warn_of_misspelt(environ: Mapping[str, str]) -> None:
    """Print a warning for each variable that has no effect but is spelt almost like one that has."""
    fields = (*GateOptions.__struct_fields__, *HangOptions.__struct_fields__, *NodeOptions.__struct_fields__)
    known = {*map(str.upper, fields), *_OTHERS}
    for name in environ:
        own = name.removeprefix(_PREFIX)
        if own != name and own not in known:
            from difflib import get_close_matches

            for meant in get_close_matches(own.upper(), known, n=1, cutoff=_ALIKE):
                text = f"{name} has no effect; did you mean {_PREFIX}{meant}?"
                with contextlib.suppress(WriteError):
                    print_to(sys.stderr, f"distcheck: warning: {harmless(text)}\n")
