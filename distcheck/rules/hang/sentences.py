"""What a rank does, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from distcheck.facts.hang import Helper, SystemCall
from distcheck.facts.quantities import count, duration
from distcheck.facts.ranges import numbered
from distcheck.rules.finding import Fix
from distcheck.rules.hang.gpus import broken
from distcheck.rules.hang.places import StackPlace, beside, place_of
from distcheck.rules.hang.states import RankState, nodes_of, ranks_of
from distcheck.rules.wording import brief, grouped, listed

_OPENS = frozenset({"open", "openat"})
_WITH_TARGET = _OPENS | {"read", "write", "flock", "wait4", "waitid"}
_LOADER, _SUBPROCESS = "torch/utils/data/dataloader.py", "/subprocess.py"
_POOLS = ("/multiprocessing/pool.py", "/multiprocessing/process.py", "/concurrent/futures/process.py")
"""Where a process waits that runs the program's own code, and where a rank waits for it."""
_DEBUGGERS = ("/pdb.py", "/bdb.py", "/cmd.py", "/ipdb/__main__.py", "debugpy/server/api.py")
_MOST_THREADS = 4


def holders(states: Sequence[RankState], others: int, seconds: float) -> str:
    """Return who holds up whom: rank 2 on node1 (process 4711) holds up 3 ranks: sleeps at data.py:41 in load, …"""
    whom = f" {'holds' if len(states) == 1 else 'hold'} up {count(others, 'rank')}:" if others else ""
    return f"{who(states)}{whom} {doing(states[0], many=len(states) > 1)}, for at least {duration(seconds)}"


def who(states: Sequence[RankState]) -> str:
    """Return ranks with node and process: rank 2 on node1 (process 4711)."""
    nameless = any(s.process.rank is None for s in states)
    names = count(len(states), "process") if nameless else numbered(ranks_of(states), 6)
    pids = listed([str(s.process.pid) for s in states])
    return f"{names} on {listed(nodes_of(states))} ({'process' if len(states) == 1 else 'processes'} {pids})"


def doing(state: RankState, *, many: bool = False) -> str:
    """Return what a rank does and where: waits at data.py:41 in load_shard, open("/mnt/data/shard-17.bin")."""
    do, what = _do(state)
    verb, space, rest = do.partition(" ")
    does = do if many else ("is" if verb == "are" else f"{verb}s") + space + rest
    at = state.place
    function = f" in {at.function}" if at.function.isidentifier() else ""
    thread = f" (thread {at.thread})" if at.thread else ""
    where = f" at {at.at}{function}{thread}" if at.at else ""
    return ", ".join(filter(None, (f"{does}{where}", what, *_details(state))))


def _do(state: RankState) -> tuple[str, str]:
    """Return what several such ranks do, and what they wait for."""
    call = _called(state.call)
    if state.kind == "stopped":
        return f"are stopped by {'a debugger' if state.last.state == 't' else 'a signal'}", ""
    if state.kind == "gpu":
        return "wait", broken(state.process)
    if state.kind == "disk":
        kernel = state.last.waits_in
        return "wait in D state", ", ".join(filter(None, (call, kernel and f"kernel {kernel}")))
    if state.kind == "busy":
        return "compute", f"CPU {100 * state.busy:.0f} %" if state.busy else ""
    if state.place.idles:
        return "wait for its next call", ""
    if state.kind == "sleeps":
        return "sleep", ""
    if worker(state) is not None or state.place.loops:
        return "wait", ""
    if state.kind == "waits":
        return f"wait in {state.operation}", ""
    if state.kind == "lock" and not state.place.ended and not state.place.thread:
        return f"wait {_within(state) or 'for a lock'}", ""
    return "poll" if state.kind == "polls" else "wait", call


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
    at, threads, helper = state.place, state.last.threads, worker(state)
    in_c = isinstance(threads, tuple) and any(t.gil and t.main for t in threads)
    found = {
        "in the debugger": _in_debugger(at),
        "reading standard input": _reads_stdin(state) and not _in_debugger(at),
        "in an event loop": at.loops and not at.idles,
        "although its program has ended": at.ended,
        "holding the interpreter lock (GIL) in C code": in_c and state.kind not in {"busy", "stopped"},
        "importing a module": any(frame.startswith("<frozen importlib") for frame in at.inside),
        "before it has loaded torch": not state.process.torch,
        "saving or loading a checkpoint": at.within("torch/serialization.py"),
    }
    if helper:
        found[_helping(helper, "its data-loader worker" if at.within(_LOADER) else "its child")] = True
    return [words for words, true in found.items() if true]


def worker(state: RankState) -> Helper | None:
    """Return the process below a rank that it waits for, if it does."""
    helpers = [h for h in state.process.helpers if h.state not in "ZX"]
    if state.place.within(_LOADER):
        return next((h for h in helpers if isinstance(h.threads, tuple)), None)
    if state.place.within(*_POOLS) or state.place.calls("result"):
        return next((h for h in helpers if (at := place_of(h)).at and not at.within(*_POOLS)), None)
    return helpers[0] if helpers and state.place.within(_SUBPROCESS) else None


def _helping(helper: Helper, name: str) -> str:
    at, called = place_of(helper), _called(helper.call)
    command = brief(helper.name, 50).replace("; ", ";")  # a line is cut at one
    where = f"at {at.at} in {at.function}" if at.at else f"({command})"
    state = {"D": " in D state", "T": " stopped by a signal"}.get(helper.state, "")
    return f"for {name} (process {helper.pid}) {where}{state}{f', {called}' if called and at.at else ''}"


def threads(state: RankState) -> dict[str, str]:
    """Return where other threads of the program are, for a rank that waits for one of them."""
    others = beside(state.last) if state.kind == "lock" else ()
    return {f"thread {name}": f"at {at.at} in {at.function}" for name, at in others[:_MOST_THREADS]}


def _reads_stdin(state: RankState) -> bool:
    return state.call is not None and state.call.name == "read" and "(standard input)" in state.call.target


def _in_debugger(at: StackPlace) -> bool:
    return at.within(*_DEBUGGERS)


def waits(states: Iterable[RankState]) -> str:
    """Return what ranks wait in, by operation and line: ranks 0-1,3 wait in all_reduce at train.py:88."""
    parts = []
    for (operation, at), group in grouped(states, lambda s: (s.operation, s.place.at)).items():
        ranks = ranks_of(group)
        inside, where = f" in {operation}" if operation else "", f" at {at}" if at else ""
        parts.append(f"{numbered(ranks, 6)} {'wait' if len(ranks) != 1 else 'waits'}{inside}{where}")
    return listed(parts)


def fix_of(state: RankState) -> Fix:
    """Return what to do about a rank of which the program is at fault."""
    pid, at, below = state.process.pid, state.place.at or "its line", worker(state)
    stacks = (f"py-spy dump --pid {pid} --nonblocking",)
    if _in_debugger(state.place):
        return Fix(f"Remove the breakpoint at {at}, or attach to the terminal of rank {state.process.rank}.")
    if _reads_stdin(state):
        return Fix(f"Remove the read of standard input at {at}; ranks have no terminal.")
    if state.place.ended:
        text = "Make the thread a daemon, or end it with the program; the log may have the main thread's exception."
        return Fix(text)
    if state.place.within(_LOADER):
        where = f" Look at process {below.pid}." if below else ""
        text = "Find out why the data-loader worker gives no batch, and give DataLoader a timeout. If it never ran, use"
        return Fix(f'{text} multiprocessing_context="forkserver".{where}')
    if below is not None:
        return Fix(f"Find out why process {below.pid} does not end, and give {at} a timeout.", (f"ps -fp {below.pid}",))
    if state.kind == "lock":
        wait = f"which thread should end the wait {_within(state)} at {at}: it may have ended with an exception."
        lock = f"the thread that holds the lock at {at}: two may wait for each other."
        return Fix(f"Find out {wait}" if _within(state) else f"Find {lock}", stacks)
    if state.place.loops and not state.place.idles:
        return Fix(f"Find out what the coroutines of {at} await, and give it a timeout.", stacks)
    call, target = state.call, state.call.target if state.call else ""
    if state.kind == "idle" and not state.place.idles:
        return Fix(f"Connect to {target or 'its socket'}, or remove the wait for a connection at {at}.")
    if call is not None and call.remote_port:
        peer = target.rpartition(" ")[2]
        return Fix(f"Find out why {peer} does not answer, and give {at} a timeout.", (f"ss -tnpo dst {quote(peer)}",))
    if call is not None and call.name in _WITH_TARGET:
        users = f"fuser -v {quote(target)}" if target.startswith("/") else f"ls -l /proc/{pid}/fd"
        return Fix(f"Look at what {at} waits for: {_called(call)}.", (users,))
    return Fix(f"Look at {at}: all ranks must come to the same collectives in the same order.", stacks)
