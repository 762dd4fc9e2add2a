"""Rules about settings that were left from debugging, or that contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.gpu import Gpus
from distcheck.facts.pci import Pci
from distcheck.rules import Outcome, rule
from distcheck.rules.collectives.nccl_logs import adapters, plugin_adapters
from distcheck.rules.finding import Fix
from distcheck.rules.job.nccl_remedies import redo, undo
from distcheck.rules.nccl.grammar import problem_of, without_algorithm
from distcheck.rules.nccl.settings import Alike, alike, each, is_int, owner_of, shown, uses_nccl, weigh
from distcheck.rules.wording import found, grouped, listed, named
from distcheck.selection.nccl_settings import strtoll

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.selection.nccl_settings import Setting

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

    Fix: unset them and measure again with ``distcheck bandwidth``.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#debugging
    """
    groups = alike(job) if uses_nccl(job) else ()
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
            Fix(
                "No action if intended; otherwise remove them and measure again.",
                tuple(undo(name, setting) for name, setting in chosen.items()),
            ),
            severity=weigh(job, "warning") if severe else "info",
            owner=owner_of(chosen.values()),
            evidence={name: groups[0].value(name) for name in left},
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


@rule("environment", severity="info", scope="rank")
def nccl_p2p_disable_and_level(job: Job) -> Iterator[Outcome]:
    """NCCL_P2P_LEVEL has no effect, because NCCL_P2P_DISABLE=1 goes before it.

    NCCL reads the level only if P2P is not disabled, and prints nothing about it. Found by the two variables.

    Fix: keep one of them.
    See: https://github.com/NVIDIA/nccl/blob/master/src/graph/paths.cc (ncclGetLevel)
    """

    def both(group: Alike, name: str, value: str) -> Setting | None:
        disabled = group.number("NCCL_P2P_DISABLE") == 1
        return group.settings["NCCL_P2P_DISABLE"] if name == "NCCL_P2P_LEVEL" and value and disabled else None

    for (name, setting, disable), ranks in each(job, both).items():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {shown(name, setting)} has no effect beside NCCL_P2P_DISABLE=1",
            Fix("Keep one of them.", (undo(name, setting), undo("NCCL_P2P_DISABLE", disable))),
            evidence={name: setting.value, "NCCL_P2P_DISABLE": "1"},
        )


@rule("environment", severity="info", scope="rank")
def nccl_debug_verbose(job: Job) -> Iterator[Outcome]:
    """NCCL_DEBUG is INFO or TRACE, so that every rank writes a long log.

    INFO writes hundreds of lines for each rank and communicator. With NCCL_DEBUG_SUBSYS=COLL or ALL it writes lines for
    every collective, which slows small ones down and fills disks. Found by the value.

    Fix: ``export NCCL_DEBUG=WARN`` when the job runs well.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug
    """

    def verbose(group: Alike, name: str, value: str) -> str | None:
        loud = name == "NCCL_DEBUG" and value.strip().upper() in {"INFO", "TRACE", "ABORT"}
        return group.value("NCCL_DEBUG_SUBSYS") if loud else None

    for (name, setting, subsystems), ranks in each(job, verbose).items():
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {shown(name, setting)}{subsystems and f' with NCCL_DEBUG_SUBSYS={subsystems}'}; "
            "every rank writes a long log",
            Fix("No action if intended; otherwise log warnings only.", (redo(name, setting, "WARN"),)),
            evidence={name: setting.value, **({"NCCL_DEBUG_SUBSYS": subsystems} if subsystems else {})},
        )


@rule("environment", severity="info", scope="rank")
def nccl_efa_ib_vars(job: Job) -> Iterator[Outcome]:
    """NCCL_IB_* variables are set, but NCCL does not use its InfiniBand transport.

    They apply to NCCL's own InfiniBand and RoCE transport only. AWS EFA and Google's plugins have variables of their
    own, and with NCCL_IB_DISABLE=1 or another NCCL_NET the transport is off. Found by NCCL_NET and NCCL_IB_DISABLE, and
    on nodes whose adapters all need a plugin. It is an info.

    Fix: remove them, or the variable that turns the transport off.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """

    def unused(group: Alike, name: str, _: str) -> str | None:
        if not name.startswith("NCCL_IB_") or name == "NCCL_IB_DISABLE" or group.settings[name].origin.startswith("/"):
            return None
        network = group.value("NCCL_NET")
        if group.number("NCCL_IB_DISABLE"):
            return "NCCL_IB_DISABLE turns that transport off"
        if network and network.lower() != "ib":
            return f"NCCL_NET={network} selects another network"
        node = job.node_of(group.ranks[0])
        only_plugins = isinstance(node.pci, Pci) and plugin_adapters(node) and not adapters(node)
        return "the node's adapters need a plugin" if only_plugins else None

    for why, items in grouped(each(job, unused).items(), lambda item: item[0][2]).items():
        names = list(dict.fromkeys(name for (name, _, _), _ in items))
        ranks = list({id(r): r for _, group in items for r in group}.values())
        yield found(
            job,
            ranks,
            f"{named(job, ranks)}: {listed(names, most=3)} {'has' if len(names) == 1 else 'have'} no effect: {why}",
            Fix("No action if intended; otherwise remove them.", tuple(f"unset {name}" for name in names[:4])),
            evidence={name: setting.value for (name, setting, _), _ in items},
        )
