"""Show real runs in the pages: each example is a recorded job, judged and shown as distcheck does it today.

A run is recorded in docs/examples/NAME.json, which is what ``--save`` writes. Its report stands in a measured place
(docs/measured.py) of a page, with the day, commit and machine of the run. When reports or rules change, the pages are
written again from the recorded jobs; when the code changes that measured the figures, the run is made again.

Usage: python docs/examples.py              write every example again from its recorded job
       python docs/examples.py --check      write nothing; name the examples that are not what is printed now
       python docs/examples.py --run NAME   make a run again and record it; "all" makes every one (the cluster
                                            of tests/cluster needs root and its packages)
"""

from __future__ import annotations

import argparse
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import measured

from distcheck.facts import saved as jobfile
from distcheck.report import render
from distcheck.rules.diagnose import diagnose

if TYPE_CHECKING:
    from distcheck.facts import Job

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "docs" / "examples"

Run = Callable[[list[str], Path], None]
"""Runs a command of distcheck, with whatever it is to meet, and saves the job to a file."""


class Example(NamedTuple):
    """One run that a page shows."""

    page: str
    command: str
    """As the page has it."""
    run: Run
    covers: tuple[str, ...]
    """The code that measured its figures."""
    format: str = "text"


# --- runs


def here(words: list[str], saved: Path) -> None:
    """Run on this machine."""
    subprocess.run([sys.executable, "-m", *words, "--save", str(saved)], cwd="/", check=False)


def beside_a_web_server(words: list[str], saved: Path) -> None:
    """Run on this machine, where another program has taken MASTER_PORT."""
    port = words[words.index("--master-port") + 1]
    words_of_server = ["python3", "-m", "http.server", port, "--bind", "127.0.0.1"]
    server = subprocess.Popen(words_of_server, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _expect_listener(int(port))
        here(words, saved)
    finally:
        server.kill()
        server.wait()


def _expect_listener(port: int) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def node4_has_no_power(words: list[str], saved: Path) -> None:
    """Run on four nodes of which one does not answer."""
    with _cluster() as cluster:
        cluster.cut("node4")
        _on_cluster(cluster, words, saved)


def node2_admits_nobody(words: list[str], saved: Path) -> None:
    """Run on four nodes of which one has a firewall that admits ssh and answers only."""
    admitted = "ct state established,related accept; iif lo accept; tcp dport 22 accept; drop;"
    with _cluster() as cluster:
        rules = f"table inet f {{ chain in {{ type filter hook input priority 0; {admitted} }}; }}"
        cluster.netns("node2", "nft", "-f", "-", text=rules)
        _on_cluster(cluster, words, saved)


@contextmanager
def _cluster() -> Iterator[Any]:
    from cluster.cluster import Cluster  # type: ignore[import-not-found]  # of the tests, which are not checked

    cluster = Cluster(slurm=False)
    try:
        yield cluster
    finally:
        cluster.conclude()


def _on_cluster(cluster: Any, words: list[str], saved: Path) -> None:
    cluster.run("head", *words, "--save", "/shared/job.json", timeout=120)
    saved.write_bytes((cluster.shared / "job.json").read_bytes())


EXAMPLES: dict[str, Example] = {
    "gate": Example("README.md", "distcheck gate --nproc 4", here, ("distcheck/collectives/*.py",)),
    "taken-port": Example(
        "README.md",
        "distcheck gate --nproc 4 --master-port 29633",
        beside_a_web_server,
        ("distcheck/probe/ports.py",),
    ),
    "node-down": Example(
        "README.md",
        "distcheck env --hosts 'node[1-4]' --nproc 2",
        node4_has_no_power,
        ("distcheck/launch/remote/ssh.py",),
    ),
    "firewall": Example(
        "README.md",
        "distcheck net --hosts 'node[1-4]' --nproc 2",
        node2_admits_nobody,
        ("distcheck/run/peer_round.py",),
    ),
    "json": Example(
        "docs/json.md",
        "distcheck bandwidth --nproc 2 --format json",
        here,
        ("distcheck/collectives/*.py",),
        "json",
    ),
}


# --- what the pages show


def recorded(name: str) -> Job:
    """Return the job of an example."""
    return jobfile.load(RECORDED / f"{name}.json")


def shown(name: str) -> list[str]:
    """Return the lines of an example: the command and what it prints now of the recorded job."""
    example, job = EXAMPLES[name], recorded(name)
    report = render(example.format, job, diagnose(job, strict=job.asked.strict))
    if example.format == "json":
        return ["```json", *_one_of_each(report).splitlines(), "```"]
    return ["```", f"$ {example.command}", *report.splitlines(), "```"]


def _one_of_each(report: str) -> str:
    """Indent a JSON report, and keep one row of the figures and one of the models: the largest all_reduce."""
    whole = json.loads(report)
    whole["bandwidth"] = [row for row in whole["bandwidth"] if row["op"] == "all_reduce"][-1:]
    whole["models"] = whole["models"][:1]
    return json.dumps(whole, indent=2, ensure_ascii=False)


def pages() -> dict[Path, str]:
    """Return the pages that show examples, with what is printed now."""
    texts: dict[Path, str] = {}
    for name, example in EXAMPLES.items():
        path = ROOT / example.page
        text = texts.get(path) or path.read_text(encoding="utf-8")
        texts[path] = measured.reword(text, _place(name), shown(name))
    return texts


def stale() -> list[str]:
    """Return the names of pages whose examples are not what is printed now."""
    return [path.name for path, text in pages().items() if text != path.read_text(encoding="utf-8")]


def record(name: str) -> None:
    """Make a run again, keep its job and show it."""
    example = EXAMPLES[name]
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "job.json"
        example.run(shlex.split(example.command), saved)
        (RECORDED / f"{name}.json").write_bytes(saved.read_bytes())
    command = f"python docs/examples.py --run {name}"
    measured.put(example.page, _place(name), shown(name), covers=example.covers, command=command)


def _place(name: str) -> str:
    return f"example {name}"


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when an example is stale")
    parser.add_argument("--run", metavar="NAME", choices=[*EXAMPLES, "all"], help=f"{', '.join(EXAMPLES)} or all")
    asked = parser.parse_args()
    if asked.check:
        old = stale()
        for page in old:
            print(f"the examples of {page} are stale: run python docs/examples.py")
        return int(bool(old))
    for name in EXAMPLES if asked.run == "all" else [asked.run] if asked.run else []:
        record(name)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
