from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.jobs import node_of

from distcheck.facts import saved
from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.errors import UsageError
from distcheck.facts.job import Job
from distcheck.facts.placement import Placement
from distcheck.facts.rank import Installed, ProcessFacts, RankFacts

PYTHON = Installed("3.11.7", "/usr", Missing(reason="not installed"))


def node(key="n"):
    return msgspec.structs.replace(node_of(1, 0), key=key, name=key)


def job_of(*ranks, world=4, met=False, command="env"):
    return Job(
        distcheck="0", run="r", met=met, nodes=(node(),),
        asked=Asked(command=command, looks=("environment", "meeting")),
        processes=tuple(
            ProcessFacts(uid=f"p{r}", node="n", pid=r or 0, command=("distcheck",), installed=PYTHON) for r in ranks
        ),
        ranks=tuple(
            RankFacts(process=f"p{r}", placement=Placement(rank=r, world_size=world), environment={}) for r in ranks
        ),
    )  # fmt: skip


def test_a_saved_job_is_loaded_as_it_was(tmp_path):
    job = job_of(0, 1)
    assert saved.load(saved.save(job, tmp_path / "job.json")) == job


def test_in_a_folder_every_process_has_a_file_of_its_own(tmp_path):
    paths = {saved.save(job_of(r), tmp_path) for r in range(3)}
    assert len(paths) == 3
    assert sorted(saved.find([tmp_path])) == sorted(paths)


def test_partial_jobs_of_one_launch_are_merged():
    merged = saved.merge([job_of(2), job_of(0, 1, met=True), job_of(1)])
    assert [r.placement.rank for r in merged.ranks] == [0, 1, 2]
    assert merged.missing_ranks == (3,)
    assert merged.met


def test_a_later_file_of_a_member_does_not_lengthen_the_job():
    whole, member = job_of(0, 1, met=True), job_of(1)
    member = msgspec.structs.replace(member, seconds=whole.seconds + 1)
    assert saved.merge([member, whole]) == whole


def of_run(run, *ranks, on="n", **more):
    """Return a job whose processes are of this run and on this node."""
    job = job_of(*ranks, **more)
    processes = tuple(msgspec.structs.replace(p, uid=f"{run}-{p.uid}", node=on) for p in job.processes)
    ranks = tuple(msgspec.structs.replace(r, process=f"{run}-{r.process}") for r in job.ranks)
    return msgspec.structs.replace(job, run=run, nodes=(node(on),), processes=processes, ranks=ranks)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (job_of(0), job_of(1, world=8), ("env of 4 ranks", "env of 8 ranks")),
        (job_of(0), job_of(1, command="gate", world=None), ("env of 4 ranks", "gate")),
        (job_of(0), job_of(1, command="gate"), ("env of 4 ranks", "gate of 4 ranks")),
        (of_run("a", 0, 1, world=2, met=True), of_run("b", 0, 1, world=2, met=True), ("run a", "run b")),
        (of_run("a", 0, 1, world=2, met=True), of_run("b", 0, on="m", world=2, met=True), ("run a", "run b")),
        (of_run("a", 0, 1, met=True), of_run("b", 0, met=True), ("run a", "run b")),
        (of_run("a", None, world=None, met=True), of_run("b", None, world=None, met=True), ("run a", "run b")),
    ],
    ids=[
        "world",
        "command without a world",
        "command",
        "both complete",
        "one complete",
        "the same rank of a node",
        "the same node",
    ],
)
def test_files_of_different_launches_are_named_by_launch(tmp_path, first, second, named):
    paths = [saved.save(first, tmp_path / "1.json"), saved.save(second, tmp_path / "2.json")]
    with pytest.raises(UsageError, match="different launches") as told:
        saved.load_launch([tmp_path])
    for name, path in zip(named, paths, strict=True):
        assert f"{name} ({path})" in str(told.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (of_run("a", 0, on="n", met=True), of_run("b", 0, on="m", met=True)),
        (of_run("a", 0, 1, met=True), of_run("b", 2, 3, met=True)),
        (of_run("a", 0, 1, 2, 3, met=True), of_run("b", 1)),
        (of_run("a", 0, 1, met=True), of_run("b", 1, world=None)),
        (of_run("a", None, on="n", world=None, met=True), of_run("b", None, on="m", world=None, met=True)),
    ],
    ids=[
        "two leaders with rank 0",
        "two roll calls",
        "a process that met nobody",
        "an unknown world size",
        "distcheck node on two nodes",
    ],
)
def test_processes_of_one_launch_that_could_not_reach_each_other_are_merged(tmp_path, first, second):
    saved.save(first, tmp_path / "1.json")
    saved.save(second, tmp_path / "2.json")
    assert len(saved.load_launch([tmp_path]).ranks) == len(first.ranks) + len(second.ranks)


STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
ELASTIC = {"TORCHELASTIC_RUN_ID": "abc"}


def with_variables(job, variables, port=29500):
    """Return a job whose ranks have these variables and this MASTER_PORT."""

    def changed(rank):
        place = msgspec.structs.replace(rank.placement, master_addr="node1", master_port=port)
        return msgspec.structs.replace(rank, environment=variables, placement=place)

    return msgspec.structs.replace(job, ranks=tuple(map(changed, job.ranks)))


@pytest.mark.parametrize("variables", [STEP, ELASTIC, {"PMIX_NAMESPACE": "prterun-node1-9@1"}])
@pytest.mark.parametrize("world", [1, 2])
def test_ranks_of_one_launcher_with_two_world_sizes_are_one_launch(tmp_path, variables, world):
    saved.save(with_variables(of_run("a", 0, world=world, met=True), variables), tmp_path / "1.json")
    saved.save(with_variables(of_run("b", 1, on="m"), variables), tmp_path / "2.json")
    assert [r.placement.world_size for r in saved.load_launch([tmp_path]).ranks] == [world, 4]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (with_variables(of_run("a", 0, world=2), STEP), with_variables(of_run("b", 1), STEP | {"SLURM_STEP_ID": "1"})),
        (with_variables(of_run("a", 0, world=2), STEP), with_variables(of_run("b", 0, 1), STEP)),
        (with_variables(of_run("a", 0, world=2), STEP), with_variables(of_run("b", 1), {})),
        (with_variables(of_run("a", 0, world=2), ELASTIC), with_variables(of_run("b", 1), ELASTIC, 29501)),
        (
            with_variables(of_run("a", 0, world=2), {"TORCHELASTIC_RUN_ID": "none"}),
            with_variables(of_run("b", 1), {"TORCHELASTIC_RUN_ID": "none"}),
        ),
    ],
    ids=["two steps", "a rank twice in a step", "one without a launcher", "two masters", "a name that is a default"],
)
def test_other_files_with_two_world_sizes_are_refused_with_the_sizes_and_what_to_do(tmp_path, first, second):
    saved.save(first, tmp_path / "1.json")
    saved.save(second, tmp_path / "2.json")
    with pytest.raises(UsageError, match="different launches") as told:
        saved.load_launch([tmp_path])
    for part in ("env of 2 ranks", "1.json", "env of 4 ranks", "2.json", "set the same WORLD_SIZE"):
        assert part in str(told.value)


def test_a_folder_that_may_not_be_read_is_a_usage_error(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    for method in ("is_dir", "iterdir"):
        monkeypatch.setattr(Path, method, denied)
        with pytest.raises(UsageError, match=f"{tmp_path} cannot be read: Permission denied"):
            saved.find([tmp_path])
        monkeypatch.undo()


def test_references_within_a_job_must_hold(tmp_path):
    broken = msgspec.structs.replace(job_of(0), nodes=())
    path = tmp_path / "job.json"
    path.write_bytes(msgspec.json.encode(broken))
    with pytest.raises(UsageError, match="is not in the file"):
        saved.load(path)


@pytest.mark.parametrize("run", ["../../x", "/etc/x", "a/b", "..", "x" * 5000, "a\0b", "é"])
def test_a_foreign_name_cannot_leave_the_folder(tmp_path, run):
    folder = tmp_path / "jobs"
    folder.mkdir()
    job = msgspec.structs.replace(job_of(0), run=run)
    uid = msgspec.structs.replace(job.processes[0], uid=run)
    written = saved.save(msgspec.structs.replace(job, processes=(uid,)), folder)
    assert written.parent == folder
    assert list(tmp_path.rglob("*")) == [folder, written]


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(saved, "_LARGEST_BYTES", 1000)
    path = tmp_path / "job.json"
    path.write_bytes(b" " * 1001)
    for endless in (path, Path("/dev/zero")):
        with pytest.raises(UsageError, match="larger than 1 GiB"):
            saved.load(endless)


@given(st.data())
def test_a_job_with_bytes_changed_is_a_job_or_a_usage_error(tmp_path_factory, data):
    raw = bytearray(msgspec.json.encode(job_of(0, 1)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("changed") / "job.json"
    path.write_bytes(raw)
    try:
        saved.load(path)
    except UsageError as error:
        assert str(path) in str(error)


def _job_text():
    return msgspec.json.encode(job_of(0)).decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a distcheck job file"),
        (_job_text()[:-200], "not a distcheck job file"),
        ("{}", "not a distcheck job file"),
        ("[1, 2]", "not a distcheck job file"),
        ('{"schema": 1}', "not a distcheck job file"),
        ('{"schema": 1, "verdict": "pass"}', "is a report .--format json., not a saved job; give a file written by"),
        ('{"schema": 2}', "schema 2; this distcheck reads schema 1"),
        (_job_text().replace('"schema":1', '"schema":7'), "schema 7; this distcheck reads schema 1"),
        ("[" * 100_000, "not a distcheck job file"),
        ('{"schema":1,"skipped":' + '{"a":' * 100_000, "not a distcheck job file"),
        ("\udcff".join("ab"), "not a distcheck job file"),
        ("PK\x03\x04", "not a distcheck job file"),
    ],
    ids=["empty", "cut", "no fields", "a list", "nothing but a schema", "a report", "a newer schema", "a newer job",
         "nested lists", "nested objects", "no UTF-8", "an archive"],
)  # fmt: skip
def test_a_file_that_is_not_a_job_of_this_version_is_refused_in_one_line(tmp_path, text, words):
    path = tmp_path / "job.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=words) as told:
        saved.load(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)
