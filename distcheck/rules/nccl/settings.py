"""The settings of the ranks as NCCL reads them, and what the rules about them share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from distcheck.facts.job import Collectives
from distcheck.rules import NCCL_NAMES
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.kinds import ranks_by
from distcheck.rules.job.nccl_remedies import redo, undo
from distcheck.rules.nccl.tables import tables
from distcheck.rules.wording import brief, merged, once
from distcheck.selection.nccl_settings import ENVIRONMENT, Setting, in_use, library, settings, strtoll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from distcheck.facts.base import Missing
    from distcheck.facts.job import Job
    from distcheck.facts.nccl import NcclFile
    from distcheck.facts.rank import RankFacts
    from distcheck.rules import Outcome
    from distcheck.rules.finding import Owner, Severity
    from distcheck.selection.nccl_settings import Version


class Alike(NamedTuple):
    """Ranks with the same settings."""

    settings: dict[str, Setting]
    nccl: Version
    """The version of NCCL that they use; () if unknown."""
    rccl: bool
    """Whether it is AMD's RCCL."""
    ranks: list[RankFacts]
    files: list[NcclFile]
    """The configuration files that they read, the first one with a name counts."""

    def value(self, name: str) -> str:
        """Return the value of a variable, '' if it is unset or empty."""
        return self.settings[name].value if name in self.settings else ""

    def number(self, name: str, default: int = 0) -> int:
        """Return a variable as NCCL reads it; an unset or empty one has its default."""
        value = self.value(name)
        return strtoll(value)[0] if value else default


@once
def alike(job: Job) -> tuple[Alike, ...]:
    """Return the ranks grouped by the settings that NCCL and torch find; nothing if --backend excludes NCCL."""
    if not may_use_nccl(job):
        return ()

    def read(rank: RankFacts) -> tuple[tuple[tuple[str, str], ...], tuple[NcclFile, ...], Version, bool]:
        own = tuple(item for item in rank.environment.items() if item[0].startswith(NCCL_NAMES))
        return own, job.process_of(rank).nccl_files, *library(job, rank)

    groups = []
    for (own, there, nccl, rccl), ranks in ranks_by(job, read).items():
        files = in_use(there, nccl, rccl=rccl)
        found = settings(dict(own), files)
        kept = {name: setting for name, setting in found.items() if name.startswith(NCCL_NAMES)}
        groups.append(Alike(kept, nccl, rccl, ranks, files))
    return tuple(groups)


def may_use_nccl(job: Job) -> bool:
    """Return whether variables of NCCL are judged: unless --backend excludes it."""
    return job.asked.backend in {"auto", "nccl"}


def weigh(job: Job, severity: Severity) -> Severity:
    """Return the severity, info if the job is known to use Gloo, which reads none of these settings."""
    looked = not {"gpu", "peers"}.isdisjoint(job.asked.looks)
    ran = isinstance(job.collectives, Collectives) and job.collectives.backend == "gloo"
    gloo = job.asked.backend == "auto" and (ran or (looked and job.made_for == "gloo"))
    return "info" if gloo else severity


class NcclSetting(NamedTuple):
    """A variable that NCCL reads, of ranks with the same settings."""

    name: str
    value: str
    origin: str
    """Where NCCL finds it: the environment, or a file."""
    ranks: Alike
    """Which ranks, and their other settings."""

    def __str__(self) -> str:
        """NCCL_DEBUG=INFO, with its origin if that is a file."""
        return shown(self.name, Setting(self.value, self.origin))

    @property
    def bare(self) -> str:
        """The value in small letters, without blanks and quotation marks."""
        return self.value.strip(" \"'").lower()

    @property
    def is_int(self) -> bool:
        """Whether NCCL reads the variable through strtoll."""
        return is_int(self.name)

    @property
    def removal(self) -> str:
        """The command that removes the variable where it is set."""
        return undo(self.name, Setting(self.value, self.origin))

    def fix(self, text: str, value: str = "") -> Fix:
        """Return a fix that sets the variable where it is set; without a value, that removes it."""
        return Fix(text, (redo(self.name, Setting(self.value, self.origin), value) if value else self.removal,))

    def renamed(self, name: str) -> Fix:
        """Return a fix that gives the variable another name where it is set."""
        return Fix(f"Rename it to {name}.", (redo(name, Setting(self.value, self.origin), self.value, old=self.name),))


def each_setting(job: Job, judge: Callable[[NcclSetting], Fault | Missing | None]) -> Iterator[Outcome]:
    """Yield what a rule says of variables (``of=each_setting``), once for all ranks with an equal fault.

    Nothing if the job cannot use NCCL, an info if it uses Gloo. nccl-conf-file-syntax reports lines without a setting.
    In the commands of its fix, {remove} stands for the command that removes the variable.
    """
    read = (
        NcclSetting(name, *setting, group)
        for group in alike(job)
        for name, setting in group.settings.items()
        if setting.origin == ENVIRONMENT or (name == name.strip() and not untrimmed(setting.value))
    )
    return merged(job, ((setting.ranks.ranks, _complete(job, setting, judge(setting))) for setting in read))


def _complete(job: Job, setting: NcclSetting, answer: Fault | Missing | None) -> Fault | Missing | None:
    if not isinstance(answer, Fault):
        return answer
    return msgspec.structs.replace(
        answer,
        severity=weigh(job, answer.severity or "error"),
        owner=owner_of([setting]),
        evidence={setting.name: setting.value, "origin": setting.origin, **answer.evidence},
        values={"remove": (setting.removal,), **answer.values},
    )


def untrimmed(value: str) -> bool:
    """Return whether a value has spaces, quotation marks or a comment that a shell would have removed."""
    return value != value.strip() or value[:1] in {'"', "'"} or " #" in value or "\t#" in value


def is_int(name: str) -> bool:
    """Return whether NCCL reads a variable through strtoll."""
    variable = tables().nccl.get(name)
    return variable is not None and variable.kind == "int"


def shown(name: str, setting: Setting) -> str:
    """Return a setting for a message, with its origin if that is a file."""
    return f"{name}={brief(setting.value, 60)}{'' if setting.origin == ENVIRONMENT else f' (in {setting.origin})'}"


def owner_of(found: Iterable[Setting | NcclSetting]) -> Owner:
    """Return who can change settings: the admin, if all are in files of the system."""
    return "admin" if all(setting.origin.startswith("/etc/") for setting in found) else "user"


def release(nccl: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, nccl))
