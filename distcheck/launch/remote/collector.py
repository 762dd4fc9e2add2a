"""Collects the output of a launch's probes: their facts, or the reason why there are none."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from distcheck import __version__
from distcheck.facts.asked import Asked
from distcheck.facts.job import Fate, Job, Launched, LaunchedNode
from distcheck.facts.saved import join
from distcheck.launch.remote.frames import Arrived, Collected, Concluded, Message, Reader
from distcheck.launch.remote.spec import Outside, Words
from distcheck.launch.remote.ssh import CANNOT_LOG_IN
from distcheck.rollcall.protocol import Report

_NOT_FOUND = frozenset({126, 127})
_NO_PROBE = re.compile(
    r"No module named '?distcheck|unable to find the specified executable|could not find executable|execve\(\)|"
    r"could not access\s+or execute an executable|execvp error|command not found|No such file or directory",
)
_NO_NODE = re.compile(
    r"Communication connection failure|Node failure|Unable to contact|No route to host|Connection (?:refused|timed "
    r"out)|Permission denied \(|Host key verification failed|Could not resolve hostname|Requested nodes are busy",
)
_LAST_LINES = 12
_EXITED = re.compile(r"[Ee]xited with exit code (\d+)")
_OURS = "distcheck: "
STAGE = re.compile(r"distcheck: (roll call|peers|collectives|isolation): ")
"""The begin of the line that the leader prints for a stage."""


class Heard(NamedTuple):
    """A node's output besides facts, and its exit codes."""

    words: deque[str]
    codes: list[int]


class Homecoming:
    """Reads the output of a launch's commands and builds the job."""

    def __init__(self, launch: Outside, words: Words, say: Callable[[str], None], *, live: bool = False) -> None:
        """Pass on distcheck's own lines; with a `live` line, keep those about stages for it."""
        self.launch, self._words, self._say, self._live = launch, words, say, live
        self.stage = ""
        """What the leader said last of its stage."""
        self._ranks, self._tasks = launch.ranks_by_name(), launch.host_of_task
        self._reader = Reader()
        self._arrived: dict[str, str] = {}
        """The version of the probe, by host."""
        self._unread: dict[str, str] = {}
        """Why the facts of a host could not be read."""
        self._reports: dict[str, Report] = {}
        self._jobs: list[Job] = []
        self._nodes = {host: Heard(deque(maxlen=_LAST_LINES), []) for host in launch.hosts}
        self._engine = Heard(deque(maxlen=_LAST_LINES), [])
        self._blamed: set[str] = set()
        """Nodes that the engine's own output names."""
        self._stopped: set[str] = set()
        """Nodes whose probes had not ended by themselves when all were stopped."""
        self.concluded_at: float | None = None
        """time.monotonic() at which the leader sent the whole job."""

    # -- listening ---------------------------------------------------------------------------------------------

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        """Process a line of a command's standard output or standard error."""
        rest = words
        if not error:
            line = self._reader.take(words)
            rest = line.words
            if line.sender:
                host = self._host(key, rest.decode("utf-8", "replace"))
                self._take(host, line.message, line.unread)
                return
        self._hear(key, rest.decode("utf-8", "replace").rstrip())

    def ended(self, key: str, code: int) -> None:
        """Record that a command has ended."""
        (self._nodes.get(key) or self._engine).codes.append(code)

    def note_stopped(self) -> None:
        """Note that all probes are now stopped: how they end says nothing about them."""
        self._stopped = self._stopped or {host for host, heard in self._nodes.items() if not heard.codes}

    @property
    def silent(self) -> list[str]:
        """The nodes whose facts are not there."""
        here = self._here(*self._reports.values())
        return [host for host in self._ranks if host not in here]

    def _here(self, *facts: Report | Job) -> set[str]:
        """Return the nodes that these facts are of."""
        known = {r.placement.rank for each in facts for r in each.ranks}
        names = {node.name for each in facts for node in (each.nodes if isinstance(each, Job) else (each.node,))}
        return {host for host, ranks in self._ranks.items() if (known.issuperset(ranks) if ranks else host in names)}

    @property
    def nobody_else(self) -> bool:
        """Whether no further process will join the roll call.

        That is so if some nodes ended without facts and all others have sent theirs.
        """
        ended = {host for host, heard in self._nodes.items() if heard.codes}
        if not ended:
            return False
        here = {host for host in self._here(*self._reports.values()) if self._ranks[host]}
        return bool(here) and bool(ended - here) and len(here | ended) == len(self._nodes)

    def _host(self, key: str, text: str) -> str | None:
        """Return the node that a line came from: its command's, or that of its label's task."""
        if key in self._nodes:
            return key
        labelled = self._words.of_task.match(text)
        task = int(labelled[1]) if labelled and labelled[1] else len(self._tasks)
        return self._tasks[task] if task < len(self._tasks) else None

    def _take(self, host: str | None, message: Message | None, unread: str) -> None:
        match message:
            case Arrived() if host is not None:
                self._arrived[host] = message.distcheck
            case Collected():
                self._reports[message.report.process.uid] = message.report
            case Concluded():
                self._jobs.append(message.job)
                if message.job.met:
                    self.concluded_at = time.monotonic()
        if unread and host is not None:
            self._unread[host] = unread

    def _hear(self, key: str, text: str) -> None:
        """Record output of a node or of the engine; pass on distcheck's own progress lines."""
        heard = self._nodes.get(key) or self._engine
        host, labelled = self._host(key, text), self._words.of_task.match(text)
        if host is not None and host != key and labelled:
            heard, text = self._nodes[host], labelled[2]
        for pattern in self._words.of_node:
            found = pattern.search(text)
            if found and found[1] in self._nodes:
                heard = self._nodes[found[1]]
                self._blamed.add(found[1])
                exited = _EXITED.search(text)
                heard.codes.extend([int(exited[1])] if exited else [])
        if STAGE.match(text):  # nothing that explains why a node has no facts
            self.stage = text.removeprefix(_OURS)
            if not self._live:
                self._say(self.stage)
            return
        if text.startswith(_OURS):
            self._say(text.removeprefix(_OURS))
        if text.strip():
            heard.words.append(text)

    # -- the job -----------------------------------------------------------------------------------------------

    def job(self, asked: Asked, command: tuple[str, ...], seconds: float, *, ended: str, interrupted: int) -> Job:
        """Return the job with all facts so far.

        `ended` says why the launch ended early, '' if it did not; `interrupted` is the signal that ended it, or 0.
        """
        whole = max(self._jobs, key=lambda j: (j.met, len(j.ranks)), default=None)
        if whole is None:
            reason = ended or "no probe reported a result"
            whole = Job(
                distcheck=__version__,
                run="",
                asked=asked,
                skipped=dict.fromkeys((look for look in asked.looks if look not in {"launch", "environment"}), reason),
            )
        facts = [(job.nodes, job.processes, job.ranks) for job in self._jobs]
        facts += [((report.node,), (report.process,), report.ranks) for report in self._reports.values()]
        whole = join(whole, facts)
        # A gate that failed adds the look for a bad node, which the request does not have.
        looks = asked.looks + tuple(look for look in whole.asked.looks if look not in asked.looks)
        asked = msgspec.structs.replace(asked, looks=looks)
        whole = msgspec.structs.replace(
            whole, distcheck=__version__, run=whole.run or "0", asked=asked, seconds=round(seconds, 3)
        )
        return msgspec.structs.replace(whole, launched=self._launched(whole, command), interrupted=interrupted)

    def _launched(self, job: Job, command: tuple[str, ...]) -> Launched:
        here, nodes = self._here(job), []
        for host, heard in self._nodes.items():
            reported = host in here
            words = "\n".join([*(self._engine.words if host in self._blamed and not reported else ()), *heard.words])
            code = next((c for c in reversed(heard.codes) if c), heard.codes[-1] if heard.codes else None)
            nodes.append(
                LaunchedNode(
                    name=host,
                    ranks=self._ranks[host],
                    outcome="reported" if reported else self._fate(host, words, code),
                    exit_code=code,
                    words=words,
                    distcheck=self._arrived.get(host, ""),
                )
            )
        return Launched(
            engine=self.launch.engine,
            command=command,
            nodes=tuple(nodes),
            exit_code=self._engine.codes[-1] if self._engine.codes else None,
            words="\n".join(self._engine.words),
        )

    def _fate(self, host: str, words: str, code: int | None) -> Fate:
        """Return what happened to a probe whose facts are missing."""
        if host in self._unread or self._arrived.get(host, __version__) != __version__:
            return "unreadable"
        if host in self._arrived:
            return "silent" if host in self._stopped else "ended"
        if self.launch.engine == "ssh" and code == CANNOT_LOG_IN:
            return "unreachable"
        if code in _NOT_FOUND or _NO_PROBE.search(words):
            return "no probe"
        if self.launch.engine != "ssh" and _NO_NODE.search(words):
            return "unreachable"
        return "ended" if code is not None or self._engine.codes else "silent"
