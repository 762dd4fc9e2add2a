"""In a pod: only the process that prints the report writes the termination log."""

from __future__ import annotations


def test_one_process_of_a_job_writes_the_message(by_hand, tmp_path):
    logs = [tmp_path / f"log{rank}" for rank in range(2)]
    runs = [by_hand("env", [rank], 2, env={"DISTCHECK_TERMINATION_LOG": str(log)})[0] for rank, log in enumerate(logs)]
    ended = [run.wait() for run in runs]
    assert [log.exists() for log in logs] == [bool(each.out) for each in ended] == [True, False]
    assert logs[0].read_text().startswith("PASS: 2 ranks on 1 node; variables and placement agree. exit code 0\n")
