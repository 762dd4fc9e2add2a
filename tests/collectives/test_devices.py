"""The device test on CPU tensors: rates, exact products, and the CPUs near a GPU."""

import os
import time

import pytest

from distcheck.collectives import compute, devices
from distcheck.collectives.software import torch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    """Have torch work in this thread only, as in a rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_cpu_is_tested_in_the_same_way_every_time():
    said = []
    first, second = (devices.test(CPU, 0, 0.01, 0.0, said.append) for _ in range(2))
    assert said == ["memory and products"] * 2
    assert (first.dtype, first.order, first.different, first.burn) == ("float32", 256, 0, None)
    assert first.matmul_TFLOPS > 0 < first.memory_GBps
    assert (first.h2d_GBps, first.d2h_GBps) == (None, None)
    assert first.checksum == second.checksum
    assert first.products > 4


@pytest.mark.parametrize(("waits", "rounds"), [(True, 3), (False, 2)])
def test_a_rank_that_waited_for_a_cpu_is_looked_at_once_more_and_its_best_counts(monkeypatch, waits, rounds):
    rates = iter([1.0, 1.0, 2.0, 2.0, 9.0, 9.0])
    waited = iter([0.0, 60.0 if waits else 0.0])
    monkeypatch.setattr(devices, "rate", lambda *_: next(rates))
    monkeypatch.setattr(devices, "waited_for_cpu", lambda: next(waited))
    monkeypatch.setattr(devices, "_BUSY_PAUSE_SECONDS", 0.0)
    one = devices.test(CPU, 0, 0.01, 0.0, lambda _: None)
    assert len(list(rates)) == 6 - 2 * rounds
    assert one.memory_GBps / one.memory_least_GBps == pytest.approx(9.0 if waits else 2.0)


def test_the_burn_repeats_products_for_its_time_and_says_so():
    said = []
    one = devices.test(CPU, 0, 0.01, 1.3, said.append)
    assert said == ["memory and products", "burn, 0 of 1.3 s", "burn, 1 of 1.3 s"]
    assert 1.3 <= one.burn.seconds < 3
    assert one.burn.first_TFLOPS > 0 < one.burn.last_TFLOPS
    assert one.products > devices.test(CPU, 0, 0.01, 0.0, said.append).products
    assert one.different == 0


def test_every_product_with_another_bit_is_counted(monkeypatch):
    real, calls = torch.matmul, []

    def faulty(left, right, out=None):
        made = real(left, right) if out is None else real(left, right, out=out)
        calls.append(made)
        if len(calls) in {3, 7}:
            made.view(torch.int32)[5, 9] ^= 1  # the lowest bit of one element
        return made

    monkeypatch.setattr(torch, "matmul", faulty)
    products = devices.Products(CPU, 64)
    for _ in range(9):
        products()
    assert (products.made, int(products.different)) == (10, 2)


def test_products_of_whole_numbers_are_exact_in_every_type():
    exact = devices.Products(CPU, 64)
    assert torch.equal(exact._out.double(), exact._left.double() @ exact._right.double())
    values = devices._whole_numbers(256, CPU, torch.float32, 1)
    assert set(values.unique().tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert 4 * devices._GPU.order < torch.finfo(torch.float16).max, "no sum overflows float16"
    assert 4 * devices._GPU.order < 1 << 24, "every sum is exact in float32"


def test_a_rate_counts_calls_per_second():
    ticks = []
    assert devices.rate(lambda: ticks.append(sum(range(20_000))), CPU, 0.05) == pytest.approx(
        1 / (devices._one_call(lambda: sum(range(20_000)), CPU)), rel=3
    )
    assert len(ticks) > 4


def test_host_copies_wait_for_their_turn():
    to_device, to_host = devices.host_copies(CPU, 1 << 16, 0.001, 0.05)
    assert to_device > 0 < to_host


def test_too_little_memory_is_no_fault(monkeypatch):
    def lacking(*_args):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(devices, "Products", lacking)
    said = devices.test(CPU, 0, 0.01, 0.0, lambda _text: None)
    assert said.reason == "too little free GPU memory for the device test"


def test_a_rank_works_on_the_cpus_near_its_gpu_and_gets_its_own_back(tmp_path, monkeypatch):
    before = os.sched_getaffinity(0)
    one = min(before)
    folder = tmp_path / "bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    monkeypatch.setattr(devices, "_pci_address", lambda _device: "0000:1b:00.0")
    for text, during in ((f"{one}\n", {one}), ("9998-9999\n", before), ("", before)):
        (folder / "local_cpulist").write_text(text)
        with devices.near(CPU, tmp_path):
            assert os.sched_getaffinity(0) == during, text
        assert os.sched_getaffinity(0) == before
    with devices.near(CPU, tmp_path / "without"):
        assert os.sched_getaffinity(0) == before


def test_waiting_for_a_cpu_never_makes_work_look_quicker_than_it_was(monkeypatch):
    waits = iter((0.0, 5.0))  # the kernel counts a wait that ended after the work
    monkeypatch.setattr(compute, "waited_for_cpu", lambda: next(waits))
    before = time.thread_time()
    took, done = compute.own_seconds(lambda: sum(range(200_000)), 5, CPU)
    assert done == 5
    assert 0.5 * (time.thread_time() - before) < took <= time.thread_time() - before


def test_throttling_counts_and_waiting_for_others_does_not(monkeypatch):
    for waited, held, least, most in ((0.5, 0.0, 0.0, 0.4), (0.5, 0.5, 0.5, 9.0)):
        waits, holds = iter((0.0, waited)), iter((0.0, held))
        monkeypatch.setattr(compute, "waited_for_cpu", lambda waits=waits: next(waits))
        monkeypatch.setattr(compute, "throttled", lambda holds=holds: next(holds))
        took, _ = compute.own_seconds(lambda: time.sleep(0.5), 1, CPU)
        assert least <= took <= most


def test_no_more_calls_begin_after_the_longest_time():
    _, done = compute.own_seconds(lambda: time.sleep(0.02), 1000, CPU, 0.05)
    assert 1 <= done <= 3
