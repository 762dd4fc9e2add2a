"""Which GPU each rank gets: facts in, findings out."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.facts.job import Launched, LaunchedNode
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import Installed
from distcheck.rules.finding import Fix, NamedGpu
from distcheck.rules.job.scheduler import as_scheduled
from distcheck.selection.visible_devices import device_of, visible

LOOKS = ("environment", "meeting", "gpu")
OURS = ("gpu.mapping",)
NO_ANSWER = Missing(reason="NVML did not answer within 10 s: a GPU or its driver hangs")


@pytest.fixture
def of(job_of):
    """Build a job on nodes with NVIDIA GPUs."""
    return lambda nodes=1, per_node=2, gpus=2, **more: job_of(nodes, per_node, looks=LOOKS, gpus=gpus, **more)


@pytest.fixture
def with_value(change):
    """Give ranks a CUDA_VISIBLE_DEVICES and the GPUs that it leaves them."""

    def with_value(job, value, where=None, **more):
        job = change.environment(job, where, CUDA_VISIBLE_DEVICES=value, **more)
        for i, rank in enumerate(job.ranks):
            gpus = job.node_of(rank).gpus
            if not isinstance(gpus, Gpus):
                continue
            seen = visible(rank.environment.get("CUDA_VISIBLE_DEVICES"), gpus.devices)
            job = change.rank(
                job,
                i,
                visible_gpus=seen.uuids,
                gpu=device_of(rank.placement.local_rank, seen.uuids),
            )
        return job

    return with_value


def gpus_of(job, node=0):
    return job.nodes[node].gpus.devices


def with_gpus(change, job, *devices, node=0):
    return change.node(job, node, gpus=Gpus(driver="580.95", cuda_driver="13.0", devices=devices))


def lost(index, words="NVML error 15: a GPU is lost"):
    gone = Missing(reason=words)
    return Gpu(index, gone, gone, gone, gone, gone, gone, lost=words)


# -- healthy


@pytest.mark.parametrize("launcher", ["by hand", "torchrun", "slurm", "openmpi", "distcheck"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 8), (4, 8, 8), (2, (3, 1), 4)])
@pytest.mark.parametrize("backend", ["auto", "nccl"])
def test_a_healthy_job_is_silent(of, silent, launcher, shape, backend):
    assert silent(of(*shape, launcher=launcher, backend=backend))


def test_valid_lists_are_silent(of, with_value, silent):
    for value in ("0,1", "1,0", "0, 1", "0,1,", "GPU-1-0,GPU-1-1"):
        assert silent(with_value(of(), value)), value
    job = of(1, 4, 4, launcher="slurm")
    for i in range(4):
        job = with_value(job, str(i), i)
    assert silent(job)


def test_jobs_that_do_not_use_the_gpus_are_not_checked(of, with_value, silent, rules, change):
    for backend in ("gloo", "mpi"):
        assert silent(change.node(with_value(of(backend=backend), ""), None, gpus=NO_ANSWER))
    assert silent(change.node(of(gpus=0), None, accelerator="amd")), "a CPU's graphics"
    for backend in ("auto", "nccl"):
        assert silent(change.node(of(backend=backend), None, torch=TorchBuild("2.9", None, "6.4"), gpus=None))
    assert silent(of(2, 2, 0)), "a job on CPU nodes is a Gloo job"
    unused = {"torch": TorchBuild("2.9", None, None), "gpus": Missing(reason="NVML error 12: not found")}
    assert silent(change.node(of(), None, **unused)), "a graphics card that nothing can use"
    assert rules(change.node(of(backend="nccl"), None, **unused)) == ["gpu-nvml-init-failed"]


# -- NVML


def test_gpus_that_were_not_read_are_unknown(of, judge, change):
    result = judge(change.node(of(2), 1, gpus=None), "gpu.mapping")
    assert result.findings == ()
    assert {(n.nodes, n.ranks, n.reason) for n in result.not_checked} == {
        (("node2",), (2, 3), "the driver was not asked")
    }
    assert result.verdict.exit_code == 20


@pytest.mark.parametrize(
    ("reason", "confirmed", "owner", "exit_code", "command"),
    [
        ("NVML error 18: driver/library version mismatch", True, "admin", 40, "sudo reboot"),
        ("NVML error 9: the NVIDIA kernel module is not loaded", True, "admin", 40, "sudo modprobe nvidia"),
        ("NVML error 15: a GPU is lost", True, "admin", 40, "sudo reboot"),
        ("NVML error 4: no permission", False, "admin", 20, "# add to docker run: --gpus all"),
        ("NVML error 12: not found", False, "user", 20, "ldconfig -p | grep nvidia-ml"),
        ("NVML error 17: blocked", False, "admin", 20, "# add to docker run: --gpus all"),
        ("NVML error 999: unknown error", False, "admin", 20, "# add to docker run: --gpus all"),
        ("NVML error 4242: ?", False, "admin", 20, "timeout -s KILL 30 nvidia-smi"),
        (NO_ANSWER.reason, False, "admin", 20, "timeout -s KILL 30 nvidia-smi"),
        ("NVML crashed the process that queried it: SIGSEGV", False, "admin", 20, "timeout -s KILL 30 nvidia-smi"),
    ],
)
def test_gpu_nvml_init_failed(of, judge, change, reason, confirmed, owner, exit_code, command):
    result = judge(change.node(of(2), 1, gpus=Missing(reason=reason)), "gpu.mapping")
    (finding,) = result.findings
    assert finding.rule == "gpu-nvml-init-failed"
    assert (finding.scope, finding.confirmed, finding.owner) == ("node", confirmed, owner)
    assert (finding.nodes, finding.ranks) == (("node2",), (2, 3))
    assert finding.message == f"node2: {reason}"
    assert command in finding.fix.commands
    assert result.verdict.exit_code == exit_code
    unseen = {gap.rule for gap in result.not_checked}
    assert "gpu-nvml-init-failed" not in unseen
    assert {"gpu-fell-off-bus", "gpu-none-visible", "gpu-duplicate", "gpu-cvd-empty"} <= unseen


def test_a_stub_of_nvml_is_the_jobs_fault_and_not_the_nodes(of, only, judge, change):
    # CUDA's stubs folder in LD_LIBRARY_PATH: seen on a virtual machine with one H200, driver 580.159.04.
    job = change.node(of(2), 1, gpus=Missing(reason="NVML error 9: the NVIDIA kernel module is not loaded"))
    job = change.rank(job, 2, cuda=CudaView(devices=(CudaDevice("GPU-1-0"),)))
    finding, code = only(job)
    assert (finding.rule, finding.scope, finding.owner) == ("gpu-nvml-init-failed", "rank", "user")
    assert finding.ranks == (2, 3)
    assert finding.message.endswith("; but CUDA shows GPUs, so libnvidia-ml.so.1 is not the driver's")
    assert "grep -v stubs" in finding.fix.commands[0]
    assert code == 30
    alone = judge(change.rank(job, 2, cuda=CudaView(devices=(), error=100)), "gpu.mapping")
    assert alone.verdict.exit_code == 40, "CUDA shows nothing either"


def test_nodes_with_the_same_failure_make_one_finding(of, only, change):
    finding, _ = only(change.node(of(4), (1, 3), gpus=NO_ANSWER))
    assert finding.nodes == ("node2", "node4")
    assert finding.message.startswith("node2 and node4: NVML did not answer within 10 s")


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({"SLURM_JOB_ID": "7"}, "#SBATCH --gpus-per-node=3"),
        ({"PBS_JOBID": "7.head", "PBS_NUM_NODES": "2"}, "#PBS -l select=2:ngpus=3"),
        ({"LSB_JOBID": "7"}, '#BSUB -gpu "num=3"'),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "# in the container: resources: {limits: {nvidia.com/gpu: 3}}"),
        ({}, "# add to docker run: --gpus all"),
    ],
)
def test_as_many_gpus_as_the_node_has_ranks_are_requested_from_the_jobs_scheduler(
    of, judge, change, variables, command
):
    job = change.node(of(1, 3), 0, gpus=Missing(reason="NVML error 17: The operating system has blocked it"))
    findings = judge(change.environment(job, None, **variables), "gpu.mapping").findings
    assert [f.fix.commands[0] for f in findings if f.rule == "gpu-nvml-init-failed"] == [command]


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({"SLURM_JOB_ID": "7"}, "scontrol update nodename=node1 state=drain reason=gpu-lost"),
        ({"PBS_JOBID": "7"}, "pbsnodes -o node1"),
        ({"LSB_JOBID": "7"}, "badmin hclose node1"),
        ({}, "nvidia-smi -L"),
    ],
)
def test_a_node_is_drained_with_the_jobs_scheduler(job_of, change, variables, command):
    fix = Fix("Drain it.", ("scontrol update nodename=node1 state=drain reason=gpu-lost", "sinfo -R", "nvidia-smi -L"))
    job = change.environment(job_of(), None, **variables)
    assert as_scheduled(job, fix).commands[0] == command
    assert ("sinfo -R" in as_scheduled(job, fix).commands) == ("SLURM_JOB_ID" in variables)
    assert as_scheduled(change.asked(job_of(), command="node"), fix) == fix, "an administrator's own shell"


def test_a_node_that_distcheck_could_not_query_is_not_blamed(of, judge, change):
    reason = "cannot import the Python module pynvml (package nvidia-ml-py): no"
    result = judge(change.node(of(2), 0, gpus=Missing(reason=reason)), "gpu.mapping")
    assert result.findings == ()
    assert "gpu-nvml-init-failed" in {gap.rule for gap in result.not_checked}
    assert result.verdict.exit_code == 20


# -- lost GPUs


def test_gpu_fell_off_bus(of, only, change, with_value):
    job = of(2, 4, 4)
    job = with_value(with_gpus(change, job, *gpus_of(job, 1)[:2], lost(2), gpus_of(job, 1)[3], node=1), None)
    finding, code = only(job)
    assert finding.rule == "gpu-fell-off-bus"
    assert (finding.scope, finding.confirmed, finding.nodes, finding.ranks) == ("gpu", True, ("node2",), (7,))
    assert finding.gpus == (NamedGpu("node2", 2, None),)
    assert finding.message == "node2: GPU 2: NVML error 15: a GPU is lost"
    assert code == 40


def test_a_lost_gpu_is_the_only_finding_for_any_list(of, change, with_value, rules):
    for value in (None, "0,1,2,3", "3", "GPU-1-2"):
        job = of(1, 1, 4)
        first, second, _, fourth = gpus_of(job)
        assert rules(with_value(with_gpus(change, job, first, second, lost(2), fourth), value)) == ["gpu-fell-off-bus"]
    for first in (gpus_of(of())[0], lost(0)):
        assert rules(with_value(with_gpus(change, of(), first, lost(1)), None)) == ["gpu-fell-off-bus"]


def test_a_lost_gpu_keeps_its_address_and_an_unknown_error_is_unconfirmed(of, change, only):
    job = of()
    first, second = gpus_of(job)
    gone = msgspec.structs.replace(second, lost="NVML error 15: a GPU is lost")
    finding, _ = only(with_gpus(change, job, first, gone))
    assert "GPU 1 (0000:02:00.0)" in finding.message
    assert finding.evidence == {"GPU 1": "GPU-1-1, 0000:02:00.0, NVIDIA H100, NVML error 15: a GPU is lost"}
    unknown = msgspec.structs.replace(second, lost="NVML error 999: unknown error")
    assert only(with_gpus(change, job, first, unknown))[1] == 20


# -- no GPU at all


def test_gpu_none_visible_for_nccl_on_cpu_nodes(of, judge):
    result = judge(of(2, 2, 0, backend="nccl"), "gpu.mapping")
    (finding,) = result.findings
    assert (finding.rule, finding.scope) == ("gpu-none-visible", "rank")
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.message == ("node1 and node2: no GPU found; the job uses NCCL, which needs GPUs")
    assert (result.not_checked, result.verdict.exit_code) == ((), 30)


@pytest.mark.parametrize("backend", ["auto", "nccl"])
def test_one_node_without_gpus_among_others_is_suspected(of, only, change, backend):
    job = change.node(of(3, backend=backend), 1, accelerator="none", gpus=None)
    finding, code = only(change.rank(job, (2, 3), gpu=None, visible_gpus=None))
    assert (finding.rule, finding.scope, finding.confirmed) == ("gpu-none-visible", "node", False)
    assert (finding.nodes, finding.ranks) == (("node2",), (2, 3))
    assert code == 20


def test_a_node_without_ranks_needs_no_gpu(of, rules, change):
    job = change.node(of(2, (2, 2)), 1, accelerator="none", gpus=None)
    assert rules(change.job(job, ranks=job.ranks[:2])) == []


def test_nvml_counts_no_gpu(of, only, judge, change, with_value):
    finding, _ = only(with_value(with_gpus(change, of()), "0,1"))
    assert (finding.rule, finding.scope) == ("gpu-none-visible", "rank")
    assert "NVML" in finding.message
    assert "# add to docker run: --gpus all" in finding.fix.commands
    found = judge(with_value(with_gpus(change, of(2), node=1), ""), "gpu.mapping").findings
    assert ("gpu-none-visible", "node", ("node2",)) in [(f.rule, f.scope, f.nodes) for f in found]


def test_device_files_that_the_user_may_not_open_are_named(of, only, change):
    job = with_gpus(change, of())
    gpus = msgspec.structs.replace(job.nodes[0].gpus, denied=("/dev/nvidia0", "/dev/nvidia1"))
    finding, code = only(change.node(job, 0, gpus=gpus))
    assert finding.message == (
        "node1: NVML works but counts no GPU, because its user may not open /dev/nvidia0 and /dev/nvidia1; "
        "the job uses NCCL, which needs GPUs"
    )
    assert finding.fix.commands[0] == "ls -l /dev/nvidia0 /dev/nvidia1; id"
    assert (finding.owner, code) == ("admin", 30)


# -- CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize(
    ("name", "value", "message", "command"),
    [
        ("gpu-cvd-empty", "", "shows 0 of 4 GPUs: it is set but names no GPU", "unset CUDA_VISIBLE_DEVICES"),
        ("gpu-cvd-minus-one", "-1", "shows 0 of 4 GPUs: item 1 ('-1')", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("gpu-cvd-minus-one", "3,-1,2", "shows 1 of 4 GPUs: item 2 ('-1')", "export CUDA_VISIBLE_DEVICES=3,2"),
        ("gpu-cvd-duplicate", "0,0", "shows 0 of 4 GPUs: item 2 ('0')", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("gpu-cvd-duplicate", "GPU-1-0,GPU-1-0", "item 2 ('GPU-1-0')", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("gpu-cvd-bad-item", "2 3", "item 1 ('2 3'): CUDA reads 2", "export CUDA_VISIBLE_DEVICES=2,3"),
        ("gpu-cvd-bad-item", "[2;3]", "item 1 ('[2;3]')", "export CUDA_VISIBLE_DEVICES=2,3"),
        ("gpu-cvd-bad-item", "all", "item 1 ('all')", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("gpu-cvd-bad-item", "3,4", "GPU 4 does not exist, only GPUs 0 to 3", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("gpu-cvd-mixed-uuid-index", "GPU-1-0,1", "item 2 ('1')", "unset CUDA_VISIBLE_DEVICES"),
        ("gpu-cvd-uuid-stale", "GPU-2-0", "item 1 ('GPU-2-0')", "export CUDA_VISIBLE_DEVICES=0,1"),
    ],
)
def test_a_wrong_list_is_one_finding(of, judge, with_value, name, value, message, command):
    result = judge(with_value(of(1, 2, 4), value), "gpu.mapping")
    (finding,) = result.findings
    assert finding.rule == name
    assert (finding.severity, finding.scope, finding.ranks, finding.nodes) == ("error", "rank", (0, 1), ("node1",))
    assert finding.message.startswith(f"ranks 0-1 (node1): CUDA_VISIBLE_DEVICES={value!r} shows ")
    assert message in finding.message
    assert command in finding.fix.commands
    assert finding.evidence["CUDA_VISIBLE_DEVICES"] == value
    if value == "3,-1,2":
        assert finding.evidence["visible"] == "GPU 3 (0000:04:00.0)"
        assert (finding.evidence["gpus"], finding.evidence["item"]) == (4, 2)
    assert (result.not_checked, result.verdict.exit_code) == ((), 30)


@pytest.mark.parametrize(
    ("value", "ranks"),
    [("0,-1", 1), ("0 1", 1), ("0,9", 1), ("GPU-1-0,1", 1), ("GPU-1-0,GPU-ff", 1), ("0,1,2,3,4,5,6,7", 4)],
)
def test_a_wrong_list_that_leaves_each_rank_its_gpu_is_a_warning(of, with_value, judge, value, ranks):
    result = judge(with_value(of(1, ranks, 4), value), "gpu.mapping")
    assert [f.severity for f in result.findings] == ["warning"]
    assert result.verdict.exit_code == 0


def test_a_wrong_list_is_named_at_the_ranks_that_have_it(of, with_value, only, judge):
    job = with_value(with_value(of(2, 4, 4), "0,0", [1, 3, 6]), "", [2])
    found = judge(job, "gpu.mapping").findings
    assert [(f.rule, f.ranks) for f in found] == [("gpu-cvd-empty", (2,)), ("gpu-cvd-duplicate", (1, 3, 6))]
    everywhere, _ = only(with_value(of(4, 2, 4), "[0,1]"))
    assert (everywhere.nodes, len(everywhere.ranks)) == (("node1", "node2", "node3", "node4"), 8)
    stale, _ = only(with_value(of(2, 2, 2), "GPU-1-0,GPU-1-1"))
    assert (stale.rule, stale.nodes, stale.ranks) == ("gpu-cvd-uuid-stale", ("node2",), (2, 3))
    slurm, _ = only(with_value(of(1, 2, 2, launcher="slurm"), "NoDevFiles"))
    assert "#SBATCH --gpus-per-node=2" in slurm.fix.commands


def test_a_long_list_is_cut_in_the_message_but_not_in_the_evidence(of, with_value, only):
    value = ",".join(f"GPU-{i}d1cf8a2-1111-2222-3333-444455556666" for i in range(8))
    finding, _ = only(with_value(of(1, 8, 8), value))
    assert (finding.rule, finding.evidence["CUDA_VISIBLE_DEVICES"]) == ("gpu-cvd-uuid-stale", value)
    assert len(finding.message) < 250


# -- two ranks on one GPU


def test_gpu_duplicate_with_one_value_for_all_ranks(of, only, with_value):
    finding, code = only(with_value(of(1, 2, 4), "3"))
    assert finding.rule == "gpu-duplicate"
    assert finding.aliases == ("slurm-same-gpu-for-all",)
    assert (finding.severity, finding.scope, finding.ranks) == ("error", "rank", (0, 1))
    assert finding.message == (
        "ranks 0-1 (node1) both run on GPU-1-3 (0000:04:00.0), with CUDA_VISIBLE_DEVICES='3' on each"
    )
    assert (finding.evidence["uuid"], finding.evidence["pci"]) == ("GPU-1-3", "0000:04:00.0")
    assert finding.evidence["rank 1"] == "node1, LOCAL_RANK 1, CUDA_VISIBLE_DEVICES='3', sees 1 GPU"
    assert any("torch.cuda.set_device" in command for command in finding.fix.commands)
    assert code == 30


DIVIDED = Gpu(0, "GPU-1-0", "0000:01:00.0", "NVIDIA H100", 1, 1, mig=True, mig_uuids=("MIG-a", "MIG-b"))


@pytest.mark.parametrize(
    ("nodes", "gpus", "values", "message", "command"),
    [
        (4, 4, ["0"] * 4, "ranks 0-3 (node1) all run on GPU-1-0 (0000:01:00.0), with ", "unset CUDA_VISIBLE_DEVICES"),
        (1, 1, [None] * 2, "ranks 0-1 (node1) both run on GPU-1-0", "export PET_NPROC_PER_NODE=gpu"),
        (1, 2, ["1,0", "0,1"], "ranks 0-1 (node1) both run on GPU-1-1 (0000:02:00.0)", "unset CUDA_VISIBLE_DEVICES"),
        (1, DIVIDED, [None] * 2, "ranks 0-1 (node1) both run on MIG-a (0000:01:00.0)", "nvidia-smi -L"),
    ],
)
def test_the_cause_of_a_shared_gpu_decides_the_fix(of, with_value, only, change, nodes, gpus, values, message, command):
    job = of(nodes, len(values), gpus if isinstance(gpus, int) else 1)
    job = job if isinstance(gpus, int) else with_gpus(change, job, gpus)
    for rank in range(len(job.ranks)):
        job = with_value(job, values[rank % len(values)], rank)
    finding, _ = only(job)
    assert (finding.rule, finding.ranks) == ("gpu-duplicate", tuple(range(len(job.ranks))))
    assert finding.message.startswith(message)
    assert finding.message.endswith("; same for 3 more GPUs") == (nodes == 4)
    assert command in finding.fix.commands


def test_two_containers_with_the_same_gpu(of, with_value, only, rules, change):
    job = of(2, 1, 1)
    finding, _ = only(with_value(with_gpus(change, job, *gpus_of(job, 0), node=1), None))
    assert (finding.rule, finding.nodes, finding.owner) == ("gpu-duplicate", ("node1", "node2"), "unknown")
    for node in range(2):  # the substitute for an unreadable UUID is unique on its node only
        nameless = Gpu(0, Missing(reason="no"), "0000:01:00.0", "NVIDIA H100", 1, 1, mig=False)
        job = with_gpus(change, job, nameless, node=node)
    assert rules(with_value(job, None)) == []


@pytest.fixture
def unnamed(of, with_value, change):
    """Build a node whose NVML reports no UUIDs; its ranks name their GPU by one, and CUDA shows them `view`."""

    def unnamed(view, per_node=1):
        gpu = Gpu(0, Missing(reason="NVML error 3: Not Supported"), "0000:01:00.0", "NVIDIA H100", 1, 1, mig=False)
        job = with_value(with_gpus(change, of(1, per_node, 1), gpu), "GPU-6d1c")
        uuids = tuple(device.uuid for device in view.devices) if isinstance(view, CudaView) else Missing(reason="")
        gpu = device_of(0, uuids) if isinstance(uuids, tuple) else None
        return change.rank(job, None, visible_gpus=uuids, gpu=gpu, cuda=view)

    return unnamed


def test_a_uuid_that_nvml_does_not_report_is_not_checked_without_cuda(unnamed, judge):
    for view in (None, Missing(reason="CUDA does not answer")):
        result = judge(unnamed(view), "gpu.mapping")
        assert result.findings == ()
        (unchecked,) = (u for u in result.not_checked if u.rule == "gpu-none-visible")
        assert unchecked.reason == (
            "CUDA_VISIBLE_DEVICES='GPU-6d1c': item 1 ('GPU-6d1c') may name GPU 0, whose UUID NVML does not report"
        )
        assert (unchecked.ranks, unchecked.nodes, unchecked.required) == ((0,), ("node1",), True)
        assert result.verdict.exit_code == 20


def test_cuda_decides_whether_a_uuid_that_nvml_does_not_report_shows_a_gpu(unnamed, judge):
    shown = CudaView((CudaDevice("PCI-0000:01:00.0"),))
    assert judge(unnamed(shown))[:2] == ((), ())
    for view in (CudaView(()), CudaView((), error=100, words="no CUDA-capable device is detected")):
        (finding,) = judge(unnamed(view)).findings
        assert (finding.rule, finding.ranks) == ("gpu-none-visible", (0,))
    (finding,) = judge(unnamed(CudaView((), error=999, words="unknown error"))).findings
    assert finding.rule == "gpu-cuda-init-failed"


def test_two_torchruns_on_one_node_share_a_gpu(of, with_value, only):
    job = with_value(of(launcher="torchrun"), None, 1, LOCAL_RANK="0", GROUP_RANK="1")
    finding, _ = only(job)
    assert finding.rule == "gpu-duplicate"
    assert any("torchrun" in command for command in finding.fix.commands)


def test_ranks_that_distcheck_started_are_started_again_by_distcheck(of, with_value, only, change):
    job = with_value(of(1, 2, 1), None)
    placements = [msgspec.structs.replace(rank.placement, launcher="distcheck") for rank in job.ranks]
    for i, placement in enumerate(placements):
        job = change.rank(job, i, placement=placement, gpu="GPU-1-0")
    assert only(job)[0].fix.commands[0] == f"distcheck {job.asked.command} --nproc auto"
    hosts = (LaunchedNode(name="host1", ranks=(0, 1), outcome="reported"),)
    job = change.job(job, launched=Launched(engine="ssh", command=("ssh",), nodes=hosts))
    assert only(job)[0].fix.commands[0] == f"distcheck {job.asked.command} --hosts host1 --nproc 1"


ENABLE = "NCCL_MULTI_RANK_GPU_ENABLE"


@pytest.mark.parametrize(
    ("first", "second", "nccl", "severity"),
    [
        ({ENABLE: "1"}, {ENABLE: "1"}, "", "info"),
        ({ENABLE: "0x1"}, {ENABLE: "0x1"}, "2.30.3", "info"),
        ({ENABLE: "1"}, {ENABLE: "1"}, "2.28.9", "error"),  # does not know the variable
        ({ENABLE: "1"}, {}, "", "error"),
        ({ENABLE: "0"}, {ENABLE: "0"}, "", "error"),
        ({ENABLE: "true"}, {ENABLE: "true"}, "", "error"),
        ({ENABLE: ""}, {ENABLE: ""}, "", "error"),
        ({"NCCL_HOSTID": "a"}, {"NCCL_HOSTID": "b"}, "", "info"),
        ({"NCCL_HOSTID": "a"}, {"NCCL_HOSTID": "a"}, "", "error"),
        ({"NCCL_HOSTID": "a"}, {"NCCL_HOSTID": ""}, "", "error"),
        ({}, {}, "", "error"),
    ],
)
@pytest.mark.parametrize("where", ["variables", "files"])
def test_sharing_that_nccl_allows_is_an_info_finding(
    of, with_value, only, change, where, first, second, nccl, severity
):
    job = with_value(of(1, 2, 2), "0")
    for rank, settings in enumerate((first, second)):
        if where == "variables":
            job = change.environment(job, rank, **settings)
        elif settings:
            job = change.nccl_file(job, rank, *(f"{name}={value}" for name, value in settings.items()))
    installed = Installed(python="3.11.7", prefix="/opt", torch=job.nodes[0].torch, nccl=nccl)
    finding, _ = only(change.process(job, None, installed=installed))
    assert (finding.rule, finding.severity) == ("gpu-duplicate", severity)


def test_local_ranks_that_are_equal_or_have_no_gpu_are_reported_by_other_rules(of, with_value, rules):
    job = with_value(of(), None, LOCAL_RANK="0")
    assert {rank.gpu for rank in job.ranks} == {"GPU-1-0"}
    assert rules(job) == []
    job = with_value(of(1, 4, 4), "0,1")
    assert [rank.gpu for rank in job.ranks] == ["GPU-1-0", "GPU-1-1", None, None]
    assert rules(job) == []
