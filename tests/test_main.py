"""The entry point, before the command line takes over."""

import subprocess
import sys

import pytest

from distcheck import __main__
from distcheck.cli import main


def test_an_interrupt_before_there_is_anything_to_report_ends_without_a_traceback(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["distcheck", "env"])
    monkeypatch.setattr("distcheck.cli.main.main", interrupted)
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.process
@pytest.mark.parametrize("module", ["typing", "distcheck.launch.signals"])
def test_an_interrupt_while_the_first_modules_are_imported_ends_without_a_traceback(module):
    class_ = "Stop(importlib.abc.MetaPathFinder)"
    finder = f"def find_spec(self, name, *_):\n  if name == {module!r}: raise KeyboardInterrupt"
    start = f"import sys, importlib.abc\nclass {class_}:\n {finder}\n"
    start += "sys.modules.pop('typing', None); sys.meta_path.insert(0, Stop())\nimport distcheck.__main__"
    ended = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_quiet_is_taken_before_the_command_too(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["distcheck", "-q", "gate", "--op", "none"])
    with pytest.raises(SystemExit):
        main.main()
    assert capsys.readouterr().err.startswith("distcheck: error: --op none: unknown operation")
