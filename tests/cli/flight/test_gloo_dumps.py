"""What `explain --flight` tells from dumps that torch's Flight Recorder made of real Gloo ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from distcheck.explain.flight.answer import flight_explained

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    faults = [folder / fault for fault in ("sleeps", "skips", "dies")]
    for fault in faults:
        fault.mkdir()
    program = Path(__file__).parent / "gloo_ranks.py"
    environment = {"TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, program, *faults], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if "has no attribute '_dump_fr_trace'" in done.stderr:
        pytest.skip("this torch records no Gloo calls")
    assert (folder / "dies" / "trace_0").exists(), done.stderr
    return folder


@pytest.mark.parametrize("suffix", ["", ".json"])
@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("sleeps", "behind", "rank 2 is behind: ranks 0-1 wait in collective 2 of the default group (all_reduce)"),
        ("skips", "mismatch", "rank 2 called broadcast where ranks 0-1 called all_reduce: collective 2"),
        ("dies", "missing", "rank 2 has no dump, and the other ranks called collective 2 of the default group"),
    ],
)
def test_the_rank_at_fault_is_named(dumps, fault, kind, text, suffix):
    paths = [path for rank in range(3) if (path := dumps / fault / f"trace_{rank}{suffix}").exists()]
    found = flight_explained(paths, [])
    assert [(cause.kind, cause.ranks) for cause in found.causes] == [(kind, (2,))]
    assert found.text.startswith(text)
    assert found.unread == ()
