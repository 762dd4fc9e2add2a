"""The bandwidth rules: against a threshold, against the hardware, and where not judged."""

import msgspec
import pytest
from made import machines
from made.policies import policy

from distcheck.expectation.baseline import of
from distcheck.facts.base import Missing
from distcheck.facts.gpu import Fabric, GpuHealth, NvLinks, PcieLink
from distcheck.facts.job import Collectives, Measurement
from distcheck.facts.nccl import NcclGraph, NcclLog
from distcheck.facts.network import Link, NetworkFacts
from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.facts.rank import RankRun
from distcheck.probe import pci

replace = msgspec.structs.replace
GIB = 1 << 30
MIB = 1 << 20
HOPPER = NvLinks(active=(True,) * 18, remote=("switch",) * 18, version=6, speed_MBps=26562)
AMPERE = NvLinks(active=(True,) * 12, remote=("switch",) * 12, version=4, speed_MBps=25781)
FACTOR = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda _: 1.0, "all_to_all": lambda n: (n - 1) / n}
FAMILY = "collectives.bandwidth"


def row(op, ranks, busbw, size=8 * GIB, group="world"):
    seconds = size / (busbw * 1e9) * FACTOR[op](ranks)
    return Measurement(op, size, "float32", 20, (seconds,) * ranks, group=group)


@pytest.fixture
def measured(job_of, change):
    """Build a job that measured these figures on GPUs with these links; gloo has no GPUs."""

    def build(figures, *, nodes=1, per_node=8, links=HOPPER, backend="nccl", size=8 * GIB, nccl=None, nics=(), **asked):
        gpus = 0 if backend == "gloo" else 8
        job = job_of(nodes, per_node, looks=("environment", "meeting", "collectives"), gpus=gpus, **asked)
        health = GpuHealth(nvlinks=links, pcie=PcieLink(width=16, max_generation=4, max_width=16))
        for n, node in enumerate(job.nodes):
            gpus_of = node.gpus and replace(
                node.gpus, devices=tuple(replace(gpu, health=health) for gpu in node.gpus.devices)
            )
            job = change.node(job, n, gpus=gpus_of, pci=Pci({}, tuple(nics)) if gpus else None)
        for r, rank in enumerate(job.ranks):
            run = RankRun(1, "farewell", "done", device="cuda", gpu=rank.gpu, nccl=nccl if r == 0 else None)
            job = change.rank(job, r, run=run)
        rows = tuple(row(op, nodes * per_node, busbw, size) for op, busbw in figures.items())
        return change.job(job, collectives=Collectives(backend, measurements=rows))

    return build


@pytest.fixture
def said(judge):
    """Return the rules and severities of this family's findings, and the diagnosis."""

    def said(job):
        result = judge(job, FAMILY)
        return [(f.rule, f.severity) for f in result.findings], result

    return said


def nvls(size=8 * GIB, algorithm="NVLS/SIMPLE", **fields):
    return NcclLog(version="2.27.7", algorithms={f"all_reduce {size}": algorithm}, **fields)


RING = nvls(algorithm="RING/SIMPLE")


def adapters(number=8, rate=400.0, layer="InfiniBand"):
    place = PciPlace((), None)
    return tuple(Nic(f"mlx5_{n}", place, "ib", layer, rate_Gbps=rate, ports=(1,)) for n in range(number))


BONDED = (*adapters(2), *(replace(nic, name=f"{nic.name}_bond") for nic in adapters(2, layer="Ethernet")))
UNLIKE = (*adapters(8, 200.0, "Ethernet"), replace(adapters(1)[0], name="mlx5_ib"))
LESS = replace(HOPPER, active=(True,) * 12 + (False,) * 6, remote=("switch",) * 12 + ("unknown",) * 6)
NO_LINKS = Missing(reason="NVML error 3: Not Supported")
SLOW_GRAPH = nvls(algorithm="RING/SIMPLE", network="IB", graphs=(NcclGraph("ring", 2, 3.0, 1.2, "NVL"),))
GRAPH = nvls(algorithm="RING/SIMPLE", network="IB", graphs=(NcclGraph("ring", 8, 45.0, 45.0, "NVL"),))
TRANSPORTS = nvls(algorithm="RING/SIMPLE", network="IB", transports={"P2P/CUMEM": 16, "NET/IB/0/GDRDMA": 2})
SOCKETS = nvls(algorithm="RING/SIMPLE", network="Socket", transports={"NET/Socket/0": 2})
FOUR, TWO = {"nodes": 4, "nics": adapters()}, {"nodes": 2, "nics": adapters()}
ODD_NUMBER = {"nodes": 2, "nics": adapters(10)}
ERROR, WARNING = [("perf-below-expectation", "error")], [("perf-below-expectation", "warning")]
BELOW, IMPOSSIBLE = ("perf-below-min-busbw", "error"), ("perf-threshold-impossible", "error")
CASES = {
    "enough for --min-busbw": (1.5, 1.0, {"backend": "gloo", "per_node": 4, "min_busbw_GBps": 0.1}, [], ""),
    "--min-busbw replaces the usual figure": (150, None, {"min_busbw_GBps": 100}, [], ""),
    "a slow job is found under an impossible threshold": (None, 100, {"min_busbw_GBps": 500}, [IMPOSSIBLE, *ERROR], ""),
    "a high but possible threshold": (367, None, {"min_busbw_GBps": 460, "nccl": RING}, [BELOW], ""),
    "healthy NVLS": (478.9, 360.0, {"nccl": nvls()}, [], ""),
    "healthy ring": (367.6, 355.0, {"nccl": RING}, [], ""),
    "healthy NVLS without a log": (478.9, None, {}, [], ""),
    "healthy ring without a log": (367.6, None, {}, [], ""),
    "slower NVLS": (440.0, None, {"nccl": nvls()}, [], ""),
    "more than is usual": (None, 402.0, {}, [], ""),
    "0.91 of the usual": (None, 330.0, {}, [], ""),
    "0.89 of the usual": (None, 320.0, {}, WARNING, ""),
    "0.81 of the usual": (None, 290.0, {}, WARNING, ""),
    "0.77 of the usual": (None, 280.0, {}, ERROR, ""),
    "ring speed with NVLS in the log": (365.0, None, {"nccl": nvls()}, ERROR, ""),
    "a smaller size has a lower usual figure": (None, 300.0, {"size": 256 * MIB}, [], ""),
    "below it": (None, 150.0, {"size": 256 * MIB}, ERROR, "of that at this size"),
    "low on the curve": (None, 100.0, {"size": 64 * MIB}, WARNING, ""),
    "fewer active links": (None, 240.0, {"links": LESS}, [], ""),
    "PCIe cards": (10.0, None, {"links": NO_LINKS}, [], ""),
    "slow PCIe cards never get an error": (3.0, None, {"links": NO_LINKS}, WARNING, ""),
    "the slower of links and adapters counts": (365.8, 360.0, {"nccl": RING, **FOUR}, [], ""),
    "slow adapters": (150.0, None, {"nccl": RING, **FOUR}, ERROR, ""),
    "fewer adapters are less certain": (
        150.0, None, {"nodes": 2, "nics": adapters(5), "nccl": RING}, WARNING, "5 adapters x 400 Gb/s = 250.0 GB/s per",
    ),
    "adapters at unknown places": (90.0, None, {"nodes": 4, "nics": BONDED, "nccl": RING}, [], ""),
    "adapters of another link layer": (40.0, None, {"nodes": 4, "nics": UNLIKE}, WARNING, "8 adapters x 200 Gb/s"),
    "two nodes that exceed their adapters": (487.0, None, TWO, [], ""),
    "NCCL's graph counts where the adapters are unclear": (
        200.0, None, {"nccl": GRAPH, **ODD_NUMBER}, WARNING, "judged by nccl",
    ),
    "a slow graph lowers nothing": (2.0, None, {"nccl": SLOW_GRAPH, **ODD_NUMBER}, WARNING, "judged by derived"),
    "transports are evidence": (
        4.0, None, {"nccl": TRANSPORTS, **FOUR}, ERROR, "NCCL used RING, network IB, P2P/CUMEM, NET/IB/0/GDRDMA",
    ),
    "another rule reports sockets": (4.0, None, {"nccl": SOCKETS, **FOUR}, WARNING, ""),
}  # fmt: skip


@pytest.mark.parametrize(("all_reduce", "broadcast", "given", "rules", "words"), CASES.values(), ids=CASES)
def test_a_figure_is_judged_by_what_is_usual_and_required(measured, said, all_reduce, broadcast, given, rules, words):
    figures = {"all_reduce": all_reduce, "broadcast": broadcast}
    found, result = said(measured({op: busbw for op, busbw in figures.items() if busbw}, **given))
    assert (found, result.not_checked) == (rules, ())
    assert result.verdict.exit_code == (0 if rules in ([], WARNING) else 30 if IMPOSSIBLE in rules else 20)
    assert all(
        words in f"{f.message} {[f'{name} {value}' for name, value in f.evidence.items()]}" for f in result.findings
    )


def test_a_threshold_above_the_bound_is_found_without_a_usual_figure(measured, said):
    assert said(measured({"all_to_all": 250.0}, min_busbw_GBps=450))[0] == [IMPOSSIBLE]


def test_every_operation_is_judged_at_its_largest_size(measured, said, change):
    job = measured({"all_reduce": 1.5, "broadcast": 1.0}, backend="gloo", per_node=4, min_busbw_GBps=1.2, size=16 * MIB)
    slow = row("broadcast", 4, 0.1, MIB)  # slow, but not the largest
    job = change.job(job, collectives=replace(job.collectives, measurements=(slow, *job.collectives.measurements)))
    rules, result = said(job)
    assert rules == [BELOW]
    found = result.findings[0]
    assert found.message == (
        "broadcast of 16 MiB reaches 1 GB/s bus bandwidth between 4 ranks; --min-busbw requires 1.2 GB/s"
    )
    assert found.evidence["share"] == pytest.approx(0.833)
    assert (found.scope, found.ranks, result.verdict.exit_code) == ("link", (), 20)


@pytest.mark.parametrize(
    ("asked", "rule", "remedy"),
    [
        ({"min_busbw_GBps": 100.0}, "perf-below-min-busbw", "--min-busbw needs two"),
        ({}, "perf-below-expectation", "measure with two ranks or more"),
    ],
)
def test_a_single_rank_has_no_bus_bandwidth(measured, said, change, asked, rule, remedy):
    job = measured({}, per_node=1, **asked)
    rows = (Measurement("all_reduce", GIB, "float32", 9, (0.01,)),)
    rules, result = said(change.job(job, collectives=replace(job.collectives, measurements=rows)))
    assert rules == []
    assert [(n.rule, n.required) for n in result.not_checked] == [(rule, False)]
    assert result.not_checked[0].reason.partition("a single rank has no bus bandwidth; ")[2].startswith(remedy)


def test_an_impossible_threshold_is_the_users_error_and_the_usual_figure_counts(measured, said):
    rules, result = said(measured({"all_reduce": 478, "broadcast": 360}, min_busbw_GBps=460, nccl=nvls()))
    assert rules == [IMPOSSIBLE]
    found = result.findings[0]
    assert (found.scope, found.owner, found.nodes, result.verdict.exit_code) == ("job", "user", (), 30)
    assert found.message.startswith(
        "--min-busbw requires 460 GB/s for broadcast; between 8 ranks this hardware reaches at most 405 GB/s, "
        "usually 361.5 GB/s (18 NVLinks x 20.6 GB/s"
    )
    assert found.fix.commands == ("distcheck bandwidth --op broadcast --min-busbw 325",)


def test_a_shortfall_names_the_expectation_and_its_source(measured, said):
    _, result = said(measured({"all_reduce": 42.0}))
    found = result.findings[0]
    assert found.message == (
        "all_reduce of 8 GiB reaches 42 GB/s bus bandwidth between 8 ranks, 12% of the usual 361.5 GB/s: "
        "18 NVLinks x 20.6 GB/s (NCCL's figure for Hopper) = 370.8 GB/s, ring; 0.975 of it is usual; "
        "475.9 GB/s with NVLS"
    )
    assert found.evidence["judged by"] == "derived"
    assert (found.scope, found.confirmed) == ("link", False)


@pytest.mark.parametrize("by_file", [False, True])
@pytest.mark.parametrize(
    ("busbw", "nodes", "number", "line", "rules", "words"),
    [
        (10.0, 1, 0, "NCCL_P2P_DISABLE=1", WARNING, "NCCL_P2P_DISABLE=1 may slow it"),
        (45.0, 2, 10, "NCCL_IB_HCA==mlx5_0", [], ""),
        (45.0, 2, 10, "NCCL_IB_HCA==mlx5_0,mlx5_1", ERROR, "2 adapters x 400 Gb/s"),
        (90.0, 2, 8, "NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", ERROR, ""),
        (90.0, 2, 8, "NCCL_IB_HCA=mlx5_0,mlx5_1", [], ""),
    ],
)
def test_settings_of_the_environment_and_of_a_file_count(
    measured, said, change, by_file, busbw, nodes, number, line, rules, words
):
    job = measured({"all_reduce": busbw}, nodes=nodes, nics=adapters(number), nccl=RING if number else None)
    name, _, value = line.partition("=")
    job = change.nccl_file(job, None, line) if by_file else change.environment(job, None, **{name: value})
    found, result = said(job)
    assert found == rules
    assert all(words in f"{f.message} {f.evidence['from']}" for f in result.findings)


def test_an_empty_variable_hides_that_of_a_file(measured, said, change):
    job = change.nccl_file(measured({"all_reduce": 90.0}, nccl=RING, **TWO), None, "NCCL_IB_HCA=mlx5_0,mlx5_1")
    assert said(change.environment(job, None, NCCL_IB_HCA=""))[0] == ERROR


def with_gpus(change, job, **fields):
    for n, node in enumerate(job.nodes):
        devices = tuple(replace(gpu, **fields) for gpu in node.gpus.devices)
        job = change.node(job, n, gpus=replace(node.gpus, devices=devices))
    return job


@pytest.mark.parametrize(
    ("nodes", "spoil", "reason"),
    [
        (2, lambda job, change: change.node(job, 1, pci=None), "the network adapters were not checked"),
        (2, lambda job, change: change.node(job, 1, pci=Missing("no sysfs")), "no sysfs"),
        (2, lambda job, change: change.node(job, 1, pci=Pci({}, adapters(8, None))), "node2: mlx5_0 does not report"),
        (2, lambda job, change: change.node(job, 1, pci=Pci({}, ())), "others have none"),
        (2, lambda job, change: change.node(job, None, boot_id="same"), "several nodes are one machine"),
        (2, lambda job, change: change.node(job, None, pci=Pci({}, ())), "network links was not checked"),
        (1, lambda job, change: with_gpus(change, job, mig=True), "partitioned (MIG)"),
        (1, lambda job, change: change.rank(job, None, run=None, gpu="GPU-1-0"), "several ranks share a GPU"),
        (1, lambda job, change: change.rank(job, None, run=None, gpu=None), "unknown which GPUs the ranks used"),
        (1, lambda job, change: change.environment(job, None, NCCL_HOSTID="a"), "NCCL_HOSTID"),
        (1, lambda job, change: change.nccl_file(job, None, "NCCL_HOSTID=a"), "NCCL_HOSTID"),
        (1, lambda job, change: with_gpus(change, job, health=None), "the condition of the GPUs was not read"),
        (1, lambda job, change: change.keep(job, 0, 1), "only 2 of 8 ranks reported their facts"),
    ],
)
def test_unclear_hardware_is_not_checked_with_the_reason(measured, said, change, nodes, spoil, reason):
    job = measured({"all_reduce": 1.0}, nodes=nodes, nics=adapters())
    rules, result = said(spoil(job if nodes > 1 else with_gpus(change, job, name="Unheard-of GPU"), change))
    assert rules == []
    assert reason in result.not_checked[0].reason
    assert len(result.not_checked) == 1


@pytest.mark.parametrize(
    ("figures", "given", "reason"),
    [
        ({"all_reduce": 40.0, "broadcast": 25.0}, {"size": MIB}, "latency dominates"),
        ({"all_to_all": 250.0}, {}, "no published result for all_to_all"),
        (
            {"all_reduce": 1.0, "broadcast": 1.0},
            {"backend": "gloo"},
            "all_reduce and broadcast not judged: there is no expectation for Gloo on one machine; use --min-busbw",
        ),
    ],
)
def test_what_has_no_expectation_is_not_checked_and_passes(measured, said, figures, given, reason):
    rules, result = said(measured(figures, **given))
    assert rules == []
    assert {(n.rule, n.required) for n in result.not_checked} == {("perf-below-expectation", False)}
    assert reason in result.not_checked[0].reason
    assert result.verdict.exit_code == 0


@pytest.mark.parametrize("layer", ["Ethernet", "InfiniBand"])
def test_adapters_for_storage_do_not_count(measured, said, change, tmp_path, layer):
    path = ("pci0000:20", "0000:20:01.0", "0000:21:00.")
    storage = tuple(
        machines.Card((*path[:2], f"{path[2]}{n}"), 3, ib=f"mlx5_{4 + n}", link=layer, gbps=200) for n in range(2)
    )
    machine = machines.DGX_A100._replace(cards=(*machines.DGX_A100.cards, *storage))
    tree = pci.collect(machines.write(tmp_path, machine))
    several = {"nodes": 4, "nccl": RING, "nics": tree.nics, "links": AMPERE}

    def job(busbw):
        found = measured({"all_reduce": busbw}, **several)
        for n, node in enumerate(found.nodes):
            addresses = zip(node.gpus.devices, machines.gpus(machine), strict=True)
            devices = tuple(replace(gpu, pci=address) for gpu, address in addresses)
            found = change.node(found, n, gpus=replace(node.gpus, devices=devices), pci=tree)
        return found

    assert said(job(190.0))[1].findings == ()
    rules, result = said(job(160.0))
    assert rules == [("perf-below-expectation", "warning")]
    assert "8 adapters x 200 Gb/s" in result.findings[0].message


def test_the_slowest_nodes_adapters_count(measured, said, change):
    job = measured({"all_reduce": 90.0}, nodes=2, nics=adapters(), nccl=RING)
    assert said(job)[0] == [("perf-below-expectation", "error")]
    assert said(change.node(job, 1, pci=Pci({}, adapters(8, 100.0))))[0] == []


@pytest.mark.parametrize(
    ("speed", "kind", "busbw", "rules"),
    [
        (1000, "physical", 0.115, []),
        (1000, "physical", 0.05, [("perf-below-expectation", "warning")]),
        (100, "physical", 0.0118, []),
        (1000, "virtual", 0.05, []),
        (10_000, "physical", 0.6, []),
        (100_000, "physical", 1.0, []),
        (None, "physical", 0.05, []),
    ],
)
def test_gloo_over_the_network_is_judged_by_the_slowest_link(measured, said, change, speed, kind, busbw, rules):
    job = measured({"all_reduce": busbw}, nodes=2, per_node=2, backend="gloo", size=64 * MIB)
    for n in range(2):
        link = Link("eth0", "02:00", kind, speed_Mbps=speed, full_duplex=True)
        network = NetworkFacts((link,), Missing("no"), job.nodes[n].interfaces[1].address)
        job = change.node(job, n, network=network)
    found, result = said(job)
    assert found == rules
    judged = bool(rules) or (speed in {100, 1000} and kind == "physical")
    assert bool(result.not_checked) is not judged


def test_nvlink_between_nodes_has_no_model(measured, said, change):
    job = measured({"all_reduce": 600.0}, nodes=2, per_node=4, nics=adapters(4))
    fabric = Fabric(3, 0, "abc", 1, Missing("no"), Missing("no"))
    health = replace(job.nodes[0].gpus.devices[0].health, fabric=fabric)
    rules, result = said(with_gpus(change, job, name="NVIDIA GB200", health=health))
    assert rules == []
    assert "multi-node NVLink" in result.not_checked[0].reason


def test_each_data_type_is_judged_separately(measured, said, change):
    job = measured({"broadcast": 355.0})
    slow = replace(row("broadcast", 8, 100.0), dtype="bfloat16")
    job = change.job(job, collectives=replace(job.collectives, measurements=(*job.collectives.measurements, slow)))
    rules, result = said(job)
    assert rules == [("perf-below-expectation", "error")]
    assert result.findings[0].message.startswith("broadcast bfloat16 of 8 GiB reaches 100 GB/s")


def test_a_baseline_is_judged_by_another_rule(measured, judge, change):
    before = of(measured({"broadcast": 360.0}), "before.json")
    result = judge(change.asked(measured({"broadcast": 100.0}), baseline=before), FAMILY)
    assert (result.findings, result.not_checked) == ((), ())


def test_other_groups_than_the_world_are_not_judged(measured, judge, change):
    job = measured({})
    rows = (row("all_reduce", 2, 1.0, group="pair 0"),)
    result = judge(change.job(job, collectives=replace(job.collectives, measurements=rows)), FAMILY)
    assert (result.findings, result.not_checked) == ((), ())


FLOORS = [{"GBps": 1.0}, {"GBps": 400, "op": "all_reduce", "gpu": "NVIDIA H100*", "ranks": 8}]


@pytest.mark.parametrize(
    ("floors", "figures", "asked", "expected"),
    [
        (FLOORS, {"all_reduce": 390, "broadcast": 360}, {}, [BELOW]),
        (FLOORS, {"all_reduce": 410, "broadcast": 360}, {}, []),
        (FLOORS[:1], {"all_reduce": 410, "broadcast": 0.5}, {}, [BELOW]),
        (FLOORS, {"all_reduce": 390}, {"min_busbw_GBps": 300}, []),
        (FLOORS, {"all_reduce": 390}, {"nodes": 2, "per_node": 2}, []),
        ([*FLOORS, {"GBps": 2000}], {"all_reduce": 390}, {}, [IMPOSSIBLE]),
        ([{"GBps": 400, "gpu": "*A100*"}], {"all_reduce": 390}, {}, []),
    ],
)
def test_the_floor_of_the_policy_for_this_model_and_number_of_ranks_counts(
    measured, said, floors, figures, asked, expected
):
    job = measured(figures, nccl=RING, policy=policy({"busbw": floors}), **asked)
    found, result = said(job)
    assert [each for each in found if each in {BELOW, IMPOSSIBLE}] == expected
    assert all("the site's policy requires" in f.message for f in result.findings if (f.rule, f.severity) in expected)
