import math

import msgspec
import pytest

from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.device import Burn, DeviceTest
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.facts.groups import GroupFigure
from distcheck.facts.job import Collectives, Measurement
from distcheck.facts.mesh import Mesh
from distcheck.facts.network import Attempt, Bind
from distcheck.facts.rank import RankRun
from distcheck.report import Detail, render
from distcheck.report.document import document
from distcheck.report.schema.document import Document, json_schema
from distcheck.rules.finding import Finding, Fix, NotChecked

replace = msgspec.structs.replace

KEYS = {
    "": (
        "schema distcheck command verdict exit_code headline seconds world findings not_checked ranks missing_ranks "
        "bandwidth exclude models gpus devices mesh groups training critical_path comparison hang at host command_line "
        "policy would"
    ),
    "world": "ranks nodes launcher backend torch nccl",
    "findings": "rule aliases severity scope owner confirmed ranks nodes message evidence fix docs observed gpus",
    "not_checked": "rule ranks nodes reason",
    "ranks": "rank node local_rank gpu master stage status mesh",
    "bandwidth": (
        "op bytes dtype ranks group algbw_GBps busbw_GBps seconds wrong expected_GBps share_of_expected "
        "iterations bursts uncertainty ended"
    ),
    "exclude": "hostlist nodes",
    "models": "op dtype ranks latency_seconds algbw_GBps busbw_GBps half_bytes error",
    "devices": "rank node device dtype matmul_TFLOPS memory_GBps h2d_GBps d2h_GBps products different burn",
    "groups": ("dimension op bytes dtype groups ranks alone_busbw_GBps busbw_GBps share_of_alone slowest wrong lacks"),
}


def with_device_tests(judged):
    """Return a judged job whose ranks have tested their devices."""
    test = DeviceTest("bfloat16", 8192, 700.0, 2900.0, 55.0, 54.0, products=60, burn=Burn(5.0, 700.0, 690.0))
    ranks = tuple(replace(r, run=RankRun(1, "done", "done", device="GPU", device_test=test)) for r in judged.job.ranks)
    return replace(judged.job, ranks=ranks), judged.diagnosis


def with_groups(judged):
    """Return a judged job whose collectives measured the groups of a mesh."""
    ran = replace(
        judged.job.collectives,
        mesh=Mesh({"dp": len(judged.job.ranks)}),
        groups=(GroupFigure("dp", "all_reduce", 1 << 20, bursts=1, seconds=(0.01,), best_seconds=(0.01,)),),
    )
    return replace(judged.job, collectives=ran), judged.diagnosis


def test_names_and_order_of_all_keys_match_the_contract(failing, healthy):
    raw = {
        **msgspec.to_builtins(document(*failing)),
        "models": msgspec.to_builtins(document(*healthy).models),
        "bandwidth": msgspec.to_builtins(document(*healthy))["bandwidth"],
        "devices": msgspec.to_builtins(document(*with_device_tests(healthy)).devices),
        "groups": msgspec.to_builtins(document(*with_groups(healthy)).groups),
    }
    assert " ".join(raw) == KEYS[""]
    for part, keys in list(KEYS.items())[1:]:
        first = raw[part] if isinstance(raw[part], dict) else raw[part][0]
        assert " ".join(first) == keys
    assert list(raw["findings"][0]["fix"]) == ["text", "commands"]
    assert " ".join(raw["ranks"][0]["gpu"]) == "index uuid pci name numa_node cpus nic nic_distance"
    assert list(raw["bandwidth"][0]["seconds"]) == ["mean", "min", "max", "by_rank"]
    assert list(raw["bandwidth"][0]["expected_GBps"]) == ["value", "from"]
    assert list(raw["devices"][0]["burn"]) == ["seconds", "first_TFLOPS", "last_TFLOPS"]


def test_json_is_one_line_that_reads_back_as_the_same_document(any_job):
    text = render("json", *any_job)
    assert text.endswith("\n")
    assert text.count("\n") == 1
    read = msgspec.json.decode(text, type=Document, strict=True)
    assert read.exit_code == any_job.diagnosis.verdict.exit_code
    assert msgspec.json.encode(read).decode() + "\n" == text


def test_json_golden(failing, golden):
    """Of the ranks the first two, and of each rule's findings the first."""
    report = msgspec.json.decode(render("json", *failing))
    report["ranks"] = report["ranks"][:2]
    report["findings"] = [*{found["rule"]: found for found in reversed(report["findings"])}.values()]
    golden("failing.json", msgspec.json.format(msgspec.json.encode(report).decode(), indent=1) + "\n")


def test_schema_names_every_key_and_refuses_others(healthy):
    schema = json_schema()
    properties = schema["$defs"]["Document"]["properties"]
    assert " ".join(properties) == KEYS[""]
    assert "from" in schema["$defs"]["Expected"]["properties"]
    raw = msgspec.to_builtins(document(*healthy))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**raw, "extra": 1}, Document)


def test_bandwidth_is_bytes_over_the_mean_time(job_of, judge):
    job = job_of(1, 4)
    job = replace(
        job,
        collectives=Collectives(
            "gloo",
            measurements=(Measurement("all_reduce", 1_000_000, "float32", 9, (0.5, 1.0, 1.0, 1.5)),),
        ),
        asked=Asked("bandwidth", ("collectives",), min_busbw_GBps=0.003),
    )
    row = document(*judge(job)).bandwidth[0]
    assert row.algbw_GBps == pytest.approx(0.001)
    assert row.busbw_GBps == pytest.approx(0.0015)
    assert (row.seconds.mean, row.seconds.min, row.seconds.max) == (1.0, 0.5, 1.5)
    assert (row.expected_GBps.value, row.expected_GBps.source) == (0.003, "--min-busbw")
    assert row.share_of_expected == pytest.approx(0.5)
    assert row.wrong == 0


def test_one_rank_has_no_bus_bandwidth(single):
    row = document(*single).bandwidth[0]
    assert row.busbw_GBps is None
    assert row.share_of_expected is None
    assert row.expected_GBps.source == "a single rank has no bus bandwidth"


def test_wrong_elements_are_summed_and_null_if_not_checked(job_of, judge):
    job = job_of(1, 2)
    bad = [
        replace(r, run=RankRun(1, "", "done", wrong={"all_reduce": 3}, checked={"all_reduce": 9})) for r in job.ranks
    ]
    rows = document(*judge(replace(job, ranks=tuple(bad)))).bandwidth
    assert {row.op: row.wrong for row in rows} == {"all_reduce": 6, "broadcast": None}


def test_a_rank_without_a_figure_is_null(job_of, judge):
    job = replace(
        job_of(1, 2),
        collectives=Collectives("gloo", measurements=(Measurement("broadcast", 8, "f", 1, (math.nan, 2.0)),)),
    )
    assert document(*judge(job)).bandwidth[0].seconds.by_rank == (None, 2.0)
    empty = replace(job, collectives=Collectives("gloo", measurements=(Measurement("broadcast", 8, "f", 1, ()),)))
    assert document(*judge(empty)).bandwidth[0].algbw_GBps is None


@pytest.mark.parametrize(
    ("bind", "attempts", "word"),
    [
        ("bound", (), "listening"),
        ("in-use", (), "in use"),
        ("denied", (), "denied"),
        ("agent", (), "agent"),
        (None, (), "-"),
        (None, ("met",), "reached"),
        (None, ("refused",), "refused"),
        (None, ("unresolved",), "unresolved"),
        (None, ("timeout", "met"), "reached"),
        (None, ("agent", "timeout"), "agent"),
        (None, ("foreign",), "foreign"),
    ],
)
def test_master_is_the_result_at_the_master_port(job_of, judge, bind, attempts, word):
    job = job_of(1, 1)
    process = replace(
        job.processes[0],
        bind=bind and Bind(29500, bind),
        attempts=(
            *(Attempt(f"10.0.0.{n}", 29500, "master", outcome) for n, outcome in enumerate(attempts)),
            Attempt("10.0.0.1", 30000, "side", "met"),
        ),
    )
    assert document(*judge(replace(job, processes=(process,)))).ranks[0].master == word


def finding(severity, **where):
    return Finding(rule="r", severity=severity, message="m", fix=Fix("f"), **where)


@pytest.mark.parametrize(
    ("outcomes", "statuses"),
    [
        ([], "ok ok"),
        ([finding("error", ranks=(1,), nodes=("node1",))], "ok error"),
        ([finding("warning", ranks=(0,))], "warning ok"),
        ([finding("info", ranks=(0,))], "ok ok"),
        ([finding("warning", ranks=(0, 1)), finding("error", ranks=(0,))], "error warning"),
        ([finding("error", nodes=("node1",))], "error error"),
        ([finding("error")], "ok ok"),
        ([NotChecked(reason="x", ranks=(1,))], "ok unknown"),
        ([NotChecked(reason="x", ranks=(1,), required=False)], "ok ok"),
        ([NotChecked(reason="x", ranks=(1,)), finding("warning", ranks=(1,))], "ok unknown"),
    ],
)
def test_status_of_a_rank(job_of, judge, outcomes, statuses):
    report = document(*judge(job_of(1, 2), *outcomes))
    assert " ".join(row.status for row in report.ranks) == statuses


def test_a_rank_that_did_not_finish_is_unknown(job_of, judge):
    job = job_of(2, 1)
    early = replace(job, processes=(job.processes[0], replace(job.processes[1], stage="peers")))
    assert [row.status for row in document(*judge(early)).ranks] == ["ok", "unknown"]
    stopped = replace(job, ranks=(job.ranks[0], replace(job.ranks[1], run=RankRun(1, "", "stopped"))))
    assert [row.status for row in document(*judge(stopped)).ranks] == ["ok", "unknown"]


def test_missing_ranks_have_a_row_and_rows_are_in_rank_order(missing):
    report = document(*missing)
    assert report.missing_ranks == (4, 5, 6, 7)
    assert [row.rank for row in report.ranks] == list(range(8))
    assert [row.status for row in report.ranks[4:]] == ["missing"] * 4
    assert report.world.ranks == 8


def test_a_gpu_is_found_by_its_uuid_and_by_its_mig_instances(job_of, judge):
    job = job_of(1, 3)
    gpu = Gpu(5, "GPU-a", "0000:9b:00.0", Missing("no name"), 1, 0, mig_uuids=("MIG-b",))
    node = replace(job.nodes[0], gpus=Gpus("1", "1", (gpu,)))
    ranks = [replace(r, gpu=uuid) for r, uuid in zip(job.ranks, ("GPU-a", "MIG-b", "GPU-gone"), strict=True)]
    rows = document(*judge(replace(job, nodes=(node,), ranks=tuple(ranks)))).ranks
    assert [(r.gpu.index, r.gpu.uuid, r.gpu.pci, r.gpu.name) for r in rows] == [
        (5, "GPU-a", "0000:9b:00.0", None),
        (5, "MIG-b", "0000:9b:00.0", None),
        (None, "GPU-gone", None, None),
    ]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (("b1", "1", "b1", "2"), ["pod (net 1)", "pod (net 2)"]),
        (("aaaaaaaa1", "1", "bbbbbbbb1", "1"), ["pod (boot aaaaaaaa)", "pod (boot bbbbbbbb)"]),
        (("b1", "1", "b1", "1"), ["pod (k0)", "pod (k1)"]),
    ],
)
def test_nodes_with_the_same_name_get_distinct_names(job_of, judge, fields, names):
    job = job_of(2, 1)
    boots, nets = fields[::2], fields[1::2]
    nodes = tuple(
        replace(node, key=f"k{n}", name="pod", boot_id=boots[n], network_namespace=nets[n])
        for n, node in enumerate(job.nodes)
    )
    processes = tuple(replace(p, node=f"k{n}") for n, p in enumerate(job.processes))
    assert [row.node for row in document(*judge(replace(job, nodes=nodes, processes=processes))).ranks] == names


def test_the_exclude_list_names_confirmed_bad_nodes_folded(job_of, judge):
    bad = Finding(rule="r", scope="gpu", nodes=("node1", "node2"), message="m", fix=Fix("f"))
    report = document(*judge(job_of(2, 1), bad))
    assert (report.exclude.hostlist, report.exclude.nodes) == ("node[1-2]", ("node1", "node2"))


def test_a_world_without_a_size_counts_the_ranks_that_reported(job_of, judge):
    job = job_of(1, 1, measured=False)
    unset = replace(job.ranks[0].placement, rank=None, world_size=None, local_rank=None, launcher="none")
    report = document(*judge(replace(job, ranks=(replace(job.ranks[0], placement=unset),))))
    assert report.world == replace(report.world, ranks=1, launcher="none", nccl=None, backend="auto")
    assert report.ranks[0].rank is None


def test_options_have_no_effect(healthy):
    everything = Detail(all_ranks=True, legend=True, timings=True, verbose=True, quiet=True, color=True)
    assert render("json", *healthy, options=everything) == render("json", *healthy)
