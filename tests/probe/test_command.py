from __future__ import annotations

import hashlib

from distcheck.facts.base import Missing
from distcheck.facts.rank import Script
from distcheck.probe import command


def test_a_script_is_identified_by_its_content(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    assert command.script(str(script)) == Script(str(script), hashlib.sha256(b"import torch\n").hexdigest())


def test_a_script_that_is_absent_or_no_file_is_missing(tmp_path):
    assert isinstance(command.script(str(tmp_path / "absent.py")), Missing)
    assert isinstance(command.script(str(tmp_path)), Missing)
    assert isinstance(command.script("/dev/zero"), Missing)


def test_an_etcd_module_is_found_without_importing_it(tmp_path, monkeypatch):
    assert command.etcd() is False
    (tmp_path / "etcd.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert command.etcd() is True
