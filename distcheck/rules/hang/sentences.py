"""What a rank does, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.quantities import count, duration
from distcheck.facts.ranges import numbered
from distcheck.rules.finding import Fix
from distcheck.rules.hang.gpus import broken
from distcheck.rules.hang.places import StackPlace, beside, place_of
from distcheck.rules.hang.states import RankState
from distcheck.rules.wording import brief, grouped, listed

if TYPE_CHECKING:
    from distcheck.facts.hang import Helper, SystemCall

_OPENS = frozenset({"open", "openat"})
_LOADER, _SUBPROCESS = "torch/utils/data/dataloader.py", "/subprocess.py"
_POOLS = ("/multiprocessing/pool.py", "/multiprocessing/process.py", "/concurrent/futures/process.py")
"""Where a process waits that runs the program's own code, and where a rank waits for it."""
_MOST_THREADS = 4
_STDIN = "(standard input)"
_DEBUGGERS = ("/pdb.py", "/bdb.py", "/cmd.py", "/ipdb/__main__.py", "debugpy/server/api.py")


def holders(states: Sequence[RankState], others: int, seconds: float) -> str:
    """Return who holds up whom: rank 2 on node1 (process 4711) holds up 3 ranks: sleeps at data.py:41 in load, …"""
    whom = f" {'holds' if len(states) == 1 else 'hold'} up {count(others, 'rank')}:" if others else ""
    return f"{who(states)}{whom} {doing(states[0], many=len(states) > 1)}, for at least {duration(seconds)}"


def who(states: Sequence[RankState]) -> str:
    """Return ranks with node and process: rank 2 on node1 (process 4711)."""
    ranks = [s.process.rank for s in states if s.process.rank is not None]
    names = numbered(ranks, 6) if len(ranks) == len(states) else count(len(states), "process")
    nodes = list(dict.fromkeys(s.process.node for s in states))
    pids = [str(s.process.pid) for s in states]
    word = "process" if len(pids) == 1 else "processes"
    return f"{names} on {listed(nodes)} ({word} {listed(pids)})"


def doing(state: RankState, *, many: bool = False) -> str:
    """Return what a rank does and where: waits at data.py:41 in load_shard, open("/mnt/data/shard-17.bin")."""
    verb, tail = _verb(state, many=many)
    where = place(state)
    details = [tail, *_details(state)]
    return ", ".join([f"{verb} {where}".rstrip(), *(text for text in details if text)])


def place(state: RankState) -> str:
    """Return where a rank is: at data.py:41 in load_shard; empty if no stack is known."""
    at = state.place
    if not at.at:
        return ""
    function = "" if not at.function.isidentifier() else f" in {at.function}"
    return f"at {at.at}{function}{f' (thread {at.thread})' if at.thread else ''}"


def _verb(state: RankState, *, many: bool) -> tuple[str, str]:
    """Return what a rank does, and what it waits for."""
    call = _called(state.call)
    if state.kind == "stopped":
        by = "a debugger" if state.letter == "t" else "a signal"
        return f"{'are' if many else 'is'} stopped by {by}", ""
    if state.kind == "gpu":
        return f"{'wait' if many else 'waits'}", broken(state.process)
    if state.kind == "disk":
        kernel = f"kernel {state.waits_in}" if state.waits_in else ""
        return f"{'wait' if many else 'waits'} in D state", ", ".join(filter(None, (call, kernel)))
    if state.kind == "busy":
        return f"{'compute' if many else 'computes'}", f"CPU {100 * state.busy:.0f} %" if state.busy else ""
    if state.place.idles:
        return f"{'wait' if many else 'waits'} for its next call", ""
    if state.kind == "sleeps":
        return f"{'sleep' if many else 'sleeps'}", ""
    if worker(state) is not None or state.place.loops:
        return f"{'wait' if many else 'waits'}", ""
    if state.kind == "polls":
        return f"{'poll' if many else 'polls'}", call
    if state.kind == "waits":
        return f"{'wait' if many else 'waits'} in {state.operation}", ""
    if state.kind == "lock" and not state.place.ended and not state.place.thread:
        return f"{'wait' if many else 'waits'} {_within(state) or 'for a lock'}", ""
    return f"{'wait' if many else 'waits'}", call


def _within(state: RankState) -> str:
    """Return in which library function a rank waits: in Queue.get, in fsspec.get; empty if its own line waits."""
    file, _, name = next(reversed(state.place.inside), "").rpartition(":")
    if not name.replace(".", "").isidentifier():
        return ""
    module = file.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2]
    return f"in {name if '.' in name else f'{module}.{name}'}"  # since Python 3.11 py-spy names the class


def _called(call: SystemCall | None) -> str:
    if call is None or call.name in {"", "running", "futex"}:
        return ""
    if call.name in _OPENS:
        return f'open("{call.target}")'
    if call.name in {"wait4", "waitid"}:
        return call.target
    return f"{call.name} of {call.target}" if call.target else call.name


def _details(state: RankState) -> list[str]:
    found = []
    if any(state.place.within(file) for file in _DEBUGGERS):
        found.append("in the debugger")
    elif reads_stdin(state):
        found.append("reading standard input")
    if state.place.loops and not state.place.idles:
        found.append("in an event loop")
    if state.place.ended:
        found.append("although its program has ended")
    if state.holds_gil and state.kind not in {"busy", "stopped"}:
        found.append("holding the interpreter lock (GIL) in C code")
    if any(frame.startswith("<frozen importlib") for frame in state.place.inside):
        found.append("importing a module")
    if not state.process.torch:
        found.append("before it has loaded torch")
    if state.place.within("torch/serialization.py"):
        found.append("saving or loading a checkpoint")
    helper = worker(state)
    if helper is not None:
        found.append(_helping(helper, "its data-loader worker" if state.place.within(_LOADER) else "its child"))
    return found


def worker(state: RankState) -> Helper | None:
    """Return the process below a rank that it waits for, if it does."""
    helpers = [h for h in state.process.helpers if h.state not in "ZX"]
    if state.place.within(_LOADER):
        return next((h for h in helpers if isinstance(h.threads, tuple)), None)
    if _pools(state.place) or state.place.calls("result"):
        return next((h for h in helpers if (at := place_of(h)) and at.at and not _pools(at)), None)
    return helpers[0] if helpers and state.place.within(_SUBPROCESS) else None


def _pools(at: StackPlace) -> bool:
    return any(at.within(file) for file in _POOLS)


def _helping(helper: Helper, name: str) -> str:
    at = place_of(helper)
    called = _called(helper.call)
    where = (
        f" at {at.at} in {at.function}" if at and at.at else f" ({brief(helper.name, 50)})".replace("; ", ";")
    )  # a line is cut at one
    state = " in D state" if helper.state == "D" else " stopped by a signal" if helper.state == "T" else ""
    return f"for {name} (process {helper.pid}){where}{state}{f', {called}' if called and at else ''}"


def threads(state: RankState) -> dict[str, str]:
    """Return where other threads of the program are, for a rank that waits for one of them."""
    others = beside(state.process.moments[-1]) if state.kind == "lock" else ()
    return {f"thread {name}": f"at {at.at} in {at.function}" for name, at in others[:_MOST_THREADS]}


def reads_stdin(state: RankState) -> bool:
    """Return whether a rank reads what nobody types."""
    return state.call is not None and state.call.name == "read" and _STDIN in state.call.target


def in_debugger(state: RankState) -> bool:
    """Return whether a rank is in pdb or a like."""
    return any(state.place.within(file) for file in _DEBUGGERS)


def waits(states: Iterable[RankState]) -> str:
    """Return what ranks wait in, by operation and line: ranks 0-1,3 wait in all_reduce at train.py:88."""
    parts = []
    for (operation, at), group in grouped(states, lambda s: (s.operation, s.place.at)).items():
        ranks = [s.process.rank for s in group if s.process.rank is not None]
        inside = f" in {operation}" if operation else ""
        where = f" at {at}" if at else ""
        parts.append(f"{numbered(ranks, 6)} {'wait' if len(ranks) != 1 else 'waits'}{inside}{where}")
    return listed(parts)


def fix_of(state: RankState) -> Fix:
    """Return what to do about a rank of which the program is at fault."""
    pid, at = state.process.pid, state.place.at or "its line"
    if in_debugger(state):
        return Fix(f"Remove the breakpoint at {at}, or attach to the terminal of rank {state.process.rank}.")
    if reads_stdin(state):
        return Fix(f"Remove the read of standard input at {at}; ranks have no terminal.")
    if state.place.ended:
        return Fix(
            "Make the thread a daemon, or end it with the program; the log may have the main thread's exception."
        )
    if state.place.within(_LOADER):
        at_fault = worker(state)
        where = f" Look at process {at_fault.pid}." if at_fault else ""
        text = "Find out why the data-loader worker gives no batch, and give DataLoader a timeout. If it never ran, use"
        return Fix(f'{text} multiprocessing_context="forkserver".{where}')
    stacks = (f"py-spy dump --pid {pid} --nonblocking",)
    below = worker(state)
    if below is not None:
        return Fix(f"Find out why process {below.pid} does not end, and give {at} a timeout.", (f"ps -fp {below.pid}",))
    if state.kind == "lock" and (within := _within(state)):
        return Fix(
            f"Find out which thread should end the wait {within} at {at}: it may have ended with an exception.", stacks
        )
    if state.kind == "lock":
        return Fix(f"Find the thread that holds the lock at {at}: two may wait for each other.", stacks)
    if state.place.loops and not state.place.idles:
        return Fix(f"Find out what the coroutines of {at} await, and give it a timeout.", stacks)
    call, target = state.call, state.call.target if state.call else ""
    if state.kind == "idle" and not state.place.idles:
        return Fix(f"Connect to {target or 'its socket'}, or remove the wait for a connection at {at}.")
    if call is not None and call.remote_port:
        peer = target.rpartition(" ")[2]
        return Fix(f"Find out why {peer} does not answer, and give {at} a timeout.", (f"ss -tnpo dst {quote(peer)}",))
    if call is not None and call.name in _OPENS | {"read", "write", "flock", "wait4", "waitid"}:
        users = f"fuser -v {quote(target)}" if target.startswith("/") else f"ls -l /proc/{pid}/fd"
        return Fix(f"Look at what {at} waits for: {_called(call)}.", (users,))
    return Fix(f"Look at {at}: all ranks must come to the same collectives in the same order.", stacks)
