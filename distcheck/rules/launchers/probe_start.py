"""Rules about starting probes from outside the job: nodes that could not be checked."""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.quantities import duration
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, NotChecked
from distcheck.rules.job.own_failures import own_failure
from distcheck.rules.launchers.started_probes import (
    about_nodes,
    alike,
    ended_with_others,
    error_line,
    no_probe_started,
    nodes_with,
    python_of,
    run_on,
    where,
)
from distcheck.rules.wording import brief, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job

_NO_MODULE = re.compile(r"No module named '?distcheck")
_STARTED_BY = {"ssh": "ssh", "slurm": "srun", "mpi": "mpirun"}


@rule("launch")
def launch_failed(job: Job) -> Iterator[Outcome]:
    """The launcher, srun or mpirun, exited before it had started any process.

    The job would fail in the same way. The usual causes are an option that the site does not accept, a closed
    partition, an expired allocation, and unavailable nodes. Found by the launcher's exit code when no probe reported;
    the launcher's own output is shown.

    Fix: correct the reported error; ``--launcher-args`` passes the job's own options to the launcher.
    """
    launched = job.launched
    if launched is None or not no_probe_started(launched):
        return
    program = launched.command[0]
    yield Fault(
        nodes=tuple(n.name for n in launched.nodes),
        message=f"{program} exited with code {launched.exit_code} and started no probe: {error_line(launched.words)}",
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
    for launched, nodes in nodes_with(job, "unreachable"):
        for group in alike(launched, nodes):
            names = tuple(n.name for n in group)
            command = f"ssh {quote(names[0])} true"  # mpirun logs in by ssh, too
            if launched.engine == "slurm":
                command = f"sinfo -N -l -n {quote(','.join(names))}"
            yield about_nodes(
                launched,
                group,
                f"{_STARTED_BY[launched.engine]} could not start anything on {where(group)}: "
                f"{error_line(group[0].words)}",
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
    for launched, nodes in nodes_with(job, "no probe"):
        for group in alike(launched, nodes):
            node, python = group[0], python_of(launched)
            if _NO_MODULE.search(node.words):
                problem = f"distcheck is not installed in {python} on {where(group)}"
                fix = Fix(
                    "Install it in the Python that the job uses there, or select that Python with --python.",
                    (run_on(launched, node, python, "-m", "pip", "install", f"distcheck=={job.distcheck}"),),
                )
            else:
                problem = f"{python} cannot be run on {where(group)}"
                fix = Fix(
                    "Install Python there, or select the job's Python with --python. If it is on a shared file "
                    "system, check that the file system is mounted.",
                    (run_on(launched, node, "ls", "-lL", python), run_on(launched, node, "mount")),
                )
            yield about_nodes(launched, group, f"{problem}: {error_line(node.words)}", fix, confirmed=True)


@rule("launch", scope=("job", "node"))
def launch_probe_unreadable(job: Job) -> Iterator[Outcome]:
    """A node runs an incompatible version of distcheck, so its facts cannot be read.

    The state of its ranks is unknown, so there is no verdict. Nodes with different environments cause failures in
    torch too. Found by the version that the probe reports first. Compatible versions are only a warning
    (``probe-version-differs``).

    Fix: install the same version on every node.
    """
    for launched, nodes in nodes_with(job, "unreadable"):
        versions = listed(sorted({n.distcheck for n in nodes}))
        yield about_nodes(
            launched,
            nodes,
            f"distcheck {versions} on {where(nodes)} is incompatible with {job.distcheck} here",
            Fix(
                f"Install distcheck {job.distcheck} on every node, or one Python for all of them (--python).",
                (
                    run_on(
                        launched, nodes[0], python_of(launched), "-m", "pip", "install", f"distcheck=={job.distcheck}"
                    ),
                ),
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
    for launched, ended_nodes in nodes_with(job, "ended"):
        failed = [n for n in ended_nodes if not own_failure(n)]
        others = ended_with_others(launched, failed)
        explained = {n.name for n in others}
        nodes = [n for n in failed if n.name not in explained]
        if others:
            yield NotChecked(
                ranks=tuple(rank for n in others for rank in n.ranks),
                nodes=tuple(n.name for n in others),
                reason=f"{launched.command[0]} failed on another node and ended the probes there",
            )
        for group in alike(launched, nodes):
            code = group[0].exit_code
            ended = "exited" if code is None else f"exited with code {code}"
            yield about_nodes(
                launched,
                group,
                f"the probe on {where(group)} {ended} before it reported: {error_line(group[0].words)}",
                Fix(
                    "Run the same command there by hand and read its output.",
                    (run_on(launched, group[0], *launched.command[-4:]),) if launched.engine == "ssh" else (),
                ),
                confirmed=False,
            )


@rule("launch", scope="tool", owner="unknown")
def launch_probe_broken(job: Job) -> Iterator[Outcome]:
    """A probe ended because distcheck itself failed on a node.

    The results of the probe are incomplete or missing, so the verdict cannot be pass. The fault is distcheck's: neither
    the node nor the job is to blame. Found by the exit code 70 and the last line of the probe.

    Fix: send the line to distcheck's developers; ``--save job.json`` saves the facts that arrived.
    """
    nodes = job.launched.nodes if job.launched else ()
    for line, group in grouped((n for n in nodes if own_failure(n)), own_failure).items():
        yield Fault(
            ranks=tuple(rank for n in group for rank in n.ranks),
            nodes=tuple(n.name for n in group),
            message=f"distcheck itself failed on {where(group)}: {brief(line, 160)}",
            evidence={n.name: n.words for n in group},
            fix=Fix("Save the job with --save and report this line to distcheck's developers."),
        )


@rule("launch", scope="node")
def launch_probe_silent(job: Job) -> Iterator[Outcome]:
    """A probe was started on a node but did not report before the timeout.

    The node hangs, its file system does not respond, or the login waits for input. Found when the run's timeout
    expired without a report from the node.

    Fix: log in by hand; for slow nodes raise ``--timeout``.
    """
    for launched, nodes in nodes_with(job, "silent"):
        yield about_nodes(
            launched,
            nodes,
            f"no report from {where(nodes)} within {duration(job.seconds)}",
            Fix(
                "Check that a program can be started there; for slow nodes raise --timeout.",
                (run_on(launched, nodes[0], "uptime"),),
            ),
            confirmed=False,
            shared=False,
        )


@rule("launch", severity="warning", scope="node", owner="admin")
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
    names = quote(",".join(good))
    commands = {
        "slurm": f"# add to srun: --nodelist={names} --nodes={len(good)}",
        "ssh": f"distcheck {job.asked.command}",
        "mpi": f"# add to mpirun: --host {names}",
    }
    for spare in job.left_out:
        yield Fault(
            nodes=(spare.name,),
            message=f"{spare.name} is excluded ({listed(spare.rules)}): {spare.words}; {len(good)} good nodes "
            f"satisfy --need {job.asked.need}",
            fix=Fix("Start the job on the good nodes only.", (commands[launched.engine],)),
            evidence={"rules": list(spare.rules), "good": list(good)},
            excludes=True,
        )
