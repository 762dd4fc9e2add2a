"""The table of processes of this node, as far as /proc shows it to this user."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from distcheck.probe.hang import variables
from distcheck.probe.kernel_files import contents, mapped

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_TORCH = ("libtorch_cpu.so", "libtorch.so")
_THREADS = ("gloo_", "pt_gloo", "pt_nccl", "pt_tcpstore", "NCCL")
"""How the names begin of threads that torch, Gloo and NCCL start for a process group."""
_PYTHON = ("python", "pt_", "torchrun", "ray::", "VLLM", "vllm", "sglang", "pypy")
"""How the names begin of processes that may be ranks."""


class Process(NamedTuple):
    """A line of the table."""

    pid: int
    parent: int
    state: str
    started: int
    """In clock ticks since the boot."""
    name: str

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.state not in "ZX"

    @property
    def is_python(self) -> bool:
        """Whether it may be a rank by its name."""
        return self.name.startswith(_PYTHON)


class ProcessTable:
    """All processes; environments and maps are read when asked for."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self.root = root
        found = (_process(root, int(name)) for name in os.listdir(root) if name.isdecimal())  # noqa: PTH208
        self.processes: Mapping[int, Process] = {p.pid: p for p in found if p is not None}
        self.uptime = float((contents(root / "uptime") or "0").split()[0])
        self._environments: dict[int, dict[str, str] | None] = {}
        self._files: dict[int, frozenset[str]] = {}

    @cached_property
    def children(self) -> Mapping[int, list[Process]]:
        """The processes below each one, in the order in which they started."""
        found: dict[int, list[Process]] = defaultdict(list)
        for each in sorted(self.processes.values(), key=lambda p: (p.started, p.pid)):
            found[each.parent].append(each)
        return found

    def below(self, pid: int) -> Iterator[Process]:
        """Yield all descendants of a process."""
        for child in self.children.get(pid, ()):
            yield child
            yield from self.below(child.pid)

    def above(self, pid: int) -> Iterator[int]:
        """Yield all ancestors of a process, the nearest first."""
        while (known := self.processes.get(pid)) and known.parent > 0:
            pid = known.parent
            yield pid

    def environment(self, pid: int) -> dict[str, str] | None:
        """Return the variables with which a process started, with those of a rank that it has set; None: unreadable."""
        if pid not in self._environments:
            raw = self._bytes(pid, "environ")
            # A program that changes its title may leave thousands of empty entries.
            pairs = (entry.partition("=") for entry in os.fsdecode(raw or b"").split("\0") if entry)
            started = {name: value for name, _, value in pairs}
            now = variables.live(self.root / str(pid)) if raw is not None and self.has_torch(pid) else {}
            self._environments[pid] = None if raw is None else started | now
        return self._environments[pid]

    def command(self, pid: int) -> tuple[str, ...]:
        """Return the arguments of a process; empty if it is gone."""
        return tuple(os.fsdecode(word) for word in (self._bytes(pid, "cmdline") or b"").split(b"\0")[:-1])

    def title(self, pid: int) -> str:
        """Return the first argument of a process, or the title that it gave itself."""
        return next(iter(self.command(pid)), "")

    def communicates(self, pid: int) -> bool:
        """Return whether it has threads of a process group or of its store, or a meeting place in its variables."""
        threads = (contents(path) for path in self.root.glob(f"{pid}/task/*/comm"))
        return "MASTER_PORT" in (self.environment(pid) or {}) or any(name.startswith(_THREADS) for name in threads)

    def _bytes(self, pid: int, name: str) -> bytes | None:
        folder = self.root / str(pid)
        try:
            return (folder / name).read_bytes()
        except ProcessLookupError:  # it has ended since
            return b""
        except OSError:
            return None if folder.exists() else b""

    def maps(self, pid: int) -> frozenset[str]:
        """Return the names of the files that a process has mapped."""
        if pid not in self._files:
            self._files[pid] = frozenset(os.path.basename(f) for f in mapped(self.root / f"{pid}/maps"))  # noqa: PTH119
        return self._files[pid]

    def has_torch(self, pid: int) -> bool:
        """Return whether a process has loaded torch."""
        return not self.maps(pid).isdisjoint(_TORCH)

    def has_cuda(self, pid: int) -> bool:
        """Return whether a process has loaded CUDA's driver, or HIP."""
        return self.has_hip(pid) or any(name.startswith("libcuda.so") for name in self.maps(pid))

    def has_hip(self, pid: int) -> bool:
        """Return whether a process has loaded HIP, the runtime of AMD's GPUs."""
        return any(name.startswith("libamdhip64.so") for name in self.maps(pid))

    def age(self, pid: int) -> float:
        """Return for how many seconds a process has lived."""
        known = self.processes.get(pid)
        return max(0.0, self.uptime - known.started * TICK_SECONDS) if known else 0.0


def _process(root: Path, pid: int) -> Process | None:
    name, _, rest = contents(root / f"{pid}/stat").rpartition(")")
    fields = rest.split()
    if len(fields) < 20 or not fields[1].isdecimal() or fields[1] == "2" or pid == 2:  # gone, or a kernel thread
        return None
    return Process(pid, int(fields[1]), fields[0], int(fields[19]), name.partition("(")[2])
