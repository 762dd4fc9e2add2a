"""How the GPUs of one node are connected: NVLink with or without switches, XGMI, or PCIe."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from distcheck.expectation.hardware import Inside, NvLinkWay, PcieWay
from distcheck.expectation.links import MI300, nvlink_kind, pcie_rate, xgmi_kind
from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, GpuHealth, Gpus, NvLinks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NOT_SUPPORTED = "NVML error 3:"
_MEASURED_GPUS = 8
"""GPUs in the published figures behind XGMI's share."""


def inside(seen: Gpus, used: Sequence[Gpu]) -> Inside | Missing:
    """Return the links between the GPUs of one node that the ranks use."""
    healths = [gpu.health for gpu in used if gpu.health is not None]
    if len(healths) < len(used):
        return Missing(reason=f"the condition of the GPUs was not read{f': {seen.unread}' if seen.unread else ''}")
    if any(health.amd is not None for health in healths):
        return _xgmi(used)
    unread = [h.nvlinks.reason for h in healths if isinstance(h.nvlinks, Missing)]
    if any(not reason.startswith(_NOT_SUPPORTED) for reason in unread):
        return Missing(reason=f"the NVLinks could not be read: {unread[0]}")
    links = [h.nvlinks for h in healths if isinstance(h.nvlinks, NvLinks) and any(h.nvlinks.active)]
    if not links:
        return _pcie(healths, together=1)
    if len(links) < len(used):
        return Missing(reason="some of the GPUs have NVLinks and others have none")
    groups = _groups(seen, [gpu.index for gpu in used])
    if _switched(links):
        return _nvlink(seen, links, joined=isinstance(groups, Missing) or len(groups) == 1)
    if isinstance(groups, Missing):
        return groups
    return _nvlink(seen, links, joined=True) if len(groups) == 1 else _pcie(healths, together=min(map(len, groups)))


def _xgmi(used: Sequence[Gpu]) -> Inside | Missing:
    """Return the links of AMD GPUs each of which has one to every other."""
    (name, *others) = {str(gpu.name) for gpu in used}
    kind = None if others else xgmi_kind(name)
    if kind is None:
        return Missing(reason=f"there is no model for the links of {' and '.join(sorted([name, *others]))}")
    known = [gpu.health.amd for gpu in used if gpu.health is not None and gpu.health.amd is not None]
    direct = [{peer.pci for peer in amd.xgmi if peer.hops == 1 and peer.MBps} for amd in known]
    places = {gpu.pci for gpu in used}
    if any(places - {gpu.pci} - reached for gpu, reached in zip(used, direct, strict=True)):
        return Missing(reason="not every pair of the GPUs has an XGMI link")
    return NvLinkWay(kind, len(used) - 1, switched=False, exact=kind is MI300 and len(used) == _MEASURED_GPUS)


def _nvlink(seen: Gpus, links: Sequence[NvLinks], *, joined: bool) -> Inside | Missing:
    """Return the links a ring can use on the GPU with the fewest.

    `joined` says whether NVLink joins all used GPUs, as far as NVML reports it.
    """
    active, least = min(((sum(each.active), each) for each in links), key=lambda item: item[0])
    if isinstance(least.version, Missing):
        return Missing(reason="the generation of the NVLinks could not be read")
    kind = nvlink_kind(least.version, least.speed_MBps if isinstance(least.speed_MBps, int) else None)
    if kind is None:
        return Missing(reason=f"distcheck does not know NVML's NVLink version {least.version}")
    others = len(seen.devices) - 1
    if _switched(links) or (others > 0 and active % others and "gpu" not in least.remote):
        return NvLinkWay(kind, active, exact=joined)
    # Each link leads to one other GPU, so links to unused GPUs do not count.
    if len(links) == others + 1:
        return NvLinkWay(kind, active, switched=False, exact=others == 1)
    if not _full_mesh(seen) or active % others:
        return Missing(reason="it is unknown which NVLinks join the used GPUs")
    return NvLinkWay(kind, active // others * (len(links) - 1), switched=False, exact=False)


def _switched(links: Iterable[NvLinks]) -> bool:
    return all("switch" in each.remote for each in links)


def _joined(seen: Gpus) -> set[tuple[int, int]]:
    return {pair.gpus for pair in seen.peer_access if pair.nvlink == 0}


def _full_mesh(seen: Gpus) -> bool:
    return len(_joined(seen)) == len(seen.devices) * (len(seen.devices) - 1) // 2


def _groups(seen: Gpus, used: Sequence[int]) -> list[set[int]] | Missing:
    """Return the used GPUs in groups that NVLink joins, directly or through others."""
    if not seen.peer_access:
        return Missing(reason="the NVLink topology was not read")
    joined = _joined(seen)
    if joined.issuperset(combinations(sorted(used), 2)):
        return [set(used)]
    beside: dict[int, set[int]] = {}
    for one, other in joined:
        if one < other:  # as the probe asks NVML
            beside.setdefault(one, set()).add(other)
            beside.setdefault(other, set()).add(one)
    groups, rest = [], set(used)
    while rest:
        group, new = set[int](), {min(rest)}
        while new:
            group |= new
            rest -= new
            new = rest.intersection(other for index in new for other in beside.get(index, ()))
        groups.append(group)
    return groups


def _pcie(healths: Sequence[GpuHealth], *, together: int) -> PcieWay | Missing:
    """Return the slowest PCIe link at its maximum generation; idle GPUs report a lower one."""
    ways = []
    for health in healths:
        generation, width, widest = health.pcie.max_generation, health.pcie.width, health.pcie.max_width
        if isinstance(generation, Missing) or isinstance(width, Missing) or not width:
            return Missing(reason="the GPUs' PCIe links could not be read")
        if not isinstance(widest, Missing) and 1 == width < widest:
            width = widest  # Grace and some virtual machines report width 1 for an idle GPU
        ways.append((pcie_rate(generation, width), PcieWay(generation, width, together)))
    known = [(rate, way) for rate, way in ways if rate is not None]
    if len(known) < len(ways):
        return Missing(reason="distcheck does not know a GPU's PCIe generation")
    return min(known, key=lambda item: item[0])[1]
