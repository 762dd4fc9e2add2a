"""The answer to logs: a document with causes, fixes and what to run next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from distcheck.explain import remedies
from distcheck.explain.barrier import barrier
from distcheck.explain.fixes import PARTITIONS, STACK
from distcheck.explain.gloo import unheard
from distcheck.explain.hang import Hang, hang, mismatch
from distcheck.explain.judging import LikelyCause, judged
from distcheck.explain.known import known
from distcheck.explain.matching import Matcher, Sighting
from distcheck.explain.places import of_path
from distcheck.explain.quoted import quoted
from distcheck.explain.reading import logs, pieces
from distcheck.explain.redaction import shown
from distcheck.explain.spelling import CONSEQUENCE, HINT, About, Spelling
from distcheck.explain.waits import Waits
from distcheck.explain.watchdog import WatchdogLines
from distcheck.rules import find_rule
from distcheck.rules.finding import Fix

_NEXT: dict[str, tuple[str, ...]] = {
    "start-up": (
        "distcheck env  # in place of the script, started in the same way",
        "distcheck gate -- COMMAND  # in the job's launcher; COMMAND: what it starts now",
    ),
    "network": (
        "distcheck net --hosts NODES  # the nodes of the job, as in node1,node2",
        "NCCL_DEBUG=WARN COMMAND  # COMMAND: what starts the job",
    ),
    "GPU": ("distcheck gpu --nproc auto  # on the node of the rank", "sudo dmesg -T | grep -i xid"),
    "process killed": (
        "sudo dmesg -T | grep -i -E 'oom|killed process'  # on the node of the rank",
        "distcheck node  # there, too",
    ),
    "application": (
        "TORCH_DISTRIBUTED_DEBUG=DETAIL TORCH_SHOW_CPP_STACKTRACES=1 COMMAND  # COMMAND: what starts the job",
    ),
    "": (
        "distcheck gate --nproc auto",
        "NCCL_DEBUG=WARN TORCH_DISTRIBUTED_DEBUG=DETAIL COMMAND  # COMMAND: what starts the job",
    ),
}
"""What to run when no rule names the cause, by its class."""
_AFTER_A_HANG = (
    "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
    'export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$PWD/nccl_trace_rank_"  # then start the job again',
    "distcheck explain --flight nccl_trace_rank_*  # after the next hang: names the rank that holds up the others",
)
"""What to run when a collective timed out."""
_WITH_DUMPS = (
    "distcheck explain --flight DUMPS  # DUMPS: what the ranks wrote, by default ~/.cache/torch/*_trace_rank_*",
)
"""What to run when a collective timed out and the log shows that there are dumps."""


_IN_GLOO = (
    "TORCH_DISTRIBUTED_DEBUG=DETAIL COMMAND  # COMMAND: what starts the job; the ranks then compare every collective"
)
"""What to run after a failure in a collective of Gloo, whose Flight Recorder writes no file by itself."""
_OF_GLOO = re.compile(r"gloo/|gloo::|Gloo\b")
"""What the code of Gloo and of its process groups writes, in contrast to a script that names the backend."""
_JOB = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)")
_STACKS = ("grep -rn -B 30 'Detected mismatch between' LOGS  # LOGS: the job's logs; where in the script each rank is",)
"""What to run when the ranks have compared their collectives."""
_AFTER_A_CRASH = ("PYTHONFAULTHANDLER=1 COMMAND  # COMMAND: what starts the job; a rank that crashes prints its stack",)
"""What to run when a process crashed and wrote no reason."""
_IN_SLURM = "sacct -j {job} --format=JobID,State,ExitCode,Elapsed,Timelimit"
"""Shows why Slurm ended a job."""
_FRAMES = ("grep -rn -A 30 'Fatal Python error' LOGS  # LOGS: the job's logs; where in the script the process was",)
"""What to run when a process that crashed printed its Python stack."""
_AFTER_SIGTERM = (
    "distcheck explain --log LOGS  # LOGS: all logs of the job, of sbatch and srun, --output and --error",
    f"{_IN_SLURM.format(job='JOB')}  # with Slurm; JOB: the number of the job",
)
"""What to run when a job was ended from outside and its log does not say why."""


class NamedCause(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that may name the cause, and the line that shows it."""

    rule: str
    summary: str
    about: About = msgspec.field(name="class")
    line: int
    file: str
    rank: int | None
    local_rank: int | None
    """The rank's number on its node, where the log has no other."""
    node: str | None
    text: str
    """About 160 characters around the match, redacted."""
    times: int
    fix: Fix
    prove: str
    """The command that shows whether the rule applies."""
    docs: str


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """The line that tells most."""

    line: int
    file: str
    rank: int | None
    local_rank: int | None
    """The rank's number on its node, where the log has no other."""
    node: str | None
    text: str
    says: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What logs tell. `causes` is empty if no rule names the cause."""

    schema: int = 1
    causes: tuple[NamedCause, ...]
    about: About | None = msgspec.field(name="class")
    telling: Telling | None
    hang: Hang | None = None
    """What the lines of all ranks prove about a collective that timed out or failed, if no rule names the cause."""
    later: tuple[Telling, ...] = ()
    """Consequences, and lines that the cause does not explain."""
    next: tuple[str, ...] = ()
    """Commands to run next."""
    unread: tuple[str, ...] = ()
    """Files of directories that were not read, or not to their end, each with the reason."""

    @property
    def exit_code(self) -> int:
        """0 if a cause was found, 20 if not."""
        return 0 if self.causes else 20


@cache
def spellings() -> tuple[Spelling, ...]:
    """Return all spellings: those of the tables, and those that the rules quote."""
    return (*known(), *quoted())


def explained(paths: Sequence[Path]) -> Answer:
    """Return the answer to logs: files, directories, or - for standard input.

    Raises:
        UsageError: a log that is named itself cannot be read.
    """
    matcher, watchdog = Matcher(spellings()), WatchdogLines()
    seen: list[Sighting] = []
    unread: list[str] = []
    for log in logs(paths, unread):
        of_file = of_path(log.path)
        found = matcher.search(watchdog.watched(pieces(log, unread), of_file), log.name, of_file)
        seen += sorted(found, key=lambda sighting: sighting.line)
    return msgspec.structs.replace(answer(seen, watchdog.seen()), unread=tuple(map(shown, unread)))


def answer(seen: Sequence[Sighting], watch: Waits | None = None) -> Answer:
    """Return the answer to the lines that were found, which are in the order of the logs.

    The watchdog's lines count only if a collective that timed out is all that the log shows.
    """
    if any(s.tags & {"root-cause", "failed"} for s in seen):  # torchrun numbers the ranks
        seen = [s._replace(place=s.place._replace(rank=None)) if s.place.of_task else s for s in seen]
    judgement = judged(seen, watch.lost if watch else ())
    first = judgement.telling
    if first is None:
        return Answer(causes=(), about=None, telling=None, next=_NEXT[""])
    root = next((s for s in seen if "root-cause" in s.tags), None)
    nodes = tuple(dict.fromkeys(s.place.node for s in seen if s.place.node))
    values = {name: value for s in reversed(seen) for name, value in s.values.items() if "root-cause" not in s.tags}
    causes = tuple(_named(cause, root if cause.seen is first else None, values, nodes) for cause in judgement.causes)
    later = {(s.file, s.line): s for s in reversed(judgement.consequences) if s.spelling.weight > HINT}
    later.pop((first.file, first.line), None)
    proofs = dict.fromkeys(cause.prove for cause in causes[:1])
    found = None if causes else _hang(seen, watch, first.spelling)
    return Answer(
        causes=causes,
        about=judgement.about,
        telling=_telling(first, root),
        hang=found,
        later=tuple(_telling(s, None) for s in [*reversed(later.values())][:2]),
        next=tuple(proofs) or _next(first, found, dumped=watch is not None and watch.dumped),
    )


def _hang(seen: Sequence[Sighting], watch: Waits | None, spelling: Spelling) -> Hang | None:
    """Return what lines prove about the collective of an error; the watchdog's all of it only if it timed out."""
    if spelling.weight <= CONSEQUENCE and (late := barrier(seen)):
        return late
    if watch is None:
        return None
    found = None
    if "collective" in spelling.tags:
        found = hang(watch) if spelling.weight == CONSEQUENCE else mismatch(watch)
    return found or (unheard(watch) if spelling.weight == CONSEQUENCE else None)


def _next(seen: Sighting, found: Hang | None, *, dumped: bool) -> tuple[str, ...]:
    """Return what to run if no rule names the cause of an error."""
    spelling, tags = seen.spelling, seen.tags
    collective = "collective" in tags and "script" not in tags
    if "mismatch" in tags:
        return _STACKS
    if "gloo" in tags or _OF_GLOO.search(seen.text):
        stuck = found.ranks[:1] if found and collective else ()
        return (*(STACK.format(rank=rank, on="  # on its node, while it hangs") for rank in stuck), _IN_GLOO)
    if "time-limit" in tags:
        job = _JOB.search(seen.text)
        return (_IN_SLURM.format(job=job[1] if job else "JOB"),)
    if "sigterm" in tags:
        return _AFTER_SIGTERM
    if "stack" in tags:
        return _FRAMES
    if "crash" in tags:
        return _AFTER_A_CRASH
    if collective:
        return _WITH_DUMPS if dumped else _AFTER_A_HANG
    return (PARTITIONS,) if "refused" in tags else _NEXT[spelling.about]


def _named(cause: LikelyCause, root: Sighting | None, values: dict[str, str], nodes: tuple[str, ...]) -> NamedCause:
    told, rule = _telling(cause.seen, root), find_rule(cause.rule)
    if rule is None:
        raise LookupError(f"no rule is named {cause.rule}")
    own = values | cause.seen.values
    return NamedCause(
        rule=rule.name,
        summary=rule.summary.replace("``", "`"),
        about=cause.seen.spelling.about,
        line=told.line,
        file=told.file,
        rank=told.rank,
        local_rank=told.local_rank,
        node=told.node,
        text=told.text,
        times=cause.seen.times,
        fix=remedies.fix(rule.name, own, told.text),
        prove=remedies.proof(rule.name, own, nodes),
        docs=rule.page,
    )


def _telling(seen: Sighting, root: Sighting | None) -> Telling:
    rank, node, local, _ = seen.place
    if root and rank is None and (seen is root or _may_be(root, node, local)):
        rank, node = _number(root, "rank"), root.values.get("node", node)
    return Telling(
        line=seen.line,
        file=shown(seen.file),
        rank=rank,
        local_rank=local if rank is None else None,
        node=node,
        text=seen.text,
        says=seen.spelling.says,
    )


def _may_be(root: Sighting, node: str | None, local: int | None) -> bool:
    """Whether the rank that torchrun's agent saw fail first may have this place."""
    return node in {None, root.values.get("node")} and local in {None, _number(root, "local")}


def _number(seen: Sighting, name: str) -> int | None:
    value = seen.values.get(name)
    return int(value) if value else None
