"""Rules about settings that were left from debugging, or that contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.gpu import Gpus
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.nccl_logs import adapters, plugin_adapters
from distcheck.rules.finding import Fault
from distcheck.rules.job.kinds import each_rank
from distcheck.rules.job.nccl_remedies import undo
from distcheck.rules.nccl.grammar import problem_of, without_algorithm
from distcheck.rules.nccl.settings import (
    Alike,
    NcclSetting,
    alike,
    each_setting,
    is_int,
    may_use_nccl,
    owner_of,
    shown,
    weigh,
)
from distcheck.rules.wording import found, listed, named, once
from distcheck.selection.nccl_settings import number_of, strtoll, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts

_SWITCHES = {"NCCL_P2P_DISABLE": 1, "NCCL_SHM_DISABLE": 1, "NCCL_PXN_DISABLE": 1, "NCCL_NVLS_ENABLE": 0,
             "NCCL_CUMEM_ENABLE": 0, "NCCL_DMABUF_ENABLE": 0, "NCCL_NET_GDR_READ": 0}  # fmt: skip
"""Switches that turn a fast path off, and the number that does."""
_CHOICES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NTHREADS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_BUFFSIZE",
            "NCCL_LAUNCH_MODE", "NCCL_CHECK_POINTERS", "NCCL_GDR_FLUSH_DISABLE")  # fmt: skip
"""Settings that replace NCCL's own choice, in the Debugging section of its user guide."""


@rule("environment", severity="warning", scope="rank")
def nccl_debugging_vars_left(job: Job) -> Iterator[Outcome]:
    """Settings that serve to find faults are still on, and can make NCCL slow.

    NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_IB_DISABLE turn the fast paths off, and NCCL_ALGO, NCCL_PROTO or
    NCCL_MAX_NCHANNELS replace NCCL's choice. NCCL's user guide lists them under Debugging, with the advice not to keep
    them in scripts. Found by their effective values, configuration files included. It is a warning if ranks share a
    node and shared memory is off, or peer-to-peer although NVML reports that two of its GPUs have it, or if InfiniBand
    is off on a node with an active adapter; otherwise an info. accelerate turns peer-to-peer off for GeForce RTX 40
    cards, which have none. Values that differ across the ranks are reported by nccl-env-differs alone.

    Fix: No action if intended; otherwise remove them and measure again.

        {remove|unset NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_IB_DISABLE}
        distcheck bandwidth

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#debugging
    """
    groups = alike(job)
    everywhere = [n for n in (groups[0].settings if groups else ()) if len({g.value(n).lower() for g in groups}) == 1]
    left = [name for name in everywhere if _left(groups[0], name)]
    if left:
        severe = [name for name in left if _hurts(job, groups, name)]
        ranks = [r for g in groups for r in g.ranks]
        chosen = {name: groups[0].settings[name] for name in (severe or left)}
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {listed([shown(n, s) for n, s in chosen.items()], most=3)} "
            + ("turns a fast path of NCCL off" if severe else "replaces NCCL's own choice"),
            severity=weigh(job, "warning") if severe else "info",
            owner=owner_of(chosen.values()),
            evidence={name: groups[0].value(name) for name in left},
            values={"remove": [undo(name, setting) for name, setting in chosen.items()]},
        )


def _left(group: Alike, name: str) -> bool:
    value = group.value(name)
    misread = is_int(name) and strtoll(value)[1].strip()
    if not value or misread or problem_of(name, value, group.nccl):
        return False  # other rules report a value that NCCL does not read as meant
    if name == "NCCL_ALGO" and without_algorithm(value, group.nccl):
        return False
    if name in _SWITCHES:
        return group.number(name, 1 - _SWITCHES[name]) == _SWITCHES[name]
    return name in _CHOICES or _without_ib(group) == name


def _without_ib(group: Alike) -> str:
    """Return the variable that turns InfiniBand off, '' if none does."""
    if group.number("NCCL_IB_DISABLE"):
        return "NCCL_IB_DISABLE"
    return "NCCL_NET" if group.value("NCCL_NET").lower() == "socket" else ""


def _hurts(job: Job, groups: tuple[Alike, ...], name: str) -> bool:
    nodes = [node for node in job.nodes if job.ranks_on(node)]
    shared = [node for node in nodes if len(job.ranks_on(node)) > 1]
    if name == "NCCL_P2P_DISABLE":
        seen = [node.gpus for node in shared if isinstance(node.gpus, Gpus)]
        return any(pair.read == 0 for gpus in seen for pair in gpus.peer_access)
    if name == "NCCL_SHM_DISABLE":
        return bool(shared)
    return name == _without_ib(groups[0]) and len(nodes) > 1 and any(adapters(node) for node in nodes)


@rule("environment", severity="info", scope="rank", of=each_setting)
def nccl_p2p_disable_and_level(_: Job, setting: NcclSetting) -> Fault | None:
    """NCCL_P2P_LEVEL has no effect, because NCCL_P2P_DISABLE=1 goes before it.

    NCCL reads the level only if P2P is not disabled, and prints nothing about it. Found by the two variables.

    Fix: Keep one of them.

        {remove|unset NCCL_P2P_LEVEL}

    See: https://github.com/NVIDIA/nccl/blob/master/src/graph/paths.cc (ncclGetLevel)
    """
    ranks = setting.ranks
    if setting.name != "NCCL_P2P_LEVEL" or not setting.value or ranks.number("NCCL_P2P_DISABLE") != 1:
        return None
    either = setting.removal, undo("NCCL_P2P_DISABLE", ranks.settings["NCCL_P2P_DISABLE"])
    return Fault(f"{setting} has no effect beside NCCL_P2P_DISABLE=1", values={"remove": either})


@rule("environment", severity="info", scope="rank", of=each_setting)
def nccl_debug_verbose(_: Job, setting: NcclSetting) -> Fault | None:
    """NCCL_DEBUG is INFO or TRACE, so that every rank writes a long log.

    INFO writes hundreds of lines for each rank and communicator. With NCCL_DEBUG_SUBSYS=COLL or ALL it writes lines for
    every collective, which slows small ones down and fills disks. Found by the value.

    Fix: ``export NCCL_DEBUG=WARN`` when the job runs well.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug
    """
    if setting.name != "NCCL_DEBUG" or setting.value.strip().upper() not in {"INFO", "TRACE", "ABORT"}:
        return None
    subsystems = setting.ranks.value("NCCL_DEBUG_SUBSYS")
    return Fault(
        f"{setting}{subsystems and f' with NCCL_DEBUG_SUBSYS={subsystems}'}; every rank writes a long log",
        setting.fix("No action if intended; otherwise log warnings only.", "WARN"),
    )


@rule("environment", severity="info", scope="rank", of=each_rank)
def nccl_efa_ib_vars(job: Job, rank: RankFacts) -> Fault | None:
    """NCCL_IB_* variables are set, but NCCL does not use its InfiniBand transport.

    They apply to NCCL's own InfiniBand and RoCE transport only. AWS EFA and Google's plugins have variables of their
    own, and with NCCL_IB_DISABLE=1 or another NCCL_NET the transport is off. Found by NCCL_NET and NCCL_IB_DISABLE, and
    by nodes whose adapters all need a plugin. It is an info.

    Fix: No action if intended; otherwise remove them, or the variable that turns the transport off.

        {remove|unset NCCL_IB_HCA NCCL_IB_GID_INDEX}

    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    names = [name for name in rank.environment if name.startswith("NCCL_IB_") and name != "NCCL_IB_DISABLE"]
    network = value_of(job, rank, "NCCL_NET")
    if not names or not may_use_nccl(job):
        return None
    if number_of(job, rank, "NCCL_IB_DISABLE", 0):
        why = "NCCL_IB_DISABLE turns that transport off"
    elif network and network.lower() != "ib":
        why = f"NCCL_NET={network} selects another network"
    elif _needs_plugin(job):
        why = "the nodes' adapters need a plugin"
    else:
        return None
    return Fault(
        f"{listed(names, most=3)} {'has' if len(names) == 1 else 'have'} no effect: {why}",
        evidence={name: rank.environment[name] for name in names},
        values={"remove": tuple(f"unset {name}" for name in names[:4])},
    )


@once
def _needs_plugin(job: Job) -> bool:
    """Return whether no node has an adapter for NCCL's own transport, and some have others."""
    return any(map(plugin_adapters, job.nodes)) and not any(map(adapters, job.nodes))
