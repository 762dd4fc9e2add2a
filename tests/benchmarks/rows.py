"""The benchmarks: what is measured, against what, with which goal.

A benchmark returns the rows of one table. To add one, write a function here and add it to `BENCHMARKS`, and add a
heading with an empty block to docs/benchmarks.md.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.large import (
    isolation_against_everybody_twice,
    peer_round,
    roll_call_of_many_nodes,
    starting_by_ssh,
)
from benchmarks.pace import against_a_walk, usual
from benchmarks.programs import (
    HERE,
    NotMeasuredError,
    four_nodes,
    free_port,
    names_from_files,
    one_rank,
    output_of,
    output_of_script,
    seconds_of,
)
from benchmarks.ratio import (
    Estimate,
    Pair,
    Row,
    alone,
    at_most,
    beyond,
    compared,
    counted,
    in_turn,
    of_growth,
    quantile,
)
from benchmarks.unit_costs import unit_costs

PYTHON = sys.executable
BARE = "import os, torch, torch.distributed\npid = os.fork()\nos._exit(0) if pid == 0 else os.waitpid(pid, 0)"
"""An import of torch and one fork."""

# --- start-up


def start_of_env_against_typer() -> list[Row]:
    return [against_typer("distcheck env", distcheck_env, 1.3)]


def start_of_env_against_collect_env() -> list[Row]:
    pairs = in_turn(distcheck_env, lambda: seconds_of([PYTHON, "-m", "torch.utils.collect_env"]), 5)
    return [compared("distcheck env / python -m torch.utils.collect_env", pairs, at_most(0.10))]


def start_of_node_against_typer() -> list[Row]:
    return [against_typer("distcheck node", lambda: seconds_of([PYTHON, "-m", "distcheck", "node"]), 1.5)]


def against_typer(command: str, ours: Callable[[], float], goal: float) -> Row:
    pairs = in_turn(ours, lambda: seconds_of([PYTHON, str(HERE / "empty_app.py")]), 12)
    return compared(f"{command} / typer app with one empty command", pairs, at_most(goal))


def distcheck_env() -> float:
    return seconds_of([PYTHON, "-m", "distcheck", "env"], **one_rank())


# --- the first figure


def first_figure_against_torchrun() -> list[Row]:
    pairs = in_turn(first_figure, torchrun, 5, warm_up=lambda: seconds_of([PYTHON, "-c", BARE]))
    return [compared("bandwidth --nproc 8 to its first figure / torchrun", pairs, at_most(0.33))]


def gate_before_a_command() -> list[Row]:
    """The command is an import of torch and 8 forks, so that it also measures the import that a gate may take."""
    name = "gate --nproc 8 -- COMMAND, seconds beyond COMMAND and an import of torch"
    job = [PYTHON, str(HERE / "import_and_fork.py")]
    gate = names_from_files([PYTHON, "-m", "distcheck", "gate", "--nproc", "8", "--", *job])
    pairs = in_turn(lambda: seconds_of(gate), lambda: seconds_of(job) + seconds_of(job), 5, lambda: seconds_of(job))
    return [beyond(name, pairs, at_most(1.5))]


def first_figure() -> float:
    """Return the seconds from the start of the process to the first figure: the mean of the first burst.

    It follows the exact checks and the warm-up; the bare script's figure is its first all_reduce. The saved job counts
    from where distcheck's own code begins. What the process took outside that (the interpreter's start, its end) is
    added in full.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "job.json"
        command = ["bandwidth", "--nproc", "8", "--backend", "gloo", "--sizes", "1M", "--save", str(saved)]
        whole = seconds_of(names_from_files([PYTHON, "-m", "distcheck", *command]))
        job = json.loads(saved.read_text())
    first = job["collectives"]["first_figure_seconds"]
    if first is None:
        raise NotMeasuredError(f"distcheck measured nothing: {job['collectives']}")
    return float(first) + whole - float(job["seconds"])


def torchrun() -> float:
    """Return the seconds from the start of torchrun to the first result on any rank."""
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "8", "--master-port", str(free_port())]
    start = time.time()
    output = output_of(names_from_files([PYTHON, *command, str(HERE / "bare_all_reduce.py")]))
    return min(float(line) for line in output.splitlines()) - start


# --- several nodes


def gate_on_four_nodes() -> list[Row]:
    """A gate costs a job what it takes beyond an import of torch on every node, after which the job's own is quick."""
    name, order = "whole gate on 4 nodes x 2 ranks", ("gate", "torchrun", "import")
    with four_nodes() as ask:
        ask("start")
        runs = [{side: ask(side)[0] for side in (order if number % 2 else order[::-1])} for number in range(5)]
    torchrun, imports = ([(run["gate"], run[other]) for run in runs] for other in ("torchrun", "import"))
    return [
        compared(f"{name} / torchrun of a bare all_reduce", torchrun, at_most(0.42)),
        beyond(f"{name}, seconds beyond an import of torch on each node", imports, at_most(1.5)),
    ]


def net_on_four_nodes() -> list[Row]:
    name = "net on 4 nodes x 2 ranks, seconds beyond the start of its processes"
    with four_nodes() as ask:
        pairs = in_turn(lambda: ask("net")[0], lambda: ask("start")[0], 5)
    return [beyond(name, pairs, at_most(2.0))]


def hang_beside_a_running_job() -> list[Row]:
    """On a cluster each node has CPUs of its own: here the four share two, with 64 ranks at rest."""
    job = [sys.executable, str(HERE / "running_job.py")]  # as it is: a cluster cannot be made in a user's namespace
    seconds = json.loads(output_of([*job, "hung"]))
    steps = json.loads(output_of([*job, "healthy"]))
    return [
        alone("hang --hosts, 64 ranks on 4 nodes of which one skips a collective", seconds, at_most(5.0)),
        compared("a step of 4 ranks while hang looks every 5 s / while it does not", steps, at_most(1.01)),
    ]


def checks_by_slurm() -> list[Row]:
    """So many checks that the interval of the slowest hundredth has an upper end."""
    found = json.loads(output_of([PYTHON, str(HERE / "slurm_prolog.py"), "270"]))
    quiet, busy = found["quiet"], found["busy"]
    median = statistics.median(quiet)
    slowest = quantile([seconds / median for seconds in quiet], 0.99)
    beside = quantile(busy, 0.99)
    return [
        counted("checks by Prolog and Epilog with a finding", found["findings"], None, found["findings"], at_most(0)),
        Row(
            "a check, 99th percentile / median",
            slowest.middle * median,
            median,
            slowest,
            at_most(1.5),
            times=len(quiet),
        ),
        Row("the same beside two busy loops, seconds", beside.middle, None, beside, at_most(3.0), times=len(busy)),
    ]


# --- the figures themselves


def figures_against_a_bare_loop() -> list[Row]:
    return [*side_by_side("2 ranks", "2"), *side_by_side("4 ranks", "4")]


def figures_of_a_group_against_a_bare_loop() -> list[Row]:
    return side_by_side("4 of 8 ranks, the others wait", "8", "4")


def side_by_side(which: str, *shape: str) -> list[Row]:
    return [
        Row(
            f"{told['op']}, {told['bytes'] >> 20} MiB, {which} / bare torch loop",
            told["ours"],
            told["theirs"],
            Estimate(*told["ratio"]),
            (0.97, 1.03),
            times=told["bursts"],
            noise=Estimate(*told["noise"]),
        )
        for told in map(json.loads, output_of_script("side_by_side.py", *shape, undisturbed=True).splitlines())
    ]


# --- scale


def judging_and_rendering() -> list[Row]:
    few, many = 8192, 65536
    healthy = json.loads(output_of_script("judge_and_render.py", "healthy", str(many)))
    faulty = json.loads(output_of_script("judge_and_render.py", "faulty", str(few)))
    name = f"judge and render {many} ranks"
    seconds = healthy["seconds"]
    rows = [
        growth(f"{name}, healthy: exponent of the growth from {few}", healthy["pairs"]["healthy"]),
        *(
            growth(f"judge and render {few} ranks, {fault}: exponent of the growth from {few // 8}", its)
            for fault, its in faulty["pairs"].items()
        ),
    ]
    dear = ", ".join(f"{rule} {share:.2f}" for rule, share in healthy["dear"].items()) or "none takes a tenth"
    what = f"judge {many} ranks, healthy: largest share of a rule ({dear})"
    rows.append(counted(what, healthy["dearest"], None, healthy["dearest"], at_most(0.1), ""))
    costs = {"judge_seconds_per_rank": usual(seconds) / many}
    rows.append(against_a_walk(f"{name}, healthy: seconds of CPU", seconds, 5.0, costs=costs))
    memory = float(output_of_script("judging_memory.py", str(few)))
    of_memory = {"judge_bytes_per_rank": memory * (1 << 30) / few}
    what = f"judge and render {few} ranks, peak memory beyond the job's own: at most 0.5 GiB for {many}"
    rows.append(counted(what, memory, None, memory, at_most(0.5 * few / many), "GiB", of_memory))
    of_facts = {"job_bytes_per_rank": healthy["job_GiB"] * (1 << 30) / many}
    what = f"memory of the facts of {many} ranks"
    return [*rows, counted(what, healthy["job_GiB"], None, healthy["job_GiB"], at_most(2.0), "GiB", of_facts)]


def judging_half_a_million_ranks() -> list[Row]:
    ranks = 524_288
    found = json.loads(output_of_script("judge_and_render.py", "huge", str(ranks)))
    name, pairs = f"judge and render {ranks} ranks, healthy", found["pairs"]["healthy"]
    return [
        growth(f"{name}: exponent of the growth from {ranks // 8}", pairs),
        against_a_walk(f"{name}: seconds of CPU", found["seconds"], 60.0),
        counted(f"{name}: memory, the job's own included", found["GiB"], None, found["GiB"], at_most(16.0), "GiB"),
    ]


def growth(name: str, pairs: list[Pair]) -> Row:
    return of_growth(name, pairs, 8, at_most(1.05))


def roll_call_against_a_tcp_store() -> list[Row]:
    ranks = 8192
    name = f"roll call of {ranks} ranks on {ranks // 8} simulated nodes"

    pairs = in_turn(
        lambda: float(output_of_script("roll_call.py", "distcheck")),
        lambda: float(output_of_script("roll_call.py", "store")),
        5,
    )
    against = compared(f"{name} / TCPStore with a client per rank", pairs, at_most(0.2))
    costs = {"store_seconds_per_client": (against.theirs or 0) / ranks}
    return [against, alone(f"{name}, seconds", [ours for ours, _ in pairs], at_most(1.0), costs=costs)]


BENCHMARKS: dict[str, Callable[[], list[Row]]] = {
    measure.__name__: measure
    for measure in (
        start_of_env_against_typer,
        start_of_env_against_collect_env,
        start_of_node_against_typer,
        first_figure_against_torchrun,
        gate_before_a_command,
        gate_on_four_nodes,
        net_on_four_nodes,
        hang_beside_a_running_job,
        checks_by_slurm,
        figures_against_a_bare_loop,
        figures_of_a_group_against_a_bare_loop,
        judging_and_rendering,
        judging_half_a_million_ranks,
        roll_call_against_a_tcp_store,
        roll_call_of_many_nodes,
        starting_by_ssh,
        peer_round,
        isolation_against_everybody_twice,
        unit_costs,
    )
}
TOO_LONG_FOR_A_WHOLE_RUN = frozenset(
    {
        figures_against_a_bare_loop.__name__,
        figures_of_a_group_against_a_bare_loop.__name__,
        judging_half_a_million_ranks.__name__,
        hang_beside_a_running_job.__name__,
        checks_by_slurm.__name__,
    }
)
"""Measured with --only: rows of minutes each, and jobs of which every run takes a minute."""
