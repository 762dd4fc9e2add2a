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

    module: str
    """Its path in distcheck.rules; docs pages and reports use its key in `FAMILIES`, which stays when files move."""
    looks: tuple[Look, ...]
    """The looks that its rules judge. Written here too, so that only the modules for the job's looks are imported."""
    variables: tuple[str, ...] = ()
    """Prefixes of the variables of its launcher; it is imported only if a rank's environment has one of them.
    Empty: it applies under every launcher."""
    option: str = ""
    """A field of Asked: it is imported only if the user gave this option. Empty: it applies without one."""


NCCL_NAMES = (
    *("NCCL", "nccl_", "NCLL_", "NCL_", "RCCL_", "OFI_NCCL_", "FI_", "UCX_"),
    *("TORCH_NCCL", "TORCH_FR_", "TORCH_DIST"),
)
"""How the names of the variables begin that NCCL, its plugins and torch's backend for it read; misspelt ones too."""

FAMILIES: dict[str, Family] = {
    "launch": Family("launchers.probe_start", ("launch",)),
    "command_start": Family("environment.command_start", ("storage",)),
    "environment": Family("environment.variables", ("environment",)),
    "software": Family("environment.software", ("environment",)),
    "nccl_library": Family("environment.nccl_library", ("gpu",)),
    "nccl_plugins": Family("nccl.plugins", ("gpu",)),
    "nccl_hosts": Family("nccl.hosts", ("gpu",)),
    "gpu_driver": Family("gpu.driver", ("gpu",)),
    "known_bad": Family("environment.known_bad", ("gpu", "peers")),
    "command_files": Family("environment.command_files", ("storage", "peers")),
    "hanging": Family("host.hanging", ("storage", "environment")),
    "storage": Family("host.storage", ("storage",)),
    "shared_folders": Family("host.shared_folders", ("storage",)),
    "installation": Family("environment.installation", ("peers", "collectives")),
    "leaks": Family(
        "environment.leaks",
        ("environment",),
        ("TORCHELASTIC_", "PET_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"),
    ),
    "nccl_names": Family("nccl.names", ("environment",), NCCL_NAMES),
    "nccl_values": Family("nccl.values", ("environment",), NCCL_NAMES),
    "nccl_files": Family("nccl.files", ("environment",), NCCL_NAMES),
    "nccl_differences": Family("nccl.differences", ("environment",), NCCL_NAMES),
    "nccl_leftovers": Family("nccl.leftovers", ("environment",), NCCL_NAMES),
    "torch_settings": Family("nccl.torch_settings", ("environment",), NCCL_NAMES),
    "torchrun": Family("launchers.torchrun", ("environment", "meeting"), ("TORCHELASTIC_",)),
    "agreement": Family("launchers.agreement", ("environment", "meeting"), ("TORCHELASTIC_",)),
    "elastic": Family("launchers.elastic", ("environment", "meeting", "gpu"), ("TORCHELASTIC_", "PET_", "NODE_RANK")),
    "restarts": Family("launchers.restarts", ("meeting",), ("TORCHELASTIC_",)),
    "kubernetes": Family("launchers.kubernetes", ("environment", "meeting"), ("KUBERNETES_SERVICE_HOST",)),
    "slurm": Family("launchers.slurm", ("environment", "gpu"), ("SLURM_",)),
    "mpi": Family(
        "launchers.mpi",
        ("meeting", "gpu"),
        ("OMPI_", "PMI_", "PMIX_", "MV2_", "MVP_", "PALS_", "JSM_", "HOROVOD_", "CROSS_RANK"),
    ),
    "pods": Family(
        "launchers.pods", ("environment",), ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX", "SM_CURRENT_HOST")
    ),
    "ranks": Family("environment.ranks", ("environment", "meeting")),
    "local_ranks": Family("environment.local_ranks", ("environment", "meeting")),
    "mesh": Family("mesh.dimensions", ("environment",), option="mesh"),
    "mesh_placement": Family("mesh.placement", ("meeting",), option="mesh"),
    "master": Family("environment.master_addr", ("environment", "meeting")),
    "master_port": Family("environment.master_port", ("environment", "meeting")),
    "interfaces": Family("network.interfaces", ("peers",)),
    "routes": Family("network.routes", ("peers",)),
    "names": Family("network.hostnames", ("peers",)),
    "resolver": Family("network.resolver", ("meeting", "peers")),
    "network": Family("network.master_reachability", ("meeting",)),
    "latency": Family("network.latency", ("peers",)),
    "paths": Family("network.peer_paths", ("peers",)),
    "mtu": Family("network.mtu", ("peers",)),
    "scale": Family("network.scale", ("peers",)),
    "rendezvous": Family("environment.file_rendezvous", ("peers",)),
    "ib_ports": Family("fabric.ports", ("peers", "node")),
    "ib_hcas": Family("fabric.hcas", ("peers",)),
    "ib_addresses": Family("fabric.addresses", ("peers",)),
    "ib_access": Family("fabric.access", ("peers",)),
    "ib_loopback": Family("fabric.loopback", ("gpu",)),
    "gdr": Family("fabric.gdr", ("peers", "node")),
    "node": Family("host.node", ("node", "collectives", "isolation")),
    "host_memory": Family("host.memory", ("node", "collectives", "isolation")),
    "host_cpus": Family("host.cpus", ("node", "collectives", "isolation")),
    "host_limits": Family("host.limits", ("node", "collectives", "isolation")),
    "host_load": Family("host.load", ("node", "collectives", "isolation")),
    "host_speed": Family("host.speed", ("node", "collectives", "isolation")),
    "host_shared_memory": Family("host.shared_memory", ("node", "collectives", "isolation")),
    "host_containers": Family("host.containers", ("node", "collectives", "isolation")),
    "host_clock": Family("host.clock", ("node", "collectives", "isolation")),
    "gpu": Family("gpu.mapping", ("gpu",)),
    "gpu_worlds": Family("gpu.worlds", ("gpu",)),
    "gpu_allocation": Family("gpu.allocation", ("gpu",)),
    "gpu_cuda": Family("gpu.cuda", ("gpu",)),
    "gpu_order": Family("gpu.order", ("gpu", "collectives")),
    "gpu_health": Family("gpu.health", ("gpu",)),
    "gpu_clocks": Family("gpu.clocks", ("gpu",)),
    "gpu_fabric": Family("gpu.fabric", ("gpu",)),
    "gpu_links": Family("gpu.links", ("gpu",)),
    "gpu_use": Family("gpu.usage", ("gpu",)),
    "gpu_places": Family("gpu.affinity", ("gpu",)),
    "gpu_fleet": Family("gpu.fleet", ("gpu",)),
    "gpu_mig": Family("gpu.mig", ("gpu",)),
    "gpu_xids": Family("gpu.xids", ("gpu",)),
    "repeats": Family("collectives.repeats", ("collectives",)),
    "collectives": Family("collectives.outcome", ("collectives",)),
    "step": Family("collectives.step", ("training",)),
    "step_results": Family("collectives.step_results", ("training",)),
    "groups": Family("collectives.groups", ("collectives",), option="mesh"),
    "performance": Family("collectives.bandwidth", ("collectives",)),
    "nccl_networks": Family("nccl.networks", ("collectives",)),
    "nccl_transport": Family("collectives.nccl_network", ("collectives",)),
    "nccl_diagnostics": Family("collectives.nccl_diagnostics", ("collectives",)),
    "nccl_nodes": Family("collectives.nccl_intranode", ("collectives",)),
    "gpu_speed": Family("gpu.speed", ("collectives",)),
    "gpu_products": Family("gpu.products", ("collectives",)),
    "ib_counters": Family("fabric.counters", ("collectives",)),
    "baseline": Family("collectives.baseline", ("collectives",)),
    "isolation": Family("collectives.isolation", ("isolation",)),
    "history": Family("host.history", ("peers", "node", "gpu", "collectives", "isolation")),
    "probe": Family("host.probe", ("environment", "meeting")),
}
"""The modules of rules in the order of a report: causes before consequences."""

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
        family = _family_of(judge.__module__)
        scopes = (scope,) if isinstance(scope, str) else scope
        _registered[name] = Rule(
            name, family, look, aliases, judge, also, always, consequence, severity, scopes, since, unless, owner, of
        )
        return judge

    return register


def _family_of(module: str) -> str:
    """Return the family of a module; a module outside `FAMILIES` is its own family."""
    place = module.removeprefix(f"{__name__}.")
    return next((name for name, family in FAMILIES.items() if family.module == place), place)


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
        importlib.import_module(f"{__name__}.{FAMILIES[family].module}")
    return tuple(rule for family in families for rule in _registered.values() if rule.family == family)


def find_rule(name: str) -> Rule | None:
    """Return the rule with this name or alias, None if there is none."""
    return _registered.get(name) or next((r for r in all_rules() if name == r.name or name in r.aliases), None)
