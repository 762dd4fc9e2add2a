"""Measured figures as the reports show them."""

from types import SimpleNamespace

from distcheck.report.measured import models
from distcheck.report.schema.figures import Model

FITTED = Model("all_reduce", "float32", 2, 2e-5, 4.0, 4.0, 80_000, 0.02)


def test_a_fit_shows_latency_bandwidth_and_the_size_of_half_the_peak():
    (line,) = models(SimpleNamespace(models=(FITTED,)))
    assert line == (
        "all_reduce: 0.0200 ms + size / 4.00 GB/s, busbw 4.00 GB/s at large sizes; half of peak at 78 KiB; fit error 2%"
    )


def test_times_in_proportion_to_the_size_have_no_latency_and_no_half():
    (line,) = models(SimpleNamespace(models=(Model("broadcast", "float32", 2, 0.0, 4.0, None, 0, 0.02),)))
    assert line == "broadcast: size / 4.00 GB/s; fit error 2%"
