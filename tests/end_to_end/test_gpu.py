"""Which GPU each rank gets, on a node with eight H100 as far as NVML says: the library is ours, the rest is real."""

from __future__ import annotations

from pathlib import Path

import pytest
from forms.sampled import sampled
from real.ended import STARTING_SECONDS

BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
H100 = (Path(__file__).parents[1] / "nvml" / "dgx_h100.txt").read_text()


@pytest.fixture
def gpu(distcheck, fake_nvml):
    """Run ``distcheck gpu --nproc N`` on the node that `text` describes, with further variables."""

    def gpu(nproc, *args, text=H100, **variables):
        told = fake_nvml.environ(text)
        env = {name: told[name] for name in ("LD_LIBRARY_PATH", "DISTCHECK_FAKE_NVML")} | variables
        return distcheck("gpu", "--nproc", str(nproc), "--format", "json", *args, env=env)

    return gpu


def uuids(ended):
    return [row["gpu"]["uuid"] if row["gpu"] else None for row in ended.report["ranks"]]


def named(ended):
    """Return the errors as pairs of rule and ranks."""
    return [(f["rule"], f["ranks"]) for f in ended.report["findings"] if f["severity"] == "error"]


def h100(index):
    return f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd"


@pytest.mark.parametrize(
    ("nproc", "variables", "expected"),
    sampled(
        {
            "all": (8, {}, range(8)),
            "reversed": (4, {"CUDA_VISIBLE_DEVICES": "3,2,1,0"}, (3, 2, 1, 0)),
            "by UUID": (2, {"CUDA_VISIBLE_DEVICES": f"{h100(6)},{h100(2)}"}, (6, 2)),
            "half": (2, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, (4, 5)),
        },
        "all",
        "by UUID",
    ),
)
def test_each_rank_has_the_gpu_that_cuda_would_give_it(gpu, nproc, variables, expected):
    ended = gpu(nproc, **variables)
    assert (ended.code, ended.report["findings"], ended.unchecked) == (0, [], [])
    assert uuids(ended) == [h100(i) for i in expected]
    first = next(iter(expected))
    assert ended.report["ranks"][0]["gpu"] == {
        "index": first, "uuid": h100(first), "pci": f"0000:{BUSES[first]}:00.0", "name": "NVIDIA H100 80GB HBM3",
        "numa_node": first // 4, "cpus": ("0-55,112-167", "56-111,168-223")[first // 4],
        "nic": None, "nic_distance": None,  # this machine's own PCI bus has no such GPU
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "rules"), sampled({"healthy": ("", []), "lost": ("3.lost yes\n", ["gpu-fell-off-bus"])}, "lost")
)
def test_a_bare_shell_sees_the_gpus_and_their_faults_before_it_is_told_to_set_rank(
    distcheck, fake_nvml, changed, rules
):
    told = fake_nvml.environ(H100 + changed)
    env = {name: told[name] for name in ("LD_LIBRARY_PATH", "DISTCHECK_FAKE_NVML")}
    ended = distcheck("gpu", "--format", "json", env=env)
    assert (ended.code, [rule for rule, _ in named(ended)]) == (30, ["env-rank-unset", *rules])
    assert [row["lost"] for row in ended.report["gpus"]] == [bool(changed) and i == 3 for i in range(8)]
    assert ended.report["gpus"][0]["gpu"]["uuid"] == h100(0)
    text = distcheck("gpu", env=env).out
    assert ": 8 GPUs, driver 550.54.15\n" in text
    assert text.index("7 0000:df:00.0 GPU-00000007") < text.index("error: env-rank-unset")


def test_a_rank_on_a_gpu_of_another_job_is_named(gpu):
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}
    ended = gpu(2, CUDA_VISIBLE_DEVICES="0,2", SLURM_STEP_GPUS="0,1", **step)
    assert (ended.code, named(ended)) == (30, [("gpu-outside-allocation", [1])])


def test_a_ninth_rank_on_eight_gpus_is_named(gpu):
    ended = gpu(9)
    assert (ended.code, named(ended)) == (30, [("env-local-rank-out-of-range", [8])])
    assert uuids(ended)[7:] == [h100(7), None]
    (finding,) = ended.report["findings"]
    assert "LOCAL_RANK 8 and sees 8 GPUs" in finding["message"]
    assert "invalid device ordinal" in finding["message"]
    assert finding["fix"]["commands"]


def test_a_list_that_is_too_short_names_the_ranks_beyond_it(gpu):
    ended = gpu(4, CUDA_VISIBLE_DEVICES="0,1")
    assert (ended.code, named(ended)) == (30, [("env-local-rank-out-of-range", [2, 3])])
    assert uuids(ended) == [h100(0), h100(1), None, None]


def test_cpu_ranks_need_no_gpu(gpu):
    ended = gpu(9, "--backend", "gloo")
    assert (ended.code, ended.report["findings"]) == (0, [])


def test_ranks_on_one_gpu_are_named(gpu):
    ended = gpu(2, CUDA_VISIBLE_DEVICES="5")
    assert (ended.code, named(ended)) == (30, [("gpu-duplicate", [0, 1])])
    assert h100(5) in ended.report["findings"][0]["message"]


def test_a_list_that_cuda_misreads_is_one_finding(gpu):
    ended = gpu(4, CUDA_VISIBLE_DEVICES="0 1 2 3")
    assert (ended.code, named(ended)) == (30, [("gpu-cvd-bad-item", [0, 1, 2, 3])])


def test_a_driver_that_does_not_fit_puts_the_node_on_the_exclude_list(gpu):
    ended = gpu(8, text=H100 + "init !18\n")
    assert (ended.code, named(ended)) == (40, [("gpu-nvml-init-failed", list(range(8)))])
    node = ended.report["ranks"][0]["node"]
    assert ended.report["exclude"] == {"hostlist": node, "nodes": [node]}


def test_a_lost_gpu_is_the_one_finding_and_excludes_the_node(gpu):
    ended = gpu(8, text=H100 + "7.lost yes\n")
    assert (ended.code, named(ended)) == (40, [("gpu-fell-off-bus", [7])])
    assert ended.report["exclude"]["nodes"] == [ended.report["ranks"][0]["node"]]


def test_a_hang_ends_within_the_deadline_and_may_pass_elsewhere(gpu):
    ended = gpu(2, "--timeout", "8", text=H100 + "3.name hang\n")
    assert (ended.code, named(ended)) == (20, [("gpu-nvml-init-failed", [0, 1])])
    assert "did not answer" in ended.report["findings"][0]["message"]
    assert ended.report["exclude"]["nodes"] == []
    assert ended.seconds < 13 + STARTING_SECONDS


@pytest.mark.without_gpus
@pytest.mark.parametrize("text", sampled({"no driver": H100 + "init !9\n", "no GPU": H100 + "count 0\n"}, "no driver"))
def test_nccl_without_a_gpu_is_not_a_pass(gpu, text):
    ended = gpu(2, "--backend", "nccl", text=text)
    assert ended.code == 30
    assert [rule for rule, _ in named(ended)] == ["gpu-none-visible"]


def test_nccl_without_nvmls_library_is_not_a_pass(distcheck):
    ended = distcheck("gpu", "--nproc", "2", "--backend", "nccl", "--format", "json")
    assert ended.code != 0 or all(row["gpu"] for row in ended.report["ranks"])
