"""Warns about variables that look like misspelt ones of distcheck."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping

import msgspec

from distcheck.cli.options import GateOptions, NodeOptions
from distcheck.cli.publish import print_to
from distcheck.facts.errors import WriteError

_PREFIX = "DISTCHECK_"
_OTHERS = ("TOKEN", "TERMINATION_LOG", "TRACEBACK")
"""Variables that are no options."""
_ALIKE = 0.75
"""How alike two names must be, as difflib counts it: a site may have variables of its own with this prefix."""


def warn_of_misspelt(environ: Mapping[str, str]) -> None:
    """Print a warning for each variable that has no effect but is spelt almost like one that has."""
    known = {f.name.upper() for options in (GateOptions, NodeOptions) for f in msgspec.structs.fields(options)}
    known.update(_OTHERS)
    for name in environ:
        own = name.removeprefix(_PREFIX)
        if own != name and own not in known:
            from difflib import get_close_matches

            for meant in get_close_matches(own.upper(), known, n=1, cutoff=_ALIKE):
                with contextlib.suppress(WriteError):
                    print_to(sys.stderr, f"distcheck: warning: {name} has no effect; did you mean {_PREFIX}{meant}?\n")
