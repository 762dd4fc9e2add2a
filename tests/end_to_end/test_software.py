"""Ranks whose software differs: a finding before torch is imported, and never a crash."""

from __future__ import annotations

import sys

_OTHER_PYTHON = """
import sys
sys.version = "3.12.1 (main)" if sys.version_info[:2] != (3, 12) else "3.13.0 (main)"
from distcheck.cli.main import main
main()
"""


def test_a_rank_with_another_torch_and_python_is_named_by_net(start, port, tmp_path):
    other = tmp_path / "site" / "torch"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "version.py").write_text("__version__ = '2.0.9+cpu'\ncuda: Optional[str] = None\nhip = None\n")
    given = ("net", "--world-size", "3", "--master-addr", "127.0.0.1", "--master-port", str(port), "--format", "json")
    running = [start(*given, "--rank", str(rank)) for rank in range(2)]
    odd = [sys.executable, "-c", _OTHER_PYTHON]
    running.append(start(*given, "--rank", "2", program=odd, env={"PYTHONPATH": str(other.parent)}))
    ended = [r.wait() for r in running]
    assert [e.code for e in ended] == [30, 30, 30], [e.err for e in ended]
    assert ended[0].rules == ["sw-torch-version-differs", "sw-python-differs"]
    assert [f["ranks"] for f in ended[0].report["findings"]] == [[2], [2]]
    first, second = ended[0].report["world"]["torch"].split(", ")
    assert (first, second.startswith("2.")) == ("2.0.9+cpu", True)
