"""Rules about the names of NCCL's variables: misspelt, no longer read, not yet read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.nccl_remedies import redo, undo
from distcheck.rules.nccl.settings import Alike, each, owner_of, release, shown, weigh
from distcheck.rules.nccl.tables import current, known, suggestion, tables
from distcheck.rules.wording import found, named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job

_OLDEST = (2, 18)
"""The oldest NCCL with which a supported torch (2.1) was built."""


@rule("environment", severity="warning", scope="rank")
def nccl_var_typo(job: Job) -> Iterator[Outcome]:
    """A variable named like NCCL's is read by no software, so it has no effect.

    NCCL does not report unknown names: NCCL_SOCKET_IFACE, NCCL_IB_HCAS or NCCL_DEBUG_LEVEL change nothing, and no
    message appears. Found by comparing each name that begins with NCCL or TORCH_NCCL, also in NCCL's configuration
    files, with the names that any release of NCCL since 2.3 reads, and with those of torch and of plugins. It is a
    warning if a known name is similar, else an info: a plugin of the site may read the name.

    Fix: rename or remove the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    def unknown(_: Alike, name: str, __: str) -> str | None:
        ours = name.startswith(("NCCL", "nccl_", "NCLL_", "NCL_", "TORCH_NCCL"))
        return suggestion(name) if ours and not known(name) else None

    for (name, setting, meant), ranks in each(job, unknown).items():
        if not meant and name.startswith("TORCH_"):
            continue  # torch adds variables with every release
        hint = f"; did you mean {meant}?" if meant else ""
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {shown(name, setting)} has no effect, because no known software reads {name}{hint}",
            Fix(
                f"Rename it to {meant}." if meant else "Remove it, or leave it if a plugin of your site reads it.",
                (redo(meant, setting, setting.value, old=name) if meant else undo(name, setting),),
            ),
            severity=weigh(job, "warning") if meant else "info",
            owner=owner_of([setting]),
            evidence={name: setting.value, "origin": setting.origin, **({"similar": meant} if meant else {})},
        )


@rule("environment", severity="warning", scope="rank")
def nccl_var_removed(job: Job) -> Iterator[Outcome]:
    """A variable was removed from NCCL, so it has no effect in the version in use.

    NCCL ignores it without a message. NCCL_TREE_THRESHOLD and NCCL_LL_THRESHOLD (until 2.4), NCCL_IB_GDR_LEVEL and
    NCCL_IB_CUDA_SUPPORT (until 2.3) and NCCL_MNNVL (2.20) are still copied from old scripts. Found by the last release
    whose source reads the name, and the version of NCCL that ran, or is installed beside torch. If the version is
    unknown, only names that were removed before 2.18 are reported, because every supported torch has a later one.

    Fix: use the successor that the finding names, or remove the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    def removed(group: Alike, name: str, _: str) -> str | None:
        variable = tables().nccl.get(name)
        if variable is None or current(name) or group.rccl or variable.last >= (group.nccl or _OLDEST):
            return None
        return release(group.nccl) or "2.18 or later"

    for (name, setting, in_use), ranks in each(job, removed).items():
        variable = tables().nccl[name]
        successor = variable.successor
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {shown(name, setting)} has no effect, because NCCL {in_use} does not read it; "
            f"{release(variable.last)} was the last release that did" + (f"; use {successor}" if successor else ""),
            Fix(
                f"Remove it; {successor} replaced it and may take other values." if successor else "Remove it.",
                (undo(name, setting),),
            ),
            severity=weigh(job, "warning"),
            owner=owner_of([setting]),
            evidence={name: setting.value, "origin": setting.origin, "last read by": release(variable.last)},
        )


@rule("environment", severity="warning", scope="rank")
def nccl_var_too_new(job: Job) -> Iterator[Outcome]:
    """A variable is newer than the NCCL in use, so it has no effect.

    NCCL ignores names that it does not know, without a message: NCCL_MNNVL_ENABLE on 2.20 leaves multi-node NVLink as
    it was. Found by the first release whose source reads the name, and the version of NCCL that ran, or is installed
    beside torch. Silent if the version is unknown.

    Fix: install a newer NCCL (a newer torch), or remove the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """

    def early(group: Alike, name: str, _: str) -> str | None:
        variable = tables().nccl.get(name)
        too_new = variable is not None and group.nccl and not group.rccl and group.nccl < variable.first
        return release(group.nccl) if too_new else None

    for (name, setting, in_use), ranks in each(job, early).items():
        since = release(tables().nccl[name].first)
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {shown(name, setting)} has no effect, because NCCL {in_use} does not read it; "
            f"{since} is the first release that does",
            Fix(f"Install NCCL {since} or later, or remove the variable.", (undo(name, setting),)),
            severity=weigh(job, "warning"),
            owner=owner_of([setting]),
            evidence={name: setting.value, "origin": setting.origin, "NCCL": in_use, "first read by": since},
        )
