"""How a run of distcheck ended, whichever test started it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

STARTING_SECONDS = 10
"""What a machine on which other tests run may need until the first line of Python, and from the last one to the end."""
BEYOND_BY_ITS_CLOCK_SECONDS = 5 + 3
"""What a run may take beyond its --timeout by its own clock: its promise, and what a busy machine delays a timer."""
BEYOND_SECONDS = 5 + STARTING_SECONDS
"""What a run may take beyond its --timeout: 5 by its promise, which begins with its first line of Python."""


class Ended(NamedTuple):
    """A run that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def report(self) -> dict[str, Any]:
        assert self.out.count("\n") == 1, f"not one line of JSON: {self.out!r} {self.err!r}"
        return json.loads(self.out)

    @property
    def rules(self) -> list[str]:
        return [f["rule"] for f in self.report["findings"] if f["severity"] != "info"]

    @property
    def error(self) -> dict[str, Any]:
        """The only error that it found."""
        (found,) = [f for f in self.report["findings"] if f["severity"] == "error"]
        return found

    def finding(self, rule: str) -> dict[str, Any]:
        """Return the only finding of a rule."""
        (found,) = [f for f in self.report["findings"] if f["rule"] == rule]
        return found

    @property
    def unchecked(self) -> list[str]:
        """What was not checked, but for the kernel's log: on many a machine only root may read it."""
        return [n["rule"] for n in self.report["not_checked"] if n["rule"] != "gpu-xid-recent"]
