"""Where tensor and expert groups lie: on nodes, on NVLink domains, by the order of the ranks."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.gpu import Fabric, GpuHealth
from distcheck.facts.mesh import Mesh
from distcheck.rules.job.mesh import mesh_of
from distcheck.rules.mesh.islands import badly_placed, islands, spans
from distcheck.selection.meshes import parse
from distcheck.selection.nodelist import expand

replace = msgspec.structs.replace
GPU_LOOKS = ("environment", "meeting", "gpu")
EACH_NODE = "for i in $(seq 4); do echo $node; done"
LAUNCHERS = ("by hand", "torchrun", "slurm", "openmpi", "hydra", "pals", "distcheck")


@pytest.fixture
def said(judge, change):
    """Return what the rules find about a job with this mesh: (rule, severity, ranks) of each, and the findings."""

    def judged(job, text, order=""):
        diagnosis = judge(change.asked(job, mesh=parse(text, order)), "mesh", "mesh_placement")
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


def cyclic(job, nodes):
    """Return the job with its ranks dealt to the nodes in turn, as srun --distribution=cyclic does."""
    each = len(job.ranks) // nodes
    return reordered(job, [number % nodes * each + number // nodes for number in range(len(job.ranks))])


def in_domains(job, *sizes, model="NVIDIA GB200"):
    """Return the job with its nodes in NVLink domains of these sizes, in the order of the nodes."""
    return on_domains(job, [number for number, size in enumerate(sizes) for _ in range(size)], model)


def on_domains(job, domain_of_node, model="NVIDIA GB200"):
    nodes = []
    for node, domain in zip(job.nodes, domain_of_node, strict=True):
        cluster = f"{domain:08x}" * 4 if domain is not None else ""
        fabric = Fabric(3, 0, cluster, 1, health_mask=0, health_summary=1)
        devices = [replace(gpu, name=model, health=GpuHealth(fabric=fabric)) for gpu in node.gpus.devices]
        nodes.append(replace(node, gpus=replace(node.gpus, devices=tuple(devices))))
    return replace(job, nodes=tuple(nodes))


@pytest.fixture
def racks(job_of):
    """Return GB200 nodes of 4 GPUs, in NVLink domains of these numbers of nodes."""

    def job(*sizes, launcher="slurm", **more):
        made = job_of(sum(sizes), 4, launcher, GPU_LOOKS, gpus=4, **more)
        return in_domains(made, *sizes)

    return job


@pytest.fixture
def hgx(job_of):
    """Return nodes of 8 GPUs without NVLink between nodes."""

    def job(nodes=2, launcher="slurm"):
        made = job_of(nodes, 8, launcher, GPU_LOOKS, gpus=8)
        return on_domains(made, [None] * nodes, "NVIDIA H100 80GB HBM3")

    return job


# -- what is healthy


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("text", ["dp=2,tp=8", "dp=8,tp=2", "pp=2,ep=4,tp=2", "hsdp=2x8", "dp=2,cp=8", "node"])
def test_groups_within_nodes_are_silent_under_every_launcher(hgx, said, launcher, text):
    assert said(hgx(launcher=launcher), text) == ()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_groups_within_nodes_of_cpus_are_silent(job_of, said, launcher):
    assert said(job_of(4, 2, launcher), "dp=4,tp=2") == ()


@pytest.mark.parametrize("text", ["dp=18,tp=8", "dp=2,tp=72", "dp=4,ep=36", "pp=2,dp=3,ep=6,tp=4", "dp=1,pp=144"])
def test_groups_may_cross_nodes_within_an_nvlink_domain(racks, said, text):
    assert said(racks(18, 18), text) == ()


def test_pipelines_and_data_parallel_groups_may_cross_whatever_they_must(hgx, said):
    assert said(hgx(), "pp=2,dp=8") == ()
    assert said(hgx(), "dp=2,tp=2,pp=4") == ()


# -- the order of the ranks


def test_ranks_dealt_to_the_nodes_in_turn_need_another_distribution(hgx, said):
    (finding,) = said(cyclic(hgx(), 2), "dp=2,tp=8")

    assert (finding.rule, finding.severity, finding.ranks) == ("mesh-rank-order", "warning", tuple(range(16)))
    assert finding.message == (
        "2 of 2 tp groups (8 ranks each) cross nodes: ranks 0-7 are on node1 and node2; with consecutive ranks on "
        "each, none would"
    )
    assert finding.fix.commands == ("export SLURM_DISTRIBUTION=block  # or: srun --distribution=block",)


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("openmpi", "# add to mpirun: --map-by slot"),
        ("hydra", "# add to mpiexec: -ppn 8"),
        ("by hand", "export RANK=$((${NODE_RANK:?} * 8 + ${LOCAL_RANK:?}))"),
    ],
)
def test_each_launcher_gives_nodes_consecutive_ranks_in_its_own_way(hgx, said, launcher, command):
    (finding,) = said(cyclic(hgx(launcher=launcher), 2), "dp=2,tp=8")

    assert finding.fix.commands == (command,)


def test_nodes_of_two_domains_in_turn_need_another_order_of_nodes(racks, said):
    job = on_domains(racks(4), [0, 1, 0, 1])
    (finding,) = said(job, "dp=2,ep=8")

    assert finding.rule == "mesh-rank-order"
    assert finding.ranks == tuple(range(16))
    assert finding.fix.commands == (
        f"for node in $(scontrol show hostnames 'node[1,3],node[2,4]'); do {EACH_NODE}; done > ranks.txt",
        "export SLURM_HOSTFILE=$PWD/ranks.txt",
        "srun --ntasks=16 --distribution=arbitrary distcheck env --mesh dp=2,ep=8",
    )
    assert expand("node[1,3],node[2,4]") == ("node1", "node3", "node2", "node4")
    by_domain = reordered(job, [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)])
    assert said(by_domain, "dp=2,ep=8") == ()
    (finding,) = said(job, "ep=8", "ep-dp")
    assert finding.fix.commands[-1].endswith(" distcheck env --mesh dp=-1,ep=8 --mesh-order ep-dp")


def test_ranks_in_turn_are_no_fault_for_a_mesh_made_for_them(hgx, said):
    assert said(cyclic(hgx(), 2), "tp=8,dp=2") == ()


def test_the_general_rule_about_the_order_of_ranks_leaves_meshes_to_these_rules(job_of, change, judge):
    def rules(text):
        job = change.asked(cyclic(job_of(2, 8, "slurm"), 2), mesh=parse(text))
        return [finding.rule for finding in judge(job, "local_ranks", "mesh", "mesh_placement").findings]

    assert rules("dp=2,tp=8") == ["mesh-rank-order"]
    assert rules("tp=8,dp=2") == []
    assert rules("dp=16") == []
    assert rules("dp=3") == ["mesh-size-mismatch", "env-rank-order-not-node-major"]


# -- the order of the dimensions


def test_a_tensor_dimension_that_is_too_far_out_moves_in(hgx, said):
    (finding,) = said(hgx(), "tp=8,dp=2")

    assert (finding.rule, finding.severity) == ("mesh-group-crosses-nodes", "warning")
    assert finding.evidence == {"mesh": "tp=8,dp=2", "ranks_by_node": "4+4", "nodes": 2}
    assert finding.fix.commands == (
        '# in the script: init_device_mesh("cuda", (2, 8), mesh_dim_names=("dp", "tp"))  # --mesh dp=2,tp=8',
    )
    assert said(hgx(), "dp=2,tp=8") == ()


def test_no_order_is_proposed_that_places_other_groups_worse(hgx, said):
    (finding,) = said(hgx(), "tp=2,ep=8")

    assert (finding.message[:11], finding.severity) == ("8 of 8 tp g", "info")
    assert finding.fix.text == "No action if this size is intended: no other order of ranks or dimensions is better."


def test_megatrons_order_is_mended_in_megatrons_words(hgx, said):
    (finding,) = said(hgx(), "tp=4,pp=2", "pp-dp-tp")

    assert finding.fix.commands == ("# --mesh dp=-1,pp=2,tp=4 --mesh-order tp-pp-dp",)
    assert said(hgx(), "tp=4,pp=2", "tp-pp-dp") == ()


def test_both_orders_can_be_wrong(hgx, said):  # two nodes each have the even or the odd ranks of one half
    job = reordered(
        hgx(4), [place for start in (0, 8) for first in range(start, start + 8) for place in (first, first + 16)]
    )
    (finding,) = said(job, "tp=8,dp=4")

    assert finding.rule == "mesh-group-crosses-nodes"
    assert len(finding.fix.commands) == 2


# -- groups that are larger than a node


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_tensor_groups_larger_than_a_node_are_named_with_the_mesh_that_fits(job_of, said, launcher):
    (finding,) = said(job_of(4, 2, launcher), "dp=2,tp=4")

    assert (finding.rule, finding.severity) == ("mesh-group-crosses-nodes", "warning")
    assert finding.message == (
        "2 of 2 tp groups (4 ranks each) cross nodes: ranks 0-3 are on node1 and node2; a node has room for 2"
    )
    assert finding.fix.commands == (
        '# in the script: init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))  # --mesh dp=4,tp=2',
    )


def test_a_smaller_tensor_size_is_shown_whatever_is_wrong_with_the_experts(hgx, said):
    findings = said(hgx(4), "ep=2,tp=16")

    assert [(finding.message[:12], finding.severity) for finding in findings] == [
        ("2 of 2 tp gr", "warning"),
        ("16 of 16 ep ", "info"),
    ]
    assert findings[0].fix.commands[0].endswith("# --mesh dp=2,ep=2,tp=8")


def test_expert_groups_larger_than_a_node_are_no_fault_where_each_node_has_its_share(hgx, said):
    (finding,) = said(hgx(4), "dp=2,ep=16")

    assert (finding.rule, finding.severity) == ("mesh-group-crosses-nodes", "info")
    assert finding.fix.text == (
        "No action if this size is intended: each group lies on 2 nodes with 8 ranks on each, the least possible."
    )


@pytest.mark.parametrize("text", ["dp=1,ep=4,tp=8", "ep=2,pp=2,tp=8", "ep=4,tp=8"])
def test_experts_beside_tensors_that_fill_a_node_have_no_choice(hgx, said, text):
    (finding,) = said(hgx(4), text)

    assert finding.severity == "info"


def test_tensor_groups_of_nodes_with_one_rank_have_no_choice(job_of, said):
    (finding,) = said(job_of(4, 1), "tp=4")

    assert finding.severity == "info"


def test_a_size_that_does_not_divide_a_node_is_replaced(job_of, said):
    (finding,) = said(job_of(3, 4), "dp=4,tp=3")

    assert (finding.rule, finding.severity) == ("mesh-group-crosses-nodes", "warning")
    assert finding.ranks == tuple(range(3, 9))
    assert "--mesh dp=6,tp=2" in finding.fix.commands[0]


# -- NVLink domains


def test_experts_over_two_racks_need_segments(racks, said):
    (finding,) = said(racks(5, 3), "dp=1,ep=32")

    assert (finding.rule, finding.severity) == ("mesh-group-crosses-domains", "warning")
    assert finding.message == (
        "1 of 1 ep groups (32 ranks each) cross NVLink domains: ranks 0-31 are on NVLink domain 00000000/1 and "
        "NVLink domain 00000001/1"
    )
    assert finding.evidence["ranks_by_domain"] == "20+12"
    assert finding.fix.commands == ("#SBATCH --segment=8",)


def test_only_the_groups_at_the_border_of_two_racks_are_named(racks, said):
    (finding,) = said(racks(18, 18), "dp=9,ep=16")

    assert finding.ranks == tuple(range(64, 80))
    assert finding.message.startswith("1 of 9 ep groups (16 ranks each) cross NVLink domains: ranks 64-79 are on")
    assert finding.fix.commands == ("#SBATCH --segment=4",)
    assert said(racks(16, 16, 4), "dp=9,ep=16") == ()


def test_segments_need_a_number_of_nodes_that_they_divide(racks, said):
    (finding,) = said(racks(9, 9, 9, 9), "dp=9,ep=4,tp=4")

    assert finding.fix.commands == ("#SBATCH --segment=4",)
    (finding,) = said(racks(7, 7), "dp=1,ep=56")
    assert finding.fix.commands == ("#SBATCH --segment=14",)


def test_segments_suit_the_largest_of_several_groups(racks, said):
    findings = said(racks(5, 3), "dp=1,ep=4,tp=8")

    assert [finding.message.split(" (")[0] for finding in findings] == ["1 of 4 tp groups", "8 of 8 ep groups"]
    assert {finding.fix.commands for finding in findings} == {("#SBATCH --segment=8",)}


def test_experts_larger_than_a_rack_need_equal_shares(racks, said):
    (finding,) = said(racks(18, 6), "ep=96")

    assert (finding.rule, finding.severity) == ("mesh-group-uneven", "warning")
    assert finding.evidence["ranks_by_domain"] == "72+24"
    assert finding.fix.commands == ("#SBATCH --segment=12",)
    (even,) = said(racks(12, 12), "ep=96")
    assert even.severity == "info"


def test_a_dimension_far_out_over_racks_that_it_does_not_divide_needs_both(racks, said):
    (finding,) = said(racks(18, 14), "tp=64,dp=2")

    assert finding.fix.commands == (
        '# in the script: init_device_mesh("cuda", (2, 64), mesh_dim_names=("dp", "tp"))  # --mesh dp=2,tp=64',
        "#SBATCH --segment=16",
    )


def test_nodes_that_are_each_alone_in_a_rack_need_segments(racks, said):
    (finding,) = said(racks(1, 1), "tp=8")

    assert (finding.rule, finding.fix.commands) == ("mesh-group-crosses-domains", ("#SBATCH --segment=2",))


def test_without_slurm_the_segments_are_words(racks, said):
    (finding,) = said(racks(5, 3, launcher="torchrun"), "dp=1,ep=32")

    assert finding.fix.commands == ()
    assert "segments of 8" in finding.fix.text


def test_nvlink_between_nodes_that_nccl_must_not_use_does_not_count(racks, said, change):
    job = change.environment(racks(2), None, NCCL_MNNVL_ENABLE="0")
    (finding,) = said(job, "dp=1,tp=8")

    assert finding.rule == "mesh-group-crosses-nodes"
    assert said(change.nccl_file(racks(2), None, "NCCL_MNNVL_ENABLE=0"), "dp=1,tp=8") == (finding,)
    assert said(racks(2), "dp=1,tp=8") == ()


def test_nodes_whose_domains_were_not_read_are_not_judged(job_of, change, judge):
    job = change.asked(job_of(2, 4, gpus=4), mesh=parse("dp=1,tp=8"))
    diagnosis = judge(job, "mesh", "mesh_placement")

    assert diagnosis.findings == ()
    (gap,) = diagnosis.not_checked
    assert gap.reason == "tp groups cross nodes; env did not read the NVLink domains of the nodes"
    assert diagnosis.verdict.exit_code == 0
    within = change.asked(job, mesh=parse("dp=2,tp=4"))
    assert judge(within, "mesh", "mesh_placement")[:2] == ((), ())


def test_a_job_with_a_missing_rank_is_not_judged(job_of, change, judge):
    job = change.asked(change.keep(job_of(4, 2), 0, 1, 2, 3, 4, 5), mesh=parse("dp=2,tp=4"))
    diagnosis = judge(job, "mesh", "mesh_placement")

    assert diagnosis.findings == ()
    assert [gap.reason for gap in diagnosis.not_checked] == ["not every rank of the mesh joined"]


# -- values


def test_what_each_dimension_spans_is_counted(racks, change):
    job = change.asked(racks(18, 18), mesh=parse("dp=9,ep=4,tp=4"))
    rows = {row.name: row for row in spans(job)}

    assert (rows["tp"].groups, rows["tp"].nodes, rows["tp"].islands) == (36, (1, 1), (1, 1))
    assert (rows["ep"].groups, rows["ep"].nodes, rows["ep"].islands) == (36, (4, 4), (1, 2))
    assert (rows["dp"].groups, rows["dp"].nodes, rows["dp"].example) == (16, (9, 9), range(0, 144, 16))
    assert islands(job).room == 72
    assert mesh_of(job) == Mesh({"dp": 9, "ep": 4, "tp": 4})


def test_groups_are_bad_if_they_span_more_than_they_must_or_unevenly():
    mesh = Mesh({"dp": 2, "tp": 4})

    assert badly_placed(mesh, "tp", [0, 0, 0, 0, 1, 1, 1, 1], 4) == []
    assert badly_placed(mesh, "tp", [0, 0, 0, 1, 1, 1, 1, 0], 4) == mesh.groups("tp")
    assert badly_placed(mesh, "tp", [0, 0, 1, 1, 2, 2, 3, 3], 2) == []
    assert badly_placed(mesh, "tp", [0, 0, 0, 1, 1, 1, 2, 2], 3) == [range(4)]
