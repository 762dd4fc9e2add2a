"""Rules about starting the probes from outside the job: nodes that could not be looked at, and why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Finding, Fix, NotChecked, Scope
from distcheck.rules.wording import brief, grouped, listed, numbered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from distcheck.facts import Job, Launched, LaunchedNode

_TELLING = re.compile(
    r"no such|no module|no route|denied|refused|timed out|unable|cannot|could not|failed|error|not found|invalid",
    re.IGNORECASE,
)
_NAME = re.compile(r"[\w.-]+")
_NO_MODULE = re.compile(r"No module named '?distcheck")
_STARTED_BY = {"ssh": "ssh", "slurm": "srun", "mpi": "mpirun"}


@rule("launch")
def launch_failed(job: Job) -> Iterator[Outcome]:
    """The launcher, srun or mpirun, ended without starting a single probe.

    The job would fail in the same way: an option that the site does not know, a partition that is closed, an
    allocation that is over, or nodes that cannot be had. Found by its exit code where no probe told anything; its own
    words are shown.

    Fix: correct what it complains of; ``--launcher-args`` hands it the job's own options.
    """
    launched = job.launched
    if launched is None or not _failed(launched):
        return
    program = launched.command[0]
    yield Finding(
        scope="job",
        nodes=tuple(n.name for n in launched.nodes),
        message=f"{program} ended with exit code {launched.exit_code} and started no probe: {_said(launched.words)}",
        fix=Fix(
            f"See what {program} says of this command; --launcher-args gives it the options that the job has.",
            (" ".join((*launched.command[:1], "hostname")),),
        ),
        evidence={"command": " ".join(launched.command), "exit_code": launched.exit_code, "words": launched.words},
    )


@rule("launch")
def launch_node_unreachable(job: Job) -> Iterator[Outcome]:
    """A node could not be logged in to, or Slurm could not start anything on it.

    The job will not start there either: srun says ``Communication connection failure`` or ``Node failure``, ssh
    ``Connection timed out``, ``No route to host`` or ``Permission denied``. Found by ssh's exit code 255, or by
    srun's words about the node; they are shown. That it could not be reached once does not convict a node.

    Fix: log in by hand; look at ``sinfo -R``; leave the node out until it answers.
    """
    for launched, nodes in _of(job, "unreachable"):
        for group in _alike(launched, nodes):
            names = tuple(n.name for n in group)
            command = f"ssh {names[0]} true" if launched.engine == "ssh" else f"sinfo -N -l -n {','.join(names)}"
            yield _about(
                launched,
                group,
                f"{_STARTED_BY[launched.engine]} could not start anything on {_where(group)}: {_said(group[0].words)}",
                Fix("See whether the node is up, and whether it can be logged in to without a question.", (command,)),
                confirmed=False,
            )


@rule("launch")
def launch_probe_missing(job: Job) -> Iterator[Outcome]:
    """Python, or distcheck in it, is not there on a node.

    The job's own Python is most often the same one: ``python: No such file or directory`` or ``No module named
    ...`` is what it would end with, exit code 127. A shared file system is not mounted, or the environment was
    installed on some of the nodes only. Found by the exit code and the words of the node.

    Fix: mount or install it there; ``--python PATH`` and ``--setup '...'`` say what the job uses.
    """
    for launched, nodes in _of(job, "no probe"):
        for group in _alike(launched, nodes):
            node, python = group[0], _python(launched)
            if _NO_MODULE.search(node.words):
                problem = f"distcheck is not in {python} on {_where(group)}"
                fix = Fix(
                    "Install it in the Python that the job uses there, or name that Python by --python.",
                    (f"{_on(launched, node)} {python} -m pip install distcheck=={job.distcheck}",),
                )
            else:
                problem = f"{python} cannot be run on {_where(group)}"
                fix = Fix(
                    "Install Python there, or name by --python the one that the job uses; where it lies on a shared "
                    "file system, see whether that is mounted.",
                    (f"{_on(launched, node)} ls -lL {python}", f"{_on(launched, node)} mount"),
                )
            yield _about(launched, group, f"{problem}: {_said(node.words)}", fix, confirmed=True)


@rule("launch")
def launch_probe_unreadable(job: Job) -> Iterator[Outcome]:
    """A node's facts cannot be read: another version of distcheck runs there.

    Nothing is known of its ranks, so there is no verdict. Nodes that do not share one environment bite torch too.
    Found by the version that the probe tells before anything else. Versions that understand each other are only a
    warning (``probe-version-differs``).

    Fix: install the same version on every node.
    """
    for launched, nodes in _of(job, "unreadable"):
        versions = listed(sorted({n.distcheck for n in nodes}))
        yield _about(
            launched,
            nodes,
            f"distcheck {versions} on {_where(nodes)} and {job.distcheck} here do not understand each other",
            Fix(
                f"Install distcheck {job.distcheck} on every node, or one Python for all of them (--python).",
                (f"{_on(launched, nodes[0])} {_python(launched)} -m pip install distcheck=={job.distcheck}",),
            ),
            confirmed=False,
        )


@rule("launch")
def launch_probe_failed(job: Job) -> Iterator[Outcome]:
    """A probe ended before it told anything of its node.

    What prepares the node failed (``--setup``), the memory was gone (exit code 137), or the launcher ended it. Found
    by its exit code without facts; its last words are shown.

    Fix: run the same command there by hand.
    """
    for launched, ended_nodes in _of(job, "ended"):
        nodes = [n for n in ended_nodes if not _taken_along(launched, n)]
        others = [n for n in ended_nodes if n not in nodes]
        if others:
            yield NotChecked(
                ranks=tuple(rank for n in others for rank in n.ranks),
                nodes=tuple(n.name for n in others),
                reason=f"the run was ended by {launched.interrupted}"
                if launched.interrupted
                else f"{launched.command[0]} ended the probes there when it failed on another node",
            )
        for group in _alike(launched, nodes):
            code = group[0].exit_code
            ended = "ended" if code is None else f"ended with exit code {code}"
            yield _about(
                launched,
                group,
                f"the probe on {_where(group)} {ended} before it told anything: {_said(group[0].words)}",
                Fix(
                    "Run the same command there by hand and read what it says.",
                    (f"{_on(launched, group[0])} {' '.join(launched.command[-4:])}",)
                    if launched.engine == "ssh"
                    else (),
                ),
                confirmed=False,
            )


@rule("launch")
def launch_probe_silent(job: Job) -> Iterator[Outcome]:
    """A node was told to start a probe and nothing was heard of it.

    The node hangs, its file system does not answer, or the login waits for something. Found when the time of the
    run was over without a word of it.

    Fix: log in by hand; give slow nodes more time by ``--timeout``.
    """
    for launched, nodes in _of(job, "silent"):
        if launched.interrupted:
            yield NotChecked(nodes=tuple(n.name for n in nodes), reason=f"the run was ended by {launched.interrupted}")
            continue
        yield _about(
            launched,
            nodes,
            f"nothing was heard of {_where(nodes)} within {job.seconds:.0f} s",
            Fix(
                "See whether a program can be started there at all; --timeout gives slow nodes more time.",
                (f"{_on(launched, nodes[0])} uptime",),
            ),
            confirmed=False,
            shared=False,
        )


@rule("launch")
def launch_node_left_out(job: Job) -> Iterator[Outcome]:
    """A node was found bad, and the job can do without it.

    ``--need`` says how many nodes suffice. The others were looked at again without it, and the verdict is theirs;
    this is a warning so that somebody mends the node. Found by a first look at all nodes.

    Fix: start the job on the other nodes, as the command says, and have the node looked at.
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
            message=f"{spare.name} is left out ({listed(spare.rules)}): {spare.words}; {len(good)} good nodes are "
            f"enough for --need {job.asked.need}",
            fix=Fix("Start the job on the good nodes only.", (commands[launched.engine],)),
            evidence={"rules": list(spare.rules), "good": list(good)},
            excludes=True,
        )


def _failed(launched: Launched) -> bool:
    """Whether the program that starts all probes started none."""
    return bool(launched.exit_code) and all(n.outcome in {"ended", "silent"} and not n.distcheck
                                             and n.exit_code is None for n in launched.nodes)  # fmt: skip


def _taken_along(launched: Launched, node: LaunchedNode) -> bool:
    """Whether a probe was ended by no fault of its node: with all, by a signal or where another cannot start."""
    if launched.interrupted:
        return True
    culprits = {"no probe", "unreachable"} & {n.outcome for n in launched.nodes}
    return launched.engine != "ssh" and bool(launched.exit_code and culprits) and node.exit_code is None


def _of(job: Job, outcome: str) -> list[tuple[Launched, list[LaunchedNode]]]:
    """Return the nodes with an outcome; none where the program that starts them is what failed."""
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
    """Return a finding about nodes; what all nodes have in common is no fault of a node, unless `shared` denies it."""
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
    """Group nodes by what became of them: the same exit code and the same words, but for the nodes' own names."""
    names = {n.name for n in launched.nodes}

    def cause(node: LaunchedNode) -> tuple[int | None, str]:
        return node.exit_code, _NAME.sub(lambda word: "" if word[0] in names else word[0], _said(node.words))

    return grouped(nodes, cause).values()


def _where(nodes: Sequence[LaunchedNode]) -> str:
    ranks = [rank for n in nodes for rank in n.ranks]
    return f"{listed([n.name for n in nodes])} ({numbered(ranks)})" if ranks else listed([n.name for n in nodes])


def _said(words: str) -> str:
    """Return the line that tells most: the last one that speaks of a failure, but not the launcher's summary."""
    lines = [line for line in words.splitlines() if any(map(str.isalnum, line)) and "xited with exit code" not in line]
    telling = [line for line in lines if _TELLING.search(line)]
    return brief((telling or lines or ["it said nothing"])[-1], 160)


def _on(launched: Launched, node: LaunchedNode) -> str:
    """Return what runs a command on a node."""
    if launched.engine == "ssh":
        return f"ssh {node.name}"
    return f"srun --nodelist={node.name} --ntasks=1" if launched.engine == "slurm" else f"mpirun --host {node.name}"


def _python(launched: Launched) -> str:
    """Return the Python that the nodes were to run."""
    return next((word for word in launched.command if "python" in word), "python3")
