"""Rules about distcheck itself."""

from __future__ import annotations

from collections.abc import Iterator

from distcheck.facts import Job
from distcheck.finding import Finding, Fix
from distcheck.rules import Outcome, rule


@rule("environment")
def probe_rule_crashed(job: Job) -> Iterator[Outcome]:
    """A rule of distcheck crashed, so one problem may have gone unnoticed.

    The facts held something that the rule's author did not foresee. All other rules were run; their findings hold.
    The engine itself reports this one, with the rule and its error; there is nothing to find in the facts.

    Fix: save the job with ``--save job.json`` and report it to distcheck's developers; the file shows the fault again.
    """
    del job
    yield from ()


@rule("environment")
def probe_version_differs(job: Job) -> Iterator[Outcome]:
    """The nodes run different versions of distcheck.

    The report can then be incomplete: an older probe does not collect what a newer rule wants to see. It is often a
    sign that the nodes do not share one environment, which bites torch too. Found by comparing the version that
    each probe states.

    Fix: install the same version on every node: ``pip install distcheck==<version>``.
    """
    versions = sorted({node.distcheck for node in job.nodes})
    if len(versions) > 1:
        odd = [n for n in job.nodes if n.distcheck != job.distcheck]
        yield Finding(
            severity="warning",
            nodes=tuple(n.name for n in odd),
            ranks=tuple(r.placement.rank for n in odd for r in job.ranks_on(n) if r.placement.rank is not None),
            message=f"the nodes run distcheck {', '.join(versions)}",
            evidence={n.name: n.distcheck for n in job.nodes},
            fix=Fix(
                f"Install distcheck {job.distcheck} on every node.",
                (f"pip install distcheck=={job.distcheck}",),
            ),
        )
