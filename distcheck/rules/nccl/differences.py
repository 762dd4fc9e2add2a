"""Rules about settings of NCCL and torch that differ across the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.ranges import numbered
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import SEVERITIES, Fix
from distcheck.rules.job.nccl_remedies import redo, undo
from distcheck.rules.nccl.grammar import problem_of
from distcheck.rules.nccl.settings import alike, weigh
from distcheck.rules.nccl.tables import current, tables
from distcheck.rules.wording import brief, found, grouped, listed, majority, named, numbers_of
from distcheck.selection.nccl_settings import ENVIRONMENT, Setting, strtoll

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts
    from distcheck.rules.finding import Severity
    from distcheck.rules.nccl.settings import Alike

_HANG = frozenset(
    {
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_COLLNET_ENABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE"),
        *("NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_MIN_NCHANNELS"),
        *("NCCL_MAX_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
        *("NCCL_SOCKET_MAGIC", "NCCL_MNNVL_ENABLE", "FI_PROVIDER", "OFI_NCCL_PROTOCOL"),
    }
)
"""Each rank works out with these what to send to which peer; with different values they wait for each other."""
_HANG_IN_A_NODE = frozenset({"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_P2P_DIRECT_DISABLE", "NCCL_SHM_DISABLE",
                             "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE"})  # fmt: skip
"""The same among the ranks of one node; between nodes they only decide the speed."""
_OWN = (
    *("NCCL_DEBUG", "NCCL_TOPO_", "NCCL_GRAPH_", "NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_OOB_NET_IFNAME"),
    *("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_HOSTID", "NCCL_COMM_ID", "NCCL_CONF_FILE", "NCCL_RAS_", "NCCL_PROXY_"),
    *("NCCL_MNNVL_CLIQUE_ID", "NCCL_MNNVL_UUID", "NCCL_VERSION"),
    *("TORCH_NCCL_DEBUG_INFO", "TORCH_FR_DUMP", "TORCH_DIST", "RCCL_TOPO"),
)
"""Each node or rank may have its own value of these, or another rule compares them."""
_OTHERS = ("OFI_NCCL_", "FI_", "UCX_", "RCCL_", "TORCH_NCCL", "TORCH_FR_")


@rule("environment")
def nccl_env_differs(job: Job) -> Iterator[Outcome]:
    """NCCL's settings differ across the ranks.

    Every rank decides by its own settings how it talks to which peer, and NCCL does not compare them. With another
    NCCL_ALGO, NCCL_PROTO, NCCL_NET or NCCL_COLLNET_ENABLE on one rank the ranks wait for different messages: the first
    collective hangs, or fails with ``internal error``. Settings that only tune, such as NCCL_IB_QPS_PER_CONNECTION or
    NCCL_CROSS_NIC, make it slow. The usual cause is a launcher that forwards variables to some nodes only (mpirun
    without ``-x``, ssh), or another ``/etc/nccl.conf`` on one node.

    Found by comparing the effective values, configuration files included, as NCCL parses them: an unset variable is
    equal to its default. It is an error for the settings that hang; those that concern a node's own GPUs
    (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE) only if they differ within a node. Otherwise it is a warning, and an info for
    torch's and other libraries' settings. What each node may set for itself (NCCL_SOCKET_IFNAME, NCCL_IB_HCA,
    NCCL_DEBUG, files) is not compared. Settings that differ between the same ranks are one finding.

    Fix: give all ranks the same settings, or none.
    See: https://github.com/NVIDIA/nccl/issues/626
    """
    groups = alike(job)
    if len(groups) < 2:
        return
    differing: dict[tuple[frozenset[int], ...], list[str]] = {}
    for name in sorted({name for group in groups for name in group.settings}):
        if _compared(name) and not any(problem_of(name, g.value(name), g.nccl) for g in groups):
            sides = grouped(range(len(groups)), lambda n, name=name: _as_read(groups[n], name))  # type: ignore[misc]
            if len(sides) > 1:
                differing.setdefault(tuple(sorted(map(frozenset, sides.values()), key=min)), []).append(name)
    for partition, names in differing.items():
        names.sort(key=lambda name: (SEVERITIES.index(_severity(job, name, groups)), name))
        yield from _difference(job, groups, partition, names)


def _difference(
    job: Job, groups: tuple[Alike, ...], sides: tuple[frozenset[int], ...], names: list[str]
) -> Iterator[Outcome]:
    first = names[0]
    ranks = {side: [r for n in sorted(side) for r in groups[n].ranks] for side in sides}
    most = majority(ranks)
    others = [side for side in sides if side != most]
    message = "; ".join(f"{named(job, ranks[s])} {_has(groups[min(s)], first, ranks[s])}" for s in others[:3])
    if most is not None:
        message += f"; the other {len(ranks[most])} {_has(groups[min(most)], first, ranks[most])}"
    message += f"; so do {listed(names[1:], most=3)}" if len(names) > 1 else ""
    severity = _severity(job, first, groups)
    message += {"error": "; collectives can hang", "warning": "; collectives can be slow", "info": ""}[severity]
    wrong = [r for side in others for r in ranks[side]]
    wanted = {name: groups[min(most)].value(name) if most is not None else "" for name in names[:4]}
    commands = [
        redo(name, group.settings.get(name, Setting("")), value) if value else undo(name, group.settings[name])
        for name, value in wanted.items()
        for group in (groups[n] for side in others for n in sorted(side))
        if value or name in group.settings
    ]
    yield found(
        job,
        wrong,
        message,
        Fix(f"Give {numbered(numbers_of(wrong))} the same settings as the others.", tuple(dict.fromkeys(commands))),
        severity=weigh(job, severity),
        evidence={
            name: "; ".join(f"{_shown(groups[min(side)], name)}: {named(job, ranks[side])}" for side in sides[:8])
            for name in names[:12]
        },
    )


def _has(group: Alike, name: str, ranks: list[RankFacts]) -> str:
    one = len(ranks) == 1
    if not group.value(name):
        return f"{'does' if one else 'do'} not set {name}"
    return f"{'has' if one else 'have'} {name}={_shown(group, name)}"


def _shown(group: Alike, name: str) -> str:
    if not group.value(name):
        return "unset"
    setting = group.settings[name]
    return brief(setting.value, 60) + ("" if setting.origin == ENVIRONMENT else f" (in {setting.origin})")


def _compared(name: str) -> bool:
    return (current(name) or name.startswith(_OTHERS)) and not name.startswith(_OWN)


def _as_read(group: Alike, name: str) -> str:
    """Return a value as NCCL reads it, so that different spellings of one value are equal."""
    value = group.value(name)
    variable = tables().nccl.get(name)
    if variable is not None and variable.kind == "int":
        return str(strtoll(value)[0]) if value else variable.default
    return value.lower() if name in {"NCCL_ALGO", "NCCL_PROTO", "NCCL_NET"} else value


def _severity(job: Job, name: str, groups: tuple[Alike, ...]) -> Severity:
    if name in _HANG or (name in _HANG_IN_A_NODE and _within_a_node(job, name, groups)):
        return "error"
    return "info" if name.startswith(_OTHERS) else "warning"


def _within_a_node(job: Job, name: str, groups: tuple[Alike, ...]) -> bool:
    """Return whether ranks of one node have different values."""
    on: dict[str, str] = {}
    for group in groups:
        value = _as_read(group, name)
        if any(on.setdefault(job.process_of(rank).node, value) != value for rank in group.ranks):
            return True
    return False
