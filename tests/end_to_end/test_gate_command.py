"""What `distcheck gate -- COMMAND` looks at in COMMAND before it starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

TORCHRUN = Path(sys.executable).with_name("torchrun")


@pytest.mark.skipif(not TORCHRUN.exists(), reason="torch without its programs")
def test_a_torchrun_whose_rendezvous_lacks_its_module_is_not_started(distcheck, port, tmp_path):
    alone = ("--rank", "0", "--world-size", "1", "--master-addr", "127.0.0.1", "--master-port", str(port))
    command = (str(TORCHRUN), "--rdzv-backend=etcd", "--rdzv-endpoint=127.0.0.1:1", "train.py")
    ended = distcheck("gate", *alone, "--format", "json", "--output", str(tmp_path / "report.json"), "--", *command)
    report = json.loads((tmp_path / "report.json").read_text())
    assert ended.code == 30
    assert [(f["rule"], f["ranks"]) for f in report["findings"]] == [("sw-etcd-missing", [0])]


@pytest.mark.parametrize("text", ["echo started", "#!/nonexistent/sh\necho started"])
def test_a_script_that_the_kernel_cannot_start_is_named_with_the_remedy(distcheck, tmp_path, text):
    script = tmp_path / "train"
    script.write_text(text)
    script.chmod(0o755)
    ended = distcheck("gate", "--nproc", "1", "--sizes", "4K", "--iters", "1", "--", str(script))
    assert (ended.code, ended.out) == (2, "")
    last = ended.err.splitlines()[-1]
    assert last.startswith(f"distcheck: error: COMMAND {script} could not be started: ")
    assert "#!/bin/bash" in last
