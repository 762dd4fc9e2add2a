"""The rules: pure functions from a job to findings, each named after the problem it finds.

A rule is one decorated function. Its name, with dashes, is the rule's name. ``distcheck explain`` and the docs page
show its docstring: a summary line, why it matters, how it is found, ``Fix:`` and ``See:``. To add a rule, add one
function to a family module, and its test; nothing else needs to be registered.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeVar

from distcheck.facts.asked import Look
from distcheck.facts.base import Missing
from distcheck.facts.job import Job
from distcheck.rules.finding import Fault, NotChecked, Owner, Scope, Severity


class Family(NamedTuple):
    """A module of rules: what it judges, and under which launchers."""

    looks: tuple[Look, ...]
    """The looks that its rules judge. Written here too, so that only the modules for the job's looks are imported."""
    variables: tuple[str, ...] = ()
    """Prefixes of the variables of its launcher; it is imported only if a rank's environment has one of them.
    Empty: it applies under every launcher."""
    option: str = ""
    """A field of Asked: it is imported only if the user gave this option. Empty: it applies without one."""


NCCL_NAMES = (
    *("NCCL", "nccl_", "NCLL_", "NCL_", "RCCL_", "OFI_NCCL_", "FI_", "UCX_"),
    *("TORCH_NCCL", "TORCH_FR_", "TORCH_DIST", "TORCH_WATCHDOG_"),
)
"""How the names of the variables begin that NCCL, its plugins and torch's backend for it read; misspelt ones too."""

FAMILIES: dict[str, Family] = {
    "launchers.probe_start": Family(("launch",)),
    "environment.command_start": Family(("storage",)),
    "environment.variables": Family(("environment",)),
    "environment.software": Family(("environment",)),
    "environment.nccl_library": Family(("gpu",)),
    "nccl.plugins": Family(("gpu",)),
    "nccl.hosts": Family(("gpu",)),
    "gpu.driver": Family(("gpu",)),
    "environment.known_bad": Family(("gpu", "peers")),
    "environment.command_files": Family(("storage", "peers")),
    "host.hanging": Family(("storage", "environment")),
    "host.storage": Family(("storage",)),
    "host.shared_folders": Family(("storage",)),
    "environment.installation": Family(("peers", "collectives")),
    "environment.leaks": Family(
        ("environment",),
        ("TORCHELASTIC_", "PET_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"),
    ),
    "nccl.names": Family(("environment",), NCCL_NAMES),
    "nccl.values": Family(("environment",), NCCL_NAMES),
    "nccl.files": Family(("environment",), NCCL_NAMES),
    "nccl.differences": Family(("environment",), NCCL_NAMES),
    "nccl.leftovers": Family(("environment",), NCCL_NAMES),
    "nccl.torch_settings": Family(("environment",), NCCL_NAMES),
    "launchers.torchrun": Family(("environment", "meeting"), ("TORCHELASTIC_",)),
    "launchers.agreement": Family(("environment",), ("TORCHELASTIC_",)),
    "launchers.elastic": Family(("environment", "meeting", "gpu"), ("TORCHELASTIC_", "PET_", "NODE_RANK")),
    "launchers.restarts": Family(("meeting",), ("TORCHELASTIC_",)),
    "launchers.kubernetes": Family(("environment", "meeting"), ("KUBERNETES_SERVICE_HOST",)),
    "launchers.slurm": Family(("environment", "gpu"), ("SLURM_",)),
    "launchers.mpi": Family(
        ("meeting", "gpu"),
        ("OMPI_", "PMI_", "PMIX_", "MV2_", "MVP_", "PALS_", "JSM_", "HOROVOD_", "CROSS_RANK"),
    ),
    "launchers.launch_command": Family(("environment", "meeting", "peers"), option="told"),
    "environment.ranks": Family(("environment", "meeting")),
    "environment.local_ranks": Family(("environment", "meeting")),
    "mesh.dimensions": Family(("environment",), option="mesh"),
    "mesh.placement": Family(("meeting",), option="mesh"),
    "environment.master_addr": Family(("environment", "meeting")),
    "environment.master_port": Family(("environment", "meeting")),
    "network.held": Family(("environment",)),
    "network.interfaces": Family(("peers",)),
    "network.routes": Family(("peers",)),
    "network.hostnames": Family(("peers",)),
    "network.resolver": Family(("meeting", "peers")),
    "network.master_reachability": Family(("meeting",)),
    "network.latency": Family(("peers",)),
    "network.peer_paths": Family(("peers",)),
    "network.mtu": Family(("peers",)),
    "network.scale": Family(("peers",)),
    "engines.ports": Family(("environment",), option="told"),
    "engines.addresses": Family(("environment",), option="told"),
    "engines.installation": Family(("environment", "meeting"), option="told"),
    "environment.file_rendezvous": Family(("peers",)),
    "gpu.diagnosis": Family(("node",), option="diagnose"),
    "fabric.ports": Family(("peers", "node")),
    "fabric.hcas": Family(("peers",)),
    "fabric.addresses": Family(("peers",)),
    "fabric.access": Family(("peers",)),
    "fabric.gdr": Family(("peers", "node")),
    "host.node": Family(("node", "collectives", "isolation")),
    "host.memory": Family(("node", "collectives", "isolation")),
    "host.cpus": Family(("node", "collectives", "isolation")),
    "host.limits": Family(("node", "collectives", "isolation")),
    "host.load": Family(("node", "collectives", "isolation")),
    "host.speed": Family(("node", "collectives", "isolation")),
    "host.shared_memory": Family(("node", "collectives", "isolation")),
    "host.containers": Family(("node", "collectives", "isolation")),
    "host.clock": Family(("node", "collectives", "isolation")),
    "host.expected": Family(("node", "gpu"), option="policy"),
    "gpu.amd": Family(("gpu",)),
    "gpu.amd_cards": Family(("gpu",)),
    "gpu.mapping": Family(("gpu",)),
    "gpu.allocation": Family(("gpu",)),
    "gpu.cuda": Family(("gpu",)),
    "gpu.order": Family(("gpu", "collectives")),
    "gpu.health": Family(("gpu",)),
    "gpu.clocks": Family(("gpu",)),
    "gpu.fabric": Family(("gpu",)),
    "gpu.links": Family(("gpu",)),
    "gpu.usage": Family(("gpu",)),
    "gpu.affinity": Family(("gpu",)),
    "gpu.fleet": Family(("gpu",)),
    "gpu.mig": Family(("gpu",)),
    "gpu.xids": Family(("gpu",)),
    "gpu.amd_log": Family(("gpu",)),
    "collectives.repeats": Family(("collectives",)),
    "collectives.outcome": Family(("collectives",)),
    "collectives.step_results": Family(("training",)),
    "collectives.groups": Family(("collectives",), option="mesh"),
    "collectives.bandwidth": Family(("collectives",)),
    "nccl.networks": Family(("collectives",)),
    "collectives.nccl_network": Family(("collectives",)),
    "collectives.nccl_diagnostics": Family(("collectives",)),
    "collectives.nccl_intranode": Family(("collectives",)),
    "gpu.speed": Family(("collectives",)),
    "gpu.products": Family(("collectives",)),
    "fabric.counters": Family(("collectives",)),
    "collectives.baseline": Family(("collectives",)),
    "collectives.isolation": Family(("isolation",)),
    "hang.program": Family(("hang",)),
    "hang.machine": Family(("hang",)),
    "host.history": Family(("peers", "node", "gpu", "collectives", "isolation")),
    "host.probe": Family(("environment", "meeting")),
    "host.policy": Family(("environment", "node"), option="policy"),
}
"""The modules of rules, by their place in this package, in the order of a report: causes before consequences."""

FIRST_VERSION = "0.1.0"
"""The version of every rule that does not name a later one."""
Outcome = Fault | NotChecked
Answer = Fault | Missing | str | None
"""What a rule says of one subject: what is wrong, None or '' if nothing, Missing if that is unknown."""
Subject = Callable[[Job, Callable[[Any], Fault | Missing | None]], Iterator[Outcome]]
"""What rules can be about: asks a rule about each subject, and yields equal faults once, with their ranks and nodes."""


class Rule(NamedTuple):
    """A rule as the engine, `explain` and the docs use it."""

    name: str
    family: str
    look: Look
    aliases: tuple[str, ...]
    judge: Callable[..., Any]
    """Yields what is wrong with a job; of a rule about one subject, returns what is wrong with that."""
    also: tuple[Look, ...] = ()
    """Further looks, each sufficient to judge the rule: it needs only facts known before they begin."""
    always: bool = False
    """Judged even if its look was cut short, because it reports the cause."""
    consequence: bool = False
    """Its finding is usually a consequence of other faults, so a report shows it after them."""
    severity: Severity = "error"
    """The highest severity of its findings."""
    scope: tuple[Scope, ...] = ("job",)
    """The scopes of its findings, before `diagnose` changes those of faults that most nodes share to system."""
    since: str = FIRST_VERSION
    """The version of distcheck in which it first exists."""
    unless: tuple[str, ...] = ()
    """Rules that explain its findings: where one of them reports the same ranks or nodes, this one is silent."""
    owner: Owner = "user"
    """Who can change what it finds, unless a finding says otherwise."""
    of: Subject | None = None
    """What it is about, as `each_rank`; None: the job as a whole."""

    def applies(self, job: Job) -> bool:
        """Whether the job asked for a look that this rule judges."""
        return not {self.look, *self.also}.isdisjoint(job.asked.looks)

    def unlooked(self, job: Job) -> str:
        """Return why this rule's look was skipped; empty if it was not."""
        return "" if self.always or self.look not in job.asked.looks else job.skipped.get(self.look, "")

    @property
    def record(self) -> str:
        """One line: severity error, scope rank or node, since 0.1.0, silent when gpu-duplicate reports the same."""
        words = [f"severity {self.severity}", f"scope {' or '.join(self.scope)}", f"since {self.since}"]
        return ", ".join(words + [f"silent when {' or '.join(self.unless)} reports the same"] * bool(self.unless))

    @property
    def doc(self) -> str:
        """The whole docstring, without indentation."""
        from distcheck.rules.docstring import docstring, without_values  # only findings and explanations need it

        return without_values(docstring(self.judge))

    @property
    def summary(self) -> str:
        """The docstring's first line."""
        return self.doc.partition("\n")[0]

    @property
    def page(self) -> str:
        """The rule's address in the docs."""
        return f"docs/rules/{self.family}.md#{self.name}"


_registered: dict[str, Rule] = {}
Judge = TypeVar("Judge", bound=Callable[..., Any])


def rule(
    look: Look,
    *aliases: str,
    severity: Severity = "error",
    scope: Scope | tuple[Scope, ...] = "job",
    since: str = FIRST_VERSION,
    unless: tuple[str, ...] = (),
    also: tuple[Look, ...] = (),
    always: bool = False,
    consequence: bool = False,
    owner: Owner = "user",
    of: Subject | None = None,
) -> Callable[[Judge], Judge]:
    """Register a function as a rule.

    Args:
        look: the rule is judged if the job asked for this look or one of `also`.
        aliases: other names of the problem in the field's catalogues.
        severity: the highest severity of its findings; that of a fault without one.
        scope: the scope or scopes of its findings; the first is that of a fault without one.
        owner: who can change what it finds.
        of: what it is about. The function then gets the job and one subject, and returns what is wrong with it.
        since: the version of distcheck in which the rule first exists.
        unless: names of rules that explain its findings: where one of them reports the same ranks or nodes, or more,
            this one is silent.
        also: further looks, each sufficient.
        always: judged even if the look was cut short.
        consequence: a report shows it after other findings of the same severity.
    """

    def register(judge: Judge) -> Judge:
        name = judge.__name__.replace("_", "-")
        if name in _registered:
            raise ValueError(f"two rules are named {name}")
        family = judge.__module__.removeprefix(f"{__name__}.")
        scopes = (scope,) if isinstance(scope, str) else scope
        _registered[name] = Rule(
            name, family, look, aliases, judge, also, always, consequence, severity, scopes, since, unless, owner, of
        )
        return judge

    return register


def all_rules() -> tuple[Rule, ...]:
    """Return all rules, family by family, in the order of their definition."""
    return _rules_of(tuple(FAMILIES))


def rules_for(job: Job) -> tuple[Rule, ...]:
    """Import the families that apply to a job and return their rules, in the order of `all_rules`.

    Rules that the user selected are judged under every launcher.
    """
    shown = {name for rank in job.ranks for name in rank.environment}
    if any(process.nccl_files for process in job.processes):
        shown.add("NCCL_CONF_FILE")  # such a file counts as a variable
    return _rules_of(
        tuple(
            name
            for name, family in FAMILIES.items()
            if not set(job.asked.looks).isdisjoint(family.looks)
            and (not family.option or job.asked.select or getattr(job.asked, family.option))
            and (not family.variables or job.asked.select or any(v.startswith(family.variables) for v in shown))
        )
    )


@cache
def _rules_of(families: tuple[str, ...]) -> tuple[Rule, ...]:
    for family in families:
        importlib.import_module(f"{__name__}.{family}")
    return tuple(rule for family in families for rule in _registered.values() if rule.family == family)


def find_rule(name: str) -> Rule | None:
    """Return the rule with this name or alias, None if there is none."""
    return _registered.get(name) or next((r for r in all_rules() if name == r.name or name in r.aliases), None)
