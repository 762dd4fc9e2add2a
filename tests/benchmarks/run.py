"""Measure distcheck against what people would use instead: ``python tests/benchmarks/run.py [--json]``.

``--only NAME`` measures the rows of one kind; ``--write`` writes them into docs/speed.md, which wants a quiet machine.
What is measured is an installed, compiled package, not the checkout: pip installs it into a temporary folder.

The two sides of a row run in turn, in the same minutes on the same machine, and the ratio of their medians is
judged: absolute times say little on a machine that has other work. A row that could not be measured is not
met and says why. Rows of several nodes run on the test cluster, which needs root and its packages (see
tests/cluster/install); rows that need GPUs are measured elsewhere.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tabulate

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = "docs/speed.md"
NEVER = (0.0, -1.0)

Interval = tuple[float, float]


class Row(NamedTuple):
    """One line of the table; `ratio` is what `goal` bounds."""

    name: str
    ours: float | None
    theirs: float | None
    ratio: float | None
    goal: Interval
    unit: str = "s"
    error: str = ""
    off: float | None = None
    """By which share of itself the ratio may be off (95 %), where that was measured."""

    @property
    def met(self) -> bool:
        return self.ratio is not None and self.goal[0] <= self.ratio <= self.goal[1]


class NotMeasuredError(Exception):
    """A side of a row did not run as it should."""


# --- start-up


def start_of_env_against_typer() -> Iterator[Row]:
    ours, theirs = in_turn(distcheck_env, typer_app, 21)
    yield row("distcheck env / typer app with one empty command", ours, theirs, at_most(1.3))


def start_of_env_against_collect_env() -> Iterator[Row]:
    ours, theirs = in_turn(distcheck_env, collect_env, 7)
    yield row("distcheck env / python -m torch.utils.collect_env", ours, theirs, at_most(0.10))


def distcheck_env() -> float:
    one_rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return seconds_of([sys.executable, "-m", "distcheck", "env"], **one_rank, **master)


def typer_app() -> float:
    return seconds_of([sys.executable, str(HERE / "empty_app.py")])


def collect_env() -> float:
    return seconds_of([sys.executable, "-m", "torch.utils.collect_env"])


# --- the first figure


def first_figure_against_torchrun() -> Iterator[Row]:
    ours, theirs = in_turn(first_figure, torchrun, 5)
    yield row("bandwidth --nproc 8 to its first figure / torchrun", ours, theirs, at_most(0.35))


def first_figure() -> float:
    """Return the seconds from the start of the process to the first figure.

    The saved job counts from where distcheck's own code begins. What the process took outside that (the
    interpreter's start, its end) is added in full.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "job.json"
        command = ["bandwidth", "--nproc", "8", "--backend", "gloo", "--sizes", "1M", "--save", str(saved)]
        whole = seconds_of(names_from_files([sys.executable, "-m", "distcheck", *command]))
        job = json.loads(saved.read_text())
    first = job["collectives"]["first_figure_seconds"]
    if first is None:
        raise NotMeasuredError(f"distcheck measured nothing: {job['collectives']}")
    return float(first) + whole - float(job["seconds"])


def torchrun() -> float:
    """Return the seconds from the start of torchrun to the first result on any rank."""
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "8", "--master-port", str(free_port())]
    start = time.time()
    output = output_of(names_from_files([sys.executable, *command, str(HERE / "bare_all_reduce.py")]))
    return min(float(line) for line in output.splitlines()) - start


# --- several nodes


def gate_on_four_nodes_against_torchrun() -> Iterator[Row]:
    ours, theirs = in_turn(lambda: on_four_nodes("gate")[0], lambda: on_four_nodes("torchrun")[0], 3)
    yield row("whole gate on 4 nodes x 2 ranks / torchrun of a bare all_reduce", ours, theirs, at_most(0.5))


def net_on_four_nodes() -> Iterator[Row]:
    ours, theirs = in_turn(lambda: on_four_nodes("net")[0], lambda: on_four_nodes("start")[0], 3)
    name = "net on 4 nodes x 2 ranks, seconds beyond the start of its processes"
    yield Row(name, ours, theirs, ours - theirs, at_most(2.0))


def a_master_whose_packets_are_dropped() -> Iterator[Row]:
    said, ended = on_four_nodes("dropped")
    yield Row("a dropped MASTER_ADDR: said on stderr / 10 s", said, 10.0, said / 10.0, at_most(1.0))
    yield Row("a dropped MASTER_ADDR: concluded / --join-timeout + 3 s", ended, 23.0, ended / 23.0, at_most(1.0))


def on_four_nodes(what: str) -> list[float]:
    return [float(word) for word in output_of([sys.executable, str(HERE / "four_nodes.py"), what]).split()]


# --- the figures themselves


def figures_against_a_bare_loop() -> Iterator[Row]:
    for shape, which in (("2", "2 ranks"), ("4", "4 ranks"), ("8 4", "4 of 8 ranks, the others wait")):
        for line in output_of([sys.executable, str(HERE / "side_by_side.py"), *shape.split()]).splitlines():
            told = json.loads(line)
            name = f"{told['op']}, {told['bytes'] >> 20} MiB, {which} / bare torch loop"
            yield Row(name, told["ours"], told["theirs"], told["ratio"], (0.97, 1.03), off=told["off"])


# --- scale


def judging_and_rendering() -> Iterator[Row]:
    few, many = 8192, 65536
    small, large = (
        json.loads(output_of([sys.executable, str(HERE / "judge_and_render.py"), str(ranks)])) for ranks in (few, many)
    )
    name = f"judge and render {many} ranks"
    plain = large["plain"] / small["plain"]
    exponents = {}
    for kind, seconds in large["seconds"].items():
        growth = seconds / small["seconds"][kind]
        exponents[kind] = math.log(growth) / math.log(many / few)
        what = f"{name}, {kind}: growth from {few} / that of a plain pass over the ranks"
        yield Row(what, growth, plain, growth / plain, at_most(1.1), "times")
    worst, of_a_pass = max(exponents.values()), math.log(plain) / math.log(many / few)
    what = f"{name}: largest exponent of the growth / that of a plain pass over the ranks"
    yield Row(what, worst, of_a_pass, worst / of_a_pass, at_most(1.1), "")
    healthy = large["seconds"]["healthy"]
    yield Row(f"{name}, healthy: seconds of CPU", healthy, None, healthy, at_most(5.0))
    yield Row(f"{name}, peak memory beyond the job's own", large["GiB"], None, large["GiB"], at_most(0.5), "GiB")
    yield Row(f"memory of the facts of {many} ranks", large["job_GiB"], None, large["job_GiB"], at_most(2.0), "GiB")


def roll_call_against_a_tcp_store() -> Iterator[Row]:
    ours, theirs = in_turn(roll_call, tcp_store, 5)
    name = "roll call of 8192 ranks on 1024 simulated nodes"
    yield row(f"{name} / TCPStore with a client per rank", ours, theirs, at_most(1.0))
    yield Row(f"{name}, seconds", ours, None, ours, at_most(5.0))


def roll_call() -> float:
    return float(output_of(names_from_files([sys.executable, str(HERE / "roll_call.py"), "distcheck"])))


def tcp_store() -> float:
    return float(output_of(names_from_files([sys.executable, str(HERE / "roll_call.py"), "store"])))


# --- who is bad


def isolation_against_everybody_twice() -> Iterator[Row]:
    """How often exactly the bad nodes are named, on simulated clusters with faults of ten kinds."""
    rows = json.loads(output_of([sys.executable, str(HERE / "isolation_accuracy.py"), "--json", "--trials", "60"]))
    trials = sum(r["trials"] for r in rows)
    ours, theirs = (sum(r[side]["exact"] * r["trials"] for r in rows) / trials for side in ("ours", "theirs"))
    name = f"the bad node out of 4 to 12,500, {trials} simulated clusters"
    yield Row(f"{name}: exact verdicts / testing everybody twice", ours, theirs, ours / theirs, at_least(1), "")
    worst = min(rows, key=lambda r: r["ours"]["exact"] - r["theirs"]["exact"])
    exact = worst["ours"]["exact"], worst["theirs"]["exact"]
    yield Row(f"{name}: the same, least lead in one kind and size", *exact, exact[0] - exact[1], at_least(0), "")
    blamed = [sum(r[side]["innocent"] * r["trials"] for r in rows) / trials for side in ("ours", "theirs")]
    yield Row(f"{name}: good nodes that are blamed, each time", blamed[0], blamed[1], blamed[0], at_most(0.001), "")
    few = [r for r in rows if "29%" not in r["kind"] and "of any names" not in r["kind"]]
    rounds = [max(r[side]["rounds"] for r in few) for side in ("ours", "theirs")]
    yield Row(f"{name}: rounds of pairs up to 10 % bad, at most", rounds[0], rounds[1], rounds[0], at_most(4), "rounds")


# --- measuring


def in_turn(ours: Callable[[], float], theirs: Callable[[], float], times: int) -> tuple[float, float]:
    """Return the medians of both sides, run in turn and after one run of each that does not count."""
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(times)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def seconds_of(command: Sequence[str], **variables: str) -> float:
    start = time.perf_counter()
    output_of(command, **variables)
    return time.perf_counter() - start


def names_from_files(command: Sequence[str]) -> list[str]:
    """Let a command resolve names from /etc/hosts only, where the kernel lets us.

    Torch's store asks for the name of every address it connects to, and a name server that is slow to say that it
    knows none would be measured instead of torch.
    """
    private = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*private, "true"], check=False).returncode != 0:
        return list(command)
    mount = 'mount --bind $0 /etc/nsswitch.conf && exec "$@"'
    return [*private, "sh", "-c", mount, str(HERE / "nsswitch.conf"), *command]


def output_of(command: Sequence[str], **variables: str) -> str:
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environ = {name: value for name, value in os.environ.items() if name not in launcher}
    run = subprocess.run(
        command, env={**environ, **variables}, capture_output=True, text=True, timeout=1800, check=False
    )
    if run.returncode != 0:
        words = (run.stderr or run.stdout).strip().splitlines()[-3:]
        raise NotMeasuredError(f"{' '.join(command[1:4])} ended with {run.returncode}: {' '.join(words)}")
    return run.stdout


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def row(name: str, ours: float, theirs: float, goal: Interval) -> Row:
    return Row(name, ours, theirs, ours / theirs, goal)


def at_most(bound: float) -> Interval:
    return (0.0, bound)


def at_least(bound: float) -> Interval:
    return (bound, math.inf)


# --- the table

BENCHMARKS: dict[str, Callable[[], Iterator[Row]]] = {
    measure.__name__: measure
    for measure in (
        start_of_env_against_typer,
        start_of_env_against_collect_env,
        first_figure_against_torchrun,
        gate_on_four_nodes_against_torchrun,
        net_on_four_nodes,
        a_master_whose_packets_are_dropped,
        figures_against_a_bare_loop,
        judging_and_rendering,
        roll_call_against_a_tcp_store,
        isolation_against_everybody_twice,
    )
}


_START = (
    "distcheck/__main__.py",
    "distcheck/cli/main.py",
    "distcheck/cli/command.py",
    "distcheck/cli/options.py",
    "distcheck/cli/request.py",
    "distcheck/run/entry.py",
    "distcheck/rules/diagnose.py",
    "distcheck/probe/host.py",
    "distcheck/probe/process.py",
    "distcheck/rules/__init__.py",
    "distcheck/report/text.py",
)
"""What every start runs and what chooses the rest; one more field or rule changes a start by less than a hundredth."""

COVERS: dict[str, tuple[str, ...]] = {
    "start_of_env_against_typer": (*_START, "tests/benchmarks/empty_app.py"),
    "start_of_env_against_collect_env": _START,
    "first_figure_against_torchrun": ("distcheck/collectives/*.py", "distcheck/launch/local/supervisor.py"),
    "gate_on_four_nodes_against_torchrun": ("distcheck/collectives/*.py", "distcheck/rollcall/*.py"),
    "net_on_four_nodes": ("distcheck/run/peer_round.py", "distcheck/rollcall/*.py"),
    "a_master_whose_packets_are_dropped": ("distcheck/rollcall/*.py",),
    "figures_against_a_bare_loop": (  # what times a call, and when a figure is known
        *(f"distcheck/collectives/timing.py::{name}" for name in ("seconds_per_call", "iterations_for")),
        "distcheck/collectives/spread.py",
    ),
    "judging_and_rendering": (
        "distcheck/rules/diagnose.py",
        "distcheck/rules/**/*.py",
        "distcheck/report/*.py",
        "tests/real_job.py",
        "tests/benchmarks/judge_and_render.py",
    ),
    "roll_call_against_a_tcp_store": ("distcheck/rollcall/*.py", "tests/benchmarks/roll_call.py"),
    "isolation_against_everybody_twice": (
        "distcheck/isolation/*.py",
        "tests/isolation/simulator.py",
        "tests/benchmarks/isolation_accuracy.py",
    ),
}
"""By benchmark, the code whose change can change its figures."""


def install(folder: str) -> None:
    """Install this checkout as users do, compiled and without its dependencies, which are here."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, str(ROOT)]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)


def write(name: str, rows: Sequence[Row]) -> None:
    """Write the rows of one benchmark into the page; rows that could not be measured leave the page as it is."""
    from measured import put

    if any(r.error for r in rows):
        print(f"{name} is not written: {'; '.join(r.error for r in rows)}", file=sys.stderr)
        return
    command = f"python tests/benchmarks/run.py --only {name} --write"
    put(PAGE, name, as_text(rows, "github").splitlines(), covers=COVERS[name], command=command)


def measured(name: str) -> Iterator[Row]:
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    try:
        yield from BENCHMARKS[name]()
    except (NotMeasuredError, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
        yield Row(name, None, None, None, NEVER, error=f"{type(error).__name__}: {error}")


def as_json(r: Row) -> dict[str, Any]:
    goal: float | tuple[float, float | None] | None = r.goal[1] if r.goal[0] == 0 else r.goal
    if math.isinf(r.goal[1]):
        goal = (r.goal[0], None)
    told = {"name": r.name, "ours": r.ours, "theirs": r.theirs, "ratio": r.ratio, "goal": goal, "met": r.met}
    if r.error:
        return {**told, "goal": None, "error": r.error}
    return {**told, "unit": r.unit, **({"off": r.off} if r.off is not None else {})}


def bounds(goal: Interval) -> str:
    if math.isinf(goal[1]):
        return f"at least {goal[0]:g}"
    return f"at most {goal[1]:g}" if goal[0] == 0 else f"{goal[0]:g} to {goal[1]:g}"


def as_text(rows: Sequence[Row], form: str = "simple") -> str:
    table = [
        [
            r.name,
            r.ours,
            r.theirs,
            r.unit,
            r.ratio,
            r.off,
            r.error or bounds(r.goal),
            "yes" if r.met else "NO",
        ]
        for r in rows
    ]
    headers = ["what", "ours", "theirs", "unit", "ratio", "+-", "goal", "met"]
    return tabulate.tabulate(table, headers, form, floatfmt=".4g", missingval="-")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure distcheck against what people would use instead.")
    parser.add_argument("--json", action="store_true", help="print a JSON list of rows")
    parser.add_argument("--only", metavar="NAME", help=f"part of one of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--write", action="store_true", help=f"write the rows into {PAGE}")
    asked = parser.parse_args()
    names = [name for name in BENCHMARKS if asked.only is None or asked.only in name]
    if not names:
        parser.error(f"no benchmark's name contains {asked.only!r}; there are {', '.join(BENCHMARKS)}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        install(folder)
        os.environ["PYTHONPATH"] = folder
        os.chdir(folder)  # `python -m` looks in the current folder first: at the top of a checkout it would run that
        for name in names:
            found = list(measured(name))
            rows += found
            if asked.write:
                write(name, found)
    print(json.dumps([as_json(r) for r in rows], indent=1) if asked.json else as_text(rows))
    return 0 if all(r.met for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
