"""Runs distcheck as people install it: many versions of torch and Python, numpy or none, the floor of every dependency.

    python tests/versions/run.py --log versions.jsonl --write    # the whole matrix: more than an hour, 6 GB of disk
    python tests/versions/run.py --quick                         # the floors and the newest, for every change

Makes one environment after the other in a temporary folder. In each: healthy runs of every command, one real fault for
each command, and the end-to-end tests of launch and roll call. Every environment is a line of the log, so that what was
interrupted goes on where it was. Exits 1 when anything was not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs")]

import measured  # noqa: E402

from versions.runs import fault_complaints, healthy_complaints  # noqa: E402

PAGE = "docs/reliability.md"
_TESTS = (
    "tests/collectives/test_worker.py",
    "tests/collectives/test_groups.py",
    "tests/launch/local/test_supervisor.py",
    "tests/end_to_end/test_roll_call.py",
    "tests/end_to_end/test_gate.py",
    "tests/end_to_end/test_torchrun.py",
)
_QUICK_TESTS = ("tests/end_to_end/test_roll_call.py",)
_TOOLS = ("pytest>=9", "pytest-xdist>=3.6", "hypothesis>=6.100")


class Combination(NamedTuple):
    """What an environment has; an empty torch is the newest that there is."""

    torch: str
    python: str
    numpy: str = ""
    """A requirement; '' for none."""
    floors: bool = False
    """Whether every dependency of pyproject.toml is the oldest that it admits."""

    @property
    def name(self) -> str:
        """Name it: floors, Python 3.10."""
        torch = "every dependency's floor" if self.floors else f"torch {self.torch or '(newest)'}"
        return f"{torch}, Python {self.python}, {'with' if self.numpy else 'without'} numpy"


FLOORS = Combination("", "3.10", "numpy>=1.26.0,<2", floors=True)
NEWEST = Combination("", "3.13", "numpy")
MATRIX = (
    FLOORS,
    Combination("2.1.2", "3.11"),
    Combination("2.2.2", "3.10", "numpy<2"),
    Combination("2.3.1", "3.11", "numpy<2"),  # with Python 3.12 its torchrun crashes (pytorch/pytorch issue 125990)
    Combination("2.4.1", "3.10", "numpy"),
    Combination("2.5.1", "3.11"),
    Combination("2.6.0", "3.12", "numpy"),
    Combination("2.7.1", "3.13"),
    Combination("2.8.0", "3.10", "numpy"),
    Combination("2.9.1", "3.13", "numpy"),
    Combination("2.10.0", "3.12"),
    Combination("2.11.0", "3.10", "numpy"),
    Combination("2.12.1", "3.12"),
    Combination("2.13.0", "3.11", "numpy"),
    Combination("2.14.1", "3.12", "numpy"),
    NEWEST,
    Combination("", "3.14"),
)


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the floors and the newest, 3 runs of each command")
    parser.add_argument("--runs", type=int, help="healthy runs of each command (20)")
    parser.add_argument("--log", type=Path, help="one line for each environment; continued")
    parser.add_argument("--write", action="store_true", help=f"write the table of the log to {PAGE}")
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.log.read_text().splitlines()] if asked.log and asked.log.exists() else []
    for combination in (FLOORS, NEWEST) if asked.quick else MATRIX:
        if any(row["name"] == combination.name for row in rows):
            continue
        rows.append(_row(combination, asked.runs or (3 if asked.quick else 20), quick=asked.quick))
        print(json.dumps(rows[-1], indent=2), flush=True)
        if asked.log:
            with asked.log.open("a") as log:
                print(json.dumps(rows[-1]), file=log)
    print("\n".join(table(rows)))
    if asked.write:
        measured.put(PAGE, "versions", table(rows), command="python tests/versions/run.py --write")
    return int(any(row["complaints"] for row in rows))


def _row(combination: Combination, runs: int, *, quick: bool) -> dict[str, Any]:
    """Make an environment, try everything in it, and remove it."""
    row: dict[str, Any] = {"name": combination.name, "versions": {}, "runs": 0, "tests": "", "complaints": []}
    interpreter = find_python(combination.python)
    if interpreter is None:
        row["complaints"] = [f"this machine has no Python {combination.python} (looked in PATH and pyenv)"]
        return row
    folder = Path(tempfile.mkdtemp(prefix="distcheck-versions-"))
    start = time.monotonic()
    try:
        python = _install(combination, interpreter, folder / "venv")
        row["versions"] = _versions(python)
        scratch = folder / "scratch"
        scratch.mkdir()
        healthy = healthy_complaints(python, scratch, runs)
        row["runs"] = len(healthy)
        row["complaints"] += [complaint for complaint in healthy if complaint]
        row["complaints"] += fault_complaints(python, scratch)
        row["tests"], failed = _run_tests(python, _QUICK_TESTS if quick else _TESTS)
        row["complaints"] += failed
    except subprocess.CalledProcessError as error:
        row["complaints"].append(f"{' '.join(map(str, error.cmd))}: {error.stderr or error.stdout}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    row["seconds"] = round(time.monotonic() - start)
    return row


def find_python(version: str) -> str | None:
    """Return an interpreter of this version, such as 3.10, from PATH or pyenv; None when there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [*versions.glob(f"{version}.*/bin/python"), shutil.which(f"python{version}")]
    for path in filter(None, found):
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if answer == version:
            return str(path)
    return None


def _install(combination: Combination, interpreter: str, venv: Path) -> Path:
    """Install distcheck and what the tests need; return the environment's interpreter."""
    _call("uv", "venv", "--quiet", "--python", interpreter, venv)
    python = venv / "bin" / "python"
    install = ("uv", "pip", "install", "--quiet", "--no-cache", "--python", python)
    wanted = [f"torch=={combination.torch}"] if combination.torch else []
    wanted += [combination.numpy] if combination.numpy else []
    oldest = ("--resolution", "lowest-direct") if combination.floors else ()
    _call(*install, *oldest, f"{ROOT}[torch]", *wanted)
    _call(*install, *_TOOLS)
    return python


def _call(*command: str | Path) -> str:
    environ = {
        **os.environ,
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_HTTP_TIMEOUT": "180",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout


def _versions(python: Path) -> dict[str, str]:
    """Return the version of Python and of every package that distcheck uses."""
    listed = json.loads(_call("uv", "pip", "list", "--format", "json", "--python", python))
    names = {re.split(r"[^\w-]", need)[0].lower() for need in _needs()} | {"torch", "numpy"}
    found = {p["name"]: p["version"] for p in listed if p["name"].lower() in names}
    return {"python": _call(python, "-c", "import platform; print(platform.python_version())").strip(), **found}


def _needs() -> Iterator[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = text.partition("\ndependencies = [")[2].partition("]")[0]
    yield from re.findall(r'"([^"]+)"', block)


def _run_tests(python: Path, tests: Sequence[str]) -> tuple[str, list[str]]:
    """Run tests of the repository with this interpreter; return pytest's last line and what failed."""
    ended = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *tests],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = ended.stdout.splitlines() or [ended.stderr[-500:]]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if ended.returncode and not failed:
        failed = [f"pytest ended with {ended.returncode}: {lines[-1]}"]
    return re.sub(r" in .*", "", lines[-1].strip("= ")), failed


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rows as a Markdown table, and the versions of the dependencies at their floors and the newest."""
    lines = ["| torch | Python | numpy | healthy runs | tests | complaints |", "|---|---|---|---|---|---|"]
    for row in rows:
        of, floors = row["versions"], " (all floors)" if row["name"] == FLOORS.name else ""
        cells = (of.get("torch", row["name"]) + floors, of.get("python", "-"), of.get("numpy", "-"), row["runs"])
        lines.append(f"| {' | '.join(map(str, cells))} | {row['tests']} | {len(row['complaints']) or 'none'} |")
    for row in (row for row in rows if row["name"] in {FLOORS.name, NEWEST.name}):
        others = (f"{name} {v}" for name, v in row["versions"].items() if name not in {"torch", "python", "numpy"})
        lines += ["", f"Beside torch {row['versions'].get('torch')}: {', '.join(others)}."]
    return lines


if __name__ == "__main__":
    sys.exit(main())
