"""What the words of mpirun and mpiexec say about their ranks: Open MPI's and a Hydra's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from selection.launch_commands.reading import reading, told

from distcheck.facts.launch_command import Stated

FILES = {
    "hosts": "node1 slots=8 max_slots=8\nnode2 slots=8\n",
    "hydra": "node1:4  # rack 1\nnode2:4\n",
    "names": "node1\nnode2\n",
}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mpirun -np 4 python train.py -np 2", "4 ranks on this node"),
        ("mpiexec --n 4 --oversubscribe ./app", "4 ranks on this node"),
        ("mpirun -np 2 -H localhost:2 python train.py", "2 ranks on this node"),
        ("mpirun -np 16 -H node1:8,node2:8 -x NCCL_DEBUG --mca btl ^openib python train.py", "16 ranks on 2 hosts"),
        ("mpirun -host node1,node2 python train.py", "2 ranks on 2 hosts"),
        ("mpirun -np 12 --hostfile hosts --bind-to none -map-by slot python train.py", "12 ranks on 2 hosts"),
        ("mpirun --hostfile hosts --allow-run-as-root python train.py", "16 ranks on 2 hosts"),
        ("mpirun -np 8 --machinefile names --map-by ppr:4:node:PE=2 python train.py", "8 ranks on 2 hosts"),
        ("mpirun -hostfile names -npernode 2 python train.py", "4 ranks on 2 hosts"),
        ("mpirun --pernode --hostfile names python train.py", "2 ranks on 2 hosts"),
        ("mpiexec.hydra -n 16 -ppn 8 -hosts node1,node2 -genv NCCL_DEBUG INFO -l python x.py", "16 ranks on 2 hosts"),
        ("mpiexec -n 4 -hosts localhost python train.py", "4 ranks on this node"),
        ("mpiexec -f hydra -genv A=b python train.py", "8 ranks on 2 hosts"),
        ("env A=b /opt/openmpi/bin/mpirun -np 2 ./app", "2 ranks on this node"),
        ("mpirun --version", "no launcher"),
    ],
)
def test_options_say_which_ranks_start(line: str, expected: str) -> None:
    assert told(line, {}, FILES) == expected


def test_the_first_hosts_are_filled() -> None:
    found = reading("mpirun -np 12 --hostfile hosts python train.py", {}, FILES)
    assert found == Stated("mpirun", hosts=(("node1", 8), ("node2", 4)), starter="mpi", file="hosts")


@pytest.mark.parametrize(
    ("options", "by", "place"),
    [
        ("-H node1:2,node2:2 -x MASTER_ADDR=node2 -x MASTER_PORT=29511", "mpirun -x", ("node2", 29511)),
        ("-H node1:2,node2:2 -x MASTER_PORT", "mpirun -x", ("node1", 1234)),
        ("-x MASTER_PORT=29511", "mpirun -x", ("127.0.0.1", 29511)),
        ("-hosts node1,node2 -ppn 2 -genv MASTER_PORT 29511 -genv NCCL_DEBUG INFO", "mpirun -genv", ("node1", 29511)),
        ("-hosts node1,node2 -ppn 2 -env MASTER_PORT=29511", "mpirun -genv", ("node1", 29511)),
        ("-H node1:2,node2:2 -x NCCL_DEBUG", "mpirun", ("", 0)),
    ],
)
def test_variables_that_all_ranks_get_say_where_they_meet(options: str, by: str, place: tuple[str, int]) -> None:
    found = reading(f"mpirun -np 4 {options} python x.py -x MASTER_PORT=7", {"MASTER_PORT": "1234"})
    assert isinstance(found, Stated)
    assert (found.by, (found.master_addr, found.master_port)) == (by, place)


@pytest.mark.parametrize(
    ("line", "environ", "expected"),
    [
        ("mpirun -np 4 python x.py", {"SLURM_JOB_ID": "7"}, "no launcher"),
        ("mpiexec python x.py", {"PBS_JOBID": "7"}, "no launcher"),
        ("mpirun -np 4 -H node1:4 python x.py", {"SLURM_JOB_ID": "7"}, "4 ranks on 1 host"),
        ("mpiexec -n 8 python x.py", {"HYDRA_HOST_FILE": "hydra"}, "8 ranks on 2 hosts"),
    ],
)
def test_an_allocation_and_variables_give_the_hosts(line: str, environ: Mapping[str, str], expected: str) -> None:
    assert told(line, environ, FILES) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-np four ./app", "refused: -np is 'four', expected a number from 1"),
        ("./app", "its -np is not given; give --nproc"),
        ("-np 4 --new-option x ./app", "its option --new-option is unknown to distcheck; give --hosts and --nproc"),
        ("-np 8 -H node1,node2 ./app", "its -np 8 is more than the 2 slots of its hosts; give --hosts and --nproc"),
        ("-np 8 --hostfile names ./app", "its hostfile gives no slots for a host; give --hosts and --nproc"),
        ("-np 8 --hostfile gone ./app", "refused: --hostfile gone cannot be read: No such file or directory"),
        ("-np 8 -H node1:x ./app", "its -H 'node1:x' is not a list of hosts"),
        ("-np 4 ./a : -np 4 ./b", "it starts several programs; give --hosts and --nproc"),
        (
            "-np 8 --hostfile hosts --map-by node ./app",
            "it deals its ranks out over the hosts; give --hosts and --nproc",
        ),
        (
            "--hostfile hosts --map-by ppr:2:socket ./app",
            "its number of ranks depends on the hosts' processors; give --hosts and --nproc",
        ),
        (
            "-np 8 --rankfile ranks ./app",
            "its --rankfile decides which ranks each host gets; give --hosts and --nproc",
        ),
        (
            "-np 2 -H node1,node2 bash -c 'torchrun --nnodes 2 x.py'",
            "it starts torchrun, which starts the ranks; give --hosts and --nproc",
        ),
    ],
)
def test_what_cannot_be_told_has_a_reason(line: str, expected: str) -> None:
    assert told(f"mpirun {line}", {}, FILES).removeprefix("not told: ") == expected
