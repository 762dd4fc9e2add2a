"""What a machine says that cannot have a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_AS_ROOT = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
_AS_SOMEBODY = f"import os; os.getuid = lambda: 1000; {_AS_ROOT}"
_WITHOUT_MUNGE = '#!/bin/sh\n[ "$4" = munge ] || printf installed\n'


@pytest.fixture
def run(tmp_path):
    """Run a test on the cluster, twice, in a pytest of its own; a dpkg-query of ours says that munge is missing."""
    query = tmp_path / "dpkg-query"
    query.write_text(_WITHOUT_MUNGE)
    query.chmod(0o755)

    def run(program, ci):
        environ = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST")}
        environ |= {"PATH": f"{tmp_path}:{environ['PATH']}"} | ({"CI": "true"} if ci else {})
        tests = [f"{_HERE}/test_net_names.py", "-k", "test_localhost_with_two_nodes"]
        return subprocess.run(
            [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", *tests],
            env=environ, cwd=_HERE.parents[1], capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("program", "lacking"),
    [
        (_AS_SOMEBODY, "the cluster needs root; run: sudo bash tests/cluster/install and the tests as root"),
        (_AS_ROOT, "the cluster needs munge; run: sudo bash tests/cluster/install"),
    ],
    ids=["root", "package"],
)
def test_without_root_or_packages_the_tests_are_skipped_in_one_line_and_fail_in_ci(run, program, lacking):
    ended = run(program, ci=False)
    skips = [line for line in ended.stdout.splitlines() if line.startswith("SKIPPED")]
    assert (ended.returncode, len(skips)) == (0, 1), ended.stdout
    assert skips[0].startswith("SKIPPED [1] ")
    assert skips[0].endswith(lacking)
    ended = run(program, ci=True)
    assert ended.returncode == 1
    assert lacking in ended.stdout
    assert "1 error" in ended.stdout
