"""The dump of torch's Flight Recorder that a rank has written since it started. None is ever asked for.

The pipe of TORCH_NCCL_DEBUG_INFO_PIPE_FILE would make a rank of NCCL write one. But the dump needs the interpreter's
lock, and until torch 2.7 the thread that ends a stuck rank waits for it; and it replaces the rank's earlier dump.

Source: DebugInfoWriter::getWriter in torch/csrc/distributed/c10d/NCCLUtils.cpp (torch 2.4) and FlightRecorder.cpp
(since 2.7), heartbeatMonitor and dumpDebuggingInfo in ProcessGroupNCCL.cpp:
https://github.com/pytorch/pytorch/tree/main/torch/csrc/distributed/c10d
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from distcheck.facts.base import legible_text
from distcheck.facts.hang import WrittenDump
from distcheck.facts.mounts import remote_mount
from distcheck.facts.touch import touch
from distcheck.probe.hang.processes import ProcessTable

_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def dump_of(table: ProcessTable, pid: int, rank: int) -> WrittenDump | None:
    """Return the newest dump that a rank has written since it started, None if there is none."""
    started = time.time() - table.age(pid)
    found = []
    for prefix in _prefixes(table.environment(pid) or {}):
        path = f"{prefix}{rank}"
        with suppress(OSError, ValueError):
            dump = WrittenDump(legible_text(path), *written(file_of(pid, path)))
            found += [dump] if dump.size and dump.written >= started else []
    return max(found, key=lambda dump: dump.written, default=None)


def file_of(pid: int, path: str) -> Path:
    """Return where this process finds a file of another one, which may run in a container.

    Raises:
        OSError: the other one may not be looked at, or the file is on a file system that may not answer.
    """
    if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):  # noqa: PTH115 no paths of files
        return Path(path)
    if remote_mount(path, pid):
        raise TimeoutError(f"{path} is on a file system that may not answer")
    return Path(f"/proc/{pid}/root{path}")


def written(file: Path) -> tuple[float, int]:
    """Return when a file was written, in seconds since 1970, and its size in bytes.

    Raises:
        OSError: it cannot be read, or its file system does not answer.
    """
    when, size = touch(file, _VARIABLES[0], lambda: (file.stat().st_mtime, file.stat().st_size))
    return when, size


def _prefixes(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield where dumps of a rank may begin; without the variables as torch 2.9, 2.8 and 2.4 have it."""
    named = [environ[name] for name in _VARIABLES if environ.get(name, "").startswith("/")]
    if named:
        yield named[0]
        return
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '/tmp')}/.cache"  # noqa: S108 as torch does
    yield from (f"{cache}/torch/comm_lib_trace_rank_", f"{cache}/torch/nccl_trace_rank_", "/tmp/nccl_trace_rank_")  # noqa: S108
