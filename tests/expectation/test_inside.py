"""How the GPUs of a node are connected, by what NVML reports."""

import pytest
from made import amd, amd_jobs

from distcheck.expectation.hardware import NvLinkWay, PcieWay
from distcheck.expectation.inside import inside
from distcheck.expectation.links import AMPERE, HOPPER, MI300, VOLTA
from distcheck.facts.base import Missing
from distcheck.facts.gpu import NOT_SUPPORTED, Gpu, GpuHealth, Gpus, NvLinks, PcieLink, PeerAccess

SLOT = PcieLink(width=16, max_generation=4, max_width=16)


def links(active, remote="switch", version=6, of=18):
    ends = (remote,) * active + ("unknown",) * (of - active)
    return NvLinks(active=(True,) * active + (False,) * (of - active), remote=ends, version=version)


def node(number, nvlinks=NOT_SUPPORTED, *, pairs=None, pcie=SLOT):
    """Return GPUs; `pairs` are those that NVLink joins, None where peer access was not read."""
    each = nvlinks if isinstance(nvlinks, list) else [nvlinks] * number
    devices = tuple(
        Gpu(n, f"GPU-{n}", f"0000:0{n}:00.0", "a card", 1, 1, health=GpuHealth(nvlinks=each[n], pcie=pcie))
        for n in range(number)
    )
    every = [(a, b) for a in range(number) for b in range(a + 1, number)]
    access = () if pairs is None else tuple(PeerAccess(p, 0, 0, 0 if p in pairs else 5) for p in every)
    return Gpus("580", "13.0", devices, peer_access=access)


def mesh(number):
    return {(a, b) for a in range(number) for b in range(a + 1, number)}


def used(gpus, *indices):
    return [gpus.devices[n] for n in indices] if indices else list(gpus.devices)


def test_gpus_on_switches_use_all_their_links_with_any_number_of_gpus():
    gpus = node(8, links(18))
    assert inside(gpus, used(gpus)) == inside(gpus, used(gpus, 0, 5)) == NvLinkWay(HOPPER, 18)


def test_switches_without_reported_peer_access_are_not_exact():
    gpus = node(8, links(18), pairs=set())
    assert inside(gpus, used(gpus)) == NvLinkWay(HOPPER, 18, exact=False)


def test_the_gpu_with_the_fewest_active_links_counts():
    gpus = node(8, [links(18)] * 7 + [links(16)])
    assert inside(gpus, used(gpus)).links == 16
    assert inside(gpus, used(gpus, 0, 1)).links == 18


def test_hidden_switches_are_recognised_by_the_number_of_links():
    gpus = node(8, links(12, "unknown", 4, 12), pairs=mesh(8))
    assert inside(gpus, used(gpus)) == NvLinkWay(AMPERE, 12)


def test_two_joined_cards_use_the_links_between_them():
    gpus = node(2, links(12, "gpu", 4, 12), pairs=mesh(2))
    assert inside(gpus, used(gpus)) == NvLinkWay(AMPERE, 12, switched=False)


def test_in_a_mesh_only_the_links_to_used_gpus_count():
    gpus = node(4, links(12, "gpu", 4, 12), pairs=mesh(4))
    assert inside(gpus, used(gpus, 0, 1)) == NvLinkWay(AMPERE, 4, switched=False, exact=False)
    assert inside(gpus, used(gpus)) == NvLinkWay(AMPERE, 12, switched=False, exact=False)


def test_a_whole_cube_mesh_has_all_links_and_a_part_of_it_is_unknown():
    pairs = {(a, b) for a, b in mesh(8) if b - a in {1, 2, 3, 4}}
    gpus = node(8, links(6, "gpu", 2, 6), pairs=pairs)
    assert inside(gpus, used(gpus)) == NvLinkWay(VOLTA, 6, switched=False, exact=False)
    assert "unknown which NVLinks" in inside(gpus, used(gpus, 0, 1, 2)).reason


def test_pairs_of_cards_reach_each_other_over_pcie_by_two_links():
    gpus = node(4, links(12, "gpu", 4, 12), pairs={(0, 1), (2, 3)})
    assert inside(gpus, used(gpus)) == PcieWay(4, 16, together=2)
    assert inside(gpus, used(gpus, 0, 2)) == PcieWay(4, 16)


def test_an_unread_nvlink_topology_is_not_guessed():
    gpus = node(4, links(4, "gpu", 4, 12))
    assert inside(gpus, used(gpus)) == Missing(reason="the NVLink topology was not read")


@pytest.mark.parametrize("nvlinks", [NOT_SUPPORTED, links(0)])
def test_cards_without_links_use_pcie_at_its_best_generation(nvlinks):
    gpus = node(8, nvlinks)
    assert inside(gpus, used(gpus)) == PcieWay(4, 16)


def test_a_card_that_lost_lanes_is_slower():
    gpus = node(2, pcie=PcieLink(width=8, max_width=16, max_generation=5))
    assert inside(gpus, used(gpus)) == PcieWay(5, 8)


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (node(2, Missing("NVML error 15: GPU is lost")), "could not be read"),
        (node(2, [links(18), NOT_SUPPORTED]), "others have none"),
        (node(2, links(18, version=99)), "NVLink version 99"),
        (node(2, links(18, version=Missing("NVML error 999"))), "generation"),
        (node(2, pcie=PcieLink()), "PCIe links could not be read"),
        (
            node(2, pcie=PcieLink(width=16, max_width=16, max_generation=42)),
            "distcheck does not know a GPU's PCIe generation",
        ),
    ],
)
def test_unreadable_facts_are_missing(gpus, reason):
    assert reason in inside(gpus, used(gpus)).reason


def test_every_pair_of_eight_mi300x_has_a_link(tmp_path):
    gpus, _ = amd_jobs.read(tmp_path, amd.MI300X)
    assert inside(gpus, gpus.devices) == NvLinkWay(MI300, 7, switched=False, exact=True)
    assert inside(gpus, gpus.devices[:4]) == NvLinkWay(MI300, 3, switched=False, exact=False)


def test_amd_gpus_of_which_some_pairs_have_no_link_have_no_model(tmp_path):
    gpus, _ = amd_jobs.read(tmp_path / "a", amd.MI250X)
    assert inside(gpus, gpus.devices) == Missing(reason="there is no model for the links of AMD Instinct MI250X")
    links = {pair: n for pair, n in amd.FULL.items() if pair != (5, 2)}
    gpus, _ = amd_jobs.read(tmp_path / "b", amd.MI300X._replace(links=links))
    assert inside(gpus, gpus.devices) == Missing(reason="not every pair of the GPUs has an XGMI link")
    assert inside(gpus, gpus.devices[:2]) == NvLinkWay(MI300, 1, switched=False, exact=False)
