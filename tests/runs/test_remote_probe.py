from __future__ import annotations

import signal
import sys
from types import SimpleNamespace

from distcheck.launch.remote import assignment
from distcheck.run import remote_probe


def test_a_probe_that_fails_says_so_in_one_line(monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["remote_probe", "assignment"])
    monkeypatch.setattr(assignment, "decode", lambda _: SimpleNamespace(ends_with_stdin=False))
    monkeypatch.setattr(remote_probe, "_Home", lambda: SimpleNamespace(tell=lambda _: None))
    monkeypatch.setattr(remote_probe, "_probe", fail)
    assert remote_probe.main() == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("the probe failed: RuntimeError: no such thing")
