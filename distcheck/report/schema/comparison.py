"""What differs between two runs, as the document shows it."""

from __future__ import annotations

from typing import Literal

from distcheck.report.schema.part import Part
from distcheck.rules.finding import Severity, VerdictName


class FindingChange(Part, frozen=True):
    """A finding of one of two runs, or of both."""

    rule: str
    severity: Severity
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    message: str


class FigureChange(Part, frozen=True):
    """One operation at one size, in the earlier run and in this one."""

    op: str
    dtype: str
    bytes: int
    group: str
    before_seconds: float
    now_seconds: float
    share: float
    """Of the earlier bandwidth: 1 is unchanged."""
    noise: float
    """The largest apparent drop, as a share, that the uncertainty of both figures can cause."""
    change: Literal["lower", "same", "higher"]
    """lower and higher: by more than noise."""


class FactChange(Part, frozen=True):
    """Hardware, software, network, place or variable that differs; several values have their ranks."""

    name: str
    before: str
    now: str


class Comparison(Part, frozen=True):
    """What differs between an earlier run (`report --baseline`) and this one."""

    file: str
    verdict: VerdictName
    """The earlier run's, judged today."""
    exit_code: int
    new: tuple[FindingChange, ...]
    gone: tuple[FindingChange, ...]
    unchanged: tuple[FindingChange, ...]
    not_comparable: tuple[str, ...]
    """Why the figures are not compared; empty if they are, or if there are none."""
    figures: tuple[FigureChange, ...]
    facts: tuple[FactChange, ...]
