"""Where tensor and expert groups lie: on nodes, on NVLink domains, by the order of the ranks."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.gpu import Fabric, GpuHealth
from distcheck.facts.mesh import Mesh
from distcheck.rules.job.mesh import mesh_of
from distcheck.rules.mesh.islands import islands, spans
from distcheck.selection.meshes import parse
from distcheck.selection.nodelist import expand

replace = msgspec.structs.replace
GPU_LOOKS = ("environment", "meeting", "gpu")
LAUNCHERS = ("by hand", "torchrun", "slurm", "openmpi", "hydra", "pals", "distcheck")


@pytest.fixture
def said(judge, change):
    """Return what the rules find about a job with this mesh: (rule, severity, ranks) of each, and the findings."""

    def judged(job, text, order=""):
        diagnosis = judge(change.asked(job, mesh=parse(text, order)), "mesh.dimensions", "mesh.placement")
        assert not diagnosis.not_checked, diagnosis.not_checked
        return diagnosis.findings

    return judged


def reordered(job, order):
    """Return the job with its ranks on other processes: rank n is where rank order[n] was."""
    there = [job.ranks[place] for place in order]
    ranks = tuple(
        replace(
            rank,
            placement=replace(rank.placement, rank=number),
            environment=rank.environment | {"RANK": str(number)},
        )
        for number, rank in enumerate(there)
    )
    return replace(job, ranks=ranks)


def on_domains(job, domain_of_node, model="NVIDIA GB200"):
    """Return the job with its nodes in NVLink domains of these numbers; None: no domain."""
    nodes = []
    for node, domain in zip(job.nodes, domain_of_node, strict=True):
        cluster = f"{domain:08x}" * 4 if domain is not None else ""
        fabric = Fabric(3, 0, cluster, 1, health_mask=0, health_summary=1)
        devices = [replace(gpu, name=model, health=GpuHealth(fabric=fabric)) for gpu in node.gpus.devices]
        nodes.append(replace(node, gpus=replace(node.gpus, devices=tuple(devices))))
    return replace(job, nodes=tuple(nodes))


@pytest.fixture
def made(job_of):
    """Return a job by its nodes.

    hgx 2: two nodes of 8 GPUs without NVLink between nodes; racks 5 3: GB200 nodes of 4 GPUs, in NVLink domains of 5
    and 3 nodes; cpu 4x2: four nodes of two ranks without GPUs; with "in turn" at the end the ranks are dealt to the
    nodes as srun --distribution=cyclic does.
    """

    def made(nodes, launcher="slurm"):
        kind, *numbers = nodes.removesuffix(" in turn").split()
        if kind == "cpu":
            number, each = map(int, numbers[0].split("x"))
            job = job_of(number, each, launcher)
        elif kind == "hgx":
            number = int(numbers[0])
            job = job_of(number, 8, launcher, GPU_LOOKS, gpus=8)
            job = on_domains(job, [None] * number, "NVIDIA H100 80GB HBM3")
        else:
            sizes = [int(size) for size in numbers]
            number = sum(sizes)
            job = job_of(number, 4, launcher, GPU_LOOKS, gpus=4)
            job = on_domains(job, [domain for domain, size in enumerate(sizes) for _ in range(size)])
        if not nodes.endswith(" in turn"):
            return job
        each = len(job.ranks) // number
        return reordered(job, [rank % number * each + rank // number for rank in range(len(job.ranks))])

    return made


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        *(("hgx 2", text) for text in ("dp=2,tp=8", "dp=8,tp=2", "pp=2,ep=4,tp=2", "hsdp=2x8", "dp=2,cp=8", "node")),
        ("cpu 4x2", "dp=4,tp=2"),
    ],
)
def test_groups_within_nodes_are_silent_under_every_launcher(made, said, launcher, nodes, text):
    assert said(made(nodes, launcher), text) == ()


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        # within an NVLink domain
        *(("racks 18 18", t) for t in ("dp=18,tp=8", "dp=2,tp=72", "dp=4,ep=36", "pp=2,dp=3,ep=6,tp=4", "dp=1,pp=144")),
        ("racks 16 16 4", "dp=9,ep=16"),
        # pipelines and data parallel groups may cross whatever they must
        ("hgx 2", "pp=2,dp=8"),
        ("hgx 2", "dp=2,tp=2,pp=4"),
        # a mesh made for ranks in turn
        ("hgx 2 in turn", "tp=8,dp=2"),
    ],
)
def test_groups_that_lie_as_well_as_they_can_are_silent(made, said, nodes, text):
    assert said(made(nodes), text) == ()


def mesh_line(sizes):
    option = "dp={},tp={}".format(*sizes.split(", "))
    return f'# in the script: init_device_mesh("cuda", ({sizes}), mesh_dim_names=("dp", "tp"))  # --mesh {option}'


@pytest.mark.parametrize(
    ("nodes", "text", "rule", "severity", "commands"),
    [
        ("hgx 2 in turn", "dp=2,tp=8", "mesh-rank-order", "warning",
         ("export SLURM_DISTRIBUTION=block  # or: srun --distribution=block",)),
        # the order of the dimensions
        ("hgx 2", "tp=8,dp=2", "mesh-group-crosses-nodes", "warning",
         (mesh_line("2, 8"),)),
        # groups that are larger than a node
        ("hgx 4", "dp=2,ep=16", "mesh-group-crosses-nodes", "info", ()),
        ("hgx 4", "dp=1,ep=4,tp=8", "mesh-group-crosses-nodes", "info", ()),
        ("hgx 4", "ep=2,pp=2,tp=8", "mesh-group-crosses-nodes", "info", ()),
        ("hgx 4", "ep=4,tp=8", "mesh-group-crosses-nodes", "info", ()),
        ("hgx 2", "tp=2,ep=8", "mesh-group-crosses-nodes", "info", ()),
        ("cpu 4x1", "tp=4", "mesh-group-crosses-nodes", "info", ()),
        ("cpu 4x2", "dp=2,tp=4", "mesh-group-crosses-nodes", "warning", ()),
        ("cpu 3x4", "dp=4,tp=3", "mesh-group-crosses-nodes", "warning", ()),
        # NVLink domains: segments of nodes that the groups fill
        ("racks 5 3", "dp=1,ep=32", "mesh-group-crosses-nodes", "warning", ("#SBATCH --segment=8",)),
        ("racks 18 18", "dp=9,ep=16", "mesh-group-crosses-nodes", "warning", ("#SBATCH --segment=4",)),
        ("racks 9 9 9 9", "dp=9,ep=4,tp=4", "mesh-group-crosses-nodes", "warning", ("#SBATCH --segment=4",)),
        ("racks 7 7", "dp=1,ep=56", "mesh-group-crosses-nodes", "warning", ("#SBATCH --segment=14",)),
        ("racks 1 1", "tp=8", "mesh-group-crosses-nodes", "warning", ("#SBATCH --segment=2",)),
        ("racks 18 14", "tp=64,dp=2", "mesh-group-crosses-nodes", "warning",
         (mesh_line("2, 64"), "#SBATCH --segment=16")),
        ("racks 18 6", "ep=96", "mesh-group-uneven", "warning", ("#SBATCH --segment=12",)),
        ("racks 12 12", "ep=96", "mesh-group-crosses-nodes", "info", ()),
    ],
)  # fmt: skip
def test_groups_that_lie_badly_are_found_with_what_places_them_better(
    made, said, nodes, text, rule, severity, commands
):
    (finding,) = said(made(nodes), text)
    assert (finding.rule, finding.severity, finding.fix.commands) == (rule, severity, commands)


RACKS = "NVLink domain 00000000/1 and NVLink domain 00000001/1"


@pytest.mark.parametrize(
    ("nodes", "text", "ranks", "shares", "which", "where"),
    [
        ("hgx 2 in turn", "dp=2,tp=8", range(16), "4+4", "2 of 2 tp groups (8 ranks each) cross nodes",
         "ranks 0-7 are on node1 and node2; with consecutive ranks on each, none would"),
        ("cpu 4x2", "dp=2,tp=4", range(8), "2+2", "2 of 2 tp groups (4 ranks each) cross nodes",
         "ranks 0-3 are on node1 and node2; a node has room for 2"),
        ("racks 5 3", "dp=1,ep=32", range(32), "20+12", "1 of 1 ep groups (32 ranks each) cross NVLink domains",
         f"ranks 0-31 are on {RACKS}"),
        ("racks 18 18", "dp=9,ep=16", range(64, 80), "8+8", "1 of 9 ep groups (16 ranks each) cross NVLink domains",
         f"ranks 64-79 are on {RACKS}"),
    ],
)  # fmt: skip
def test_the_groups_are_named_with_where_the_first_one_lies(made, said, nodes, text, ranks, shares, which, where):
    (finding,) = said(made(nodes), text)
    assert (finding.ranks, finding.message) == (tuple(ranks), f"{which}: {where}")
    assert finding.evidence["mesh"] == text
    assert finding.evidence["ranks_by_domain" if "racks" in nodes else "ranks_by_node"] == shares


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("openmpi", "# add to mpirun: --map-by slot"),
        ("hydra", "# add to mpiexec: -ppn 8"),
        ("by hand", "export RANK=$((${NODE_RANK:?} * 8 + ${LOCAL_RANK:?}))"),
    ],
)
def test_each_launcher_gives_nodes_consecutive_ranks_in_its_own_way(made, said, launcher, command):
    (finding,) = said(made("hgx 2 in turn", launcher), "dp=2,tp=8")
    assert finding.fix.commands == (command,)


def test_nodes_of_two_domains_in_turn_need_another_order_of_nodes(made, said):
    job = on_domains(made("racks 4"), [0, 1, 0, 1])
    (finding,) = said(job, "dp=2,ep=8")
    assert (finding.rule, finding.ranks) == ("mesh-rank-order", tuple(range(16)))
    each_node = "for i in $(seq 4); do echo $node; done"
    assert finding.fix.commands == (
        f"for node in $(scontrol show hostnames 'node[1,3],node[2,4]'); do {each_node}; done > ranks.txt",
        "export SLURM_HOSTFILE=$PWD/ranks.txt",
        "srun --ntasks=16 --distribution=arbitrary distcheck env --mesh dp=2,ep=8",
    )
    assert expand("node[1,3],node[2,4]") == ("node1", "node3", "node2", "node4")
    by_domain = reordered(job, [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)])
    assert said(by_domain, "dp=2,ep=8") == ()
    (finding,) = said(job, "ep=8", "ep-dp")
    assert finding.fix.commands[-1].endswith(" distcheck env --mesh dp=-1,ep=8 --mesh-order ep-dp")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp=2,tp=8", ["mesh-rank-order"]),
        ("tp=8,dp=2", []),
        ("dp=16", []),
        ("dp=3", ["mesh-size-mismatch", "env-rank-order-not-node-major"]),
    ],
)
def test_the_general_rule_about_the_order_of_ranks_leaves_meshes_to_these_rules(made, change, judge, text, expected):
    job = change.asked(made("cpu 2x8 in turn"), mesh=parse(text))
    assert [
        f.rule for f in judge(job, "environment.local_ranks", "mesh.dimensions", "mesh.placement").findings
    ] == expected


def test_megatrons_order_is_corrected_in_megatrons_words(made, said):
    (finding,) = said(made("hgx 2"), "tp=4,pp=2", "pp-dp-tp")
    assert finding.fix.commands == ("# --mesh dp=-1,pp=2,tp=4 --mesh-order tp-pp-dp",)
    assert said(made("hgx 2"), "tp=4,pp=2", "tp-pp-dp") == ()


def test_both_orders_can_be_wrong(made, said):  # two nodes each have the even or the odd ranks of one half
    order = [place for start in (0, 8) for first in range(start, start + 8) for place in (first, first + 16)]
    (finding,) = said(reordered(made("hgx 4"), order), "tp=8,dp=4")
    assert (finding.rule, len(finding.fix.commands)) == ("mesh-group-crosses-nodes", 2)


def test_several_dimensions_are_judged_each_and_segments_suit_the_largest(made, said):
    findings = said(made("hgx 4"), "ep=2,tp=16")
    assert [(f.message[:12], f.severity) for f in findings] == [("2 of 2 tp gr", "warning"), ("16 of 16 ep ", "info")]
    assert findings[0].fix.text == "Use a size of tp that fits: a node holds whole groups of 8."
    findings = said(made("racks 5 3"), "dp=1,ep=4,tp=8")
    assert [f.message.split(" (")[0] for f in findings] == ["1 of 4 tp groups", "8 of 8 ep groups"]
    assert {f.fix.commands for f in findings} == {("#SBATCH --segment=8",)}
    (finding,) = said(made("racks 5 3", "torchrun"), "dp=1,ep=32")
    assert (finding.fix.commands, "segments of 8" in finding.fix.text) == ((), True), "without Slurm they are words"


def test_nvlink_between_nodes_that_nccl_must_not_use_does_not_count(made, said, change):
    job = made("racks 2")
    assert said(job, "dp=1,tp=8") == ()
    (finding,) = said(change.environment(job, None, NCCL_MNNVL_ENABLE="0"), "dp=1,tp=8")
    assert finding.rule == "mesh-group-crosses-nodes"
    assert said(change.nccl_file(job, None, "NCCL_MNNVL_ENABLE=0"), "dp=1,tp=8") == (finding,)


@pytest.mark.parametrize(
    ("ranks", "text", "reasons"),
    [
        (range(8), "dp=1,tp=8", ["tp groups cross nodes; env did not read the NVLink domains of the nodes"]),
        (range(8), "dp=2,tp=4", []),
        (range(6), "dp=2,tp=4", ["not every rank of the mesh joined"]),
    ],
)
def test_what_is_not_known_is_not_judged(job_of, change, judge, ranks, text, reasons):
    job = change.asked(change.keep(job_of(2, 4, gpus=4), *ranks), mesh=parse(text))
    diagnosis = judge(job, "mesh.dimensions", "mesh.placement")
    assert (diagnosis.findings, diagnosis.verdict.exit_code) == ((), 0)
    assert [gap.reason for gap in diagnosis.not_checked] == reasons


# -- values


def test_what_each_dimension_spans_is_counted(made, change):
    job = change.asked(made("racks 18 18"), mesh=parse("dp=9,ep=4,tp=4"))
    rows = {row.name: row for row in spans(job)}

    assert (rows["tp"].groups, rows["tp"].nodes, rows["tp"].islands) == (36, (1, 1), (1, 1))
    assert (rows["ep"].groups, rows["ep"].nodes, rows["ep"].islands) == (36, (4, 4), (1, 2))
    assert (rows["dp"].groups, rows["dp"].nodes, rows["dp"].example) == (16, (9, 9), range(0, 144, 16))
    assert islands(job).room == 72
    assert mesh_of(job) == Mesh({"dp": 9, "ep": 4, "tp": 4})
