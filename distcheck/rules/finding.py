"""What is wrong, where, the evidence and the fix; and how findings become one verdict and one exit code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

Severity = Literal["error", "warning", "info"]
Scope = Literal["job", "rank", "node", "gpu", "link", "system", "tool"]
Owner = Literal["user", "admin", "unknown"]
VerdictName = Literal["pass", "warn", "unknown", "job", "node"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Fix(msgspec.Struct, frozen=True):
    """What mends a finding: words, and commands that can be pasted."""

    text: str
    commands: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem; the engine fills in `rule`, `aliases` and `docs`."""

    rule: str = ""
    aliases: tuple[str, ...] = ()
    severity: Severity = "error"
    scope: Scope = "job"
    owner: Owner = "user"
    confirmed: bool = True
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    message: str
    evidence: dict[str, Any] = {}
    fix: Fix
    docs: str = ""
    excludes: bool = False
    """True when the verdict holds without these nodes only (--need)."""


class NotChecked(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule could not look at, and why."""

    rule: str = ""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    reason: str
    required: bool = True
    """True when the command is for this: then the verdict cannot be a pass."""


class Verdict(msgspec.Struct, frozen=True):
    """The one answer that all ranks give."""

    name: VerdictName
    exit_code: int


def verdict(findings: Iterable[Finding], not_checked: Iterable[NotChecked], *, strict: bool = False) -> Verdict:
    """Sum up findings: the job's faults (30) before a bad node (40) before what is unknown (20) before our own (70).

    Only errors decide; a warning is a pass unless `strict`; what is required and was not checked is never a pass.
    """
    found = tuple(findings)
    errors = [f for f in found if f.severity == "error"]
    if any(f.scope in {"job", "rank", "system"} for f in errors):
        return Verdict("job", 30)
    if any(f.scope in {"node", "gpu"} and f.confirmed for f in errors):
        return Verdict("node", 40)
    if any(f.scope != "tool" for f in errors):
        return Verdict("unknown", 20)
    if errors:
        return Verdict("unknown", 70)
    if any(n.required for n in not_checked):
        return Verdict("unknown", 20)
    if any(f.severity == "warning" for f in found):
        return Verdict("warn", 10 if strict else 0)
    return Verdict("pass", 0)


def excluded_nodes(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the nodes that a scheduler should leave out: those with a confirmed node or gpu error, or left out."""
    bad = (f for f in findings if f.excludes or (f.severity == "error" and f.scope in {"node", "gpu"} and f.confirmed))
    return tuple(sorted({node for f in bad for node in f.nodes}))
