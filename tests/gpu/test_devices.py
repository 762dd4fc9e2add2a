"""The device test on real GPUs."""

from __future__ import annotations

from distcheck.expectation.devices import floor_of


def test_every_gpu_reaches_its_models_floor_and_all_products_are_alike(distcheck, cards):
    words = ("--nproc", "auto", "--sizes", "1M", "--iters", "3", "--burn", "3", "--timeout", "120", "--format", "json")
    ended = distcheck("bandwidth", *words)
    rules = ("gpu-slow-compute", "gpu-slow-memory", "gpu-slow-host-copy", "gpu-wrong-product")
    assert [f for f in ended.report["findings"] if f["rule"] in rules] == [], ended
    rows = ended.report["devices"]
    assert [row["rank"] for row in rows] == list(range(len(cards)))
    for row, card in zip(rows, cards, strict=True):
        assert row["device"] in card.name or card.name in row["device"]
        assert row["dtype"] in {"bfloat16", "float16"}
        assert row["different"] == 0 < row["products"]
        assert row["burn"]["seconds"] >= 3
        assert row["burn"]["last_TFLOPS"] > 0
        floor = floor_of(row["device"])
        if floor is not None:
            assert row["matmul_TFLOPS"] > floor.matmul_TFLOPS
            assert row["memory_GBps"] > floor.memory_GBps
            assert min(row["h2d_GBps"], row["d2h_GBps"]) > floor.host_GBps
