"""Reads the dumps of torch's Flight Recorder as untrusted data, without torch.

torch writes one pickle per rank to ``$TORCH_FR_DUMP_TEMP_FILE`` (older: ``$TORCH_NCCL_DEBUG_INFO_TEMP_FILE``) followed
by the rank; the handlers of its worker server return JSON with the same keys. Version 2.x has ``collective_seq_id`` and
``p2p_seq_id`` instead of 1.x's ``seq_id``; torch 2.13 to 2.15 write 2.10. Minor versions add keys only.

Source: torch/csrc/distributed/c10d/NCCLUtils.hpp (torch 2.4), FlightRecorder.hpp and FlightRecorderDetail.hpp (torch
2.5 to 2.15), and ``version_val`` in them: https://github.com/pytorch/pytorch/tree/main/torch/csrc/distributed/c10d
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from distcheck.explain.flight.unpickling import unpickled
from distcheck.explain.redaction import shown
from distcheck.facts.errors import UsageError
from distcheck.facts.files import read as contents_of
from distcheck.rules.wording import brief

DEFAULT = "default_pg"
"""The description of the group that init_process_group makes."""
_UNDESCRIBED = "undefined"
"""What torch (distributed_c10d.py) writes for a group without a description; its own log leaves it out, too."""
_MAJOR = "2."
_LARGEST_BYTES = 1 << 30
_MOST_FILES = 100_000
_LONGEST_NAME = 120
_TORCHS_OWN = re.compile(r"-packages/torch/|/torch/distributed/|^<frozen |^\?\?$")
"""Files of stack frames that are not the script's: torch's, Python's, and those of unknown C++ code."""

_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Sizes = list[Annotated[list[_Number], msgspec.Meta(max_length=64)]]


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: _Number = 0


class _Entry(msgspec.Struct):
    process_group: tuple[str, str]
    collective_seq_id: _Number
    profiling_name: str
    state: str
    input_sizes: _Sizes = []
    output_sizes: _Sizes = []
    input_dtypes: list[str] = []
    record_id: _Number = 0
    pg_id: _Number = 0
    retired: bool = False
    is_p2p: bool | None = None
    time_created_ns: _Number = 0
    duration_ms: float | None = None
    timeout_ms: _Number | None = None
    frames: list[_Frame] = []


class _Group(msgspec.Struct):
    ranks: str = ""


class _Status(msgspec.Struct):
    last_enqueued_collective: _Number | str = -1


class _Raw(msgspec.Struct):
    version: str
    pg_config: dict[str, _Group] = {}
    pg_status: dict[str, _Status] = {}
    entries: list[_Entry] = []


class _Version(msgspec.Struct):
    version: str


class FlightCall(NamedTuple):
    """A collective, or a send or receive, that a rank called."""

    record: int
    backend: str
    group: str
    description: str
    """The group_desc that the script or torch gave the group; empty if none."""
    seq: int
    """The number of the collective in its group; of a send or receive, that of the last collective."""
    name: str
    sent: bool
    """Whether it is a send or a receive, alone or in a batch."""
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    """scheduled, started or completed. Gloo records neither start nor completion: its calls stay scheduled."""
    retired: bool
    """Whether torch no longer waits for it: it is complete, or failed."""
    created_ns: int
    """Since 1970, in UTC."""
    duration_ms: float | None
    """None unless TORCH_NCCL_ENABLE_TIMING is set."""
    timeout_ms: int | None
    at: str
    """The line of the script that called it; empty if the dump has no stacks."""

    @property
    def ended(self) -> bool:
        """Whether the rank no longer waits in it."""
        return self.retired or self.state == "completed"

    @property
    def elements(self) -> tuple[int, int]:
        """The number of elements of its inputs and of its outputs."""
        return sum(map(math.prod, self.inputs)), sum(map(math.prod, self.outputs))


class FlightDump(NamedTuple):
    """What one rank recorded, oldest call first."""

    rank: int
    file: str
    groups: dict[str, str]
    """The ranks of process groups as the dump has them, "[0, 1]"; those of Gloo (torch 2.13) do not name them."""
    enqueued: dict[str, int]
    """The number of the last collective that the rank called, by the number of the process group in this process."""
    default: str | None
    """The number of the default group in this process; None if the dump has no call of it."""
    whole: bool
    """Whether nothing was overwritten or left out since the job began."""
    calls: tuple[FlightCall, ...]


def dumps(paths: Sequence[Path], unread: list[str]) -> Iterator[FlightDump]:
    """Yield the dumps in files and directories, one per rank: of several, the one with the latest call.

    For each file that is not a dump, or not a whole one, the reason is added to `unread`.

    Raises:
        UsageError: a path does not exist, or holds no file.
    """
    by_rank: dict[int, list[Path]] = {}
    for path in _files(paths):
        rank = _rank(path)
        if rank is None:
            unread.append(f"{path}: its name does not end with a rank, as in nccl_trace_rank_3")
        else:
            by_rank.setdefault(rank, []).append(path)
    for rank, files in sorted(by_rank.items()):
        read = [dump for file in files if (dump := _dump(rank, file, unread))]
        if not read:
            continue
        newest = max(read, key=lambda dump: max((call.created_ns for call in dump.calls), default=-1))
        unread += [f"{dump.file}: a later dump of rank {rank} is {newest.file}" for dump in read if dump is not newest]
        yield newest


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        try:
            inside = sorted(p for p in path.rglob("*") if p.is_file())[:_MOST_FILES] if path.is_dir() else [path]
            path.stat()
        except OSError as error:
            raise UsageError(f"--flight {path}: {error.strerror or error}") from None
        if not inside:
            raise UsageError(f"--flight {path}: the directory has no dumps; name them PREFIX0, PREFIX1, … by rank")
        yield from inside


def _rank(path: Path) -> int | None:
    stem = re.sub(r"\.(?:json|pickle|pkl|bin|dump)$", "", path.name)
    found = re.search(r"rank[_-]?(\d{1,6})(?!\d)", stem, re.IGNORECASE) or re.search(r"(?<!\d)(\d{1,6})$", stem)
    return int(found[1]) if found else None


def _dump(rank: int, path: Path, unread: list[str]) -> FlightDump | None:
    """Return the dump in a file; None if it is none, with the reason in `unread`."""
    try:
        return _made(rank, path, _parsed(path))
    except OSError as error:
        unread.append(f"{path}: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001  # an unpickler of untrusted bytes raises anything
        unread.append(f"{path}: {brief(shown(str(error) or type(error).__name__), 160)}")
    return None


def _parsed(path: Path) -> _Raw:
    """Return a dump's content.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no dump, of another version, truncated, or has values of a wrong type.
    """
    raw = contents_of(path, _LARGEST_BYTES)
    if len(raw) > _LARGEST_BYTES:
        raise ValueError("larger than 1 GiB")
    if not raw:
        raise ValueError("empty")
    if raw[:1] == b"\x80":
        value = unpickled(raw)
        if not isinstance(value, dict):
            raise ValueError("a pickle, but not a Flight Recorder dump")
        _check_version(str(value.get("version"))[:_LONGEST_NAME])
        return msgspec.convert(value, _Raw)
    if raw.lstrip()[:1] != b"{":
        raise ValueError("not a Flight Recorder dump: neither pickle nor JSON")
    _check_version(msgspec.json.decode(raw, type=_Version).version)
    return msgspec.json.decode(raw, type=_Raw)


def _check_version(version: str) -> None:
    if not version.startswith(_MAJOR):
        raise ValueError(f"version {version} of the format; distcheck reads {_MAJOR}x (torch 2.4 and later)")


def _made(rank: int, path: Path, raw: _Raw) -> FlightDump:
    calls = tuple(sorted((_call(entry) for entry in raw.entries), key=lambda call: call.record))
    records = [call.record for call in calls]
    groups = {_clean(name): group.ranks for name, group in raw.pg_config.items()}
    enqueued = {number: int(status.last_enqueued_collective) for number, status in raw.pg_status.items()}
    default = next((str(entry.pg_id) for entry in reversed(raw.entries) if entry.process_group[1] == DEFAULT), None)
    whole = records == list(range(len(records)))
    return FlightDump(rank, shown(str(path)), groups, enqueued, default, whole, calls)


@lru_cache(4096)  # the same for all ranks of a group
def ranks_in(text: str) -> tuple[int, ...]:
    """Return the ranks in "[0, 1, 2]"; empty if the text is something else."""
    numbers = re.fullmatch(r"\[((?:\d{1,9}(?:, ?)?)*)\]", text.strip())
    return tuple(int(number) for number in re.findall(r"\d+", numbers[1])) if numbers else ()


def _call(entry: _Entry) -> FlightCall:
    backend, _, name = entry.profiling_name.rpartition(":")
    sent = name.split(" ")[0] in {"send", "recv"} if entry.is_p2p is None else entry.is_p2p
    return FlightCall(
        entry.record_id,
        _clean(backend),
        _clean(entry.process_group[0]),
        "" if entry.process_group[1] == _UNDESCRIBED else _clean(entry.process_group[1]),
        entry.collective_seq_id,
        _clean(name),
        sent,
        tuple(map(tuple, entry.input_sizes)),
        tuple(map(tuple, entry.output_sizes)),
        tuple(map(_clean, entry.input_dtypes)),
        _clean(entry.state),
        entry.retired,
        entry.time_created_ns,
        entry.duration_ms,
        entry.timeout_ms,
        _script_line(entry.frames),
    )


@lru_cache(100_000)
def _clean(text: str) -> str:
    return brief(shown(text), _LONGEST_NAME)


def _script_line(frames: list[_Frame]) -> str:
    """Return the innermost frame that is not torch's own: train.py:40 in main."""
    own = (f for f in frames if not _TORCHS_OWN.search(f.filename))
    return next((f"{_clean(f.filename)}:{f.line} in {_clean(f.name)}" for f in own), "")
