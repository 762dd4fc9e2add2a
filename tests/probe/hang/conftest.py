"""A /proc that a test writes down."""

from __future__ import annotations

import pytest

from distcheck.probe.hang.processes import ProcessTable

TORCH = "7f00-7f01 r-xp 0 08:01 1 /venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so\n"


@pytest.fixture
def table(tmp_path):
    """Write processes to a /proc: pid -> (parent, command, variables, whether it has torch), and further fields."""

    def written(processes):
        (tmp_path / "uptime").write_text("1000.0 1.0\n")
        for pid, (parent, command, environ, torch, *more) in processes.items():
            folder = tmp_path / str(pid)
            (folder / "task" / str(pid)).mkdir(parents=True)
            name, state = (*more, *("python", "S")[len(more) :])
            (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} " + "0 " * 17 + f"{1000 + pid} " + "0 " * 20)
            (folder / "cmdline").write_text("".join(f"{word}\0" for word in command.split()))
            (folder / "maps").write_text(TORCH if torch else "")
            (folder / "task" / str(pid) / "comm").write_text(name)
            if environ is not None:
                (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in environ.items()))
        return ProcessTable(tmp_path)

    return written
