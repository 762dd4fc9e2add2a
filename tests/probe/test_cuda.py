"""What CUDA shows to a process: a fake library; the child, ctypes and facts are real."""

from __future__ import annotations

import asyncio
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.nvml_jobs import PROFILES

from distcheck.collectives.plan import gpu_uuid
from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.gpu import Gpu
from distcheck.facts.placement import Placement
from distcheck.probe import cuda, gpu, host
from distcheck.probe.own import rank_facts
from distcheck.selection.visible_devices import visible

H100 = PROFILES["dgx_h100"]
MIG = PROFILES["dgx_h100_mig"]
MIXED = "".join(f"{i}.name {name}\n" for i, name in enumerate(["NVIDIA T4", "NVIDIA A100", "NVIDIA A100", "NVIDIA T4"]))
FOUR = H100 + "count 4\n" + MIXED + "cuda.order 1 2 0 3\n"


@pytest.fixture
def views(fake_nvml):
    """Ask CUDA on the node that `text` describes, once per rank, with its own variables added."""

    def views(text, *ranks, seconds=20.0):
        environ = fake_nvml.environ(text)
        return asyncio.run(cuda.views([environ | variables for variables in ranks or ({},)], seconds))

    return views


def h100(index):
    return f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd"


def uuids(view):
    assert view.error == 0, view
    return [device.uuid for device in view.devices]


def test_every_device_has_its_uuid_and_address(views, fake_nvml):
    (view,) = views(H100)
    assert uuids(view) == [h100(i) for i in range(8)]
    assert view.devices[0] == CudaDevice(h100(0), "0000:1b:00.0", (9, 0))
    assert view.version > 12000
    assert view.library == str((fake_nvml.folder / "libcuda.so.1").resolve())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3,2", [3, 2]),
        ("", None),
        ("0,0", None),
        ("0,99,1", [0]),
        ("0,-1,1", [0]),
        (f"{h100(6)},{h100(2)}", [6, 2]),
        ("GPU-00000005", [5]),
        (f"{h100(6)},1", [6]),
        ("all", None),
    ],
)
def test_the_fake_and_the_prediction_read_a_list_the_same_way(views, fake_nvml, monkeypatch, value, expected):
    (view,) = views(H100, {"CUDA_VISIBLE_DEVICES": value})
    shown = uuids(view) if expected else []
    assert (view.error == 100) is (expected is None)
    assert shown == [h100(i) for i in expected or ()]
    for name, text in fake_nvml.environ(H100).items():
        monkeypatch.setenv(name, text)
    devices = asyncio.run(gpu.gpus(20.0, health=False)).devices
    assert list(visible(value, devices).uuids) == shown


def test_equal_environments_share_one_child(views, tmp_path, other_python):
    log = tmp_path / "started"
    ranks = [{"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "1", "RANK": "2"}]
    found = [uuids(view) for view in views(H100, *ranks)]
    assert found == [[h100(1)], [h100(2)], [h100(1)]]
    environ = {"PATH": "/usr/bin:/bin"}
    other_python(f'echo "$CUDA_VISIBLE_DEVICES" >> {log}\nexec {sys.executable} "$@"')
    asyncio.run(cuda.views([environ | rank for rank in ranks], 20.0))
    assert sorted(log.read_text().split()) == ["1", "2"]


def test_the_fastest_gpu_is_first_unless_the_bus_decides(views):
    by_speed, by_bus = views(FOUR, {}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert uuids(by_speed) == [h100(i) for i in (1, 2, 0, 3)]
    assert uuids(by_bus) == [h100(i) for i in range(4)]


def test_gpus_that_cuda_hides_are_missing(views):
    (view,) = views(H100 + "3.lost yes\ncuda.hidden 5\n")
    assert uuids(view) == [h100(i) for i in (0, 1, 2, 4, 6, 7)]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (3, "initialization error"),
        (804, "forward compatibility was attempted on non supported HW"),
        (999, "unknown error"),
        (12345, "unrecognized error code"),
    ],
)
def test_an_error_keeps_its_number_and_has_a_text(views, number, words):
    (view,) = views(H100 + f"cuda.init !{number}\n")
    assert (view.devices, view.error, view.words) == ((), number, words)


@pytest.mark.process
def test_a_missing_library_has_a_reason(tmp_path):
    environ = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(tmp_path)}
    (tmp_path / "libcuda.so.1").write_text("no library\n")
    (view,) = asyncio.run(cuda.views([environ], 20.0))
    assert isinstance(view, Missing)
    assert view.reason.startswith("libcuda.so.1 cannot be loaded: ")


def test_a_hang_ends_at_the_deadline_and_a_crash_is_reported(views):
    (hung,) = views(H100 + "cuda.init hang\n", seconds=1.0)
    assert hung == Missing(reason="CUDA did not answer within 1 s: a GPU, its driver or the MPS daemon hangs")
    (crashed,) = views(H100 + "cuda.init crash\n")
    assert crashed == Missing(reason="CUDA crashed the process that queried it: SIGSEGV")


# -- names


def gpu_of(index, uuid, **more):
    known = {"pci": f"0000:0{index}:00.0", "name": "GPU", "memory_bytes": 1, "memory_used_bytes": 0, "mig": False}
    return Gpu(index, uuid, **(known | more))


def test_a_mig_device_is_named_as_nvml_names_it(views, fake_nvml, monkeypatch):
    (view,) = views(MIG)
    assert uuids(view) == [h100(0)], "CUDA does not tell the kind of a UUID"
    devices = (gpu_of(0, "GPU-a", mig=True, mig_uuids=("MIG-00000000-aaaa-bbbb-cccc-dddddddddddd",)),)
    named = cuda.as_nvml_names(view, devices)
    assert uuids(named) == ["MIG-00000000-aaaa-bbbb-cccc-dddddddddddd"]


def test_a_gpu_without_nvml_uuid_is_found_by_its_address():
    view = CudaView((CudaDevice("GPU-x", "0000:01:00.0"), CudaDevice("GPU-y", "0000:09:00.0"), CudaDevice("", "")))
    named = cuda.as_nvml_names(view, (gpu_of(1, Missing(reason="NVML error 3: Not Supported")),))
    assert uuids(named) == ["PCI-0000:01:00.0", "GPU-y", ""]
    assert [device.pci for device in named.devices] == ["", "0000:09:00.0", ""]


def test_an_old_driver_names_the_gpu_and_the_prediction_its_mig_device():
    devices = (gpu_of(0, "GPU-a", mig=True, mig_uuids=("MIG-1", "MIG-2")),)
    view = CudaView((CudaDevice("GPU-a", "0000:00:00.0"),))
    assert uuids(cuda.as_nvml_names(view, devices, predicted=("MIG-2",))) == ["MIG-2"]
    assert uuids(cuda.as_nvml_names(view, devices)) == ["GPU-a"]


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.booleans(), st.sampled_from([4, 8]))
def test_addresses_are_compared_as_numbers(domain, bus, device, upper, width):
    text = f"{domain:0{width}x}:{bus:02x}:{device:02x}.0"
    assert cuda.pci_address(text.upper() if upper else text) == f"{domain:04x}:{bus:02x}:{device:02x}.0"


@given(st.text())
def test_an_invalid_address_is_empty(text):
    found = cuda.pci_address(text)
    assert found == "" or found.count(":") == 2


# -- what becomes of it


@pytest.fixture
def rank_of(fake_nvml, monkeypatch):
    """Return rank 1's facts on the node that `text` describes, with CUDA's answer `view`."""

    def rank_of(text, view, **variables):
        for name, value in fake_nvml.environ(text).items():
            monkeypatch.setenv(name, value)
        node = host.collect({}, gpus=asyncio.run(gpu.gpus(20.0, health=False)))
        return rank_facts("p", node, Placement(rank=1, local_rank=1), variables, view)

    return rank_of


def test_cuda_decides_the_gpu_of_a_rank(views, rank_of):
    (view,) = views(FOUR)
    rank = rank_of(FOUR, view)
    assert rank.visible_gpus == tuple(h100(i) for i in (1, 2, 0, 3))
    assert rank.gpu == h100(2)
    assert uuids(rank.cuda) == uuids(view)
    assert {device.pci for device in rank.cuda.devices} == {""}, "NVML says it already"


@pytest.mark.parametrize(
    "view", [None, Missing(reason="CUDA hangs"), CudaView((), error=999), CudaView((CudaDevice("", ""),))]
)
def test_without_cuda_the_gpu_is_predicted(rank_of, view):
    rank = rank_of(FOUR, view)
    assert rank.visible_gpus == tuple(h100(i) for i in range(4))
    assert rank.gpu == h100(1)


def test_the_gpu_of_a_uuid_that_nvml_does_not_report_is_unknown_without_cuda(views, rank_of):
    text, variables = H100 + "uuid !3\n", {"CUDA_VISIBLE_DEVICES": f"{h100(1)},{h100(2)}"}
    rank = rank_of(text, None, **variables)
    assert "whose UUID NVML does not report" in rank.visible_gpus.reason
    assert rank.gpu is None
    (view,) = views(H100, variables)
    rank = rank_of(text, view, **variables)
    assert rank.visible_gpus == ("PCI-0000:43:00.0", "PCI-0000:52:00.0")
    assert rank.gpu == "PCI-0000:52:00.0"


def test_cuda_decides_the_gpu_without_nvml(views, rank_of):
    (view,) = views(FOUR)
    assert rank_of(FOUR + "init !999\n", view).gpu == h100(2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ffc79498-8ff3-4a5b-9c0d-0123456789ab", "GPU-ffc79498-8ff3-4a5b-9c0d-0123456789ab"),
        ("GPU-FFC79498-8ff3-4a5b-9c0d-0123456789ab", "GPU-ffc79498-8ff3-4a5b-9c0d-0123456789ab"),
        ("MIG-ffc79498-8ff3-4a5b-9c0d-0123456789ab", "GPU-ffc79498-8ff3-4a5b-9c0d-0123456789ab"),
        ("66346130-3735", None),
        ("", None),
        ("None", None),
    ],
)
def test_torchs_uuid_has_nvmls_form(text, expected):
    assert gpu_uuid(text) == expected
