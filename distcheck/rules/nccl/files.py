"""Rules about NCCL's configuration files, and the files that its variables name."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.quantities import count
from distcheck.rules import NCCL_NAMES, Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.kinds import each_rank, ranks_by
from distcheck.rules.job.nccl_remedies import redo, replace, undo
from distcheck.rules.nccl.settings import alike, may_use_nccl, owner_of, untrimmed, weigh
from distcheck.rules.wording import brief, found, grouped, listed, named
from distcheck.selection.nccl_settings import ENVIRONMENT, Setting, pair, setting_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.nccl import NamedPath, NcclFile
    from distcheck.facts.rank import RankFacts

_NAME = re.compile(r"\W*(?:export\s+|setenv\s+)?[\"']?([A-Z][A-Z0-9_]+)")


def _files(job: Job) -> dict[NcclFile, list[RankFacts]]:
    """Return the ranks by each configuration file that their NCCL reads."""
    there: dict[NcclFile, list[RankFacts]] = {}
    for group in alike(job):
        for file in group.files:
            there.setdefault(file, []).extend(group.ranks)
    return there


@rule("environment", severity="warning", scope="rank")
def nccl_conf_file_surprise(job: Job) -> Iterator[Outcome]:
    """Settings of NCCL come from a configuration file and not from the job's environment.

    NCCL reads the file that NCCL_CONF_FILE names, or ~/.nccl.conf without it, and then /etc/nccl.conf; RCCL reads
    ~/.rccl.conf and /etc/rccl.conf. A variable of the process goes before them. In a container the home folder and /etc
    are often others than on the host, so that the settings change with the image.

    Found by reading these files as NCCL does. It is an info if they set something. It is a warning if a file cannot be
    read, or if NCCL_CONF_FILE names a file that does not exist: NCCL then reads no user's file at all and prints no
    message.

    Fix: move the settings into the job's environment, or check the file that the finding names.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-conf-file
    """
    for file, ranks in _files(job).items():
        if reason := _unread(job, file, ranks):
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: {reason}, so NCCL applies none of its settings",
                Fix("Correct the path, or make the file readable.", (f"ls -l {shlex.quote(file.path)}",)),
                severity=weigh(job, "warning"),
                owner=owner_of([Setting("", file.path)]),
                evidence={"file": file.path},
            )
    applied = [
        (name, setting, group.ranks)
        for group in alike(job)
        for name, setting in group.settings.items()
        if setting.origin != ENVIRONMENT
    ]
    for path, items in grouped(applied, lambda item: item[1].origin).items():
        values = {name: setting.value for name, setting, _ in items}
        ranks = list({id(r): r for _, _, group in items for r in group}.values())
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {path} sets {listed([f'{n}={brief(v, 40)}' for n, v in values.items()], most=3)}",
            Fix("No action if intended; otherwise remove the line.", (f"cat {shlex.quote(path)}",)),
            severity="info",
            owner=owner_of([items[0][1]]),
            evidence=values,
        )


def _unread(job: Job, file: NcclFile, ranks: list[RankFacts]) -> str:
    """Return why NCCL cannot read a file, '' if it can."""
    if isinstance(file.lines, Missing):
        return f"{file.path} cannot be read ({file.lines.reason.rpartition(': ')[2]})"
    seen = job.process_of(ranks[0]).named_paths.get("NCCL_CONF_FILE")
    if file.origin == "NCCL_CONF_FILE" and seen is not None and seen.state == "missing":
        return f"NCCL_CONF_FILE={file.path} does not exist"
    return ""


@rule("environment", severity="warning", scope="rank")
def nccl_conf_file_syntax(job: Job) -> Iterator[Outcome]:
    """A line of NCCL's configuration file is not read as intended.

    NCCL takes everything before the first = as the name and everything after it as the value. It removes no spaces,
    quotation marks or comments: ``export NCCL_DEBUG=WARN``, `` NCCL_DEBUG=WARN`` and ``NCCL_DEBUG = WARN`` set other
    names, and ``NCCL_DEBUG="WARN"`` and ``NCCL_DEBUG=WARN # note`` set other values. Only a # at the start of a line
    begins a comment. NCCL prints no message. Found by parsing the lines as NCCL does.

    Fix: write plain NAME=value lines.
    See: https://github.com/NVIDIA/nccl/blob/master/src/misc/param.cc (setEnvFile)
    """
    for file, ranks in _files(job).items():
        lines = () if isinstance(file.lines, Missing) else file.lines
        misread = {line: why for line in lines if (why := _misread(line))}
        if misread:
            line, why = next(iter(misread.items()))
            more = f"; similar in {count(len(misread) - 1, 'more line')}" if len(misread) > 1 else ""
            yield found(
                job,
                ranks,
                f"{named(job, ranks)}: {file.path} has the line {brief(line, 60)!r}, but {why}{more}",
                Fix("Write plain NAME=value lines.", tuple(_rewrite(line, file.path) for line in [*misread][:4])),
                severity=weigh(job, "warning"),
                owner=owner_of([Setting("", file.path)]),
                evidence=dict([*misread.items()][:8]),
            )


def _misread(line: str) -> str:
    """Return why NCCL does not read a line as intended, '' if it does."""
    match = _NAME.match(line)
    if match is None or not match[1].startswith(NCCL_NAMES):
        return ""
    if (read := pair(line)) is None:
        return "NCCL needs NAME=value"
    name, value = read
    if name != match[1]:
        return f"NCCL reads the name as {name!r}"
    return f"NCCL reads the value as {brief(value, 40)!r}" if untrimmed(value) else ""


def _rewrite(line: str, path: str) -> str:
    """Return the command that replaces a line by the one that was meant."""
    match = _NAME.match(line)
    name = match[1] if match else ""
    value = re.split(r"\s#", line.partition("=")[2])[0].strip().strip("\"'")
    return replace(path, f"^.*{name}[ =].*$", f"{name}={value}")


@rule("environment", severity="warning", scope="rank")
def nccl_debug_file_shared(job: Job) -> Iterator[Outcome]:
    """Several ranks write the same NCCL_DEBUG_FILE, or NCCL cannot create it.

    Each process truncates the file when it opens it, so that of several ranks only one log survives, with torn lines.
    NCCL replaces %h by the host's name and %p by the process id, and does not expand ``~``. If it cannot open the file
    it writes to standard output instead. Found by the path: no %p with several ranks on a node, no %h on a network file
    system, a ``~`` at its start, or a folder that does not exist or is not writable.

    Fix: ``export NCCL_DEBUG_FILE=/tmp/nccl.%h.%p``.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug-file
    """

    def written(rank: RankFacts) -> tuple[NamedPath, Setting] | None:
        seen = job.process_of(rank).named_paths.get("NCCL_DEBUG_FILE")
        return (seen, setting_of(job, rank, "NCCL_DEBUG_FILE") or Setting(seen.path)) if seen else None

    for (seen, setting), ranks in ranks_by(job, written).items() if may_use_nccl(job) else ():
        path, on = seen.path, grouped(ranks, lambda r: job.process_of(r).node)
        if path.startswith("/dev/"):
            continue
        if path.startswith("~"):
            problem = "NCCL does not expand ~"
        elif "%" not in path.rpartition("/")[0] and seen.folder != "writable":
            problem = f"its folder {'does not exist' if seen.folder == 'missing' else 'is not writable'}"
        elif "%p" not in path and max(map(len, on.values())) > 1:
            problem = "all ranks of a node write to it; expected %p in the name"
        elif "%h" not in path and "%p" not in path and seen.file_system and len(on) > 1:
            problem = f"all nodes write to it ({seen.file_system}); expected %h in the name"
        else:
            continue
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: NCCL_DEBUG_FILE={brief(path, 60)}, but {problem}",
            Fix(
                "Use one file for each process, in a folder that exists.",
                (redo("NCCL_DEBUG_FILE", setting, "/tmp/nccl.%h.%p"),),  # noqa: S108 NCCL's own example
            ),
            severity=weigh(job, "warning"),
            evidence={"NCCL_DEBUG_FILE": path, "folder": seen.folder},
        )


@rule("environment", severity="warning", scope="rank", of=each_rank)
def nccl_topo_file_stale(job: Job, rank: RankFacts) -> Fault | None:
    """NCCL's topology file cannot be read, or describes another machine.

    NCCL_TOPO_FILE, or /var/run/nvidia-topologyd/virtualTopology.xml without it, tells NCCL how GPUs and adapters are
    connected. If it cannot be opened NCCL continues without it and logs ``Could not open XML topology file`` at most. A
    file of another instance type leads to bad rings, to an error, or to a hang. Found by opening the file, and by
    comparing the bus ids of its GPUs with the node's PCI bus.

    Fix: unset NCCL_TOPO_FILE, or use the file of this instance type.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-file
    """
    seen = job.process_of(rank).named_paths.get("NCCL_TOPO_FILE")
    if seen is None or not may_use_nccl(job):
        return None
    if seen.state != "readable":
        problem = {"missing": "does not exist", "denied": "cannot be read"}.get(seen.state, "is no file")
    elif seen.absent_devices:
        problem = f"describes GPUs that this node does not have, such as {seen.absent_devices[0]}"
    else:
        return None
    setting = setting_of(job, rank, "NCCL_TOPO_FILE")
    return Fault(
        f"NCCL's topology file {brief(seen.path, 60)} {problem}",
        Fix("Unset NCCL_TOPO_FILE.", (undo("NCCL_TOPO_FILE", setting),))
        if setting
        else Fix("Remove the file, or replace it by that of this machine.", (f"ls -l {shlex.quote(seen.path)}",)),
        {"file": seen.path, **({"absent": list(seen.absent_devices)} if seen.absent_devices else {})},
        weigh(job, "warning"),
        owner=owner_of([setting]) if setting else "admin",
    )
