"""What `explain --log` tells from the logs of real NCCL jobs with one fault each; tests/recorded/failed_jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from explain.answered import rules_of
from typer.testing import CliRunner

from distcheck.cli.main import app
from distcheck.explain.answer import explained
from distcheck.explain.steps import BY_CLASS, BY_TAG

JOBS = Path(__file__).parents[1] / "recorded" / "failed_jobs"


def told(job):
    return explained([JOBS / job / "job.log"])


def test_every_recorded_job_is_looked_at_and_names_the_class_of_its_fault():
    about = {path.name: told(path.name).about for path in JOBS.iterdir() if path.is_dir()}
    assert about == {
        "sleeps": "application",
        "other_collective": "application",
        "other_size": "application",
        "killed": "process killed",
        "assertion": "application",
    }


@pytest.mark.parametrize(
    ("job", "kind", "ranks", "says"),
    [
        (
            "sleeps",
            "behind",
            (1,),
            (
                "rank 1 is behind: it did not call collective 12 of the default process group; rank 0 waits in"
                " ALLREDUCE number 12"
            ),
        ),
        (
            "other_collective",
            "mismatch",
            (0, 1),
            (
                "ranks 0-1 call different collectives: rank 0 ALLREDUCE (1048576 elements) and rank 1 BROADCAST"
                " (1048576 elements), each as number 12 of the default process group"
            ),
        ),
        (
            "other_size",
            "mismatch",
            (0, 1),
            (
                "ranks 0-1 call ALLREDUCE with different sizes: rank 0 with 1048576 elements and rank 1 with 1024"
                " elements, as number 12 of the default process group"
            ),
        ),
    ],
)
def test_a_hang_or_an_error_of_nccl_names_the_ranks_and_the_collective(job, kind, ranks, says):
    found = told(job)
    assert not rules_of(found)
    assert (found.hang.kind, found.hang.ranks, found.hang.says) == (kind, ranks, says)


def test_a_collective_of_another_size_is_named_by_nccls_own_error():
    found = told("other_size")
    assert "message truncated : receiving 524288 bytes instead of 65536" in found.telling.text
    assert found.telling.says.startswith("The ranks called different collectives, or the same with other sizes.")


def test_the_killed_rank_is_named_and_not_the_one_that_lost_its_connection():
    found = told("killed")
    assert (found.telling.rank, found.telling.node) == (1, "localhost")
    assert "-9" in found.telling.text
    assert found.next == BY_CLASS["process killed"]
    assert found.hang is None


def test_a_failed_assertion_on_the_gpu_is_named_on_its_rank_and_not_the_errors_that_follow():
    found = told("assertion")
    assert (found.telling.rank, found.telling.line) == (1, 15)
    assert found.telling.text.endswith("CUDA error: device-side assert triggered")


@pytest.mark.parametrize("job", ["sleeps", "other_collective", "other_size"])
def test_dumps_that_were_written_are_read_next_and_no_second_hang_is_asked_for(job):
    assert [line.split("  ")[0] for line in told(job).next] == ["distcheck explain --flight DUMPS"]
    output = CliRunner().invoke(app(["explain"]), ["explain", "--log", str(JOBS / job / "job.log")]).stdout
    assert "next:\n  $ distcheck explain --flight DUMPS" in output
    assert "export" not in output


@pytest.mark.parametrize("line", ["preparing to dump debug info", "Stack trace of the failed collective: "])
def test_without_both_lines_of_a_dump_the_flight_recorder_is_turned_on_next(tmp_path, line):
    """A rank whose Flight Recorder is off prepares to dump, too, but has no stack to print."""
    path = tmp_path / "job.log"
    path.write_bytes((JOBS / "sleeps" / "job.log").read_bytes().replace(line.encode(), b""))
    assert explained([path]).next == BY_TAG["collective"]
