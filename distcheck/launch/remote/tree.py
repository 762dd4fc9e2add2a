"""Starts the probes of many hosts by ssh through a tree: some hosts are gateways, which log in to the others.

The hosts are divided into about sqrt(N) shares. The first host of a share is its gateway: it gets a second login, for
a process that starts the probes of the other hosts of the share (`gateway.py`). So the starting machine has open files
and processes for 2 sqrt(N) logins, and the depth is two logins for any number of hosts.

A tree only makes the start faster. These rules keep it from doing harm:

- **No host has two probes that join the roll call.** A probe begins when it reads its assignment. The starting machine
  sends that once the probe says that it is there, and to one probe of a host only.
- **No host is blamed for its gateway.** If a login through a gateway fails, or the probe is not there in time, then
  that login is ended and the starting machine logs in itself. Only what that login says is reported.
- **Nodes that cannot log in to each other are asked once.** A gateway logs in to one host, its scout, until a scout of
  any gateway is there. If the first scouts fail, the tree is given up: all other logins are direct at once.
- **Whatever ends, ends downwards.** A gateway that loses the starting machine ends its probes' input, and goes. After
  a probe has an assignment, nothing else starts on its host, except if its gateway ends before the probe's facts came.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from distcheck import __version__
from distcheck.launch.remote import engine, frames, gateway
from distcheck.launch.remote.engine import Listener, Starts, Wish
from distcheck.launch.remote.spec import Command
from distcheck.launch.remote.ssh import CANNOT_LOG_IN

FROM_HOSTS = 256
"""As many hosts as need a tree: below, four windows of logins are as fast as two logins and a start of Python."""
ANSWER_SECONDS = 5.0
"""How long a gateway, or a probe through it, may take to be there after the last that came: all may be slow."""
LATEST_SECONDS = 10.0
"""After so long, hosts that are not there through a gateway are started directly."""
_CONNECT_SECONDS = 2.0
"""For a gateway's logins: nodes of one network answer soon, and the direct login has more time."""
_GIVE_UP_PART, _GIVE_UP_LEAST = 4, 2
"""The tree is given up if the scouts of one in so many gateways failed, and at least of so many, and none is there."""
_GOING_SECONDS = 3.0
"""How long a gateway whose hosts are done may take to end."""
_HELD_LINES = 100
_BEYOND_SECONDS = 10.0
"""A gateway outlives the run's deadline by no more than this."""


def worth(hosts: int) -> bool:
    """Whether so many hosts are started through a tree."""
    return hosts >= FROM_HOSTS


def last_start_seconds(hosts: int) -> float:
    """Return after how many seconds the last of so many probes starts at the latest."""
    return engine.last_start_seconds(hosts) + (LATEST_SECONDS if worth(hosts) else 0.0)


def shares(hosts: Sequence[str]) -> list[Sequence[str]]:
    """Divide hosts into about sqrt(N) shares whose sizes differ by one at most; the first of each is its gateway."""
    number = max(1, round(math.sqrt(len(hosts))))
    bounds = [len(hosts) * i // number for i in range(number + 1)]
    return [hosts[low:high] for low, high in itertools.pairwise(bounds)]


def run(
    commands: Sequence[Command],
    gateway_line: str,
    listener: Listener,
    wish: Callable[[], Wish],
    *,
    seconds: float,
    connect_seconds: float,
    environment: Mapping[str, str],
) -> None:
    """Run one command per host, as `engine.run` does, most of them through gateways.

    `gateway_line` starts a gateway; all ends within about `seconds`.

    Raises:
        UsageError: this machine does not allow as many open files as the logins need.
    """
    tree = Tree(commands, listener, wish)
    logins = [
        Command(
            key=branch.key,
            host=branch.host,
            line=gateway_line,
            stdin=gateway.first(
                gateway.Portion(
                    line=commands[0].line,
                    hosts=branch.hosts,
                    connect_seconds=min(_CONNECT_SECONDS, connect_seconds),
                    seconds=seconds + _BEYOND_SECONDS,
                )
            ),
        )
        for branch in tree.branches
    ]
    own = [command for command in commands if command.key not in tree.branch_of]
    engine.run(
        [*logins, *own],
        tree,
        tree.wish,
        connect_seconds=connect_seconds,
        environment=environment,
        begun=tree.begun,
        later=len(tree.branch_of),
    )


@dataclass
class Branch:
    """A gateway and the hosts of its share, without itself."""

    key: str
    host: str
    hosts: tuple[str, ...]
    here: bool = False
    closed: bool = False
    """Whether its input has ended, or it has."""
    closed_at: float = math.inf
    left: set[str] = field(default_factory=set)
    """Hosts that have neither ended nor gone to a direct login."""


class Tree:
    """Decides which host is started by its gateway and which directly, and passes on what they say."""

    def __init__(self, commands: Sequence[Command], listener: Listener, wish: Callable[[], Wish]) -> None:
        self._commands = {command.key: command for command in commands}
        self._order = {host: n for n, host in enumerate(self._commands)}
        self._listener, self._wish = listener, wish
        self.branches = [
            Branch(f"gateway {own}", own, tuple(others), left=set(others))
            for own, *others in shares([command.key for command in commands])
            if others
        ]
        self.branch_of = {host: branch for branch in self.branches for host in branch.hosts}
        """The hosts that are not started directly from the beginning."""
        self._by_key = {branch.key: branch for branch in self.branches}
        self._asked_at: dict[str, float] = {}
        """When a gateway was asked to log in, by host."""
        self._held: dict[str, deque[tuple[bytes, bool]]] = {}
        """What a login printed before its probe was there."""
        self._assigned: set[str] = set()
        self._collected: set[str] = set()
        """Hosts whose facts came through a gateway."""
        self._failed = 0
        self._came = 0.0
        """When a gateway or a probe through one was there for the first time, the last of all."""
        self._starts: Starts
        self._began = math.inf

    def begun(self, starts: Starts) -> None:
        """Remember what starts and ends logins."""
        self._starts, self._began = starts, time.monotonic()

    # -- listening -----------------------------------------------------------------------------------------------

    def line(self, key: str, words: bytes, *, error: bool) -> None:
        """Process a line of a direct login, or of a gateway."""
        branch = self._by_key.get(key)
        if branch is None:
            self._listener.line(key, words, error=error)
        elif not error and (answer := gateway.answer(words)):
            self._answered(branch, answer)

    def ended(self, key: str, code: int) -> None:
        """Record that a direct login or a gateway has ended."""
        branch = self._by_key.get(key)
        if branch is None:
            self._listener.ended(key, code)
            return
        before, branch.closed, branch.closed_at = branch.here, True, math.inf
        self._direct(branch.left - self._collected)
        if not before and code != CANNOT_LOG_IN:  # this gateway says something about the others, too
            self._count_failure()

    def _answered(self, branch: Branch, answer: gateway.Reply) -> None:
        if answer.host is None:
            if answer.version == __version__:
                branch.here, self._came = True, time.monotonic()
                self._ask(branch)
            else:
                self._close(branch)
                self._direct(branch.left)
            return
        host = branch.hosts[answer.host] if answer.host < len(branch.hosts) else ""
        if host not in branch.left:
            return  # it is started directly
        if answer.kind == "code":
            self._host_ended(branch, host, int(answer.words))
        elif host in self._assigned:
            self._pass_on(host, answer.words, error=answer.kind == "error")
        else:
            self._held.setdefault(host, deque(maxlen=_HELD_LINES)).append((answer.words, answer.kind == "error"))
            if answer.kind == "out" and frames.ends(answer.words) is not None:
                self._assign(branch, host)

    def _assign(self, branch: Branch, host: str) -> None:
        """Send the assignment to a probe that is there."""
        first, self._came = not self._assigned, time.monotonic()
        self._assigned.add(host)
        self._starts.write(branch.key, gateway.write(branch.hosts.index(host), self._commands[host].stdin))
        for words, error in self._held.pop(host, ()):
            self._pass_on(host, words, error=error)
        if first:
            for other in self.branches:
                self._ask(other)

    def _pass_on(self, host: str, words: bytes, *, error: bool) -> None:
        if not error and (frames.ends(words) or 0) > 0:
            self._collected.add(host)
        self._listener.line(host, words, error=error)

    def _host_ended(self, branch: Branch, host: str, code: int) -> None:
        if host not in self._assigned:
            self._direct({host})
            self._count_failure()
            return
        self._listener.ended(host, code)
        branch.left.discard(host)
        if not branch.left:
            self._close(branch)

    # -- deciding ------------------------------------------------------------------------------------------------

    def wish(self) -> Wish:
        """Return what the commands should do, after starting directly what takes too long."""
        wanted, now = self._wish(), time.monotonic()
        if wanted in {"go on", "close"}:
            self._take_back(now)
        for branch in self.branches:
            if now >= branch.closed_at + _GOING_SECONDS:
                branch.closed_at = math.inf
                self._starts.kill(branch.key)
        return wanted

    def _take_back(self, now: float) -> None:
        """Start directly what is not there in time."""
        for branch in self.branches:
            waiting = branch.left - self._assigned
            if now >= self._began + LATEST_SECONDS:
                late = waiting
            elif branch.here:
                late = {host for host in waiting if self._too_long(self._asked_at.get(host, now), now)}
            else:
                late = waiting if self._too_long(self._starts.began.get(branch.key, now), now) else set()
            self._direct(late)
            for _ in late & self._asked_at.keys():
                self._count_failure()

    def _too_long(self, since: float, now: float) -> bool:
        return now >= max(since, self._came) + ANSWER_SECONDS

    def _ask(self, branch: Branch) -> None:
        """Make a gateway log in to its scout, or to its whole share if some scout is there."""
        if not branch.here or branch.closed:
            return
        for number, host in enumerate(branch.hosts):
            if host in branch.left and host not in self._asked_at:
                self._asked_at[host] = time.monotonic()
                self._starts.write(branch.key, gateway.start(number))
                if not self._assigned:
                    return

    def _count_failure(self) -> None:
        """Give up the tree if it does not work on these nodes."""
        self._failed += 1
        enough = max(_GIVE_UP_LEAST, len(self.branches) / _GIVE_UP_PART)
        if not self._assigned and self._failed >= enough:
            self._direct({host for branch in self.branches for host in branch.left})

    def _direct(self, hosts: set[str]) -> None:
        """Start the probes of hosts by logins from this machine, in place of those through their gateways."""
        for host in sorted(hosts, key=self._order.__getitem__):
            branch = self.branch_of[host]
            branch.left.discard(host)
            self._held.pop(host, None)
            if host in self._asked_at and not branch.closed:
                self._starts.write(branch.key, gateway.end(branch.hosts.index(host)))
            self._starts.add(self._commands[host])
            if not branch.left:
                self._close(branch)

    def _close(self, branch: Branch) -> None:
        """End a gateway that has nothing more to do."""
        if not branch.closed:
            branch.closed, branch.closed_at = True, time.monotonic()
            self._starts.end_input(branch.key)
