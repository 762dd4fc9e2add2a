"""Commands of distcheck in fixes: they start the ranks on the nodes as the run did that gives them."""

from __future__ import annotations

import re
from shlex import quote

import msgspec

from distcheck.facts.job import Job
from distcheck.rules.finding import Fix
from distcheck.rules.wording import once
from distcheck.selection.nodelist import folded

_STARTS_RANKS = re.compile(r"(?:\w+=\S+ )*distcheck (?:bandwidth|gate|isolate|net)\b(?!.* --(?:hosts|nproc)\b)")


def on_same_ranks(job: Job, fix: Fix) -> Fix:
    """Return a fix whose commands of distcheck have this run's --hosts and --nproc, unless they name others."""
    options = _options(job)
    if not options:
        return fix
    starts = [(command, _STARTS_RANKS.match(command)) for command in fix.commands]
    commands = tuple(found[0] + options + command[found.end() :] if found else command for command, found in starts)
    return msgspec.structs.replace(fix, commands=commands)


@once
def _options(job: Job) -> str:
    """Return the options that choose nodes and ranks; '' where another launcher, or a default, chose them."""
    launched = job.launched
    if launched is None:
        own = {rank.placement.launcher for rank in job.ranks} == {"distcheck"} and not job.asked.by_default
        return f" --nproc {len(job.ranks)}" if own else ""
    names = folded([node.name for node in launched.nodes])
    hosts = {"ssh": f" --hosts {quote(names)}", "mpi": f" --launcher mpi --hosts {quote(names)}", "slurm": ""}
    each = {len(node.ranks) for node in launched.nodes}
    return hosts[launched.engine] + (f" --nproc {each.pop()}" if len(each) == 1 else "")
