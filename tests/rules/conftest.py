"""Judge jobs: what every test of a rule holds a finding to."""

from __future__ import annotations

import re
import shlex
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from made.jobs import (
    change_environment,
    change_nccl_file,
    change_node,
    change_process,
    change_rank,
    healthy_job,
    keep_ranks,
    replace,
)
from rules.misread import elsewhere, misleading, misquoted, misread

from distcheck.facts.job import Job
from distcheck.report.sections import why as why_of
from distcheck.rules import FAMILIES, Rule, all_rules, find_rule
from distcheck.rules.diagnose import Diagnosis, diagnose
from distcheck.rules.finding import SEVERITIES, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONTRACT = (
    "environment.variables",
    "environment.leaks",
    "environment.ranks",
    "environment.local_ranks",
    "environment.master_addr",
    "environment.master_port",
)
"""The families that judge the variables of a job; a module of tests may have others, in OURS."""


@pytest.fixture
def job_of() -> Callable[..., Job]:
    """Build a healthy job: see `healthy_job`."""
    return healthy_job


@pytest.fixture
def change() -> SimpleNamespace:
    """Change one thing of a job; every function returns a new job."""
    return SimpleNamespace(
        environment=change_environment,
        rank=change_rank,
        process=change_process,
        nccl_file=change_nccl_file,
        node=change_node,
        keep=keep_ranks,
        job=replace,
        asked=lambda job, **fields: replace(job, asked=replace(job.asked, **fields)),
    )


def _reads_well(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else [value]
    return all(item is None or isinstance(item, str | int | float) for item in items)


_PLACEHOLDER = re.compile(r"\.\.\.|…|/path/to/|<[\w ]+>|\bHOST\w*|\b(?:VALUE|WATTS|JOB|POD|None)\b|(?<!\$)\{[a-z_]+\}")


def unpasteable(command: str, job: Job) -> str:
    """Say what keeps a fix's command from being pasted as it is, '' for nothing.

    No ellipsis and no placeholder; and no port of the default kind where the job's ranks have another.
    """
    if gap := _PLACEHOLDER.search(command):
        return f"{gap[0]!r} stands for something"
    ports = {r.placement.master_port for r in job.ranks if r.placement.master_port is not None}
    known = ports | {port for p in job.processes for port in p.free_ports}
    known |= {int(n) for r in job.ranks for n in re.findall(r"\d+", r.environment.get("MASTER_PORT", ""))}
    given = {int(port) for port in re.findall(r"(?:MASTER_PORT[ =]|master[-_]port[ =])(\d+)", command)}
    return f"port {given - known} is none of the job's {known}" if known and given - known else ""


_NAMES = re.compile(r"(?<![\w-])(node|eth|ens|bond|mlx5_|ibp|rocep)(?=\d)")
_JUDGED_WITH_ODD_NAMES: set[str] = set()


def split_at_names(job: Job, rules: Sequence[Rule], findings: Sequence[Finding]) -> list[str]:
    """Return the commands that a shell would split if nodes, interfaces and adapters had odd names.

    Each kind of command is judged once, because judging takes twice as long with it.
    """
    kinds = {re.sub(r"\d+", "", command) for finding in findings for command in finding.fix.commands}
    if kinds <= _JUDGED_WITH_ODD_NAMES:
        return []
    _JUDGED_WITH_ODD_NAMES.update(kinds)
    odd = msgspec.json.decode(_NAMES.sub(r"\1'&", msgspec.json.encode(job).decode()), type=Job)
    return [c for f in diagnose(odd, rules=rules).findings for c in f.fix.commands if _is_split(c)]


def _is_split(command: str) -> bool:
    words = command.partition(": ")[2] if command.startswith("# ") else command
    try:
        return "&" in shlex.shlex(words, posix=True, punctuation_chars="&")
    except ValueError:  # no closing quotation mark
        return True


def agrees_with_its_record(finding: Finding) -> None:
    """Hold that a rule reports no more than its record says; the engine gives faults of most nodes the scope system."""
    known = find_rule(finding.rule)
    assert known is not None, finding.rule
    assert SEVERITIES.index(finding.severity) >= SEVERITIES.index(known.severity), f"{known.name}: {finding.severity}"
    shared = {"system"} if {"node", "gpu"} & set(known.scope) else set()
    assert finding.scope in shared.union(known.scope), f"{known.name}: {finding.scope}"


@pytest.fixture
def judge() -> Callable[..., Diagnosis]:
    """Judge a job by the rules of these families, by all rules when none is named."""

    def judged(job: Job, *families: str) -> Diagnosis:
        rules: tuple[Rule, ...] = all_rules()
        assert set(families) <= FAMILIES.keys(), f"no family: {set(families) - FAMILIES.keys()}"
        rules = tuple(r for r in rules if r.family in families) if families else rules
        said = diagnose(job, rules=rules)
        assert split_at_names(job, rules, said.findings) == []
        for finding in said.findings:
            agrees_with_its_record(finding)
            assert "\n" not in finding.message, finding.message
            assert "{}" not in finding.message, finding.message
            assert len(finding.message) <= 300, finding.message
            wrong = {c: why for c in finding.fix.commands if (why := unpasteable(c, job) or misleading(c))}
            texts = (finding.message, finding.fix.text, *map(str, finding.evidence.values()))
            wrong |= {text: why for text in texts if (why := misread(text))}
            wrong |= {text: why for text in (finding.fix.text, *finding.fix.commands) if (why := elsewhere(text, job))}
            wrong |= {text: why for text in [why_of(finding.rule)] if (why := misquoted(text, finding))}
            assert not wrong, f"{finding.rule}: {wrong}"
            nested = {name: value for name, value in finding.evidence.items() if not _reads_well(value)}
            assert not nested, f"{finding.rule}: the text report prints this as JSON: {nested}"
        return said

    return judged


@pytest.fixture
def ours(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The families that a module of tests is about."""
    return getattr(request.module, "OURS", CONTRACT)


@pytest.fixture
def only(judge, ours):
    """Return the one finding of a job, by these families and `more`, and its exit code."""

    def one(job, *more):
        diagnosis = judge(job, *ours, *more)
        assert len(diagnosis.findings) == 1, [f.message for f in diagnosis.findings]
        return diagnosis.findings[0], diagnosis.verdict.exit_code

    return one


@pytest.fixture
def rules(judge, ours):
    """Return the names of the rules that find something in a job, by these families and `more`."""
    return lambda job, *more: [f.rule for f in judge(job, *ours, *more).findings]


@pytest.fixture
def found(judge, ours):
    """Return the findings of a job by rule, of which none has two, and its exit code."""

    def by_rule(job):
        diagnosis = judge(job, *ours)
        assert len({f.rule for f in diagnosis.findings}) == len(diagnosis.findings)
        return {f.rule: f for f in diagnosis.findings}, diagnosis.verdict.exit_code

    return by_rule


@pytest.fixture
def silent(judge, ours):
    """Whether a job has no finding, by these families and `more`, and nothing that was not checked."""
    return lambda job, *more: judge(job, *ours, *more)[:2] == ((), ())
