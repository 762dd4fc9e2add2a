"""File systems that do not answer: named once each, with the paths that lead there."""

from __future__ import annotations

import pytest

from distcheck.facts.storage import CommandFile, Folder, Silent, Storage

GOOD = Folder("/data", ("--path",), "folder")
BAD = Folder("/data", ("--path",), "silent")
HOME = Silent("/home/u/.nccl.conf", ("HOME",), "nfs4", "nas:/home", "/home", 3.0)
COPY = Silent("/home/u/tmp", ("TMPDIR",), "nfs4", "nas:/home", "/home", 3.0)
FILE = CommandFile("/data/train.py", "script", "/data/train.py", "silent")


@pytest.fixture
def found(job_of, change, judge):
    """Judge a job of one node with two ranks for each of these, which are what its process and its child saw."""

    def found(*seen, looks=("environment", "meeting", "storage")):
        job = job_of(len(seen), 2, "slurm", looks=looks)
        for number, (silent, *storage) in enumerate(seen):
            job = change.process(job, 2 * number, silent=silent)
            folders = tuple(one for one in storage if isinstance(one, Folder))
            files = tuple(one for one in storage if isinstance(one, CommandFile))
            job = change.node(job, number, storage=Storage(folders, files) if storage else None)
        return judge(job, "host.hanging").findings

    return found


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([((),)], []),
        ([((), GOOD)], []),
        ([((), GOOD), ((), GOOD), ((), BAD)], [("node", True, ("node3",))]),
        ([((), GOOD), ((), BAD)], [("node", False, ("node2",))]),
        ([((), BAD), ((), BAD)], [("system", False, ("node1", "node2"))]),
        ([((), BAD, FILE)], [("node", False, ("node1",))]),
        ([((), FILE)], [("node", False, ("node1",))]),
        ([((HOME, COPY),)], [("node", False, ("node1",))]),
        ([((HOME,), BAD)], [("node", False, ("node1",))] * 2),
    ],
)
def test_a_file_system_that_does_not_answer_is_one_finding_of_its_nodes(found, seen, expected):
    assert [(f.scope, f.confirmed, f.nodes) for f in found(*seen)] == expected


@pytest.mark.parametrize("looks", [("environment",), ("environment", "meeting", "gpu"), ("node", "gpu", "storage")])
def test_it_is_named_with_its_paths_and_its_mount_by_every_command(found, looks):
    (finding,) = found(((HOME, COPY),), looks=looks)
    assert finding.message == (
        "node1: /home/u/.nccl.conf and /home/u/tmp (nfs4 nas:/home at /home) did not answer within 3 s"
    )
    assert finding.evidence == {"named by": "HOME and TMPDIR"}
    assert finding.fix.commands[-1] == "sudo umount -f -l /home"
