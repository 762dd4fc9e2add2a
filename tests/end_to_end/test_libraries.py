"""`distcheck gpu` with a torch that loads another NCCL, or was built for another machine; the libraries are fakes."""

from __future__ import annotations

import shutil

import pytest
from made.nvml_jobs import PROFILES

H200 = PROFILES["h200"]
"""Driver 570.124.06, CUDA 12.8."""


@pytest.fixture
def seen(gpu, fake_torch):
    """Return the findings of two ranks on eight H200 that use the fake torch, and the exit code."""

    def seen(*args, text="", folders=(), **variables):
        path = ":".join(str(fake_torch.libraries / folder) for folder in folders)
        told = gpu(
            2, H200 + text, *args, **fake_torch.environ(**variables), **({"more_libraries": path} if path else {})
        )
        return [(f["rule"], f["severity"], f["ranks"]) for f in told.report["findings"]], told

    return seen


@pytest.fixture
def pair(start, fake_nvml, fake_torch, port):
    """Start rank 0 and rank 1 by hand, rank 1 with further variables, and return rank 0's report."""

    def pair(more_libraries="", **second):
        common = fake_nvml.variables(H200) | fake_torch.environ()
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        second |= {"LD_LIBRARY_PATH": f"{common['LD_LIBRARY_PATH']}:{more_libraries}"} if more_libraries else {}
        ranks = ({"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"} | second)
        running = [start("gpu", "--format", "json", env=common | own) for own in ranks]
        first, _ = [each.wait() for each in running]
        return first.report

    return pair


def test_another_nccl_on_one_rank_is_one_finding_at_that_rank(pair, fake_torch):
    report = pair(LD_PRELOAD=str(fake_torch.libraries / "older" / "libnccl.so.2"))
    (finding,) = report["findings"]
    assert (finding["rule"], finding["severity"]) == ("sw-nccl-version-differs", "error")
    assert "NCCL 2.26.2" in finding["message"]
    assert any("LD_PRELOAD" in line for line in finding["evidence"].values())


def test_a_plugin_on_one_rank_only_is_an_error(pair, fake_torch):
    (finding,) = pair(more_libraries=str(fake_torch.libraries / "v8"))["findings"]
    assert (finding["rule"], finding["severity"]) == ("nccl-net-plugin-on-some-ranks", "error")


def test_a_torch_that_fits_is_silent(seen):
    found, ended = seen(folders=("v8", "old"))
    assert (found, ended.code) == ([], 0), "its RPATH comes before LD_LIBRARY_PATH, and the plugin fits"


def test_an_older_nccl_from_ld_preload_is_one_error(seen, fake_torch):
    found, ended = seen(LD_PRELOAD=str(fake_torch.libraries / "old" / "libnccl.so.2"))
    assert (found, ended.code) == ([("sw-nccl-shadowed", "error", [0, 1])], 30)
    assert "torch calls ncclCommWindowRegister" in ended.report["findings"][0]["message"]


def test_a_system_nccl_is_a_warning_where_torch_has_a_runpath(seen, fake_torch):
    shutil.copy(fake_torch.libraries / "runpath" / "libtorch_cuda.so", fake_torch.site / "torch" / "lib")
    found, ended = seen(folders=("older",))
    assert (found, ended.code) == ([("sw-nccl-shadowed", "warning", [0, 1])], 0)
    assert "from LD_LIBRARY_PATH (NCCL 2.26.2) is loaded in place of" in ended.report["findings"][0]["message"]


def test_a_plugin_for_an_older_nccl_is_a_warning(seen):
    found, ended = seen(folders=("v5",))
    assert found == [("sw-plugin-abi", "warning", [0, 1])]
    assert "exports ncclNetPlugin_v5; NCCL 2.27.3 accepts v6 to v10" in ended.report["findings"][0]["message"]


def test_a_release_with_a_known_fault_is_named(seen, fake_torch):
    shutil.copy(fake_torch.libraries / "launch" / "libnccl.so.2", fake_torch.site / "nvidia" / "nccl" / "lib")
    found, _ = seen(CUDA_LAUNCH_BLOCKING="1")
    assert found == [("sw-nccl-known-bad", "warning", [0, 1])]


DENY_GET_MEMPOLICY = """
import ctypes, os, struct
number = {"x86_64": 239, "aarch64": 236}[os.uname().machine]
load, if_equal, fail, allow = (0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)
code = (load, if_equal, fail, allow)
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(text)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
zero = ctypes.c_ulong(0)
assert prctl(38, ctypes.c_ulong(1), zero, zero, zero) == 0
assert prctl(22, ctypes.c_ulong(2), program) == 0, os.strerror(ctypes.get_errno())
"""
"""As sitecustomize.py: what Docker's seccomp profile does to a container without CAP_SYS_NICE."""


def test_a_container_that_denies_memory_policies_is_a_warning_for_an_nccl_that_needs_them(seen, fake_torch):
    (fake_torch.site / "sitecustomize.py").write_text(DENY_GET_MEMPOLICY)
    shutil.copy(fake_torch.libraries / "older" / "libnccl.so.2", fake_torch.site / "nvidia" / "nccl" / "lib")
    found, ended = seen()
    assert (found, ended.code) == ([("nccl-cumem-host-docker", "warning", [0, 1])], 0)
    message = ended.report["findings"][0]["message"]
    assert "get_mempolicy fails (Operation not permitted); NCCL 2.26.2 does not check" in message


def test_a_driver_of_an_older_cuda_is_one_error(seen, fake_torch):
    fake_torch.version("2.9.0+cu130", "13.0")
    found, ended = seen()
    assert (found, ended.code) == ([("sw-driver-too-old", "error", [0, 1])], 30)
    assert "torch 2.9.0+cu130 needs CUDA 13; driver 570.124.06 supports 12.8" in ended.report["findings"][0]["message"]
    assert seen(text="cuda 13000\n")[0] == [], "a newer driver, or a compatibility library"


def test_a_gpu_without_code_in_torch_is_one_error(seen):
    found, ended = seen(text="cuda.capability 12 0\n")
    assert (found, ended.code) == ([("sw-arch-unsupported", "error", [0, 1])], 30)
    assert "the GPU is sm_120; torch 2.8.0+cu128 was built for sm_70 to sm_90" in ended.report["findings"][0]["message"]


def test_a_cpu_build_is_one_error_if_nccl_is_asked_for(seen, fake_torch):
    fake_torch.version("2.8.0+cpu", None)
    found, ended = seen("--backend", "nccl")
    assert (found, ended.code) == ([("sw-torch-cpu-build", "error", [0, 1])], 30)


def test_a_plugin_that_hangs_is_left_behind_and_blames_nobody(seen):
    found, ended = seen(folders=("hang",))
    assert (found, ended.code) == ([], 0)
    assert {n["rule"] for n in ended.report["not_checked"]} >= {"sw-nccl-shadowed", "sw-plugin-abi"}
