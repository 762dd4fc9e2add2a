"""Several running jobs, and where their reports go."""

from __future__ import annotations

import pytest
from made.running import job_of, running, sleeper, waiter

from distcheck.cli.hang import _published
from distcheck.cli.options import HangOptions
from distcheck.facts.errors import UsageError


@pytest.mark.parametrize("name", ["output", "save"])
def test_of_several_jobs_and_one_file_all_are_shown_before_the_error(name, tmp_path, capsys):
    found = [job_of(running(waiter(0), sleeper(rank), name=f"node{rank}:29500")) for rank in (1, 2)]
    with pytest.raises(UsageError, match=r"is not written: 2 jobs run here.*node2:29500 \(process 4700\)"):
        _published(found, HangOptions(**{name: tmp_path / "hang.json"}))
    assert capsys.readouterr().out.count("HUNG: rank") == 4
    assert list(tmp_path.iterdir()) == []
