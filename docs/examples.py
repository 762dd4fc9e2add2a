"""Write real runs into the pages: each example is a recorded job, judged and rendered by today's code.

A run is recorded in docs/examples/NAME.json by ``--save``. Its report is in a measured block (docs/measured.py) of a
page, with the date, commit and machine of the run. If reports or rules change, rewrite the pages from the recorded
jobs. If the code that measured the figures changes, repeat the run.

Usage: python docs/examples.py              rewrite every example from its recorded job
       python docs/examples.py --check      write nothing; list the pages with stale examples
       python docs/examples.py --run NAME   repeat a run and record it; "all" repeats every run (the cluster
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
    from distcheck.facts.job import Job

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "docs" / "examples"

Run = Callable[[str, Path], None]
"""Runs the command of an example under its conditions and saves the job to a file."""


class Example(NamedTuple):
    """A run that a page shows."""

    page: str
    command: str
    """As shown on the page; of several nodes one line for each, which ends in "# on NODE"."""
    run: Run
    format: str = "text"


# --- runs


def here(command: str, saved: Path) -> None:
    """Run on this machine."""
    subprocess.run([sys.executable, "-m", *shlex.split(command), "--save", str(saved)], cwd="/", check=False)


def beside_a_web_server(command: str, saved: Path) -> None:
    """Run on this machine, with another program on MASTER_PORT."""
    words = shlex.split(command)
    port = words[words.index("--master-port") + 1]
    server_command = ["python3", "-m", "http.server", port, "--bind", "127.0.0.1"]
    server = subprocess.Popen(server_command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _expect_listener(int(port))
        here(command, saved)
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


def without_node4(command: str, saved: Path) -> None:
    """Run on four nodes; node4 does not answer."""
    with _cluster() as cluster:
        cluster.cut("node4")
        _on_cluster(cluster, command, saved)


def node2_behind_firewall(command: str, saved: Path) -> None:
    """Run on four nodes; the firewall of node2 accepts only ssh and replies."""
    admitted = "ct state established,related accept; iif lo accept; tcp dport 22 accept; drop;"
    with _cluster() as cluster:
        rules = f"table inet f {{ chain in {{ type filter hook input priority 0; {admitted} }}; }}"
        cluster.netns("node2", "nft", "-f", "-", text=rules)
        _on_cluster(cluster, command, saved)


def with_simulated_gpus(command: str, saved: Path) -> None:
    """Run on two nodes whose NVML and CUDA are those of the tests: four GPUs each, as of a DGX H100."""
    from cluster import simulated  # type: ignore[import-not-found]

    with _cluster(nodes=2) as cluster:
        simulated.give_gpus(cluster)
        simulated.run(cluster, command, DISTCHECK_SAVE="/shared/job.json")
        saved.write_bytes((cluster.shared / "job.json").read_bytes())


def beside_a_loader(command: str, saved: Path) -> None:
    """Run beside four ranks on two nodes, of which one has a data-loader worker that opens a pipe without a writer."""
    _beside("loader", command, saved)


def beside_a_skipped_collective(command: str, saved: Path) -> None:
    """Run beside four ranks on two nodes, of which one leaves a collective out."""
    _beside("skipped_collective", command, saved)


def beside_a_cut(command: str, saved: Path) -> None:
    """Run beside four ranks on two nodes, of which one drops what the other sends."""
    _beside("quick_steps", command, saved, cut=True)


def _beside(fault: str, command: str, saved: Path, *, cut: bool = False) -> None:
    from cluster.inside import filtered, running, two_each  # type: ignore[import-not-found]

    with _cluster(nodes=2) as cluster, running(cluster, fault, two_each("node1", "node2")):
        if cut:
            filtered(cluster, "node1", f"ip saddr {cluster.networks[0]}.12 drop")
        _on_cluster(cluster, command, saved)


@contextmanager
def _cluster(nodes: int = 4) -> Iterator[Any]:
    from cluster.cluster import Cluster  # type: ignore[import-not-found]  # mypy does not check the tests

    cluster = Cluster(nodes, slurm=False)
    try:
        yield cluster
    finally:
        cluster.conclude()


def _on_cluster(cluster: Any, command: str, saved: Path) -> None:
    cluster.run("head", *shlex.split(command), "--save", "/shared/job.json", timeout=120)
    saved.write_bytes((cluster.shared / "job.json").read_bytes())


_AGENT = "torchrun --nnodes 2 --node-rank {} --master-addr node1 --nproc-per-node 4 --no-python distcheck gpu"

EXAMPLES: dict[str, Example] = {
    "gate": Example("docs/quickstart.md", "distcheck gate --nproc 4", here),
    "taken-port": Example(
        "README.md",
        "distcheck gate --nproc 4 --master-port 29633",
        beside_a_web_server,
    ),
    "node-down": Example(
        "docs/reachability.md",
        "distcheck env --hosts 'node[1-4]' --nproc 2",
        without_node4,
    ),
    "firewall": Example(
        "docs/reachability.md",
        "distcheck net --hosts 'node[1-4]' --nproc 2",
        node2_behind_firewall,
    ),
    "hang-loader": Example("docs/hang.md", "distcheck hang --hosts 'node[1-2]'", beside_a_loader),
    "hang-skipped": Example("docs/hang.md", "distcheck hang --hosts 'node[1-2]'", beside_a_skipped_collective),
    "hang-cut": Example("docs/hang.md", "distcheck hang --hosts 'node[1-2]' --wait 4", beside_a_cut),
    "json": Example(
        "docs/json.md",
        "distcheck bandwidth --nproc 2 --format json",
        here,
        "json",
    ),
    "one-node": Example(
        "docs/concepts.md",
        "torchrun --standalone --nproc-per-node 4 --no-python distcheck gpu",
        with_simulated_gpus,
    ),
    "two-nodes": Example(
        "docs/concepts.md",
        "\n".join(f"{_AGENT.format(number)}  # on node{number + 1}" for number in range(2)),
        with_simulated_gpus,
    ),
    "visible-devices": Example(
        "docs/concepts.md",
        "CUDA_VISIBLE_DEVICES=2,3 distcheck gpu --nproc 2",
        with_simulated_gpus,
    ),
}


# --- the pages


def recorded(name: str) -> Job:
    """Return the job of an example."""
    return jobfile.load(RECORDED / f"{name}.json")


def shown(name: str) -> list[str]:
    """Return the lines of an example: the command and its report of the recorded job."""
    example, job = EXAMPLES[name], recorded(name)
    report = render(example.format, job, diagnose(job, strict=job.asked.strict))
    if example.format == "json":
        return ["```json", *_one_of_each(report).splitlines(), "```"]
    commands = [f"$ {line}" for line in example.command.splitlines()]
    return ["```", *commands, *report.splitlines(), "```"]


def _one_of_each(report: str) -> str:
    """Return an indented JSON report with one bandwidth row and one model: the largest all_reduce."""
    whole = json.loads(report)
    whole["bandwidth"] = [row for row in whole["bandwidth"] if row["op"] == "all_reduce"][-1:]
    whole["models"] = whole["models"][:1]
    return json.dumps(whole, indent=2, ensure_ascii=False)


def pages() -> dict[Path, str]:
    """Return the pages with examples, with the current reports."""
    texts: dict[Path, str] = {}
    for name, example in EXAMPLES.items():
        path = ROOT / example.page
        text = texts.get(path) or path.read_text(encoding="utf-8")
        texts[path] = measured.reword(text, _block(name), shown(name))
    return texts


def stale() -> list[str]:
    """Return the names of the pages with stale examples."""
    return [path.name for path, text in pages().items() if text != path.read_text(encoding="utf-8")]


def record(name: str) -> None:
    """Repeat a run, save its job and write it into its page."""
    example = EXAMPLES[name]
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "job.json"
        example.run(example.command, saved)
        (RECORDED / f"{name}.json").write_bytes(saved.read_bytes())
    command = f"python docs/examples.py --run {name}"
    measured.put(example.page, _block(name), shown(name), command=command)


def _block(name: str) -> str:
    return f"example {name}"


def main() -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if an example is stale")
    parser.add_argument("--run", metavar="NAME", choices=[*EXAMPLES, "all"], help=f"{', '.join(EXAMPLES)} or all")
    options = parser.parse_args()
    if options.check:
        old = stale()
        for page in old:
            print(f"the examples of {page} are stale: run python docs/examples.py")
        return int(bool(old))
    for name in EXAMPLES if options.run == "all" else [options.run] if options.run else []:
        record(name)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
