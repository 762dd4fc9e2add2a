"""The first and the last line of every report: outcome, first cause, place, rule, exit code, and what to do."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from distcheck.collectives.plan import label
from distcheck.facts.gpu import Gpus
from distcheck.facts.isolation import Isolation
from distcheck.facts.job import Collectives, Job
from distcheck.facts.quantities import count, size
from distcheck.facts.ranges import numbered
from distcheck.report.harmless import harmless
from distcheck.report.node_names import fold_nodes
from distcheck.rules.diagnose import Diagnosis, ended_by
from distcheck.rules.finding import Finding, Verdict, excluded_nodes, outcome, spared_nodes, verdict

LONGEST = 200
_PLACE, _NODES, _OPERATIONS = 40, 40, 4
"""Most characters of a place and of the nodes to exclude; most operations with figures."""
_SUBJECT = re.compile(r"^(?:ranks? [\d,-]+ \([^()]*\)|process(?:es)? [^:]*? pid \d+): ")
"""Where a message begins with the place, which the line has at its end."""
_QUESTION = re.compile(r"; did you mean .*\?$")
_ASIDE = re.compile(r" \([^()]*\)")
_SELECTED = "the selected rules found nothing"
"""With --select, nothing is known of what the other rules judge."""
_STAGES: dict[str, str] = {
    "hang": "the look at the ranks",
    "launch": "the start of the probes",
    "started": "the start",
    "environment": "the start",
    "node": "the look at the node",
    "meeting": "the roll call",
    "peers": "the test of the paths",
    "collectives": "the collectives",
    "isolation": "the search",
    "done": "the report",
}
_CLAUSE = re.compile(r"; |\. ")
_MOSTLY = 0.6
"""A clause before a colon that fills this much of the line says enough."""
_NEXT = {
    10: "fix the warnings or drop --strict",
    20: "retry",
    30: "fix the job; retrying will not help",
    70: "distcheck itself failed; report it",
}


def headline(job: Job, diagnosis: Diagnosis, longest: int = LONGEST) -> str:
    """Return a judged job in one line: FAIL: GPU 0 of node5 is lost, rank 32. [gpu-lost] exit code 40: ..."""
    code, end = diagnosis.verdict.exit_code, diagnosis.verdict
    if job.interrupted:
        return harmless(f"{outcome(diagnosis.verdict)}: {_interruption(job)}; nothing was judged. exit code {code}")
    if diagnosis.would is not None and code == 0:
        end = diagnosis.would
    decisive = _decisive(diagnosis, end)
    owner = decisive[0].owner if decisive else ""
    ending = ": ".join(filter(None, (f"exit code {code}", _next_step(job, diagnosis, owner))))
    if diagnosis.would is not None:
        ending += f"{'; ' if code else ' (mode observe); '}{would(diagnosis)}"
    names, place = "", ""
    if decisive:
        text = _QUESTION.sub("", _SUBJECT.sub("", decisive[0].message))
        place = _place(job, text, decisive)
        names = _names(decisive[0].rule, len({(f.severity, f.confirmed, f.rule) for f in _seen(diagnosis)}))
    elif end.name == "unknown":
        gaps = [gap for gap in diagnosis.not_checked if gap.required]
        text = next((gap.reason for gap in gaps), "no rule was checked")
        names = _names(gaps[0].rule, len({gap.rule for gap in gaps})) if gaps else ""
    else:
        text = seen(job)
    began, ended = f"{outcome_of(job, diagnosis)}: ", harmless(f" {names}{ending}")
    said = _cut(harmless(text).rstrip("."), harmless(place), longest - len(began) - len(ended) - 1)
    return f"{began}{said}{'' if said.endswith('...') else '.'}{ended}"


def would(diagnosis: Diagnosis) -> str:
    """Return what the exit code would be if nothing were only observed; '' if the same."""
    if diagnosis.would is None:
        return ""
    nodes = spared_nodes(diagnosis.findings) if diagnosis.would.exit_code == 40 else ()
    return f"would have been exit code {diagnosis.would.exit_code}{f' ({_folded(nodes)})' if nodes else ''}"


def outcome_of(job: Job, diagnosis: Diagnosis) -> str:
    """Return the first word of a report: PASS, FAIL, …; of a running job HUNG, SLOW, NOT HUNG or CANNOT TELL."""
    if job.hang is None or job.interrupted:
        return outcome(diagnosis.verdict)
    from distcheck.rules.hang.judging import answer_of  # only for `distcheck hang`

    return answer_of(job).word.upper()


def _interruption(job: Job) -> str:
    """Return what ended the run, in which stage, and which ranks were awaited."""
    stage = (
        "hang"
        if job.hang
        else job.processes[0].stage
        if job.processes
        else "node"
        if "node" in job.asked.looks
        else "launch"
    )
    absent = job.missing_ranks if stage == "meeting" else ()
    awaited = f", without {numbered(absent, 4)}" if absent else ""
    return f"{ended_by(job)} in {_STAGES[stage]} after {job.seconds:.1f} s{awaited}"


def _decisive(diagnosis: Diagnosis, end: Verdict) -> list[Finding]:
    """Return the first finding that alone gives this verdict, and all others with its message."""
    held = diagnosis.would is not None and end is diagnosis.verdict
    seen = [f for f in _seen(diagnosis) if not (held and f.observed)]
    deciding = [f for f in seen if verdict((f,), (), strict=end.exit_code == 10) == end]
    return [f for f in deciding if (f.rule, f.message) == (deciding[0].rule, deciding[0].message)]


def _seen(diagnosis: Diagnosis) -> list[Finding]:
    return [f for f in diagnosis.findings if f.severity != "info"]


def _names(rule: str, problems: int) -> str:
    return f"[{rule}{f', +{problems - 1} more' if problems > 1 else ''}] "


def _place(job: Job, text: str, findings: Iterable[Finding]) -> str:
    """Return the ranks and nodes of findings that the text does not name."""
    ranks = {rank for f in findings for rank in f.ranks}
    nodes = {node for f in findings for node in f.nodes}
    named = re.search(r"\branks? \d", text) is not None
    if len(ranks) > 1 and len(ranks) == job.world_size:
        return "" if named else ", both ranks" if len(ranks) == 2 else f", all {len(ranks)} ranks"
    which = f", {numbered(ranks, 4)}" if ranks and not named else ""
    where = f" on {fold_nodes(nodes)}" if nodes and not any(node in text for node in nodes) else ""
    if len(which + where) > _PLACE:
        which = which and f", {count(len(ranks), 'rank')}"
        where = f" on {count(len(nodes), 'node')}"
    return which + where


def _next_step(job: Job, diagnosis: Diagnosis, owner: str) -> str:
    """Return what to do with the job; empty if it can start."""
    code, alone = diagnosis.verdict.exit_code, "node" in job.asked.looks
    if job.hang is not None and code in {20, 30}:
        return "" if code == 20 else "fix the program"
    if code == 40:
        bad = excluded_nodes(diagnosis.findings)
        blamed = {
            n for f in diagnosis.findings if f.severity == "error" and f.scope in {"node", "gpu"} for n in f.nodes
        }
        doubtful = f", perhaps {_folded(blamed.difference(bad))} too," if blamed.difference(bad) else ""
        return f"{'drain' if alone else 'exclude'} {_folded(bad)}{doubtful}{'' if alone else ' and start again'}"
    if code == 30 and (alone or owner == "admin"):
        return f"fix the {'node' if alone else 'site'}; retrying will not help"
    if code == 20 and alone:
        return "check again"
    if code == 20 and not (job.asked.started_here and job.launched is None):
        return "retry, preferably on other nodes"
    return _NEXT.get(code, "")


def _folded(nodes: Collection[str]) -> str:
    names = fold_nodes(nodes)
    return names if len(names) <= _NODES else count(len(nodes), "node")


def _cut(text: str, place: str, room: int) -> str:
    """Return text and place within `room` characters.

    The place follows the first clause, which is what remains of a long text, without asides; if that is too long, it is
    cut before a colon near its end, or else at a word.
    """
    clause = _CLAUSE.split(text, maxsplit=1)[0]
    brief = _ASIDE.sub("", clause)
    whole = clause + place + text.removeprefix(clause)
    fitting = (each for each in (whole, clause + place, brief + place) if len(each) <= room)
    left = room - len(place) - 3
    until = brief.rfind(": ", int(_MOSTLY * left), left)
    words = brief[:until] if until > 0 else f"{(brief[:left].rpartition(' ')[0] or brief[:left]).rstrip(' ,;:')}..."
    return next(fitting, words + place)


def seen(job: Job) -> str:
    """Return what a healthy run has seen, in the words of its command."""
    looks = job.asked.looks
    if job.hang is not None:
        from distcheck.report.hang import hang_seen  # only for `distcheck hang`

        return hang_seen(job)
    if "node" in looks:
        return _nodes(job)
    ranks = job.world_size or len(job.ranks)
    parts = [f"{count(ranks, 'rank')} on {count(len(job.nodes), 'node')}"]
    if isinstance(job.isolation, Isolation):
        parts.append(job.isolation.sentence)
    elif figures := _figures(job):
        parts.append(figures)
    elif job.asked.select:
        parts.append(_SELECTED)
    elif "collectives" not in looks:
        parts.append(
            "names, ports and paths between nodes work"
            if "peers" in looks
            else "every rank has its GPU"
            if "gpu" in looks and job.ranks and all(rank.gpu for rank in job.ranks)
            else "variables and placement agree"
        )
    return "; ".join(parts)


def _nodes(job: Job) -> str:
    state = _SELECTED if job.asked.select else "healthy"
    if len(job.nodes) != 1:
        return f"{count(len(job.nodes), 'node')}: {state}"
    node = job.nodes[0]
    gpus = len(node.gpus.devices) if isinstance(node.gpus, Gpus) else 0
    return f"node {node.name}: {state}" + (f", {count(gpus, 'GPU')}" if gpus else "")


def _figures(job: Job) -> str:
    """Return the bus bandwidth of each operation at its largest size: all_reduce 412 GB/s at 256 MiB."""
    if not isinstance(job.collectives, Collectives):
        return ""
    from distcheck.report.figures import figure
    from distcheck.rules.collectives.figures import busbw

    rates: dict[str, tuple[int, str]] = {}
    for row in job.collectives.measurements:
        rate, name = busbw(row) if row.group == "world" else None, label(row.op, row.dtype)
        if rate is not None and row.bytes >= rates.get(name, (0, ""))[0]:
            rates[name] = row.bytes, figure(rate)
    shown = list(rates.items())[:_OPERATIONS]
    sizes = dict.fromkeys(volume for _, (volume, _) in shown)
    return ", ".join(
        ", ".join(f"{name} {rate}" for name, (of, rate) in shown if of == volume) + f" GB/s at {size(volume)}"
        for volume in sizes
    )
