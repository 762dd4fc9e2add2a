"""The commands that check a job without running it: env, net, gpu, bandwidth, isolate."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from distcheck.cli.command import command
from distcheck.cli.options import Looking, Measuring, Options
from distcheck.cli.publish import check_writable, complain, publish
from distcheck.cli.request import request_of
from distcheck.cli.variables import warn_of_misspelt
from distcheck.facts.errors import WriteError

if TYPE_CHECKING:
    from distcheck.facts.asked import Look
    from distcheck.run.request import Request


@command(
    "Check placement and variables of every rank.", "torchrun --standalone --nproc-per-node 2 --no-python distcheck env"
)
def env(options: Options) -> None:
    """Check placement and variables of every rank.

    They must be present, well formed, consistent and right for this launcher.
    """
    _look("env", ("environment", "meeting"), options)


@command("Run env, then check names, ports and node pairs.", "distcheck net --hosts 'node[1-4]' --nproc 8")
def net(options: Looking) -> None:
    """Run env, then check names, ports, interfaces and pairs of nodes.

    Pairs are checked for reachability, packet sizes, loss and rate.
    """
    _look("net", ("environment", "meeting", "peers"), options)


@command("Run env, then check the GPUs and which ranks use them.", "distcheck gpu --nproc 8")
def gpu(options: Looking) -> None:
    """Run env, then check which GPU each rank uses, and the health of all GPUs.

    GPUs are identified by their UUIDs from CUDA and NVML.
    """
    _look("gpu", ("environment", "meeting", "gpu"), options)


@command("Time collectives, rank by rank.", "distcheck bandwidth --nproc 8 --sizes 1M:64M:x2")
def bandwidth(options: Measuring) -> None:
    """Time collectives over message sizes, rank by rank, and check their results."""
    _look("bandwidth", ("environment", "meeting", "gpu", "collectives"), options)


@command("Find the bad node, link or slow rank.", "distcheck isolate --hosts 'node[1-16]' --nproc 8")
def isolate(options: Looking) -> None:
    """Find the bad node, link or slow rank among many, with collectives in groups of nodes."""
    _look("isolate", ("environment", "meeting", "gpu", "isolation"), options)


def _look(name: str, looks: tuple[Look, ...], options: Options) -> NoReturn:
    raise typer.Exit(run(request_of(name, looks, options), options, to_stderr=False))


def run(request: Request, options: Options, *, to_stderr: bool) -> int:
    """Run the checks, write the report and return the exit code."""
    from distcheck.run import entry

    if request.asked.measures and not request.starts_ranks:
        from distcheck.launch.local import program

        program.drop()
    check_writable(options)
    one_of_job = 0 in request.own_ranks or not request.own_ranks  # or it has no valid rank
    if one_of_job and not options.quiet:
        warn_of_misspelt(request.environ)
    outcome = entry.run(
        request, lambda job, diagnosis, code: publish(job, diagnosis, code, options, to_stderr=to_stderr)
    )
    if not outcome.reported and options.save is not None:
        from distcheck.facts import saved

        try:
            if saved.is_folder(options.save):
                saved.save(outcome.job, options.save)
        except WriteError as error:
            complain(str(error))
    return outcome.exit_code
