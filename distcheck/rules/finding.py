"""Findings, and how they become one verdict and one exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

Severity = Literal["error", "warning", "info"]
Scope = Literal["job", "rank", "node", "gpu", "link", "system", "tool"]
Owner = Literal["user", "admin", "unknown"]
VerdictName = Literal["pass", "warn", "unknown", "job", "node"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


BY_SIGNAL = 128
"""Added to a signal's number, the exit code of a run that it ended."""


class Fix(msgspec.Struct, frozen=True):
    """How to fix a finding: a text, and commands that can be pasted.

    Write commands of a scheduler for Slurm, and commands of distcheck without nodes and ranks: `rules.completion` puts
    in those of the job.
    """

    text: str
    commands: tuple[str, ...] = ()


class NamedGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A GPU that a finding is about."""

    node: str
    index: int
    uuid: str | None


class Fault(msgspec.Struct, frozen=True):
    """One problem as a rule returns it; the rule's record and docstring say what is left out."""

    message: str
    """What is observed, and what was expected; of a rule about one subject (`of=`) without the subject's name."""
    fix: Fix | None = None
    """None: the one of the rule's docstring."""
    evidence: dict[str, Any] = {}
    severity: Severity | None = None
    scope: Scope | None = None
    owner: Owner | None = None
    """Who can change it. None of the three: as the rule's record has it."""
    confirmed: bool = True
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    gpus: tuple[NamedGpu, ...] = ()
    values: Mapping[str, tuple[str, ...]] = {}
    """What {name} in a command of the docstring's fix stands for; a command with several values is given for each."""
    excludes: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem, complete: what reports show and the verdict depends on."""

    rule: str = ""
    aliases: tuple[str, ...] = ()
    severity: Severity = "error"
    scope: Scope = "job"
    owner: Owner = "user"
    confirmed: bool = True
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    gpus: tuple[NamedGpu, ...] = ()
    message: str
    evidence: dict[str, Any] = {}
    fix: Fix
    docs: str = ""
    excludes: bool = False
    """True when the verdict assumes that these nodes are excluded (--need)."""
    observed: bool = False
    """True when the site's policy or --mode lets it decide nothing."""
    spared: tuple[str, ...] = ()
    """The nodes of it for which that holds."""


class NotChecked(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule could not check, and why."""

    rule: str = ""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    reason: str
    required: bool = True
    """True when checking this is the command's purpose; the verdict cannot be a pass then."""


class Verdict(msgspec.Struct, frozen=True):
    """The verdict and exit code that all ranks share."""

    name: VerdictName
    exit_code: int


def verdict(
    findings: Iterable[Finding], not_checked: Iterable[NotChecked], *, strict: bool = False, lone: bool = False
) -> Verdict:
    """Return the verdict: job faults (30), then bad nodes (40), unknown (20), own faults (70).

    Only errors decide. A warning passes unless `strict`, one about distcheck itself always. A required check that was
    not made never passes. Of a `lone` node a confirmed fault comes first: a full file server hides no lost GPU.
    """
    found = tuple(findings)
    errors = [f for f in found if f.severity == "error"]
    bad = any(f.scope in {"node", "gpu"} and f.confirmed for f in errors)
    if any(f.scope in {"job", "rank", "system"} for f in errors) and not (lone and bad):
        return Verdict("job", 30)
    if bad:
        return Verdict("node", 40)
    if any(f.scope != "tool" for f in errors):
        return Verdict("unknown", 20)
    if errors:
        return Verdict("unknown", 70)
    if any(n.required for n in not_checked):
        return Verdict("unknown", 20)
    if warnings := [f for f in found if f.severity == "warning"]:
        return Verdict("warn", 10 if strict and any(f.scope != "tool" for f in warnings) else 0)
    return Verdict("pass", 0)


def excluded_nodes(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the nodes to exclude: confirmed node or gpu errors, or left out by --need, if not only observed."""
    bad = (f for f in findings if f.excludes or (f.severity == "error" and f.scope in {"node", "gpu"} and f.confirmed))
    return tuple(sorted({node for f in bad for node in f.nodes if node not in f.spared}))


def spared_nodes(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return the nodes that would be excluded if nothing were only observed."""
    free = [msgspec.structs.replace(finding, observed=False, spared=()) for finding in findings]
    held = excluded_nodes(findings)
    return tuple(node for node in excluded_nodes(free) if node not in held)


def outcome(verdict: Verdict) -> str:
    """Return the first word of a report: PASS, WARN, UNKNOWN, FAIL or INTERRUPTED."""
    if verdict.exit_code > BY_SIGNAL:
        return "INTERRUPTED"
    return "FAIL" if verdict.name in {"job", "node"} else verdict.name.upper()
