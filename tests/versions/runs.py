"""Healthy runs of every command on this machine, and a real fault for each, with the distcheck of some environment."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from real.spoiling import DIE, WRONG, spoiled

HEALTHY = (
    ("env", "--nproc", "2"),
    ("net", "--nproc", "2"),
    ("gpu", "--nproc", "2"),
    ("bandwidth", "--nproc", "2", "--time-limit", "1"),
    ("gate", "--nproc", "3"),
    ("isolate", "--nproc", "2"),
    ("node",),
)
_LANES = 2


def healthy_complaints(python: Path, folder: Path, runs: int) -> list[str]:
    """Run every command so many times, two at a time; return for each '' or how it was no pass."""
    with ThreadPoolExecutor(_LANES) as lanes:
        return list(lanes.map(lambda command: _complaint(python, folder, command), HEALTHY * runs))


def _complaint(python: Path, folder: Path, command: tuple[str, ...]) -> str:
    code, findings, words = _run(python, folder, *command)
    above = [f for f in findings if f["severity"] != "info" and not (command[0] == "node" and _is_own(f["rule"]))]
    told = [f"{f['rule']}: {f['message']}" for f in above]
    return f"{' '.join(command)}: exit code {code}: {told or words}" if code or above else ""


def _is_own(rule: str) -> bool:
    """Whether a rule is about this machine, which `node` may rightly find."""
    return rule.startswith(("host-", "gpu-xid-"))


def fault_complaints(python: Path, folder: Path) -> list[str]:
    """Make one real fault for every command; return what was not found as it should be."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        found = [
            _expect(python, folder, "env", code=30, rule="env-rank-unset"),
            _expect(python, folder, "net", "--nproc", "2", "--master-port", port, code=30, rule="net-port-in-use"),
            _expect(python, folder, "gpu", "--nproc", "2", "--backend", "nccl", code=30, rule="gpu-"),
            _expect(python, folder, "node", "--gpus", "8", code=40, rule="gpu-nvml-init-failed"),
        ]
    wrong, dead = _spoiled(folder / "wrong", WRONG), _spoiled(folder / "dead", DIE)
    small = ("--sizes", "1M:1M", "--op", "all_reduce")
    found += [
        _expect(python, folder, "bandwidth", "--nproc", "3", *small, env=wrong, code=20, rule="collective-wrong"),
        _expect(python, folder, "gate", "--nproc", "3", *small, env=dead, code=20, rule="collective-rank-died"),
        _expect(python, folder, "isolate", "--nproc", "3", env=wrong, code=20, rule="isolation-bad-node"),
    ]
    return [complaint for complaint in found if complaint]


def _spoiled(folder: Path, body: str) -> dict[str, str]:
    folder.mkdir()
    return spoiled(folder, (1,), body)


def _expect(
    python: Path, folder: Path, *command: str, code: int, rule: str, env: Mapping[str, str] | None = None
) -> str:
    """Return '' when a run ends with this code and an error of a rule that begins so, else what it said."""
    got, findings, words = _run(python, folder, *command, env=env)
    errors = [f["rule"] for f in findings if f["severity"] == "error"]
    if got == code and any(name.startswith(rule) for name in errors):
        return ""
    return f"{' '.join(command)}: exit code {got}, {errors or words}; expected {code}, {rule}"


def _run(
    python: Path, folder: Path, *command: str, env: Mapping[str, str] | None = None
) -> tuple[int, list[dict[str, str]], str]:
    """Return a run's exit code, its findings, and what it said where it gave no report."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    ended = subprocess.run(
        [python, "-m", "distcheck", *command, "--format", "json"],
        cwd=folder, env={**clean, **(env or {})}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    try:
        return ended.returncode, json.loads(ended.stdout)["findings"], ""
    except (ValueError, KeyError):
        return ended.returncode, [], (ended.stdout + ended.stderr)[-1000:]
