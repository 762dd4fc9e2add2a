"""Rules about the names of NCCL's variables: misspelt, no longer read, not yet read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.rules import rule
from distcheck.rules.finding import Fault
from distcheck.rules.nccl.settings import NcclSetting, each_setting, release
from distcheck.rules.nccl.tables import current, known, suggestion, tables

if TYPE_CHECKING:
    from distcheck.facts.job import Job

_OLDEST = (2, 18)
"""The oldest NCCL with which a supported torch (2.1) was built."""


@rule("environment", severity="warning", scope="rank", of=each_setting)
def nccl_var_typo(_: Job, setting: NcclSetting) -> Fault | None:
    """A variable named like NCCL's is read by no software, so it has no effect.

    NCCL does not report unknown names: NCCL_SOCKET_IFACE, NCCL_IB_HCAS or NCCL_DEBUG_LEVEL change nothing, and no
    message appears. Found by comparing each name that begins with NCCL or TORCH_NCCL, also in NCCL's configuration
    files, with the names that any release of NCCL since 2.3 reads, and with those of torch, RCCL and plugins. It is a
    warning if a known name is similar, else an info: a plugin of the site may read the name.

    Fix: rename or remove the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    name = setting.name
    if not name.startswith(("NCCL", "nccl_", "NCLL_", "NCL_", "TORCH_NCCL", "RCCL_")) or known(name):
        return None
    meant = suggestion(name)
    words = f"{setting} has no effect, because no known software reads {name}"
    if meant:
        return Fault(f"{words}; did you mean {meant}?", setting.renamed(meant), {"similar": meant})
    if name.startswith(("TORCH_", "RCCL_")):
        return None  # torch and RCCL add variables with every release
    return Fault(words, setting.fix("Remove it, or leave it if a plugin of your site reads it."), severity="info")


@rule("environment", severity="warning", scope="rank", of=each_setting)
def nccl_var_removed(_: Job, setting: NcclSetting) -> Fault | None:
    """A variable was removed from NCCL, so it has no effect in the version in use.

    NCCL ignores it without a message. NCCL_TREE_THRESHOLD and NCCL_LL_THRESHOLD (until 2.4), NCCL_IB_GDR_LEVEL and
    NCCL_IB_CUDA_SUPPORT (until 2.3) and NCCL_MNNVL (2.20) are still copied from old scripts. Found by the last release
    whose source reads the name, and the version of NCCL that ran, or is installed beside torch. If the version is
    unknown, only names that were removed before 2.18 are reported, because every supported torch has a later one.

    Fix: use the successor that the finding names, or remove the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    variable, nccl = tables().nccl.get(setting.name), setting.ranks.nccl
    if variable is None or current(setting.name) or setting.ranks.rccl or variable.last >= (nccl or _OLDEST):
        return None
    last, successor = release(variable.last), variable.successor
    return Fault(
        f"{setting} has no effect, because NCCL {release(nccl) or '2.18 or later'} does not read it; {last} was the "
        "last release that did" + (f"; use {successor}" if successor else ""),
        setting.fix(f"Remove it; {successor} replaced it and may take other values." if successor else "Remove it."),
        {"last read by": last},
    )


@rule("environment", severity="warning", scope="rank", of=each_setting)
def nccl_var_too_new(_: Job, setting: NcclSetting) -> Fault | None:
    """A variable is newer than the NCCL in use, so it has no effect.

    NCCL ignores names that it does not know, without a message: NCCL_MNNVL_ENABLE on 2.20 leaves multi-node NVLink as
    it was. Found by the first release whose source reads the name, and the version of NCCL that ran, or is installed
    beside torch. Silent if the version is unknown.

    Fix: install a newer NCCL (a newer torch), or remove the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    variable, nccl = tables().nccl.get(setting.name), setting.ranks.nccl
    if variable is None or setting.ranks.rccl or not () < nccl < variable.first:
        return None
    since = release(variable.first)
    return Fault(
        f"{setting} has no effect, because NCCL {release(nccl)} does not read it; {since} is the first "
        "release that does",
        setting.fix(f"Install NCCL {since} or later, or remove the variable."),
        {"NCCL": release(nccl), "first read by": since},
    )
