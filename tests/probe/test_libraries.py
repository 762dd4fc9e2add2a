"""What a process's torch would load: fake libraries; the child, the linker and the facts are real."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.libraries import Libraries
from distcheck.probe import libraries
from distcheck.probe.elf import dynamic


@pytest.fixture
def seen(fake_torch):
    """Ask in a child process that finds the fake torch, with further variables."""

    def seen(**variables):
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "NCCL_"))}
        return asyncio.run(libraries.libraries(environ | fake_torch.environ(**variables), 60))

    return seen


def test_torchs_own_nccl_is_the_one_that_its_rpath_names(seen, fake_torch):
    found = seen(LD_LIBRARY_PATH=str(fake_torch.libraries / "old"))
    own = str((fake_torch.site / "nvidia" / "nccl" / "lib" / "libnccl.so.2").resolve())
    assert found == Libraries(
        nccl=own, version="2.27.3", found_by="torch", own=own, wheels=("nvidia-nccl-cu12 2.27.3",),
        architectures=("sm_70", "sm_80", "sm_90"), machine=os.uname().machine,
    )  # fmt: skip


def test_ld_library_path_comes_before_a_runpath(seen, fake_torch):
    shutil.copy(fake_torch.libraries / "runpath" / "libtorch_cuda.so", fake_torch.site / "torch" / "lib")
    assert seen().found_by == "torch"
    cannot_be_looked_into = "/" + "a" * 300
    found = seen(LD_LIBRARY_PATH=f"/none:{cannot_be_looked_into}:{fake_torch.libraries / 'older'}")
    assert (found.found_by, found.version, found.own_version, found.lacks) == (
        "LD_LIBRARY_PATH",
        "2.26.2",
        "2.27.3",
        (),
    )
    assert found.nccl == str((fake_torch.libraries / "older" / "libnccl.so.2").resolve())


def test_ld_preload_comes_before_all_and_missing_functions_are_named(seen, fake_torch):
    found = seen(LD_PRELOAD=str(fake_torch.libraries / "old" / "libnccl.so.2"))
    assert (found.found_by, found.version, found.own_version) == ("LD_PRELOAD", "2.18.1", "2.27.3")
    assert found.lacks == ("ncclCommWindowRegister",)


def test_an_nccl_that_is_linked_into_torch_has_no_file(seen, fake_torch):
    shutil.copy(fake_torch.libraries / "static" / "libtorch_cuda.so", fake_torch.site / "torch" / "lib")
    found = seen(LD_LIBRARY_PATH=str(fake_torch.libraries / "old"))
    assert (found.nccl, found.version, found.error, found.wheels) == ("", "", "", ())


def test_an_nccl_that_is_not_there_is_the_linkers_error(seen, fake_torch):
    shutil.rmtree(fake_torch.site / "nvidia")
    found = seen()
    assert "libnccl.so.2: cannot open shared object file" in found.error or found.found_by == "system"


def test_an_nccl_in_another_folder_of_pythons_path_is_found_as_torch_finds_it(seen, fake_torch, tmp_path):
    shutil.move(fake_torch.site / "nvidia", tmp_path / "user" / "nvidia")
    found = seen(PYTHONPATH=f"{fake_torch.site}:{tmp_path / 'user'}")
    assert (found.version, found.error) == ("2.27.3", "")


def test_a_file_that_is_no_nccl_is_an_error_with_its_path(seen, fake_torch):
    file = fake_torch.site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    file.write_text("not a library")
    found = seen()
    assert (found.nccl, found.version) == (str(file.resolve()), "")
    assert "invalid ELF header" in found.error or "file too short" in found.error


def test_two_wheels_of_nccl_are_both_listed(seen, fake_torch):
    (fake_torch.site / "nvidia_nccl_cu13-2.29.7.dist-info").mkdir()
    assert seen().wheels == ("nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.29.7")


def test_a_torch_without_cuda_libraries_is_missing(seen, fake_torch):
    (fake_torch.site / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"")
    found = seen()
    assert isinstance(found, Missing)
    assert found.reason.endswith("libtorch_cuda.so cannot be read")


# -- plugins


def test_plugins_are_opened_as_nccl_opens_them(seen, fake_torch):
    folders = f"{fake_torch.libraries / 'v8'}:{fake_torch.libraries / 'tuner'}"
    net, tuner = seen(LD_LIBRARY_PATH=folders, NCCL_TUNER_PLUGIN="ours").plugins
    assert (net.kind, net.name, net.interfaces) == ("net", "libnccl-net.so", ("ncclNetPlugin_v8",))
    assert net.path == str((fake_torch.libraries / "v8" / "libnccl-net.so").resolve())
    assert (tuner.kind, tuner.name, tuner.interfaces) == ("tuner", "libnccl-tuner-ours.so", ("ncclTunerPlugin_v4",))


@pytest.mark.parametrize("value", ["none", "None", "absent", "/absent/libnccl-net.so"])
def test_a_plugin_that_is_switched_off_or_absent_is_none(seen, fake_torch, value):
    assert seen(LD_LIBRARY_PATH=str(fake_torch.libraries / "v8"), NCCL_NET_PLUGIN=value).plugins == ()


def test_a_plugin_whose_own_library_is_absent_is_the_linkers_error(seen, fake_torch):
    (plugin,) = seen(LD_LIBRARY_PATH=str(fake_torch.libraries / "broken")).plugins
    assert plugin.error.startswith("libabsent.so.1: cannot open shared object file")


# -- the dynamic section


def test_a_cut_or_damaged_library_is_none_and_never_an_exception(fake_torch, tmp_path):
    whole = (fake_torch.libraries / "rpath" / "libtorch_cuda.so").read_bytes()
    cut = tmp_path / "cut.so"
    for length in (0, 1, 5, 40, 63, 64, 100, 200, 500, 1000, len(whole) // 2):
        cut.write_bytes(whole[:length])
        dynamic(cut)
    for place in range(0, 800, 7):
        cut.write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        dynamic(cut)
    assert dynamic(tmp_path / "absent.so") is None
    assert dynamic(Path(__file__)) is None


def test_a_rocm_torch_loads_rccl_and_its_plugin(seen, fake_torch):
    lib, made = fake_torch.site / "torch" / "lib", fake_torch.libraries
    (lib / "libtorch_cuda.so").unlink()
    shutil.copy(made / "hip" / "libtorch_hip.so", lib)
    shutil.copy(made / "rccl" / "librccl.so.1", lib)
    found = seen(LD_LIBRARY_PATH=f"{made / 'rccl'}:{made / 'v8'}")
    assert (found.nccl, found.version, found.found_by) == (str((lib / "librccl.so.1").resolve()), "2.22.6", "torch")
    assert [(plugin.kind, plugin.name) for plugin in found.plugins] == [("net", "librccl-net.so")]
