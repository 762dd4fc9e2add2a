"""A healthy job is silent under every launcher, and so is one whose hosts were not looked at."""

from __future__ import annotations

import pytest

from distcheck.rules import FAMILIES

OURS = [name for name in FAMILIES if name.startswith("host.")]
LAUNCHERS = ("by hand", "torchrun", "slurm", "openmpi", "hydra", "mvapich", "pals", "jsrun", "horovod", "distcheck")


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("gpus", [0, 4])
def test_healthy_hosts_are_silent_under_every_launcher(on_hosts, judge, launcher, gpus):
    said = judge(on_hosts(3, 4, launcher=launcher, gpus=gpus), *OURS)
    assert (len(OURS), said.findings, said.not_checked) == (16, (), ())


@pytest.mark.parametrize("look", ["collectives", "isolation", "node"])
def test_hosts_that_were_not_looked_at_as_in_older_files_are_silent(job_of, judge, look):
    assert judge(job_of(3, 2, "slurm", looks=("environment", "meeting", look), gpus=2), *OURS)[:2] == ((), ())
