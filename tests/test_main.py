"""The entry point, before the command line takes over."""

import pytest

from distcheck import __main__


def test_an_interrupt_before_there_is_anything_to_report_ends_without_a_traceback(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["distcheck", "env"])
    monkeypatch.setattr("distcheck.cli.main.main", interrupted)
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "")
