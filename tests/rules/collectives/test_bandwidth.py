"""The bandwidth rules: against a threshold, against the hardware, and where not judged."""

import msgspec
import pytest
from made import machines

from distcheck.expectation.baseline import of
from distcheck.facts.base import Missing
from distcheck.facts.gpu import Fabric, GpuHealth, NvLinks, PcieLink
from distcheck.facts.job import Collectives, Measurement
from distcheck.facts.nccl import NcclGraph, NcclLog
from distcheck.facts.network import Link, NetworkFacts
from distcheck.facts.pci import Nic, Pci, PciPlace
from distcheck.facts.rank import RankRun
from distcheck.probe import pci
from distcheck.rules import all_rules

replace = msgspec.structs.replace
GIB = 1 << 30
MIB = 1 << 20
HOPPER = NvLinks(active=(True,) * 18, remote=("switch",) * 18, version=6, speed_MBps=26562)
AMPERE = NvLinks(active=(True,) * 12, remote=("switch",) * 12, version=4, speed_MBps=25781)
FACTOR = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda _: 1.0, "all_to_all": lambda n: (n - 1) / n}
FAMILY = "performance"


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


def nvls(size=8 * GIB, algorithm="NVLS/SIMPLE"):
    return NcclLog(version="2.27.7", algorithms={f"all_reduce {size}": algorithm})


def adapters(number=8, rate=400.0, layer="InfiniBand"):
    place = PciPlace((), None)
    return tuple(Nic(f"mlx5_{n}", place, "ib", layer, rate_Gbps=rate, ports=(1,)) for n in range(number))


# --- perf-below-min-busbw


def test_every_operation_is_judged_at_its_largest_size(measured, said, change):
    job = measured({"all_reduce": 1.5, "broadcast": 1.0}, backend="gloo", per_node=4, min_busbw_GBps=1.2, size=16 * MIB)
    slow = row("broadcast", 4, 0.1, MIB)  # slow, but not the largest
    job = change.job(job, collectives=replace(job.collectives, measurements=(slow, *job.collectives.measurements)))
    rules, result = said(job)
    assert rules == [("perf-below-min-busbw", "error")]
    found = result.findings[0]
    assert found.message == (
        "broadcast of 16 MiB reaches 1 GB/s bus bandwidth between 4 ranks; --min-busbw requires 1.2 GB/s"
    )
    assert found.evidence["share"] == pytest.approx(0.833)
    assert (found.scope, found.ranks, result.verdict.exit_code) == ("link", (), 20)


def test_enough_bandwidth_is_silent(measured, judge):
    job = measured({"all_reduce": 1.5, "broadcast": 1.0}, backend="gloo", per_node=4, min_busbw_GBps=0.1)
    result = judge(job, FAMILY)
    assert (result.findings, result.not_checked) == ((), ())


def test_min_busbw_replaces_the_usual_figure(measured, said):
    rules, result = said(measured({"all_reduce": 150}, min_busbw_GBps=100))
    assert (rules, result.not_checked) == ([], ())


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


# --- perf-threshold-impossible


def test_an_impossible_threshold_is_the_users_error_and_the_usual_figure_counts(measured, said):
    rules, result = said(measured({"all_reduce": 478, "broadcast": 360}, min_busbw_GBps=460, nccl=nvls()))
    assert rules == [("perf-threshold-impossible", "error")]
    found = result.findings[0]
    assert (found.scope, found.owner, found.nodes, result.verdict.exit_code) == ("job", "user", (), 30)
    assert found.message.startswith(
        "--min-busbw requires 460 GB/s for broadcast; between 8 ranks this hardware reaches at most 405 GB/s, "
        "usually 361.5 GB/s (18 NVLinks x 20.6 GB/s"
    )
    assert found.fix.commands == ("distcheck bandwidth --op broadcast --min-busbw 325",)


def test_a_slow_job_is_still_found_under_an_impossible_threshold(measured, said):
    rules, _ = said(measured({"broadcast": 100}, min_busbw_GBps=500))
    assert rules == [("perf-threshold-impossible", "error"), ("perf-below-expectation", "error")]


def test_a_high_but_possible_threshold_fails_the_job(measured, said):
    rules, _ = said(measured({"all_reduce": 367}, min_busbw_GBps=460, nccl=nvls(algorithm="RING/SIMPLE")))
    assert rules == [("perf-below-min-busbw", "error")]


# --- perf-below-expectation


@pytest.mark.parametrize(
    ("figures", "algorithm"),
    [
        ({"all_reduce": 478.9, "broadcast": 360.0}, "NVLS/SIMPLE"),
        ({"all_reduce": 367.6, "broadcast": 355.0}, "RING/SIMPLE"),
        ({"all_reduce": 478.9}, None),
        ({"all_reduce": 367.6}, None),
        ({"all_reduce": 440.0}, "NVLS/SIMPLE"),
    ],
)
def test_healthy_nodes_are_silent(measured, judge, figures, algorithm):
    result = judge(measured(figures, nccl=nvls(algorithm=algorithm) if algorithm else None), FAMILY)
    assert (result.findings, result.not_checked) == ((), ())


@pytest.mark.parametrize(
    ("busbw", "severity"), [(330.0, None), (320.0, "warning"), (290.0, "warning"), (280.0, "error")]
)
def test_below_nine_tenths_is_a_warning_and_below_eight_tenths_an_error(measured, said, busbw, severity):
    rules, result = said(measured({"broadcast": busbw}))
    assert rules == ([("perf-below-expectation", severity)] if severity else [])
    assert result.verdict.exit_code == (20 if severity == "error" else 0)


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
    assert said(measured({"broadcast": 402.0}))[0] == [], "more than is usual is no fault"


def test_ring_speed_with_nvls_in_the_log_is_too_low(measured, said):
    rules, _ = said(measured({"all_reduce": 365.0}, nccl=nvls()))
    assert rules == [("perf-below-expectation", "error")]


def test_a_small_message_is_judged_by_the_usual_figure_at_its_size(measured, said):
    assert said(measured({"broadcast": 300.0}, size=256 * MIB))[0] == []
    rules, result = said(measured({"broadcast": 150.0}, size=256 * MIB))
    assert rules == [("perf-below-expectation", "error")]
    assert "of that at this size" in result.findings[0].evidence["from"]


def test_a_shortfall_low_on_the_curve_is_a_warning(measured, said):
    assert said(measured({"broadcast": 100.0}, size=64 * MIB))[0] == [("perf-below-expectation", "warning")]


def test_sizes_dominated_by_latency_are_not_judged(measured, said):
    rules, result = said(measured({"all_reduce": 40.0, "broadcast": 25.0}, size=MIB))
    assert rules == []
    assert {(n.rule, n.required) for n in result.not_checked} == {("perf-below-expectation", False)}
    assert "latency dominates" in result.not_checked[0].reason
    assert result.verdict.exit_code == 0


def test_a_setting_that_explains_a_shortfall_is_named_and_makes_it_a_warning(measured, said, change):
    job = measured({"all_reduce": 10.0})
    by_variable = change.environment(job, None, NCCL_P2P_DISABLE="1")
    for slowed in by_variable, change.nccl_file(job, None, "NCCL_P2P_DISABLE=1"):
        rules, result = said(slowed)
        assert rules == [("perf-below-expectation", "warning")]
        assert "NCCL_P2P_DISABLE=1 may slow it" in result.findings[0].evidence["from"]


def test_fewer_active_links_lower_the_expectation(measured, said):
    less = replace(HOPPER, active=(True,) * 12 + (False,) * 6, remote=("switch",) * 12 + ("unknown",) * 6)
    assert said(measured({"broadcast": 240.0}, links=less))[0] == []


def test_pcie_cards_never_get_an_error(measured, said):
    none = Missing(reason="NVML error 3: Not Supported")
    assert said(measured({"all_reduce": 10.0}, links=none))[0] == []
    assert said(measured({"all_reduce": 3.0}, links=none))[0] == [("perf-below-expectation", "warning")]


def test_the_slower_of_links_and_adapters_counts(measured, said):
    several = {"nodes": 4, "nics": adapters(), "nccl": nvls(algorithm="RING/SIMPLE")}
    assert said(measured({"all_reduce": 365.8, "broadcast": 360.0}, **several))[0] == []
    assert said(measured({"all_reduce": 150.0}, **several))[0] == [("perf-below-expectation", "error")]


def test_fewer_adapters_lower_the_expectation_and_its_certainty(measured, said):
    several = {"nodes": 2, "nics": adapters(5), "nccl": nvls(algorithm="RING/SIMPLE")}
    rules, result = said(measured({"all_reduce": 150.0}, **several))
    assert rules == [("perf-below-expectation", "warning")]
    assert "5 adapters x 400 Gb/s = 250.0 GB/s per node" in result.findings[0].evidence["from"]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda job, change: change.node(job, 1, pci=None), "the network adapters were not checked"),
        (lambda job, change: change.node(job, 1, pci=Missing("no sysfs")), "no sysfs"),
        (lambda job, change: change.node(job, 1, pci=Pci({}, adapters(8, None))), "node2: mlx5_0 does not report"),
        (lambda job, change: change.node(job, 1, pci=Pci({}, ())), "others have none"),
        (lambda job, change: change.node(job, None, boot_id="same"), "several nodes are one machine"),
        (lambda job, change: change.node(job, None, pci=Pci({}, ())), "network links was not checked"),
    ],
)
def test_an_unknown_network_gives_no_expectation(measured, said, change, spoil, reason):
    rules, result = said(spoil(measured({"all_reduce": 1.0}, nodes=2, nics=adapters()), change))
    assert rules == []
    assert reason in result.not_checked[0].reason


def test_adapters_that_the_user_excluded_do_not_count(measured, said, change):
    job = measured({"all_reduce": 45.0}, nodes=2, nics=adapters(10), nccl=nvls(algorithm="RING/SIMPLE"))
    rules, result = said(change.environment(job, None, NCCL_IB_HCA="=mlx5_0"))
    assert rules == []
    rules, result = said(change.environment(job, None, NCCL_IB_HCA="=mlx5_0,mlx5_1"))
    assert rules == [("perf-below-expectation", "error")]
    assert "2 adapters x 400 Gb/s" in result.findings[0].message


@pytest.mark.parametrize(("number", "rules"), [(8, ["perf-below-expectation"]), (2, [])])
def test_adapters_that_a_configuration_file_excludes_do_not_count(measured, said, change, number, rules):
    job = measured({"all_reduce": 90.0}, nodes=2, nics=adapters(), nccl=nvls(algorithm="RING/SIMPLE"))
    line = f"NCCL_IB_HCA={','.join(f'mlx5_{n}' for n in range(number))}"
    job = change.nccl_file(job, None, line)
    assert [rule for rule, _ in said(job)[0]] == rules
    assert said(change.environment(job, None, NCCL_IB_HCA=""))[0] == [("perf-below-expectation", "error")]


@pytest.mark.parametrize("layer", ["Ethernet", "InfiniBand"])
def test_adapters_for_storage_do_not_count(measured, said, change, tmp_path, layer):
    path = ("pci0000:20", "0000:20:01.0", "0000:21:00.")
    storage = tuple(
        machines.Card((*path[:2], f"{path[2]}{n}"), 3, ib=f"mlx5_{4 + n}", link=layer, gbps=200) for n in range(2)
    )
    machine = machines.DGX_A100._replace(cards=(*machines.DGX_A100.cards, *storage))
    tree = pci.collect(machines.write(tmp_path, machine))
    several = {"nodes": 4, "nccl": nvls(algorithm="RING/SIMPLE"), "nics": tree.nics, "links": AMPERE}

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


def test_adapters_at_unknown_places_are_counted_by_link_layer(measured, said):
    nics = (*adapters(2), *(replace(nic, name=f"{nic.name}_bond") for nic in adapters(2, layer="Ethernet")))
    assert said(measured({"all_reduce": 90.0}, nodes=4, nics=nics, nccl=nvls(algorithm="RING/SIMPLE")))[0] == []
    unlike = (*adapters(8, 200.0, "Ethernet"), replace(adapters(1)[0], name="mlx5_ib"))
    rules, result = said(measured({"all_reduce": 40.0}, nodes=4, nics=unlike))
    assert rules == [("perf-below-expectation", "warning")]
    assert "8 adapters x 200 Gb/s" in result.findings[0].message


def test_the_slowest_nodes_adapters_count(measured, said, change):
    job = measured({"all_reduce": 90.0}, nodes=2, nics=adapters(), nccl=nvls(algorithm="RING/SIMPLE"))
    assert said(job)[0] == [("perf-below-expectation", "error")]
    assert said(change.node(job, 1, pci=Pci({}, adapters(8, 100.0))))[0] == []


def test_two_nodes_that_exceed_their_adapters_are_silent(measured, said):
    assert said(measured({"all_reduce": 487.0}, nodes=2, nics=adapters()))[0] == []


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


def test_gloo_on_one_machine_has_no_expectation(measured, said):
    rules, result = said(measured({"all_reduce": 1.0, "broadcast": 1.0}, backend="gloo"))
    assert rules == []
    assert [n.reason for n in result.not_checked] == [
        (
            "all_reduce and broadcast not judged: there is no expectation for Gloo on one machine; "
            "use --min-busbw GBPS to judge it"
        )
    ]
    assert result.verdict.exit_code == 0


# --- without an expectation


def change_gpus(change, job, **fields):
    devices = tuple(replace(gpu, **fields) for gpu in job.nodes[0].gpus.devices)
    return change.node(job, 0, gpus=replace(job.nodes[0].gpus, devices=devices))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda job, change: change_gpus(change, job, mig=True), "partitioned (MIG)"),
        (lambda job, change: change.rank(job, None, run=None, gpu="GPU-1-0"), "several ranks share a GPU"),
        (lambda job, change: change.rank(job, None, run=None, gpu=None), "it is unknown which GPUs the ranks used"),
        (lambda job, change: change.node(job, 0, accelerator="amd"), "AMD"),
        (lambda job, change: change.environment(job, None, NCCL_HOSTID="a"), "NCCL_HOSTID"),
        (lambda job, change: change.nccl_file(job, None, "NCCL_HOSTID=a"), "NCCL_HOSTID"),
        (lambda job, change: change_gpus(change, job, health=None), "the condition of the GPUs was not read"),
        (lambda job, change: change.keep(job, 0, 1), "only 2 of 8 ranks reported their facts"),
    ],
)
def test_unclear_hardware_is_not_checked_with_the_reason(measured, said, change, spoil, reason):
    rules, result = said(spoil(change_gpus(change, measured({"all_reduce": 1.0}), name="Unheard-of GPU"), change))
    assert rules == []
    assert len(result.not_checked) == 1
    assert reason in result.not_checked[0].reason


def test_published_results_judge_known_cards_whose_links_could_not_be_read(measured, said, change):
    job = change_gpus(change, measured({"all_reduce": 100.0}), name="NVIDIA H100 80GB HBM3", health=None)
    rules, result = said(job)
    assert rules == [("perf-below-expectation", "warning")]
    assert result.findings[0].evidence["judged by"] == "published"
    assert "published results for 8 x H100-SXM: 360 to 480 GB/s (https://" in result.findings[0].message


def test_nvlink_between_nodes_has_no_model(measured, said, change):
    job = measured({"all_reduce": 600.0}, nodes=2, per_node=4, nics=adapters(4))
    fabric = Fabric(3, 0, "abc", 1, Missing("no"), Missing("no"))
    for n in range(2):
        node = job.nodes[n]
        devices = tuple(
            replace(g, name="NVIDIA GB200", health=replace(g.health, fabric=fabric)) for g in node.gpus.devices
        )
        job = change.node(job, n, gpus=replace(node.gpus, devices=devices))
    rules, result = said(job)
    assert rules == []
    assert "multi-node NVLink" in result.not_checked[0].reason


def test_operations_without_published_results_are_not_judged_but_bounded(measured, said):
    rules, result = said(measured({"all_to_all": 250.0}))
    assert rules == []
    assert "no published result for all_to_all" in result.not_checked[0].reason
    assert said(measured({"all_to_all": 250.0}, min_busbw_GBps=450))[0] == [("perf-threshold-impossible", "error")]


def test_nccls_graph_counts_where_the_adapters_are_unclear(measured, said):
    graph = NcclGraph("ring", 8, 45.0, 45.0, "NVL")
    log = replace(nvls(algorithm="RING/SIMPLE"), graphs=(graph,), network="IB")
    rules, result = said(measured({"all_reduce": 200.0}, nodes=2, nics=adapters(10), nccl=log))
    assert rules == [("perf-below-expectation", "warning")]
    assert result.findings[0].evidence["judged by"] == "nccl"


def test_a_slow_nccl_graph_does_not_lower_the_expectation(measured, said):
    graph = NcclGraph("ring", 2, 3.0, 1.2, "NVL")
    log = replace(nvls(algorithm="RING/SIMPLE"), graphs=(graph,), network="IB")
    rules, result = said(measured({"all_reduce": 2.0}, nodes=2, nics=adapters(10), nccl=log))
    assert rules == [("perf-below-expectation", "warning")]
    assert result.findings[0].evidence["judged by"] == "derived"


def test_nccls_transports_are_evidence_and_sockets_are_reported_by_another_rule(measured, said):
    several = {"nodes": 4, "nics": adapters()}
    log = replace(nvls(algorithm="RING/SIMPLE"), network="IB", transports={"P2P/CUMEM": 16, "NET/IB/0/GDRDMA": 2})
    rules, result = said(measured({"all_reduce": 4.0}, nccl=log, **several))
    assert rules == [("perf-below-expectation", "error")]
    assert result.findings[0].evidence["NCCL used"] == "RING, network IB, P2P/CUMEM, NET/IB/0/GDRDMA"
    sockets = replace(log, network="Socket", transports={"NET/Socket/0": 2})
    assert said(measured({"all_reduce": 4.0}, nccl=sockets, **several))[0] == [("perf-below-expectation", "warning")]


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


def test_every_rule_says_how_to_fix_it():
    for rule in (r for r in all_rules() if r.family == FAMILY):
        assert "\nFix: " in rule.doc
        assert "\nSee: https://" in rule.doc
        assert "Found" in rule.doc.split()
