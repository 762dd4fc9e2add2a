"""The unit and the timer of the docs: systemd accepts them, and what the unit runs is distcheck."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

FOLDER = Path(__file__).parent.parent / "docs" / "systemd"
SERVICE, TIMER = (FOLDER / f"distcheck-node.{kind}" for kind in ("service", "timer"))

pytestmark = pytest.mark.process
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def value(unit, key):
    """Return the only value of a key of a unit."""
    (found,) = re.findall(rf"(?m)^{key}=(.*)$", unit.read_text())
    return found


def analyzed(folder, change=("", "")):
    """Verify both units, with this interpreter's distcheck in place of the packages'; return the complaints."""
    for unit in (SERVICE, TIMER):
        text = unit.read_text().replace("ExecStart=distcheck", f"ExecStart={sys.prefix}/bin/distcheck")
        (folder / unit.name).write_text(text.replace(*change))
    units = [folder / unit.name for unit in (SERVICE, TIMER)]
    # Where systemd does not run, it looks for other units in the system's folders all the same.
    ended = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    return ended.stderr + ("" if ended.returncode == 0 else f"exit code {ended.returncode}")


@needs_systemd
def test_systemd_accepts_the_units(tmp_path):
    assert analyzed(tmp_path) == ""


@needs_systemd
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("SuccessExitStatus", "SucessExitStatus"), "Unknown key"),
        (("Type=oneshot", "Type=once"), "once"),
        (("OnCalendar=*:0/5", "OnCalendar=*:0/65"), "calendar"),
    ],
)
def test_a_mistake_in_a_unit_is_detected(tmp_path, change, complaint):
    assert complaint in analyzed(tmp_path, change)


@needs_systemd
def test_the_timer_elapses_every_five_minutes():
    command = ["systemd-analyze", "calendar", "--iterations=3", value(TIMER, "OnCalendar")]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC"}).stdout
    minutes = [int(hour) * 60 + int(minute) for hour, minute in re.findall(r"(\d\d):(\d\d):00 UTC", text)]
    assert [(b - a) % 1440 for a, b in itertools.pairwise(minutes)] == [5, 5]


@pytest.mark.without_gpus
@pytest.mark.parametrize(("gpus", "code"), [("", 0), ("1023", 40)])
def test_what_the_unit_runs_leaves_metrics_a_reason_and_the_job(tmp_path, gpus, code):
    environment = dict(setting.split("=") for setting in value(SERVICE, "Environment").split()) | {
        "PATH": f"{sys.prefix}/bin",
        **({"DISTCHECK_GPUS": gpus} if gpus else {}),
    }
    environment["DISTCHECK_OUTPUT"] = environment["DISTCHECK_OUTPUT"].replace("/run/distcheck", str(tmp_path))
    command = [word.replace("/run/distcheck", str(tmp_path)) for word in shlex.split(value(SERVICE, "ExecStart"))]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"node.prom", "node.reason", "node.json"}
    metrics = {each.name: each.samples for each in text_string_to_metric_families((tmp_path / "node.prom").read_text())}
    assert metrics["distcheck_exit_code"][0].value == code
    reason = (tmp_path / "node.reason").read_text()
    assert gpus in reason if gpus else reason == ""
