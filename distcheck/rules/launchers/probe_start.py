"""Rules about starting probes from outside the job: nodes that could not be checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Finding, Fix, NotChecked, Scope
from distcheck.rules.wording import brief, grouped, listed, numbered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from distcheck.facts.job import Job, Launched, LaunchedNode

_FAILURE = re.compile(
    r"no such|no module|no route|denied|refused|timed out|unable|cannot|could not|failed|error|not found|invalid",
    re.IGNORECASE,
)
_NAME = re.compile(r"[\w.-]+")
_NO_MODULE = re.compile(r"No module named '?distcheck")
_STARTED_BY = {"ssh": "ssh", "slurm": "srun", "mpi": "mpirun"}


@rule("launch")
def launch_failed(job: Job) -> Iterator[Outcome]:
    """The launcher, srun or mpirun, exited without starting any probe.

    The job would fail in the same way. The usual causes are an option that the site does not accept, a closed
    partition, an expired allocation, and unavailable nodes. Found by the launcher's exit code when no probe reported;
    the launcher's own output is shown.

    Fix: correct the reported error; ``--launcher-args`` passes the job's own options to the launcher.
    """
    launched = job.launched
    if launched is None or not _failed(launched):
        return
    program = launched.command[0]
    yield Finding(
        scope="job",
        nodes=tuple(n.name for n in launched.nodes),
        message=f"{program} exited with code {launched.exit_code} and started no probe: {_error(launched.words)}",
        fix=Fix(
            f"Run this command to see the error of {program}; pass the job's own options with --launcher-args.",
            (" ".join((*launched.command[:1], "hostname")),),
        ),
        evidence={"command": " ".join(launched.command), "exit_code": launched.exit_code, "words": launched.words},
    )


@rule("launch", scope=("job", "node"))
def launch_node_unreachable(job: Job) -> Iterator[Outcome]:
    """A node could not be reached by ssh, or Slurm could not start a task on it.

    The job will not start there either: srun reports ``Communication connection failure`` or ``Node failure``, ssh
    ``Connection timed out``, ``No route to host`` or ``Permission denied``. Found by ssh's exit code 255, or by
    srun's message about the node, which is shown. A single failure does not confirm that the node is bad.

    Fix: log in by hand; run ``sinfo -R``; exclude the node until it responds.
    """
    for launched, nodes in _of(job, "unreachable"):
        for group in _alike(launched, nodes):
            names = tuple(n.name for n in group)
            command = f"ssh {names[0]} true" if launched.engine == "ssh" else f"sinfo -N -l -n {','.join(names)}"
            yield _about(
                launched,
                group,
                f"{_STARTED_BY[launched.engine]} could not start anything on {_where(group)}: {_error(group[0].words)}",
                Fix("Check that the node is up and that login works without a prompt.", (command,)),
                confirmed=False,
            )


@rule("launch", scope=("job", "node"))
def launch_probe_missing(job: Job) -> Iterator[Outcome]:
    """Python, or distcheck in it, is not installed on a node.

    The job usually uses the same Python and would fail with ``python: No such file or directory`` or ``No module named
    ...``, exit code 127. A shared file system is not mounted, or the environment is installed on some of the nodes
    only. Found by the exit code and the output of the node.

    Fix: mount the file system or install the environment there; ``--python PATH`` and ``--setup '...'`` select what
    the job uses.
    """
    for launched, nodes in _of(job, "no probe"):
        for group in _alike(launched, nodes):
            node, python = group[0], _python(launched)
            if _NO_MODULE.search(node.words):
                problem = f"distcheck is not installed in {python} on {_where(group)}"
                fix = Fix(
                    "Install it in the Python that the job uses there, or select that Python with --python.",
                    (f"{_on(launched, node)} {python} -m pip install distcheck=={job.distcheck}",),
                )
            else:
                problem = f"{python} cannot be run on {_where(group)}"
                fix = Fix(
                    "Install Python there, or select the job's Python with --python. If it is on a shared file "
                    "system, check that the file system is mounted.",
                    (f"{_on(launched, node)} ls -lL {python}", f"{_on(launched, node)} mount"),
                )
            yield _about(launched, group, f"{problem}: {_error(node.words)}", fix, confirmed=True)


@rule("launch", scope=("job", "node"))
def launch_probe_unreadable(job: Job) -> Iterator[Outcome]:
    """A node runs an incompatible version of distcheck, so its facts cannot be read.

    The state of its ranks is unknown, so there is no verdict. Nodes with different environments cause failures in
    torch too. Found by the version that the probe reports first. Compatible versions are only a warning
    (``probe-version-differs``).

    Fix: install the same version on every node.
    """
    for launched, nodes in _of(job, "unreadable"):
        versions = listed(sorted({n.distcheck for n in nodes}))
        yield _about(
            launched,
            nodes,
            f"distcheck {versions} on {_where(nodes)} is incompatible with {job.distcheck} here",
            Fix(
                f"Install distcheck {job.distcheck} on every node, or one Python for all of them (--python).",
                (f"{_on(launched, nodes[0])} {_python(launched)} -m pip install distcheck=={job.distcheck}",),
            ),
            confirmed=False,
        )


@rule("launch", scope=("job", "node"))
def launch_probe_failed(job: Job) -> Iterator[Outcome]:
    """A probe exited before it reported any facts.

    The ``--setup`` command failed, the probe was OOM-killed (exit code 137), or the launcher ended it. Found by an
    exit code without facts; the end of its output is shown.

    Fix: run the same command there by hand.
    """
    for launched, ended_nodes in _of(job, "ended"):
        nodes = [n for n in ended_nodes if not _ended_with_others(launched, n)]
        others = [n for n in ended_nodes if n not in nodes]
        if others:
            yield NotChecked(
                ranks=tuple(rank for n in others for rank in n.ranks),
                nodes=tuple(n.name for n in others),
                reason=f"the run was ended by {launched.interrupted}"
                if launched.interrupted
                else f"{launched.command[0]} failed on another node and ended the probes there",
            )
        for group in _alike(launched, nodes):
            code = group[0].exit_code
            ended = "exited" if code is None else f"exited with code {code}"
            yield _about(
                launched,
                group,
                f"the probe on {_where(group)} {ended} before it reported: {_error(group[0].words)}",
                Fix(
                    "Run the same command there by hand and read its output.",
                    (f"{_on(launched, group[0])} {' '.join(launched.command[-4:])}",)
                    if launched.engine == "ssh"
                    else (),
                ),
                confirmed=False,
            )


@rule("launch", scope="node")
def launch_probe_silent(job: Job) -> Iterator[Outcome]:
    """A probe was started on a node but did not report before the timeout.

    The node hangs, its file system does not respond, or the login waits for input. Found when the run's timeout
    expired without a report from the node.

    Fix: log in by hand; for slow nodes raise ``--timeout``.
    """
    for launched, nodes in _of(job, "silent"):
        if launched.interrupted:
            yield NotChecked(nodes=tuple(n.name for n in nodes), reason=f"the run was ended by {launched.interrupted}")
            continue
        yield _about(
            launched,
            nodes,
            f"no report from {_where(nodes)} within {job.seconds:.0f} s",
            Fix(
                "Check that a program can be started there; for slow nodes raise --timeout.",
                (f"{_on(launched, nodes[0])} uptime",),
            ),
            confirmed=False,
            shared=False,
        )


@rule("launch", severity="warning", scope="node")
def launch_node_left_out(job: Job) -> Iterator[Outcome]:
    """A bad node was excluded; the remaining nodes satisfy ``--need``.

    ``--need`` sets how many nodes suffice. distcheck checked the remaining nodes again without the bad one, and the
    verdict is about them. This is a warning because the node still needs repair. Found by the first check of all nodes.

    Fix: start the job on the remaining nodes with the command shown, and have the node repaired.
    """
    launched = job.launched
    if launched is None or not job.left_out:
        return
    good = tuple(n.name for n in launched.nodes)
    names = ",".join(good)
    commands = {
        "slurm": f"# add to srun: --nodelist={names} --nodes={len(good)}",
        "ssh": f"distcheck {job.asked.command} --hosts {names}",
        "mpi": f"# add to mpirun: --host {names}",
    }
    for spare in job.left_out:
        yield Finding(
            severity="warning",
            scope="node",
            owner="admin",
            nodes=(spare.name,),
            message=f"{spare.name} is excluded ({listed(spare.rules)}): {spare.words}; {len(good)} good nodes "
            f"satisfy --need {job.asked.need}",
            fix=Fix("Start the job on the good nodes only.", (commands[launched.engine],)),
            evidence={"rules": list(spare.rules), "good": list(good)},
            excludes=True,
        )


def _failed(launched: Launched) -> bool:
    """Whether srun or mpirun started no probe at all."""
    return bool(launched.exit_code) and all(n.outcome in {"ended", "silent"} and not n.distcheck
                                             and n.exit_code is None for n in launched.nodes)  # fmt: skip


def _ended_with_others(launched: Launched, node: LaunchedNode) -> bool:
    """Whether a probe ended because of a signal or because of another node."""
    if launched.interrupted:
        return True
    culprits = {"no probe", "unreachable"} & {n.outcome for n in launched.nodes}
    return launched.engine != "ssh" and bool(launched.exit_code and culprits) and node.exit_code is None


def _of(job: Job, outcome: str) -> list[tuple[Launched, list[LaunchedNode]]]:
    """Return the nodes with an outcome; none if srun or mpirun itself failed."""
    launched = job.launched
    if launched is None or _failed(launched):
        return []
    nodes = [n for n in launched.nodes if n.outcome == outcome]
    return [(launched, nodes)] if nodes else []


def _about(
    launched: Launched,
    nodes: Sequence[LaunchedNode],
    message: str,
    fix: Fix,
    *,
    confirmed: bool,
    shared: bool = True,
) -> Finding:
    """Return a finding about nodes; about all nodes, its scope is job unless not `shared`."""
    every = shared and len(nodes) == len(launched.nodes) and len(nodes) > 1
    scope: Scope = "job" if every else "node"
    return Finding(
        scope=scope,
        owner="user" if every else "admin",
        confirmed=confirmed,
        ranks=tuple(rank for n in nodes for rank in n.ranks),
        nodes=tuple(n.name for n in nodes),
        message=message,
        fix=fix,
        evidence={n.name: n.words for n in nodes if n.words},
    )


def _alike(launched: Launched, nodes: Iterable[LaunchedNode]) -> Iterable[list[LaunchedNode]]:
    """Group nodes by exit code and error line, ignoring the nodes' own names."""
    names = {n.name for n in launched.nodes}

    def cause(node: LaunchedNode) -> tuple[int | None, str]:
        return node.exit_code, _NAME.sub(lambda word: "" if word[0] in names else word[0], _error(node.words))

    return grouped(nodes, cause).values()


def _where(nodes: Sequence[LaunchedNode]) -> str:
    ranks = [rank for n in nodes for rank in n.ranks]
    return f"{listed([n.name for n in nodes])} ({numbered(ranks)})" if ranks else listed([n.name for n in nodes])


def _error(output: str) -> str:
    """Return the last line that reports a failure, without the launcher's summary."""
    lines = [line for line in output.splitlines() if any(map(str.isalnum, line)) and "xited with exit code" not in line]
    errors = [line for line in lines if _FAILURE.search(line)]
    return brief((errors or lines or ["no output"])[-1], 160)


def _on(launched: Launched, node: LaunchedNode) -> str:
    """Return the command prefix that runs a command on a node."""
    if launched.engine == "ssh":
        return f"ssh {node.name}"
    return f"srun --nodelist={node.name} --ntasks=1" if launched.engine == "slurm" else f"mpirun --host {node.name}"


def _python(launched: Launched) -> str:
    """Return the Python that the nodes run."""
    return next((word for word in launched.command if "python" in word), "python3")
