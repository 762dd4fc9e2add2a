"""Nodes on which the probes that distcheck started ended alike: what rules about them are asked about."""

from __future__ import annotations

import re
from shlex import join, quote
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.facts.base import Missing
from distcheck.facts.ranges import numbered
from distcheck.rules.finding import NotChecked
from distcheck.rules.job.own_failures import own_failure
from distcheck.rules.wording import brief, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from distcheck.facts.job import Job, Launched, LaunchedNode
    from distcheck.rules import Outcome, Subject
    from distcheck.rules.finding import Fault

_FAILURE = re.compile(
    r"no such|no module|no route|denied|refused|timed out|unable|cannot|could not|failed|error|not found|invalid",
    re.IGNORECASE,
)
_NAME = re.compile(r"[\w.-]+")


class Started(NamedTuple):
    """Nodes on which the probes ended alike."""

    launched: Launched
    nodes: Sequence[LaunchedNode]

    def __str__(self) -> str:
        """Return the nodes for a message, with their ranks: node3 (ranks 4-5)."""
        ranks, names = self.ranks, listed([n.name for n in self.nodes])
        return f"{names} ({numbered(ranks)})" if ranks else names

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks assigned to them."""
        return tuple(rank for n in self.nodes for rank in n.ranks)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(n.name for n in self.nodes)

    @property
    def error(self) -> str:
        """The line of the first one's output that reports a failure."""
        return error_line(self.nodes[0].words)

    @property
    def python(self) -> str:
        """The Python that the nodes run."""
        return next((word for word in self.launched.command if "python" in word), "python3")

    def run(self, *words: str) -> str:
        """Return the command that runs these words on the first node."""
        name = quote(self.nodes[0].name)
        if self.launched.engine == "ssh":
            return f"ssh {name} {join(map(quote, words))}"  # a second shell reads them there
        srun = self.launched.engine == "slurm"
        return f"{f'srun --nodelist={name} --ntasks=1' if srun else f'mpirun --host {name}'} {join(words)}"


def no_probe_started(launched: Launched) -> bool:
    """Whether srun or mpirun started no probe at all."""
    return bool(launched.exit_code) and all(n.outcome in {"ended", "silent"} and not n.distcheck
                                             and n.exit_code is None for n in launched.nodes)  # fmt: skip


def ended_with_others(started: Started) -> bool:
    """Whether these nodes' probes ended because of another node."""
    launched = started.launched
    if launched.engine == "ssh" or not launched.exit_code or started.nodes[0].exit_code is not None:
        return False
    return any(n.outcome in {"no probe", "unreachable"} or own_failure(n) for n in launched.nodes)


def nodes_with(outcome: str, *, together: bool = False) -> Subject:
    """Return what rules about nodes with this outcome have as ``of``; they name the nodes themselves.

    Asked once for the nodes with one exit code and one error line, or for all `together`. Nothing if srun or mpirun
    itself failed. A fault of all nodes that may be the job's is the job's.
    """

    def each(job: Job, judge: Callable[[Started], Fault | Missing | None]) -> Iterator[Outcome]:
        launched = job.launched
        if launched is None or no_probe_started(launched):
            return
        names = {n.name for n in launched.nodes}

        def cause(node: LaunchedNode) -> object:
            line = _NAME.sub(lambda word: "" if word[0] in names else word[0], error_line(node.words))
            return None if together else (node.exit_code, line)

        nodes = [n for n in launched.nodes if n.outcome == outcome and not (outcome == "ended" and own_failure(n))]
        for group in grouped(nodes, cause).values():
            started = Started(launched, group)
            said = judge(started)
            if isinstance(said, Missing):
                yield NotChecked(ranks=started.ranks, nodes=started.names, reason=said.reason)
            elif said:
                shared = said.scope == "job" and len(group) == len(launched.nodes) > 1
                yield msgspec.structs.replace(
                    said,
                    scope="job" if shared else "node",
                    owner="user" if shared else "admin",
                    ranks=started.ranks,
                    nodes=started.names,
                    evidence={n.name: n.words for n in group if n.words},
                )

    return each


def error_line(output: str) -> str:
    """Return the last line that reports a failure, without the launcher's summary."""
    lines = [line for line in output.splitlines() if any(map(str.isalnum, line)) and "xited with exit code" not in line]
    errors = [line for line in lines if _FAILURE.search(line)]
    return brief((errors or lines or ["no output"])[-1], 160)
