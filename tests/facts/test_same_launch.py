"""Files whose ranks have different world sizes: of one launch if its launcher names it, else refused."""

from __future__ import annotations

import msgspec
import pytest
from facts.test_saved import of_run

from distcheck.facts import saved
from distcheck.facts.errors import UsageError

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
