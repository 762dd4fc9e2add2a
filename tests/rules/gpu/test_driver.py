"""torch's build against the driver and the GPUs."""

from __future__ import annotations

import pytest

from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.libraries import Libraries
from distcheck.facts.node import TorchBuild
from distcheck.facts.rank import Installed
from distcheck.rules.gpu.driver import runs

BUILT = ("sm_75", "sm_80", "sm_86", "sm_90", "compute_90")


@pytest.fixture
def with_torch(change):
    """Return a job whose nodes, or one of them, have this torch, and its processes on them."""

    def made(job, torch, number=None):
        job = change.node(job, number, torch=torch)
        its = None if number is None else (2 * number, 2 * number + 1)
        return change.process(job, its, installed=Installed("3.11.7", "/opt/venv", torch))

    return made


@pytest.fixture
def job(job_of, change, with_torch):
    """Four nodes of two GPUs; torch needs CUDA `cuda`, CUDA supports `supported` on the nodes of `old`."""

    def make(cuda="12.8", supported=12080, old=(), capability=(9, 0), built=BUILT, error=0):
        made = with_torch(job_of(4, 2, "slurm", looks=("gpu",), gpus=2), TorchBuild("2.8.0", cuda, None))
        made = change.process(made, None, libraries=Libraries(version="2.27.3", architectures=built))
        for n, rank in enumerate(made.ranks):
            devices = tuple(CudaDevice(uuid, capability=capability) for uuid in rank.visible_gpus)
            version = 12020 if n // 2 in old else supported
            view = CudaView(() if error else devices, version=version, error=error)
            made = change.rank(made, n, cuda=view)
        return made

    return make


@pytest.fixture
def said(judge):
    def said(job):
        made = judge(job, "gpu.driver", "gpu.fleet")
        return [(f.rule, f.severity, f.scope, f.ranks, f.nodes) for f in made.findings], made.verdict.exit_code

    return said


@pytest.mark.parametrize(("cuda", "supported"), [("12.8", 12080), ("12.8", 12020), ("12.1", 13000), ("11.8", 12040)])
def test_a_driver_of_the_same_or_a_newer_major_version_is_silent(job, said, cuda, supported):
    assert said(job(cuda, supported)) == ([], 0)


def test_a_compatibility_library_counts_as_the_version_that_it_supports(job, said, gpus):
    """NVML reports the driver's CUDA 12.4; the libcuda that the ranks load supports 13.0."""
    made = job("13.0", 13000)
    assert said(gpus(made, driver="550.54", cuda_driver="12.4"))[0] == []


def test_an_old_driver_on_one_node_is_an_error_there_and_the_only_finding(job, said, gpus):
    made = job("13.0", 13000, old=(2,))
    made = gpus(made, 2, driver="535.183", cuda_driver="12.2")
    assert said(made) == ([("sw-driver-too-old", "error", "node", (4, 5), ("node3",))], 40)


def test_an_old_driver_everywhere_is_a_fault_of_the_job(job, said):
    found, code = said(job("13.0", 12020))
    assert [f[:3] for f in found] == [("sw-driver-too-old", "error", "job")]
    assert code == 30


def test_nvml_decides_where_cuda_was_not_asked(job, said, change, gpus):
    made = change.rank(job("13.0", 13000), None, cuda=None)
    found, _ = said(gpus(made, cuda_driver="12.4"))
    assert [f[0] for f in found] == ["sw-driver-too-old"]


@pytest.mark.parametrize("error", [803, 804, 34])
def test_a_wrong_libcuda_is_left_to_its_own_rule(job, said, error):
    assert said(job("13.0", 12020, error=error))[0] == []


@pytest.mark.parametrize(
    ("capability", "architecture", "expected"),
    [
        ((9, 0), "sm_90", True),
        ((8, 9), "sm_86", True),
        ((8, 0), "sm_86", False),
        ((12, 0), "sm_90", False),
        ((12, 0), "compute_90", True),
        ((7, 5), "compute_80", False),
        ((9, 0), "sm_90a", True),
        ((10, 0), "sm_90a", False),
        ((10, 3), "sm_100", True),
        ((10, 3), "sm_100f", True),
        ((9, 0), "gfx90a", False),
    ],
)
def test_which_code_a_gpu_runs(capability, architecture, expected):
    assert runs(capability, architecture) == expected


@pytest.mark.parametrize(
    ("capability", "built", "bad"),
    [
        ((9, 0), BUILT, False),
        ((12, 0), BUILT, False),
        ((12, 0), BUILT[:-1], True),
        ((7, 0), BUILT, True),
        ((0, 0), BUILT, False),
        ((12, 0), (), False),
    ],
)
def test_a_gpu_for_which_torch_has_no_code_is_an_error(job, said, capability, built, bad):
    found, code = said(job(capability=capability, built=built))
    assert [f[0] for f in found] == (["sw-arch-unsupported"] if bad else [])
    assert code == (30 if bad else 0)


def test_a_cpu_build_is_an_error_only_where_nccl_is_asked_for_on_gpus(job, said, change, with_torch):
    made = with_torch(job(), TorchBuild("2.8.0+cpu", None, None))
    found, code = said(change.asked(made, backend="nccl"))
    assert ([f[0] for f in found], code) == (["sw-torch-cpu-build"], 30)
    assert said(made) == ([], 0)
    assert said(change.asked(job(), backend="nccl")) == ([], 0)
    rocm = with_torch(job(), TorchBuild("2.8.0+rocm6.4", None, "6.4"))
    assert said(change.asked(rocm, backend="nccl")) == ([], 0)
    one = with_torch(change.asked(job(), backend="nccl"), TorchBuild("2.8.0+cpu", None, None), 2)
    assert said(one)[0] == [], "sw-torch-version-differs reports it"
