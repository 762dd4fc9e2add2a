"""The report as JUnit XML, for CI systems: one suite for the job and one for each node that something is said of.

A test case is a rule: an error is a failure, a warning is output, what was needed and could not be looked at is an
error, what was optional is skipped. A rule of which nothing is to be said passes, in the job's suite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple
from xml.etree import ElementTree as ET

from distcheck.diagnose import Diagnosis
from distcheck.facts import Job
from distcheck.finding import Finding, NotChecked
from distcheck.report import Options
from distcheck.report.document import document
from distcheck.report.harmless import harmless
from distcheck.report.sections import conclusion, evidence_lines, where


class Outcomes(NamedTuple):
    """What is said of one rule at one place."""

    found: list[Finding]
    unlooked: list[NotChecked]


def render(job: Job, diagnosis: Diagnosis, options: Options) -> str:
    """Return the XML; the options change nothing."""
    del options
    report = document(job, diagnosis)
    root = ET.Element("testsuites", name="distcheck", time=f"{report.seconds:.3f}")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for place, rules in _places(job, diagnosis).items():
        suite = ET.SubElement(root, "testsuite", name=harmless(place))
        if place == "job":
            properties = ET.SubElement(suite, "properties")
            for name, value in (("verdict", report.verdict), ("exit_code", report.exit_code)):
                ET.SubElement(properties, "property", name=name, value=str(value))
        for rule, outcomes in rules.items():
            _case(suite, place, rule, outcomes)
        if place == "job":
            ET.SubElement(suite, "system-out").text = conclusion(report, diagnosis)
        counted = {
            "tests": len(suite.findall("testcase")),
            "failures": len(suite.findall("testcase/failure")),
            "errors": len(suite.findall("testcase/error")),
            "skipped": len(suite.findall("testcase/skipped")),
        }
        for name, number in counted.items():
            suite.set(name, str(number))
            totals[name] += number
    for name, number in totals.items():
        root.set(name, str(number))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _places(job: Job, diagnosis: Diagnosis) -> dict[str, dict[str, Outcomes]]:
    """Return what is said, by place and rule; the job comes first, then the nodes by name."""
    from distcheck.rules import all_rules

    said: defaultdict[str, dict[str, Outcomes]] = defaultdict(dict)
    for finding in diagnosis.findings:
        for place in finding.nodes or ("job",):
            said[place].setdefault(finding.rule, Outcomes([], [])).found.append(finding)
    for unlooked in diagnosis.not_checked:
        for place in unlooked.nodes or ("job",):
            said[place].setdefault(unlooked.rule, Outcomes([], [])).unlooked.append(unlooked)
    spoken = {rule for rules in said.values() for rule in rules}
    silent = (rule.name for rule in all_rules() if rule.look in job.asked.looks and rule.name not in spoken)
    whole = said.pop("job", {}) | {rule: Outcomes([], []) for rule in silent}
    return {"job": whole, **dict(sorted(said.items()))}


def _case(suite: ET.Element, place: str, rule: str, outcomes: Outcomes) -> None:
    case = ET.SubElement(suite, "testcase", classname=f"distcheck.{harmless(place)}", name=harmless(rule))
    errors = [f for f in outcomes.found if f.severity == "error"]
    needed = [n for n in outcomes.unlooked if n.required]
    if errors:
        ET.SubElement(case, "failure", type="error", message=harmless(errors[0].message)).text = _words(
            errors
        )
    elif needed:
        ET.SubElement(case, "error", type="unknown", message=harmless(needed[0].reason)).text = _reasons(
            needed
        )
    elif outcomes.unlooked and not outcomes.found:
        ET.SubElement(case, "skipped", message=harmless(outcomes.unlooked[0].reason))
    rest = [f for f in outcomes.found if f.severity != "error"]
    if rest:
        ET.SubElement(case, "system-out").text = _words(rest)


def _words(findings: Iterable[Finding]) -> str:
    blocks = []
    for finding in findings:
        place = where(finding.ranks, finding.nodes)
        lines = [
            f"{finding.severity}: {harmless(finding.message)}" + (f" [{place}]" if place else ""),
            *(f"  {line}" for line in evidence_lines(finding.evidence, everything=False)),
            f"  fix: {harmless(finding.fix.text)}",
            *(f"      {harmless(command)}" for command in finding.fix.commands),
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _reasons(unlooked: Iterable[NotChecked]) -> str:
    return "\n".join(f"{harmless(n.reason)} {where(n.ranks, n.nodes)}".rstrip() for n in unlooked)
