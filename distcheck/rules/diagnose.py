"""Apply the rules to a job: facts in, findings and one verdict out; deterministic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import msgspec

from distcheck.facts.asked import Look
from distcheck.facts.isolation import Isolation
from distcheck.facts.job import Collectives, Job
from distcheck.facts.quantities import signal_name
from distcheck.rules import Rule, find_rule, rules_for
from distcheck.rules.completion import outcomes
from distcheck.rules.finding import BY_SIGNAL, SEVERITIES, Finding, Fix, NotChecked, Verdict, verdict
from distcheck.rules.wording import grouped

_ENDED_BY = "the run was ended by "


class Diagnosis(NamedTuple):
    """All findings about a job, what was not checked, and the verdict."""

    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    verdict: Verdict
    would: Verdict | None = None
    """What it would be without what is only observed; None if its exit code is the same."""


def judge(job: Job, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """Judge a job by the rules that the user selected, of all rules or of these; not if its run was interrupted."""
    asked = job.asked
    if job.interrupted:
        reason = f"{_ENDED_BY}{ended_by(job)}"
        gaps = tuple(NotChecked(rule=rule.name, reason=reason) for rule in rules_for(job) if rule.applies(job))
        return Diagnosis((), gaps, Verdict("unknown", BY_SIGNAL + job.interrupted))
    return diagnose(job, strict=asked.strict, select=asked.select, ignore=asked.ignore, rules=rules)


def passing_nodes(job: Job, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Return the nodes that reported and about which no error and no required gap is known.

    None if the job is wrong, or nothing was judged: nothing is known of any node then. What is only observed is no
    error.
    """
    if job.interrupted or diagnosis.verdict.name == "job":
        return ()
    passed = diagnosis.verdict.exit_code == 0
    errors = [f for f in diagnosis.findings if f.severity == "error" and not f.observed]
    gaps = [] if passed else [gap for gap in diagnosis.not_checked if gap.required]
    on = {rank.placement.rank: node.name for rank, _, node in job.placed}
    places = [(tuple(n for n in f.nodes if n not in f.spared), () if f.nodes else f.ranks) for f in errors]
    places += [(gap.nodes, () if gap.nodes else gap.ranks) for gap in gaps]
    if not all(nodes or ranks for nodes, ranks in places):
        return ()
    blamed = {name for nodes, ranks in places for name in (*nodes, *(on[rank] for rank in ranks if rank in on))}
    return tuple(sorted({node.name for node in job.nodes} - blamed))


def ended_by(job: Job) -> str:
    """Return what interrupted the run: SIGTERM, the end of its torchrun agent."""
    own = job.skipped.values() if job.launched is None else ()  # probes that were started end by another signal
    told = (reason for reason in own if reason.startswith(_ENDED_BY))
    return next(told, signal_name(job.interrupted)).removeprefix(_ENDED_BY)


def diagnose(
    job: Job,
    *,
    strict: bool = False,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    rules: Iterable[Rule] | None = None,
) -> Diagnosis:
    """Return the diagnosis of a job.

    Args:
        job: the facts.
        strict: let warnings fail (exit code 10).
        select: apply only these rules; all when empty.
        ignore: do not apply these rules.
        rules: the rules to apply; when None, all rules for what the job looked at.
    """
    findings: list[Finding] = []
    not_checked: list[NotChecked] = []
    judging: list[Rule] = []
    judged_by_site = job.asked.policy is not None or job.asked.mode is not None
    known = rules_for(job) if rules is None else tuple(rules)
    for rule in known:
        if left_out(rule, select, ignore):
            continue
        if not rule.applies(job):
            continue
        if judged_by_site and (reason := _ignored(job, rule)):
            not_checked.append(NotChecked(rule=rule.name, reason=reason, required=False))
            continue
        if reason := rule.unlooked(job):
            not_checked.append(NotChecked(rule=rule.name, reason=reason))
            continue
        judging.append(rule)
        found, unseen = _judge(rule, job)
        if judged_by_site:
            from distcheck.rules.in_force import as_set  # most sites have no policy

            found, unseen = as_set(job.asked, rule, found, unseen)
        findings += found
        not_checked += unseen
    findings = _unexplained(job, findings, judging, known)
    not_checked += _out_of_sight(job, select, ignore)
    if rules is None and not any(n.required for n in not_checked) and not any(f.severity == "error" for f in findings):
        not_checked += _unmeasured(job, judging)
    started = len(job.launched.nodes) if job.launched else 0
    findings = _systemic(findings, nodes=max(started, len(job.nodes)))
    consequences = {rule.name for rule in judging if rule.consequence}
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), f.rule in consequences))
    lone = job.asked.command == "node" and len(job.nodes) == 1
    end, would = verdict(findings, not_checked, strict=strict, lone=lone), None
    if judged_by_site:
        from distcheck.rules.in_force import held_back

        end, would = held_back(job.asked, end, findings, not_checked, strict=strict, lone=lone)
    return Diagnosis(tuple(findings), tuple(not_checked), end, would)


def _ignored(job: Job, rule: Rule) -> str:
    """Return why the site's policy ignores a rule on all nodes, '' if it does not."""
    from distcheck.rules.in_force import ignored_everywhere

    return ignored_everywhere(job.asked, rule)


def left_out(rule: Rule, select: Collection[str], ignore: Collection[str]) -> bool:
    """Whether --select or --ignore leaves a rule out."""
    names = {rule.name, *rule.aliases}
    return bool((select and not names & set(select)) or names & set(ignore))


def _unexplained(job: Job, findings: list[Finding], judging: list[Rule], known: Iterable[Rule]) -> list[Finding]:
    """Drop each finding that a finding of a rule named in its rule's `unless` explains.

    That rule explains it even if --select or --ignore leaves that rule out, or if its own finding is explained.
    """
    unless = {rule.name: rule.unless for rule in judging if rule.unless}
    needed = {name for f in findings for name in unless.get(f.rule, ())}
    others = [r for r in known if r.name in needed and r not in judging and r.applies(job) and not r.unlooked(job)]
    causes = grouped([*findings, *(f for rule in others for f in _judge(rule, job)[0])], lambda f: f.rule)
    return [
        f
        for f in findings
        if not any(_explains(cause, f) for name in unless.get(f.rule, ()) for cause in causes.get(name, ()))
    ]


def _explains(cause: Finding, finding: Finding) -> bool:
    """Whether a finding is about all ranks of another; where one names no ranks, about all nodes of the other."""
    if cause.ranks and finding.ranks:
        return set(finding.ranks) <= set(cause.ranks)
    return set(finding.nodes) <= set(cause.nodes) or not (cause.ranks or cause.nodes)


def _out_of_sight(job: Job, select: Collection[str], ignore: Collection[str]) -> list[NotChecked]:
    """Return the selected rules that this command does not check; they cannot pass."""
    chosen = [rule for name in select if name not in ignore for rule in [find_rule(name)] if rule is not None]
    unseen = [rule for rule in chosen if not rule.applies(job)]
    other = f"{job.asked.command} does not check this; gate checks everything"
    step = "no training step was requested; add --step to gate or bandwidth"
    return [NotChecked(rule=r.name, reason=step if r.look == "training" else other) for r in unseen]


def _unmeasured(job: Job, judging: Iterable[Rule]) -> list[NotChecked]:
    """Return the rules without figures.

    The rule that reports why there are none may not be selected.
    """
    reasons = {look: why(job) for look, why in _FIGURES.items() if look in job.asked.looks and look not in job.skipped}
    return [NotChecked(rule=rule.name, reason=reasons[rule.look]) for rule in judging if reasons.get(rule.look)]


def _no_figures(job: Job) -> str:
    from distcheck.rules.collectives.figures import missing_figures

    if not isinstance(job.collectives, Collectives):
        return job.collectives.reason if job.collectives else "the collectives were not run"
    gaps = missing_figures(job, job.collectives)
    return f"no figure for {', '.join(gaps)}" if gaps else ""


def _no_verdict(job: Job) -> str:
    if not isinstance(job.isolation, Isolation):
        return job.isolation.reason if job.isolation else "no search was made"
    return job.isolation.sentence if job.isolation.kind in {"unmeasured", "ended"} else ""


_FIGURES: dict[Look, Callable[[Job], str]] = {"collectives": _no_figures, "isolation": _no_verdict}
"""By look: returns why there are no figures, empty when there are some."""


def _judge(rule: Rule, job: Job) -> tuple[list[Finding], list[NotChecked]]:
    """Run one rule; a crash becomes a finding, and what the rule found before it counts."""
    findings: list[Finding] = []
    not_checked: list[NotChecked] = []
    try:
        for outcome in outcomes(rule, job):
            if isinstance(outcome, Finding):
                findings.append(outcome)
            else:
                not_checked.append(outcome)
    except Exception as error:  # noqa: BLE001 a rule that crashes must not stop the others
        findings.append(_crashed(rule, error))
    return findings, not_checked


def _crashed(rule: Rule, error: Exception) -> Finding:
    return Finding(
        rule="probe-rule-crashed",
        scope="tool",
        owner="unknown",
        message=f"rule {rule.name} crashed ({type(error).__name__}: {error}); the other rules ran",
        evidence={"rule": rule.name, "error": f"{type(error).__name__}: {error}"},
        fix=Fix("Save the job with --save and report this to distcheck's developers.", ()),
        docs="docs/rules/host.probe.md#probe-rule-crashed",
    )


def _systemic(findings: list[Finding], nodes: int) -> list[Finding]:
    """Give node faults that more than half of at least three nodes share the scope system.

    A fault on most nodes is a fault of the site: excluding most of a cluster fixes nothing.
    """
    if nodes < 3:
        return findings
    shared: dict[str, set[str]] = {}
    for f in findings:
        if f.severity == "error" and f.scope in {"node", "gpu"} and f.confirmed:
            shared.setdefault(f.rule, set()).update(f.nodes)
    systemic = {name for name, where in shared.items() if 2 * len(where) > nodes}
    return [
        msgspec.structs.replace(f, scope="system", owner="admin")
        if f.rule in systemic and f.scope in {"node", "gpu"}
        else f
        for f in findings
    ]
