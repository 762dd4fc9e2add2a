"""What horovodrun's words say about its ranks."""

from __future__ import annotations

import pytest
from selection.launch_commands.reading import reading, told

from distcheck.facts.launch_command import Stated

FILES = {"hosts": "node1 slots=4\nnode2 slots=4\n"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-np 4 python train.py", "4 ranks on this node"),
        ("--num-proc=4 -H localhost:4 --verbose python train.py", "4 ranks on this node"),
        ("-np 8 -H node1:4,node2:4 --start-timeout 60 python train.py", "8 ranks on 2 hosts"),
        ("-np 8 -hostfile hosts --network-interfaces eth0 python train.py", "8 ranks on 2 hosts"),
        ("--mpi -np 6 --hostfile hosts python train.py", "6 ranks on 2 hosts"),
        ("--gloo -np 6 --hostfile hosts python train.py", "8 ranks on 2 hosts"),
        ("--check-build", "no launcher"),
    ],
)
def test_options_say_which_ranks_start(line: str, expected: str) -> None:
    assert told(f"horovodrun {line}", {}, FILES) == expected


def test_the_hosts_of_an_lsf_job_are_the_allocations() -> None:
    assert told("horovodrun python train.py", {"LSB_JOBID": "7"}) == "no launcher"


def test_hosts_are_reached_as_horovod_does() -> None:
    found = reading("horovodrun --mpi -np 2 -H node1:1,node2:1 python train.py")
    assert found == Stated("horovodrun", hosts=(("node1", 1), ("node2", 1)), starter="mpi")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python train.py", "refused: -np is '', expected a number from 1"),
        ("-np 9 -H node1:4,node2:4 python x.py", "refused: -np 9 is more than the 8 slots of its hosts"),
        ("-np 2 -H node1,node2 python x.py", "refused: host node1 has no slots"),
        (
            "-np 6 -H node1:4,node2:4 python x.py",
            "its hosts have more slots than -np, and only with --mpi some stay empty; give --hosts and --nproc",
        ),
        (
            "-np 8 --min-np 4 --host-discovery-script ./find python x.py",
            "its number of ranks changes (elastic); give --hosts and --nproc",
        ),
        (
            "-np 8 -p 2222 -H node1:4,node2:4 python x.py",
            "its ssh uses port 2222; give --hosts and --nproc, and the port in ssh_config",
        ),
    ],
)
def test_what_cannot_be_told_has_a_reason(line: str, expected: str) -> None:
    assert told(f"horovodrun {line}", {}, FILES).removeprefix("not told: ") == expected
