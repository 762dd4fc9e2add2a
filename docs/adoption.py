"""Runs each way to adopt distcheck as docs/adoption.md shows it, in an empty directory, and writes how long it took.

``python docs/adoption.py [--only WORD] [--write]``; it needs the environment of the tests. The first block of each
section runs under bash, which stops at the first command that fails. Packages come from a folder with the wheel of this
clone and of its dependencies, so that no run depends on the network.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import measured

PAGE = measured.ROOT / "docs" / "adoption.md"
LIMIT_SECONDS = 600
_SECTION = re.compile(r"(?ms)^## (?P<title>[^\n]+)\n(?P<text>.*?)(?=^## |\Z)")
_BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```")
_INSTALLS = re.compile(r"\bpip install|-m venv|\buv tool install")
_ON_HEAD = "slurm.conf"
"""In a block that runs on the head node of a cluster of the tests: as root, with what tests/cluster/install has."""
_NEEDS = {"kubectl": "kubectl", _ON_HEAD: "slurmctld"}
"""What a block needs of the machine, by a word in it."""
_FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "DISTCHECK", "PIP_", "UV_", "SLURM", "VIRTUAL_ENV", "PYTHON")
"""Begins of variables that a newcomer does not have."""


_PRELUDE = """
set -euo pipefail
note() { printf '%s %s\\n' "$EPOCHREALTIME" "${BASH_COMMAND%%$'\\n'*}" >> "$NOTES"; }
trap note DEBUG
"""


class Way(NamedTuple):
    """One way: a section of the page."""

    title: str
    block: str


class Timed(NamedTuple):
    """How a block ended, and how long each of its commands took."""

    code: int
    commands: tuple[tuple[str, float], ...]
    output: str

    @property
    def installing(self) -> float:
        """Seconds of the commands that install something."""
        return sum(seconds for command, seconds in self.commands if _INSTALLS.search(command))

    @property
    def whole(self) -> float:
        """Seconds of all commands."""
        return sum(seconds for _, seconds in self.commands)


def ways(page: str) -> list[Way]:
    """Return the ways of a page: its sections with a block for the shell."""
    found = ((section["title"], _BLOCK.search(section["text"])) for section in _SECTION.finditer(page))
    return [Way(title, block[1]) for title, block in found if block]


def lack(way: Way) -> str:
    """Return what this machine lacks for a way, '' if nothing."""
    missing = next((tool for word, tool in _NEEDS.items() if word in way.block and shutil.which(tool) is None), "")
    return missing and f"{missing} is not installed"


def timed(block: str, folder: Path, environment: dict[str, str]) -> Timed:
    """Run a block in a folder; bash notes the time before each command."""
    notes = folder.parent / f"{folder.name}.times"
    notes.unlink(missing_ok=True)
    done = subprocess.run(
        _shell(block),
        cwd=folder,
        env=environment | {"NOTES": str(notes)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return _timed(done.returncode, done.stdout, notes.read_text())


def _shell(block: str) -> list[str]:
    return ["bash", "-c", f"{_PRELUDE}{block}\n:\n"]


def _timed(code: int, output: str, notes: str) -> Timed:
    lines = [line.split(" ", 1) for line in notes.splitlines()]
    moments = [float(moment) for moment, _ in lines]
    seconds = [later - at for at, later in pairwise(moments)]
    return Timed(code, tuple(zip((command for _, command in lines), seconds, strict=False)), output)


def on_head(block: str, packages: Path) -> Timed:
    """Run a block on the head node of a cluster with four slurmds; its nodes take packages from the folder only."""
    sys.path.insert(0, str(measured.ROOT / "tests"))
    cluster = importlib.import_module("cluster.cluster").Cluster()
    try:
        shutil.copytree(packages, cluster.shared / "packages")
        for node in cluster.nodes:
            cluster.write(
                node, "/root/.config/pip/pip.conf", "[global]\nno-index = true\nfind-links = /shared/packages\n"
            )
        (cluster.shared / "empty").mkdir()
        environment = {"CLONE": str(measured.ROOT), "NOTES": "/shared/times"}
        done = cluster.run("head", *_shell(block), env=environment, cwd="/shared/empty", timeout=LIMIT_SECONDS)
        return _timed(done.code, done.out + done.err, (cluster.shared / "times").read_text())
    finally:
        cluster.conclude()


def wheels(folder: Path) -> None:
    """Put the wheel of this clone and those of its dependencies into a folder."""
    build = ("build", "--quiet", "--no-isolation", "--wheel", "--outdir", str(folder), str(measured.ROOT))
    subprocess.run([sys.executable, "-m", *build], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("distcheck-*.whl")
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), str(wheel)], check=True)


def python_of_a_job(folder: Path) -> Path:
    """Make an environment with pip, torch and what torch needs, and return its bin."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in _needed("torch", set()):
        files = metadata.distribution(name).files or ()
        for top in {file.parts[0] for file in files if file.parts[0] not in {"..", "__pycache__"}}:
            source = Path(str(metadata.distribution(name).locate_file(top)))
            if source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    start = folder / "bin" / "torchrun"
    start.write_text(f"#!{folder}/bin/python\nfrom torch.distributed.run import main\nmain()\n")
    start.chmod(0o755)
    return folder / "bin"


def _needed(name: str, seen: set[str]) -> Iterator[str]:
    """Yield a distribution and all that it needs, as far as they are installed."""
    try:
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return
    seen.add(name)
    yield name
    for need in needs:
        found = re.match(r"[\w.-]+", need)
        if found and "extra ==" not in need and found[0].lower() not in seen:
            yield from _needed(found[0].lower(), seen)


def _environment(binaries: Path, packages: Path, folder: Path) -> dict[str, str]:
    """Return a newcomer's variables; pip and uv take packages from the folder only."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    tools = folder.parent / "tools"
    tools.mkdir()
    (tools / "uv").symlink_to(Path(sys.executable).parent / "uv")
    return plain | {
        "PATH": os.pathsep.join(map(str, (binaries, folder.parent / "bin", tools, os.environ["PATH"]))),
        "HOME": str(folder.parent),
        "CLONE": str(measured.ROOT),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(packages),
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(packages),
        "UV_PYTHON": sys._base_executable,  # type: ignore[attr-defined]  # noqa: SLF001 the Python below this environment
        "UV_TOOL_DIR": str(folder.parent / "uv"),
        "UV_TOOL_BIN_DIR": str(folder.parent / "bin"),
    }


def run(way: Way, packages: Path) -> Timed:
    """Run a way in an empty directory, with a new environment of a job."""
    if _ON_HEAD in way.block:
        return on_head(way.block, packages)
    with tempfile.TemporaryDirectory(prefix="distcheck-adoption-") as temporary:
        folder = Path(temporary) / "empty"
        folder.mkdir()
        binaries = python_of_a_job(Path(temporary) / "job")
        return timed(way.block, folder, _environment(binaries, packages, folder))


def table(results: list[tuple[Way, Timed | str]]) -> list[str]:
    """Return the rows of the page; a way that did not run has the reason."""
    lines = ["| way | commands | to install, s | to run, s | all, s |", "|---|---|---|---|---|"]
    for way, result in results:
        if isinstance(result, str):
            lines.append(f"| {way.title} | - | - | - | not run: {result} |")
        else:
            installing, whole = result.installing, result.whole
            figures = f"{installing:.1f} | {whole - installing:.1f} | {whole:.1f}"
            lines.append(f"| {way.title} | {len(result.commands)} | {figures} |")
    return lines


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="run the ways with this word in their title")
    parser.add_argument("--write", action="store_true", help="write the table into docs/adoption.md")
    arguments = parser.parse_args()
    if arguments.write and arguments.only:
        parser.error("--write needs all ways")
    results: list[tuple[Way, Timed | str]] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="distcheck-wheels-") as packages:
        wheels(Path(packages))
        for way in ways(PAGE.read_text(encoding="utf-8")):
            if arguments.only not in way.title:
                continue
            result = lack(way) or run(way, Path(packages))
            results.append((way, result))
            print(table(results)[-1], flush=True)
            if not isinstance(result, str) and result.code:
                failed = True
                print(f"{way.title}: exit code {result.code}\n{result.output}", file=sys.stderr)
    if arguments.write and not failed:
        measured.put("docs/adoption.md", "adoption", table(results), command="python docs/adoption.py --write")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
