"""What CUDA shows to each rank compared with what NVML counts: facts in, findings out."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.gpu import Fabric, GpuHealth, NvLinks
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import Agent, RankRun
from distcheck.rules import find_rule
from distcheck.rules.gpu.cuda_view import remedy
from distcheck.rules.gpu.nvml_errors import without_folder
from distcheck.selection.visible_devices import device_of

OURS = ("gpu.mapping", "gpu.cuda", "gpu.order", "gpu.fabric", "environment.local_ranks")
LOOKS = ("environment", "meeting", "gpu", "collectives")
HUNG = Missing(reason="CUDA did not answer within 10 s: a GPU, its driver or the MPS daemon hangs")
NO_LIBRARY = Missing(reason="libcuda.so.1 cannot be loaded: cannot open shared object file: No such file or directory")
OWN = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
replace = msgspec.structs.replace


@pytest.fixture
def of(job_of, change):
    """Build a job on nodes with NVIDIA GPUs where CUDA shows each rank the expected GPUs."""

    def of(nodes=1, per_node=2, gpus=2, **more):
        job = job_of(nodes, per_node, looks=LOOKS, gpus=gpus, **more)
        for i, rank in enumerate(job.ranks):
            job = shows(change, job, i, *rank.visible_gpus)
        return job

    return of


def shows(change, job, where, *uuids):
    """Have CUDA show these GPUs to ranks, and have the ranks take their GPUs from them."""
    for i in [where] if isinstance(where, int) else where:
        view = CudaView(tuple(CudaDevice(uuid, "") for uuid in uuids), version=13000, library=OWN)
        gpu = device_of(job.ranks[i].placement.local_rank, uuids)
        job = change.rank(job, i, cuda=view, visible_gpus=uuids, gpu=gpu)
    return job


# -- healthy


@pytest.mark.parametrize("launcher", ["by hand", "torchrun", "slurm", "openmpi", "distcheck"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 8), (4, 8, 8), (1, 4, 8)])
def test_a_healthy_job_is_silent(of, judge, launcher, shape):
    result = judge(of(*shape, launcher=launcher, backend="nccl"), "gpu.cuda", "gpu.order", "gpu.fabric")
    assert result[:2] == ((), ())


def test_jobs_without_nccl_or_facts_of_cuda_are_silent(of, change, silent):
    for backend in ("gloo", "mpi"):
        assert silent(change.rank(of(backend=backend), None, cuda=HUNG))
    assert silent(change.rank(of(), None, cuda=None)), "saved facts are judged by NVML"


# -- CUDA does not start


def failed(error, library=OWN):
    return CudaView((), error=error, words="why it does not", library=library)


REAL = "/usr/local/cuda/compat/lib.real/libcuda.so.560.35"
UNLIKE = "does not match driver 580.95"
VIEWS = [
    *(
        (failed(n), "gpu-cuda-init-failed", "node", False, f"error {n} (why it does not); NVML works and counts 2 GPUs",
         remedy(n).fix.commands[0])
        for n in (3, 46, 100, 101, 304, 805, 999, 12345)
    ),
    (HUNG, "gpu-cuda-init-failed", "node", False, "CUDA did not answer within 10 s", "sudo nvidia-smi -pm 1"),
    (NO_LIBRARY, "gpu-cuda-init-failed", "rank", True, "NVML counts 2 GPUs, but libcuda.so.1 cannot be loaded",
     "# add to docker run: --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    (failed(802), "gpu-fabric-manager-down", "node", True, "error 802", "systemctl status nvidia-fabricmanager"),
    (failed(803, REAL), "sw-compat-libcuda", "rank", True, UNLIKE, without_folder("compat")),
    (failed(804, "/usr/local/cuda-12.6/compat/libcuda.so.560.35"), "sw-compat-libcuda", "rank", True, UNLIKE,
     without_folder("compat")),
    (failed(804, "/opt/cuda-compat-12-6/lib/libcuda.so.1"), "sw-compat-libcuda", "rank", True, UNLIKE,
     without_folder("compat")),
    (failed(34, "/usr/local/cuda/lib64/stubs/libcuda.so"), "sw-compat-libcuda", "rank", True, UNLIKE,
     without_folder("stubs")),
    (failed(34, "/usr/lib/libcuda.so.1"), "sw-compat-libcuda", "rank", True, UNLIKE, without_folder("stubs")),
    (failed(803), "sw-compat-libcuda", "node", True, UNLIKE, "sudo reboot"),
]  # fmt: skip


@pytest.mark.parametrize(("view", "rule", "scope", "confirmed", "words", "command"), VIEWS)
def test_cuda_that_does_not_start_names_the_ranks_and_the_cause(
    of, change, only, view, rule, scope, confirmed, words, command
):
    finding, _ = only(change.rank(of(2, 2), [2, 3], cuda=view))
    assert (finding.rule, finding.severity, finding.ranks, finding.nodes) == (rule, "error", (2, 3), ("node2",))
    assert (finding.scope, finding.confirmed, finding.owner == "user") == (scope, confirmed, scope == "rank")
    assert words in finding.message
    assert command in finding.fix.commands
    if rule == "sw-compat-libcuda":
        assert finding.evidence["library"] == view.library


@pytest.mark.parametrize("value", ["", "-1", "7"])
def test_a_list_that_leaves_no_gpu_is_reported_by_another_rule(of, change, rules, value):
    job = change.environment(of(), None, CUDA_VISIBLE_DEVICES=value)
    job = change.rank(job, None, visible_gpus=(), gpu=None)
    (rule,) = rules(change.rank(job, None, cuda=failed(100)))
    assert rule.startswith("gpu-cvd-")


def test_a_hang_of_cuda_and_nvml_is_one_finding(of, change, gpus, rules):
    job = change.rank(of(), None, cuda=HUNG)
    reason = "NVML did not answer within 10 s: a GPU or its driver hangs"
    assert rules(gpus(job, unread=reason)) == ["gpu-nvml-init-failed"]
    assert rules(change.node(job, 0, gpus=Missing(reason=reason))) == ["gpu-nvml-init-failed"]


def test_a_lost_gpu_explains_why_cuda_does_not_start(of, change, gpus, rules):
    job = change.rank(of(), None, cuda=failed(999))
    lost = gpus(job, each=lambda gpu: {"lost": "NVML error 15: GPU is lost" if gpu.index else ""})
    assert rules(lost) == ["gpu-fell-off-bus"]


def test_a_query_that_could_not_start_is_not_checked(of, change, judge):
    reason = "could not start the process that queries CUDA: [Errno 11] Resource temporarily unavailable"
    result = judge(change.rank(of(), 1, cuda=Missing(reason=reason)), "gpu.cuda")
    assert result.findings == ()
    assert [(n.rule, n.reason, n.ranks, n.required) for n in result.not_checked] == [
        ("gpu-cuda-init-failed", reason, (1,), False)
    ]


def test_a_torch_without_cuda_needs_no_library_unless_nccl_is_requested(of, change, judge):
    def job(backend):
        bare = change.rank(of(backend=backend), None, cuda=NO_LIBRARY)
        return change.node(bare, None, torch=TorchBuild("2.13.0+cpu", None, None))

    assert judge(job("auto"), "gpu.cuda").findings == ()
    assert [f.rule for f in judge(job("nccl"), "gpu.cuda").findings] == ["gpu-cuda-init-failed"]


# -- 802


def with_fabric(gpus, job, state):
    fabric = Fabric(state=state, status=0, cluster="", clique=0, health_mask=0, health_summary=1)
    health = GpuHealth(fabric=fabric, nvlinks=NvLinks(active=(True,)))
    return gpus(job, each=lambda _: {"health": health})


@pytest.mark.parametrize(("state", "confirmed"), [(1, True), (2, False)])
def test_cuda_and_nvml_report_one_fabric_once(of, change, gpus, only, state, confirmed):
    finding, _ = only(with_fabric(gpus, change.rank(of(), None, cuda=failed(802)), state))
    assert (finding.rule, finding.confirmed) == ("gpu-fabric-manager-down", confirmed)
    assert any("fabric registration" in str(line) for line in finding.evidence.values())


def test_a_virtual_machine_with_one_gpu_where_cuda_starts_is_silent(of, change, gpus, rules, only):
    alone = with_fabric(gpus, of(1, 1, 1), 1)
    assert rules(alone) == []
    assert only(change.rank(alone, None, cuda=None))[0].severity == "warning"


def test_a_compat_library_that_works_is_silent(of, change, rules):
    job = of()
    view = replace(job.ranks[0].cuda, library="/usr/local/cuda/compat/libcuda.so.560.35")
    assert rules(change.rank(job, None, cuda=view)) == []


# -- another order, and hidden GPUs

MIXED = ("T4", "A100", "A100", "T4")
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("ranks", "names", "shown", "variables", "severity", "named"),
    [
        (4, MIXED, "1203", {}, "warning", (0, 1, 2)),
        (2, MIXED, "12", {"CUDA_VISIBLE_DEVICES": "0,1"}, "warning", (0, 1)),  # indices select other GPUs
        (1, ("A100", "T4", "A100"), "021", {}, "info", (0,)),  # it takes what it was to take
        (2, ("A100", "A100"), "10", BY_BUS, "warning", (0, 1)),
    ],
)
def test_another_order_names_the_ranks_that_take_other_gpus(
    of, change, gpus, only, ranks, names, shown, variables, severity, named
):
    job = change.environment(of(1, ranks, len(names)), None, **variables)
    job = gpus(job, each=lambda gpu: {"name": names[gpu.index]})
    finding, _ = only(shows(change, job, range(ranks), *(f"GPU-1-{i}" for i in shown)))
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-order-mismatch", severity, named)
    by_uuid = "export CUDA_VISIBLE_DEVICES=GPU-1-0,GPU-1-1"
    assert finding.fix.commands == ((by_uuid,) if variables == BY_BUS else ("export CUDA_DEVICE_ORDER=PCI_BUS_ID",))
    if ranks == 4:
        assert "cuda:0 is GPU 1 (0000:02:00.0), not GPU 0 (0000:01:00.0)" in finding.message
        assert finding.evidence["rank 2"] == "LOCAL_RANK 2 takes GPU 0 (0000:01:00.0), not GPU 2 (0000:03:00.0)"
        assert "rank 3" not in finding.evidence, "it takes what it was to take"


def test_several_models_are_an_info_finding_only_where_cuda_was_not_asked(of, change, gpus, rules, only):
    assert rules(gpus(of(), each=lambda gpu: {"name": MIXED[gpu.index]}), "gpu.order") == []
    job = gpus(change.rank(of(), None, cuda=None), each=lambda gpu: {"name": MIXED[gpu.index]})
    finding, _ = only(job)
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-order-mismatch", "info", (0, 1))
    for variables in (BY_BUS, {"CUDA_VISIBLE_DEVICES": "GPU-1-0,GPU-1-1"}):
        assert rules(change.environment(job, None, **variables)) == []


@pytest.mark.parametrize(
    ("nodes", "ranks", "shown", "severity", "named"),
    [
        (2, 4, "012", "error", (7,)),
        (2, 4, "023", "error", (5, 6, 7)),
        (1, 2, "123", "warning", (0, 1)),  # another GPU for each rank
        (1, 2, "01", "info", (0, 1)),  # no rank takes it
        (1, 2, "01234", "info", (0, 1)),  # NVML does not list it
    ],
)
def test_a_hidden_gpu_names_the_ranks_that_get_none_or_another(of, change, only, nodes, ranks, shown, severity, named):
    here = range((nodes - 1) * ranks, nodes * ranks)
    finding, _ = only(shows(change, of(nodes, ranks, 4), here, *(f"GPU-{nodes}-{i}" for i in shown)))
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-hidden-from-cuda", severity, named)
    assert (finding.nodes, finding.scope, finding.confirmed) == ((f"node{nodes}",), "node", severity != "error")
    if shown == "012":
        assert "CUDA shows 3 of 4 GPUs: GPU 3 (0000:04:00.0) is hidden" in finding.message
    if shown == "023":
        assert finding.evidence["rank 5"] == "LOCAL_RANK 1 takes GPU 2 (0000:03:00.0), not GPU 1 (0000:02:00.0)"


def test_ranks_that_share_the_only_gpu_of_an_mps_daemon_are_one_finding(of, change, gpus, only):
    job = shows(change, of(1, 4, 4), range(4), "GPU-1-0")
    finding, _ = only(gpus(job, mps_daemon=True))
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-hidden-from-cuda", "error", (1, 2, 3))
    assert (finding.scope, finding.owner, finding.confirmed) == ("rank", "user", True)
    assert any("nvidia-cuda-mps-control -d" in command for command in finding.fix.commands)


def test_the_driver_chooses_the_mig_device_of_a_process(of, change, gpus, rules, found):
    job = gpus(of(1, 1, 2), each=lambda gpu: {"mig": True, "mig_uuids": (f"MIG-{gpu.index}-0", f"MIG-{gpu.index}-1")})
    assert rules(shows(change, job, 0, "MIG-0-0")) == []
    assert found(shows(change, job, 0, "MIG-1-1"))[0]["gpu-hidden-from-cuda"].severity == "info"


def test_a_list_that_is_wrong_explains_what_cuda_shows(of, change, found):
    job = change.environment(of(1, 4, 4), None, CUDA_VISIBLE_DEVICES="0,1,2,x")
    job = shows(change, job, range(4), "GPU-1-0", "GPU-1-1", "GPU-1-2")
    assert [f.rule for f in found(job)[0].values() if f.severity == "error"] == ["gpu-cvd-bad-item"]


def test_gpus_without_uuids_are_compared_by_their_addresses(of, change, gpus, rules, only):
    job = gpus(of(1, 4, 4), each=lambda _: {"uuid": Missing(reason="NVML error 999: Unknown Error")})
    names = [f"PCI-{gpu.pci}" for gpu in job.nodes[0].gpus.devices]
    assert rules(shows(change, job, range(4), *names)) == []
    finding, _ = only(shows(change, job, range(4), *names[:3]))
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-hidden-from-cuda", "error", (3,))
    assert "CUDA shows 3 of 4 GPUs: GPU 3 (0000:04:00.0) is hidden" in finding.message
    assert rules(shows(change, job, range(4), *(f"GPU-1-{i}" for i in range(4)))) == [], "not in NVML's list"


# -- the guess of torch


def test_a_wrong_guess_is_an_info_finding(of, only):
    finding, _ = only(of(2, 4, 8, backend="nccl"))
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-barrier-guess", "info", (4, 5, 6, 7))
    assert "would guess cuda:4 for rank 4, whose GPU is cuda:0" in finding.message


def test_a_rank_with_a_single_gpu_or_under_accelerate_needs_no_guess(of, change, rules):
    agent = Agent(program="accelerate", pid=1, arguments=(), exported=Missing(reason="not read"))
    assert rules(change.process(of(2, 4, 8), None, agent=agent)) == []
    job = of(2, 4, 8)
    for i in range(8):
        uuid = f"GPU-{1 + i // 4}-{i % 4}"
        job = shows(change, change.environment(job, i, CUDA_VISIBLE_DEVICES=uuid), i, uuid)
    assert rules(job) == []


# -- what torch really used


def used(change, job, *uuids):
    for i, uuid in enumerate(uuids):
        run = RankRun(pid=1, step="done", outcome="done", device="NVIDIA H100", gpu=uuid)
        job = change.rank(job, i, run=run)
    return job


def test_another_gpu_than_expected_is_reported(of, change, only):
    finding, _ = only(used(change, of(), "GPU-1-0", "GPU-1-0"))
    assert (finding.rule, finding.severity, finding.ranks) == ("gpu-other-than-expected", "warning", (1,))
    assert "rank 1 on GPU 0 (0000:01:00.0), not on GPU 1 (0000:02:00.0)" in finding.message


@pytest.mark.parametrize("uuids", [("GPU-1-0", "GPU-1-1"), (None, None), ("gpu-1-0", "MIG-1-1")])
def test_the_expected_gpu_is_silent(of, change, rules, uuids):
    assert rules(used(change, of(), *uuids)) == []


@pytest.mark.parametrize("uuid", ["GPU-0-1", "GPU-1-0"])
def test_a_mig_device_matches_its_own_uuid_and_its_gpus(of, change, gpus, judge, uuid):
    divided = gpus(of(1, 1, 1), each=lambda _: {"mig": True, "mig_uuids": ("MIG-0-1",)})
    job = shows(change, divided, 0, "MIG-0-1")
    assert judge(used(change, job, uuid), "gpu.order").findings == ()


# -- names that other catalogues use


def test_ranks_beyond_the_gpus_have_an_alias(of, found):
    named = find_rule("gpu-duplicate-silent-modulo")
    assert named is not None
    job = of(1, 4, 2)
    assert [(f.rule, f.ranks) for f in found(job)[0].values() if f.severity == "error"] == [(named.name, (2, 3))]


def test_every_error_has_a_fix_with_commands():
    for error in (0, 2, 3, 46, 100, 101, 304, 805, 806, 807, 808, 809, 999, 4711):
        advice = remedy(error)
        assert advice.fix.text.endswith(".")
        assert advice.fix.commands
