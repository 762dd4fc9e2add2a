"""Shared by the human-readable reports: grouped findings, selected rows, verdict line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeState
from distcheck.report.document import STATUSES, Document, RankRow
from distcheck.report.fold import fold, fold_nodes
from distcheck.report.gpus import RankGpu
from distcheck.report.harmless import harmless, storable
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import Finding, Fix, NotChecked, Severity, outcome

ROWS = 32
"""With more ranks than this, only the first, the last and those with a problem have a row."""
EDGE = 3
"""Ranks at either end that always have a row."""
CASES = 8
"""Findings of one rule that are listed."""
DETAILED = 3
"""Findings of one rule that are listed with evidence."""
PROSE = 400
"""Most characters of a *why*; `distcheck explain` prints the whole text."""
PIECES = 40
"""Most ranges in a folded list of ranks."""


class Case(NamedTuple):
    """One message of a rule, and the ranks and nodes that it applies to."""

    message: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    evidence: dict[str, Any]


class Problem(NamedTuple):
    """All findings of one rule with one severity."""

    severity: Severity
    confirmed: bool
    rule: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    cases: tuple[Case, ...]
    """One per message; only the first `CASES` unless everything is shown."""
    more: int
    """Number of messages not in `cases`."""
    why: str
    fixes: tuple[Fix, ...]
    docs: str

    @property
    def where(self) -> str:
        """The ranks and nodes, folded."""
        return where(self.ranks, self.nodes)


class Gap(NamedTuple):
    """What was not checked for one reason."""

    reason: str
    required: bool
    rules: tuple[str, ...]
    where: str


def problems(findings: Iterable[Finding], *, everything: bool = False) -> list[Problem]:
    """Group findings by rule, in their order; info findings only when everything is shown."""
    groups: defaultdict[tuple[Severity, bool, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.severity != "info" or everything:
            groups[finding.severity, finding.confirmed, finding.rule].append(finding)
    return [_problem(group, everything=everything) for group in groups.values()]


def _problem(group: list[Finding], *, everything: bool) -> Problem:
    by_message: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in group:
        by_message[finding.message].append(finding)
    shown = list(by_message.items())[: None if everything else CASES]
    return Problem(
        severity=group[0].severity,
        confirmed=group[0].confirmed,
        rule=group[0].rule,
        ranks=tuple(sorted({rank for finding in group for rank in finding.ranks})),
        nodes=tuple(sorted({node for finding in group for node in finding.nodes})),
        cases=tuple(
            Case(
                message,
                tuple(sorted({rank for finding in same for rank in finding.ranks})),
                tuple(sorted({node for finding in same for node in finding.nodes})),
                same[0].evidence,
            )
            for message, same in shown
        ),
        more=len(by_message) - len(shown),
        why=why(group[0].rule),
        fixes=_fixes([finding.fix for _, same in shown for finding in same]),
        docs=group[0].docs,
    )


def _fixes(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Merge fixes with the same text; keep all their commands."""
    commands: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for fix in fixes:
        commands[fix.text].update(dict.fromkeys(fix.commands))
    return tuple(Fix(text, tuple(them)) for text, them in commands.items())


def why(rule: str) -> str:
    """Return the consequence of a problem: the start of the rule's prose, else its summary."""
    from distcheck.rules import find_rule

    known = find_rule(rule)
    if known is None:
        return ""
    paragraphs = [" ".join(p.split()).replace("``", "`") for p in known.doc.split("\n\n")]
    prose = paragraphs[1] if len(paragraphs) > 1 else ""
    if not prose or prose.startswith(("Fix:", "See:")):
        return paragraphs[0]
    return prose if len(prose) <= PROSE else prose[: prose.rfind(". ", 0, PROSE) + 1] or paragraphs[0]


def gaps(not_checked: Iterable[NotChecked]) -> list[Gap]:
    """Group what was not checked by reason; required checks first."""
    groups: defaultdict[tuple[bool, str], list[NotChecked]] = defaultdict(list)
    for unlooked in not_checked:
        groups[unlooked.required, unlooked.reason].append(unlooked)
    ordered = sorted(groups.items(), key=lambda item: not item[0][0])
    return [
        Gap(
            reason,
            required,
            tuple(dict.fromkeys(n.rule for n in group)),
            where({rank for n in group for rank in n.ranks}, {node for n in group for node in n.nodes}),
        )
        for (required, reason), group in ordered
    ]


def rows(report: Document, *, everything: bool) -> tuple[list[RankRow], str]:
    """Return the ranks to show, and a line that counts the others."""
    if everything or len(report.ranks) <= ROWS:
        return list(report.ranks), ""
    last = len(report.ranks) - EDGE
    odd = [n for n in range(EDGE, last) if report.ranks[n].status != "ok"][:ROWS]
    shown = {*range(EDGE), *odd, *range(last, len(report.ranks))}
    hidden = [row for n, row in enumerate(report.ranks) if n not in shown]
    by_status = {status: [row.rank for row in hidden if row.status == status] for status in STATUSES}
    folded = "; ".join(
        f"{len(numbers)} {status} ({fold((n for n in numbers if n is not None), PIECES) or 'rank unknown'})"
        for status, numbers in by_status.items()
        if numbers
    )
    return [report.ranks[n] for n in sorted(shown)], f"not shown (use --all-ranks): {folded}"


def neighbours(shown: Sequence[RankRow]) -> tuple[list[str], list[list[str]]]:
    """Return headers and cells for the NUMA node and adapter next to each rank's GPU.

    A column without any known value is left out. The adapter is shown with its distance; of more than two adapters at
    the same distance, the first is shown with their number.
    """
    cells = {
        "NUMA": ["-" if row.gpu is None or row.gpu.numa_node is None else str(row.gpu.numa_node) for row in shown],
        "NIC": ["-" if row.gpu is None or row.gpu.nic is None else _nic(row.gpu) for row in shown],
    }
    known = [name for name, column in cells.items() if set(column) - {"-"}]
    return known, [[cells[name][n] for name in known] for n in range(len(shown))]


def _nic(gpu: RankGpu) -> str:
    names = (gpu.nic or "").split(",")
    several = ",".join(names) if len(names) <= 2 else f"{names[0]},… ({len(names)})"
    return f"{several} {gpu.nic_distance}"


def where(ranks: Iterable[int], nodes: Iterable[str]) -> str:
    """Return ranks and nodes, folded: ranks 0-7,16 on node[1-2]."""
    numbers, names = set(ranks), set(nodes)
    parts = [f"{'ranks' if len(numbers) > 1 else 'rank'} {fold(numbers, PIECES)}"] if numbers else []
    parts += [harmless(fold_nodes(names))] if names else []
    return " on ".join(parts)


def headline(job: Job, report: Document) -> list[str]:
    """Return what was checked, in one to three lines."""
    if "node" in job.asked.looks:
        return [harmless(line) for line in _lone_nodes(job, report)]
    world = report.world
    absent = report.missing_ranks
    on = fold_nodes({row.node for row in report.ranks if row.status == "missing" and row.node})
    missing = f" ({len(absent)} missing: {fold(absent, PIECES)}{' on ' + on if on else ''})" if absent else ""
    parts = [
        f"{count(world.ranks, 'rank')}{missing} on {count(world.nodes, 'node')}",
        f"launcher {world.launcher}",
        f"backend {world.backend}",
        f"torch {world.torch}" if world.torch else "torch not found",
        *([f"NCCL {world.nccl}"] if world.nccl else []),
    ]
    lines = [harmless(f"distcheck {report.distcheck} {report.command}: {', '.join(parts)}")]
    if job.asked.by_default:
        lines.append("No rank count given; using 2 local Gloo ranks. Use --nproc N to set it.")
    models = Counter({row.gpu.uuid: row.gpu.name for row in report.ranks if row.gpu and row.gpu.name}.values())
    if models:
        lines.append("GPUs: " + ", ".join(f"{number} x {harmless(name)}" for name, number in sorted(models.items())))
    return lines


def _lone_nodes(job: Job, report: Document) -> list[str]:
    """Return what was checked when nodes have no ranks."""
    began = f"distcheck {report.distcheck} {report.command}:"
    if len(job.nodes) != 1:
        return [f"{began} {count(len(job.nodes), 'node')}"]
    node = job.nodes[0]
    parts = [node.name]
    if isinstance(node.gpus, Gpus):
        parts.append(count(len(node.gpus.devices), "GPU"))
        parts += [f"driver {node.gpus.driver}"] if isinstance(node.gpus.driver, str) else []
    else:
        parts.append("AMD GPUs" if node.accelerator == "amd" else "GPUs unknown" if node.gpus else "no GPU")
    if isinstance(node.state, NodeState) and node.state.slurm_context:
        parts.append(f"Slurm {node.state.slurm_context} of job {node.state.slurm_job or '?'}")
    models = Counter(
        gpu.name for gpu in (node.gpus.devices if isinstance(node.gpus, Gpus) else ()) if isinstance(gpu.name, str)
    )
    named = ", ".join(f"{number} x {name}" for name, number in sorted(models.items()))
    return [f"{began} {', '.join(parts)}", *([f"GPUs: {named}"] if named else [])]


_ADVICE = {
    0: "Start the job",
    10: "Warnings fail because of --strict; fix them or drop --strict",
    20: "Could not confirm that the job will start; retry, preferably on other nodes",
    30: "Fix the job or site configuration; retrying will not help",
    40: "Exclude {nodes}{doubtful} and restart the job",
    70: "distcheck itself failed; save the job with --save and report the failure",
}


def advice(report: Document) -> str:
    """Return the next step."""
    errors = (f for f in report.findings if f.severity == "error" and f.scope in {"node", "gpu"})
    others = fold_nodes({node for f in errors for node in f.nodes} - set(report.exclude.nodes))
    doubtful = f", fix or exclude {harmless(others)} (not confirmed)" if others else ""
    return _ADVICE[report.exit_code].format(nodes=harmless(report.exclude.hostlist), doubtful=doubtful)


def counts(diagnosis: Diagnosis) -> str:
    """Return the number of findings: 1 error, 2 warnings."""
    severities = Counter(finding.severity for finding in diagnosis.findings)
    unlooked = len({n.rule for n in diagnosis.not_checked})
    return ", ".join(
        [
            count(severities["error"], "error"),
            count(severities["warning"], "warning"),
            *([f"{count(unlooked, 'rule')} not checked"] if unlooked else []),
        ]
    )


def conclusion(report: Document, diagnosis: Diagnosis) -> str:
    """Return the verdict line: outcome, exit code, next step, number of findings and duration."""
    return (
        f"{outcome_of(report)}: exit code {report.exit_code}. {advice(report)}. "
        f"{counts(diagnosis)}, {report.seconds:.1f} s"
    )


def outcome_of(report: Document) -> str:
    """Return the start of the verdict line: PASS, WARN, UNKNOWN, FAIL (node3)."""
    return harmless(outcome(report.verdict, report.exclude.nodes))


def evidence_lines(evidence: dict[str, Any], *, everything: bool, limit: int = 12, width: int = 200) -> list[str]:
    """Return evidence as `name: value` lines, cut unless `everything`."""
    lines: list[str] = []
    for name, value in evidence.items():
        first, *more = _value(value).splitlines() or [""]
        lines.append(harmless(f"{name}: {first}"))
        lines += [harmless(f"  {line}") for line in more]
    if everything:
        return lines
    cut = [line if len(line) <= width else line[: width - 1] + "…" for line in lines[:limit]]
    return cut + ([f"… {len(lines) - limit} more (-v shows them)"] if len(lines) > limit else [])


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value):
        numbers = [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
        if len(numbers) == len(value) > 2 and sorted(set(numbers)) == numbers:
            return fold(numbers)
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool | int | float):
        return "-" if value is None else str(value)
    return msgspec.json.encode(storable(value)).decode()


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 rank, 2 ranks."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
