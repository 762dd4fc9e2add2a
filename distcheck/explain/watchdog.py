"""Collects what torch writes about each rank of a collective while a log is read.

Lines of the watchdog of NCCL's groups in torch 1.7 to 2.13; the versions named are those of logs with such a line:

| torch | line |
|---|---|
| 1.x | [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=, TensorShape=[], Timeout(ms)=) |
| 2.0 | the same with WorkNCCL(SeqNum=, OpType=, Timeout(ms)=); later with NumelIn=, NumelOut= after OpType |
| 2.4 | [PG 0 (default_pg) Rank 1] or [PG 1 Rank 1] Exception (...) detected by watchdog at work: 9, last enqueued NCCL
work: 9, last completed NCCL work: 8.; then Timeout at NCCL work: 9, last enqueued NCCL work: 9, ... |
| 2.5 | the same with [PG ID 0 PG GUID 0(default_pg) Rank 1] |
| later | [PG ...] Received a dump signal due to a collective timeout from rank 7 ... Last enqueued NCCL work: 8, ... |
| later | [PG ...]  failure detected by watchdog at work sequence id: 9 PG status: last enqueued work: 9, ... |
| 2.11 | [Rank 1] Collective WorkNCCL(SeqNum=, ...) raised the following async exception: NCCL error: ... |

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (operator<< of WorkNCCL, checkTimeout, createLogPrefix,
watchdogHandler, getNCCLWatchdogTimeoutErrorMsg), ProcessGroupWrapper.cpp (CollectiveFingerPrint, which
TORCH_DISTRIBUTED_DEBUG=DETAIL compares, of every backend), gloo/transport/tcp (unbound_buffer.cc, pair.cc), and
https://github.com/pytorch/pytorch/issues/118369, https://github.com/mlfoundations/open_clip/issues/1024,
https://github.com/NVIDIA/nccl/issues/1409.

The line of a time-out or an exception has no group: a later line of the same rank and number has it. A PG GUID is one
group on all ranks; a PG ID counts the groups of one process, so the same ID may be another group elsewhere, except 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import prod
from typing import TypeVar

from distcheck.explain.places import NOWHERE, Place, When, plain, when
from distcheck.explain.reading import Piece
from distcheck.explain.waits import Call, LoggedGroup, Status, Waits

T = TypeVar("T")

_NEEDLES = (
    b"collective operation timeout: Work",
    b" raised the following async exception",
    b"enqueued NCCL work: ",
    b"enqueued work: ",
    b"is running collective: CollectiveFingerPrint(",
    b"ms for recv operation",
    b"ms for send operation",
    b"closed by peer",
    b"reset by peer",
)
_RECORDED, _DUMPS = b"Stack trace of the failed collective:", b"preparing to dump debug info"
"""Only both together show a dump: a rank whose Flight Recorder is off prints the second line, too, but no stack."""
_BEFORE_BYTES, _AFTER_BYTES = 600, 800
"""How much of a huge line is read around a needle."""
_MOST_PER_RANK = 16
"""Different lines of a rank that are kept, so that memory stays bounded."""
_LARGEST_RANK = 99_999
"""A larger number is no rank; the patterns below have its digits."""
_WORK = r"Work\w+\(([^()]*(?:\([^()]*\)[^()]*)*)\)"
_TIMED_OUT = re.compile(f"operation timeout: {_WORK}")
_FAILED = re.compile(f"Collective {_WORK} raised the following async exception")
_FIELD = re.compile(r"([A-Za-z]+(?:\(ms\))?)=(\[[^\]]*\]|[^,]*)")
_STATUS = re.compile(
    r"(?:watchdog at work(?: sequence id)?: |Timeout at NCCL work: |(?P<signal>Received a dump signal ))(?P<at>\d*)"
    r".*?last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+),.*?last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    re.IGNORECASE,
)
_GROUP = re.compile(
    r"\[PG (?:ID \d+ PG GUID (?P<guid>[\w.:-]{1,80})|(?P<number>\d+))\s*(?:\((?P<name>[\w.: -]{0,60})\))?"
    r" Rank (?P<rank>\d{1,5})\]"
)
_FINGERPRINT = re.compile(r"Rank (\d{1,5}) is running collective: CollectiveFingerPrint\(([^()]*)")
_GLOO = re.compile(r"Timed out waiting .{1,12}ms for|(?P<lost>pair\.cc:\d+\] .*(?:closed|reset) by peer)")
_GLOBAL_RANK = re.compile(r"\[rank(\d{1,5})\]")
_GROUP_RANK = re.compile(r"\[Rank (\d{1,5})\]")
_WRITERS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        (b"[rank", rb"\[rank(\d{1,5})\]"),
        (b"(local_rank: ", rb"\brank\s*: (\d{1,5}) \(local_rank: "),  # the report of torchrun's agent
    )
)
_WORLDS = tuple((name, re.compile(name + rb"\W{1,3}(\d{1,5})\b")) for name in (b"world_size", b"WORLD_SIZE"))
_COMM = re.compile(rb" nranks (\d{1,5})\b")
_PEERS = re.compile(rb"Expected number of connected peer ranks is : (\d{1,5})\b")


class WatchdogLines:
    """Collects the watchdog's lines of logs in the pass that the matcher makes."""

    def __init__(self) -> None:
        self._time_outs: dict[int, dict[tuple[object, ...], Call]] = {}
        self._failed: dict[int, dict[tuple[object, ...], Call]] = {}
        self._statuses: dict[int, dict[tuple[object, ...], Status]] = {}
        self._wrote: set[int] = set()
        self._late: set[int] = set()
        self._lost: set[int] = set()
        self._worlds: set[int] = set()
        self._largest_comm = 0
        self._recorded = self._dumps = False

    def watched(self, pieces: Iterable[Piece], of_file: Place = NOWHERE) -> Iterator[Piece]:
        """Yield pieces of a log as they are, after a look at each."""
        if of_file.rank is not None and of_file.rank > _LARGEST_RANK:  # no rank, but another number in the file's name
            of_file = of_file._replace(rank=None)
        for piece in pieces:
            self._read(piece.data, of_file)
            yield piece

    def seen(self) -> Waits:
        """Return what was collected so far."""
        statuses = [status for own in self._statuses.values() for status in own.values()]
        named = {(status.rank, status.at): status for status in statuses if status.at is not None}
        time_outs, failed = (
            {  # a line with the group and one without are of the same call, at the time of the first
                (known.rank, known.group, known.number, known.operation): known
                for own in calls.values()
                for each in reversed(own.values())
                for known in [_of_group(each, named.get((each.rank, each.number or -1)))]
            }
            for calls in (self._time_outs, self._failed)
        )
        largest = max(self._wrote, default=-1)
        worlds = {size for size in self._worlds if size > largest}
        world = next(iter(worlds)) if len(worlds) == 1 else None
        if not worlds and self._largest_comm > largest:
            world = self._largest_comm
        dumped = self._recorded and self._dumps
        return Waits(
            tuple(time_outs.values()),
            tuple(statuses),
            frozenset(self._wrote),
            world,
            failed=tuple(failed.values()),
            dumped=dumped,
            late=frozenset(self._late),
            lost=frozenset(self._lost),
        )

    def _read(self, data: bytes, of_file: Place) -> None:
        if of_file.rank is not None:
            self._wrote.add(of_file.rank)
        for name, pattern in _WRITERS:
            if name in data:
                self._wrote.update(map(int, set(pattern.findall(data))))
        for name, pattern in _WORLDS:
            if name in data:
                self._worlds.update(map(int, pattern.findall(data)))
        if b" nranks " in data:
            self._largest_comm = max(self._largest_comm, *map(int, _COMM.findall(data)), 0)
        if b"connected peer ranks" in data:
            self._largest_comm = max(self._largest_comm, *(int(n) + 1 for n in _PEERS.findall(data)), 0)
        self._recorded = self._recorded or _RECORDED in data
        self._dumps = self._dumps or _DUMPS in data
        for needle in _NEEDLES:
            at = data.find(needle)
            while at >= 0:
                start = max(data.rfind(b"\n", max(0, at - _BEFORE_BYTES), at) + 1, at - _BEFORE_BYTES, 0)
                end = data.find(b"\n", at, at + _AFTER_BYTES)
                end = at + _AFTER_BYTES if end < 0 else end
                self._add(plain(data[start:end].decode("utf-8", "replace")), of_file)
                at = data.find(needle, end)

    def _add(self, line: str, of_file: Place) -> None:
        group, group_rank = _group(line)
        rank = _last(_GLOBAL_RANK, line)
        rank = of_file.rank if rank is None else rank
        if found := _GLOO.search(line):
            if rank is not None:
                self._wrote.add(rank)
                (self._lost if found["lost"] else self._late).add(rank)
            return
        if compared := _FINGERPRINT.findall(line):
            for number, fields in compared if rank in {None, int(compared[0][0])} else compared[:1]:
                call = _compared(rank, int(number), fields, when(line))
                _keep(self._failed.setdefault(call.rank, {}), (call.group, call.number, call.operation), call)
                rank = None  # the line's second half is about another rank
            return
        rank = group_rank if rank is None else rank  # older versions of torch write no other
        if rank is None:
            return
        self._wrote.add(rank)
        if found := (late := _TIMED_OUT.search(line)) or _FAILED.search(line):
            fields = dict(_FIELD.findall(found[1]))
            limit = _number(fields.get("Timeout(ms)"))
            call = Call(
                rank=rank,
                group_rank=group_rank,
                group=group,
                number=_number(fields.get("SeqNum")),
                operation=fields["OpType"] if re.fullmatch(r"\w{1,40}", fields.get("OpType", "")) else "",
                elements_in=_number(fields.get("NumelIn")),
                elements_out=_number(fields.get("NumelOut")),
                timeout_s=None if limit is None else limit / 1000,
                time=when(line),
            )
            known = self._time_outs if late else self._failed
            _keep(known.setdefault(rank, {}), (group, call.number, call.operation), call)
        elif found := _STATUS.search(line):
            at = None if found["signal"] else _number(found["at"])
            enqueued, completed = int(found["enqueued"]), int(found["completed"])
            status = Status(rank, group_rank, group, at, enqueued, completed, when(line))
            _keep(self._statuses.setdefault(rank, {}), (group, at, enqueued), status)


def _compared(rank: int | None, group_rank: int, text: str, time: When | None) -> Call:
    """Return the collective that a rank called when torch found that another rank called another one."""
    fields = dict(_FIELD.findall(text))
    shape = re.fullmatch(r"\[([\d, ]*)\]", fields.get("TensorShape", ""))
    elements = prod(map(int, shape[1].replace(" ", "").split(","))) if shape and shape[1] else None
    return Call(
        rank=group_rank if rank is None else rank,
        group_rank=group_rank,
        group=LoggedGroup(),
        number=_number(fields.get("SequenceNumber")),
        operation=fields["OpType"] if re.fullmatch(r"\w{1,40}", fields.get("OpType", "")) else "",
        elements_in=elements,
        elements_out=elements,
        timeout_s=None,
        time=time,
        dtype=fields["TensorDtypes"] if re.fullmatch(r"\w{1,20}", fields.get("TensorDtypes", "")) else "",
    )


def _of_group(seen: Call, status: Status | None) -> Call:
    """Return a call with the group that a later line names, if its own does not."""
    if seen.group.key or not status:
        return seen
    return seen._replace(group=status.group, group_rank=status.group_rank)


def _keep(known: dict[tuple[object, ...], T], key: tuple[object, ...], seen: T) -> None:
    if len(known) < _MOST_PER_RANK:
        known.setdefault(key, seen)


def _group(line: str) -> tuple[LoggedGroup, int | None]:
    """Return the group that a line names, and the rank's number in its group."""
    found = _GROUP.search(line)
    if found is None:
        return LoggedGroup(), _last(_GROUP_RANK, line)
    key = found["guid"] or f"PG {found['number']}"
    return LoggedGroup(key, found["name"] or "", bool(found["guid"]) or found["number"] == "0"), int(found["rank"])


def _last(pattern: re.Pattern[str], line: str) -> int | None:
    """Return the last number: on a progress bar's line another rank's may stand before it."""
    numbers = pattern.findall(line)
    return _number(numbers[-1]) if numbers else None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,15}", text) else None
