"""RDMA ports in loopback: the real child and a fake ib_write_bw on PATH that behaves as perftest's does."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from made import hcas
from made.hcas import infiniband as adapter

from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.placement import Placement
from distcheck.probe import infiniband, loopback
from distcheck.run import collect

FAKE = Path(__file__).parents[1] / "fakes" / "ib_write_bw.py"


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Return a function that measures adapters with these rates by port, as distcheck does."""

    def measured(adapters, rates, seconds=30.0, **asked):
        (tmp_path / "bin").mkdir(exist_ok=True)
        if rates is not None:
            program = tmp_path / "bin" / "ib_write_bw"
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
            program.chmod(0o755)
            monkeypatch.setenv("FAKE_RATES", json.dumps(rates))
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        found = infiniband.collect(hcas.write(tmp_path, adapters), {})
        if asked:  # as a run collects them
            monkeypatch.setattr(infiniband, "infiniband", lambda _seconds: asyncio.sleep(0, found))
            run = SimpleNamespace(
                asked=Asked("gate", ("gpu", "collectives"), backend="nccl", **asked),
                request=SimpleNamespace(placements=(Placement(launcher="by hand"),)),
                remaining=lambda _reserve: seconds,
            )
            found = asyncio.run(collect._infiniband(run, "nvidia"))
        else:
            found = asyncio.run(loopback.loopback(found, seconds))
        return {hca.name: hca.ports[0].loopback_Gbps for hca in found.hcas}

    return measured


@pytest.mark.process
def test_every_port_that_is_up_is_measured_with_its_own_server_and_client(measured):
    adapters = [
        adapter("mlx5_0"), adapter("mlx5_1"), adapter("mlx5_2", state="DOWN"), adapter("rxe0", driver=""),
        adapter("mlx5_3"),
    ]  # fmt: skip
    found = measured(adapters, {"mlx5_0:1": 391.5, "mlx5_1:1": 130.25, "mlx5_3:1": " Failed to modify QP to RTR"})
    assert (found["mlx5_0"], found["mlx5_1"], found["mlx5_2"], found["rxe0"]) == (391.5, 130.25, None, None)
    assert found["mlx5_3"] == Missing("ib_write_bw ended with exit code 1: Failed to modify QP to RTR")


@pytest.mark.process
def test_a_port_that_hangs_costs_only_its_own_figure_and_leaves_nothing_behind(measured):
    begin = time.monotonic()
    found = measured([adapter("mlx5_0"), adapter("mlx5_1")], {"mlx5_0:1": 391.5, "mlx5_1:1": "hang"}, seconds=4.0)
    assert time.monotonic() - begin < 10
    assert found["mlx5_0"] == 391.5
    assert isinstance(found["mlx5_1"], Missing)
    assert "did not answer within 4 s" in found["mlx5_1"].reason
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(FAKE) in _read(path)]
    assert not left


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.process
@pytest.mark.parametrize(("asked", "rate"), [(True, 391.5), (False, None)])
def test_a_run_measures_them_only_on_request(measured, asked, rate):
    assert measured([adapter("mlx5_0")], {"mlx5_0:1": 391.5}, loopback=asked) == {"mlx5_0": rate}


def test_without_perftest_nothing_is_measured(measured, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert measured([adapter("mlx5_0")], None) == {"mlx5_0": None}


@pytest.mark.parametrize(
    ("code", "said", "reason"),
    [
        (
            0,
            " #bytes  #iterations  BW peak[MB/sec]  BW average[MB/sec]  MsgRate[Mpps]\n 65536 5000 11.0 10.9 0.1\n",
            "0",
        ),
        (0, "", "0"),
        (1, "ib_write_bw: unrecognized option '--report_gbits'\n", "1: ib_write_bw: unrecognized option"),
        (1, f"BW average[Gb/sec]\n 65536 5000 389.42 388.77 0.741456\n{'-' * 80}\n", "1: 65536"),
    ],
)
def test_other_output_is_no_figure(code, said, reason):
    assert loopback._rate(code, said).reason.startswith(f"ib_write_bw ended with exit code {reason}")


def test_a_row_as_perftest_prints_it_is_read():
    row = " 65536      560960           0.00               98.03              0.186974\n"
    assert loopback._rate(0, f" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]\n{row}") == 98.03
