"""What is built can be installed: wheel and source distribution give the same command."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def ended(*command, cwd):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_fresh_environment_with_the_built_package_runs_a_gate(tmp_path, kind):
    built = ended(
        sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", tmp_path, ROOT, cwd=tmp_path
    )
    assert built.returncode == 0, built
    (package,) = tmp_path.glob("distcheck-*")
    venv = tmp_path / "venv"
    assert ended(sys.executable, "-m", "venv", venv, cwd=tmp_path).returncode == 0
    # The dependencies are those of this environment; a line of a .pth file adds them after the package's own folder.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    words = ("install", "--quiet", "--no-deps", "--no-build-isolation", package)
    installed = ended(venv / "bin" / "python", "-m", "pip", *words, cwd=tmp_path)
    assert installed.returncode == 0, installed
    where = ended(venv / "bin" / "python", "-c", "import distcheck; print(distcheck.__file__)", cwd=tmp_path)
    assert where.stdout.startswith(str(site)), where
    gate = ended(venv / "bin" / "distcheck", "gate", "--nproc", "2", cwd=tmp_path)
    assert gate.returncode == 0, gate
    assert gate.stdout.splitlines()[-1].startswith(("PASS", "WARN")), gate.stdout
