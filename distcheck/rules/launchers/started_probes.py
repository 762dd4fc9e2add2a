"""How the probes that distcheck started on other nodes ended, and the finding about nodes that ended alike."""

from __future__ import annotations

import re
from shlex import join, quote
from typing import TYPE_CHECKING

from distcheck.facts.ranges import numbered
from distcheck.rules.finding import Fault, Fix, Scope
from distcheck.rules.job.own_failures import own_failure
from distcheck.rules.wording import brief, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from distcheck.facts.job import Job, Launched, LaunchedNode


_FAILURE = re.compile(
    r"no such|no module|no route|denied|refused|timed out|unable|cannot|could not|failed|error|not found|invalid",
    re.IGNORECASE,
)


_NAME = re.compile(r"[\w.-]+")


def no_probe_started(launched: Launched) -> bool:
    """Whether srun or mpirun started no probe at all."""
    return bool(launched.exit_code) and all(n.outcome in {"ended", "silent"} and not n.distcheck
                                             and n.exit_code is None for n in launched.nodes)  # fmt: skip


def ended_with_others(launched: Launched, nodes: Sequence[LaunchedNode]) -> list[LaunchedNode]:
    """Return those of these nodes whose probes ended because of another node."""
    if launched.engine == "ssh" or not launched.exit_code:
        return []
    culprit = any(n.outcome in {"no probe", "unreachable"} or own_failure(n) for n in launched.nodes)
    return [n for n in nodes if culprit and n.exit_code is None]


def nodes_with(job: Job, outcome: str) -> list[tuple[Launched, list[LaunchedNode]]]:
    """Return the nodes with an outcome; none if srun or mpirun itself failed."""
    launched = job.launched
    if launched is None or no_probe_started(launched):
        return []
    nodes = [n for n in launched.nodes if n.outcome == outcome]
    return [(launched, nodes)] if nodes else []


def about_nodes(
    launched: Launched,
    nodes: Sequence[LaunchedNode],
    message: str,
    fix: Fix,
    *,
    confirmed: bool,
    shared: bool = True,
) -> Fault:
    """Return a finding about nodes; about all nodes, its scope is job unless not `shared`."""
    every = shared and len(nodes) == len(launched.nodes) and len(nodes) > 1
    scope: Scope = "job" if every else "node"
    return Fault(
        scope=scope,
        owner="user" if every else "admin",
        confirmed=confirmed,
        ranks=tuple(rank for n in nodes for rank in n.ranks),
        nodes=tuple(n.name for n in nodes),
        message=message,
        fix=fix,
        evidence={n.name: n.words for n in nodes if n.words},
    )


def alike(launched: Launched, nodes: Iterable[LaunchedNode]) -> Iterable[list[LaunchedNode]]:
    """Group nodes by exit code and error line, ignoring the nodes' own names."""
    names = {n.name for n in launched.nodes}

    def cause(node: LaunchedNode) -> tuple[int | None, str]:
        return node.exit_code, _NAME.sub(lambda word: "" if word[0] in names else word[0], error_line(node.words))

    return grouped(nodes, cause).values()


def where(nodes: Sequence[LaunchedNode]) -> str:
    """Return nodes for a message, with their ranks: node3 (ranks 4-5)."""
    ranks = [rank for n in nodes for rank in n.ranks]
    return f"{listed([n.name for n in nodes])} ({numbered(ranks)})" if ranks else listed([n.name for n in nodes])


def error_line(output: str) -> str:
    """Return the last line that reports a failure, without the launcher's summary."""
    lines = [line for line in output.splitlines() if any(map(str.isalnum, line)) and "xited with exit code" not in line]
    errors = [line for line in lines if _FAILURE.search(line)]
    return brief((errors or lines or ["no output"])[-1], 160)


def run_on(launched: Launched, node: LaunchedNode, *words: str) -> str:
    """Return the command that runs these words on a node."""
    name = quote(node.name)
    if launched.engine == "ssh":
        return f"ssh {name} {join(map(quote, words))}"  # a second shell reads them there
    starter = f"srun --nodelist={name} --ntasks=1" if launched.engine == "slurm" else f"mpirun --host {name}"
    return f"{starter} {join(words)}"


def python_of(launched: Launched) -> str:
    """Return the Python that the nodes run."""
    return next((word for word in launched.command if "python" in word), "python3")
