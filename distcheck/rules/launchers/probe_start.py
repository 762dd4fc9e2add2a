"""Rules about starting probes from outside the job: nodes that could not be checked."""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.quantities import duration
from distcheck.rules import Answer, Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.own_failures import own_failure
from distcheck.rules.launchers.started_probes import (
    Started,
    ended_with_others,
    error_line,
    no_probe_started,
    nodes_with,
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

    Fix: Run this command to see the launcher's error; pass the job's own options with --launcher-args.

        {launcher|srun} hostname
    """
    launched = job.launched
    if launched is None or not no_probe_started(launched):
        return
    program = launched.command[0]
    yield Fault(
        f"{program} exited with code {launched.exit_code} and started no probe: {error_line(launched.words)}",
        evidence={"command": " ".join(launched.command), "exit_code": launched.exit_code, "words": launched.words},
        nodes=tuple(n.name for n in launched.nodes),
        values={"launcher": (program,)},
    )


@rule("launch", scope=("job", "node"), of=nodes_with("unreachable"))
def launch_node_unreachable(_: Job, started: Started) -> Answer:
    """A node could not be reached by ssh, or Slurm could not start a task on it.

    The job will not start there either: srun reports ``Communication connection failure`` or ``Node failure``, ssh
    ``Connection timed out``, ``No route to host`` or ``Permission denied``. Found by ssh's exit code 255, or by
    srun's message about the node, which is shown. A single failure does not confirm that the node is bad.

    Fix: Check that the node is up and that login works without a prompt.

        {look|ssh NODE true}
    """
    engine, names = started.launched.engine, started.names
    look = f"ssh {quote(names[0])} true"  # mpirun logs in by ssh, too
    if engine == "slurm":
        look = f"sinfo -N -l -n {quote(','.join(names))}"
    return Fault(
        f"{_STARTED_BY[engine]} could not start anything on {started}: {started.error}",
        confirmed=False,
        values={"look": (look,)},
    )


@rule("launch", scope=("job", "node"), of=nodes_with("no probe"))
def launch_probe_missing(job: Job, started: Started) -> Answer:
    """Python, or distcheck in it, is not installed on a node.

    The job usually uses the same Python and would fail with ``python: No such file or directory`` or ``No module named
    ...``, exit code 127. A shared file system is not mounted, or the environment is installed on some of the nodes
    only. Found by the exit code and the output of the node.

    Fix: mount the file system or install the environment there; ``--python PATH`` and ``--setup '...'`` select what
    the job uses.
    """
    python = started.python
    if _NO_MODULE.search(started.nodes[0].words):
        return Fault(
            f"distcheck is not installed in {python} on {started}: {started.error}",
            Fix(
                "Install it in the Python that the job uses there, or select that Python with --python.",
                (started.run(python, "-m", "pip", "install", f"distcheck=={job.distcheck}"),),
            ),
        )
    return Fault(
        f"{python} cannot be run on {started}: {started.error}",
        Fix(
            "Install Python there, or select the job's Python with --python. If it is on a shared file system, check "
            "that the file system is mounted.",
            (started.run("ls", "-lL", python), started.run("mount")),
        ),
    )


@rule("launch", scope=("job", "node"), of=nodes_with("unreadable", together=True))
def launch_probe_unreadable(job: Job, started: Started) -> Answer:
    """A node runs an incompatible version of distcheck, so its facts cannot be read.

    The state of its ranks is unknown, so there is no verdict. Nodes with different environments cause failures in
    torch too. Found by the version that the probe reports first. Compatible versions are only a warning
    (``probe-version-differs``).

    Fix: Install the same version of distcheck on every node, or one Python for all of them (--python).

        {install|python3 -m pip install distcheck==VERSION}
    """
    versions = listed(sorted({n.distcheck for n in started.nodes}))
    install = started.run(started.python, "-m", "pip", "install", f"distcheck=={job.distcheck}")
    return Fault(
        f"distcheck {versions} on {started} is incompatible with {job.distcheck} here",
        confirmed=False,
        values={"install": (install,)},
    )


@rule("launch", scope=("job", "node"), of=nodes_with("ended"))
def launch_probe_failed(_: Job, started: Started) -> Answer:
    """A probe exited before it reported any facts.

    The ``--setup`` command failed, the probe was OOM-killed (exit code 137), or the launcher ended it. Found by an
    exit code without facts; the end of its output is shown.

    Fix: Run the same command there by hand and read its output.

        {run|ssh NODE distcheck env}
    """
    launched, code = started.launched, started.nodes[0].exit_code
    if ended_with_others(started):
        return Missing(reason=f"{launched.command[0]} failed on another node and ended the probes there")
    ended = "exited" if code is None else f"exited with code {code}"
    return Fault(
        f"the probe on {started} {ended} before it reported: {started.error}",
        confirmed=False,
        values={"run": (started.run(*launched.command[-4:]),) if launched.engine == "ssh" else ()},
    )


@rule("launch", scope="tool", owner="unknown")
def launch_probe_broken(job: Job) -> Iterator[Outcome]:
    """A probe ended because distcheck itself failed on a node.

    The results of the probe are incomplete or missing, so the verdict cannot be pass. The fault is distcheck's: neither
    the node nor the job is to blame. Found by the exit code 70 and the last line of the probe.

    Fix: Report this line to distcheck's developers, with the facts that arrived (``--save job.json``).
    """
    launched = job.launched
    broken = grouped(launched.nodes, own_failure) if launched else {}
    for line, nodes in broken.items():
        if launched and line:
            started = Started(launched, nodes)
            yield Fault(
                f"distcheck itself failed on {started}: {brief(line, 160)}",
                evidence={n.name: n.words for n in nodes},
                ranks=started.ranks,
                nodes=started.names,
            )


@rule("launch", scope="node", of=nodes_with("silent", together=True))
def launch_probe_silent(job: Job, started: Started) -> Answer:
    """A probe was started on a node but did not report before the timeout.

    The node hangs, its file system does not respond, or the login waits for input. Found when the run's timeout
    expired without a report from the node.

    Fix: Check that a program can be started there; for slow nodes raise --timeout.

        {look|ssh NODE uptime}
    """
    words = f"no report from {started} within {duration(job.seconds)}"
    return Fault(words, confirmed=False, values={"look": (started.run("uptime"),)})


@rule("launch", severity="warning", scope="node", owner="admin")
def launch_node_left_out(job: Job) -> Iterator[Outcome]:
    """A bad node was excluded; the remaining nodes satisfy ``--need``.

    ``--need`` sets how many nodes suffice. distcheck checked the remaining nodes again without the bad one, and the
    verdict is about them. This is a warning because the node still needs repair. Found by the first check of all nodes.

    Fix: Start the job on the good nodes only, and have the excluded one repaired.

        {start|srun --nodelist=NODES --nodes=NUMBER COMMAND}
    """
    launched = job.launched
    if launched is None or not job.left_out:
        return
    good = [n.name for n in launched.nodes]
    names = quote(",".join(good))
    start = {
        "slurm": f"# add to srun: --nodelist={names} --nodes={len(good)}",
        "ssh": f"distcheck {job.asked.command}",
        "mpi": f"# add to mpirun: --host {names}",
    }[launched.engine]
    for spare in job.left_out:
        yield Fault(
            f"{spare.name} is excluded ({listed(spare.rules)}): {spare.words}; {len(good)} good nodes "
            f"satisfy --need {job.asked.need}",
            evidence={"rules": list(spare.rules), "good": good},
            nodes=(spare.name,),
            values={"start": (start,)},
            excludes=True,
        )
