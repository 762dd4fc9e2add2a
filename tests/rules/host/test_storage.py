"""Folders that are absent, read-only, full, hung, slow or not shared on some nodes."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import Resolution
from distcheck.facts.node import NodeState
from distcheck.facts.storage import Folder, Space, Storage

MIB = 1 << 20
OURS = ("host.storage", "host.shared_folders")
ROOM = Space(total_bytes=1 << 40, free_bytes=1 << 39, free_files=None, writable=True)
LAUNCHERS = ("by hand", "torchrun", "slurm", "openmpi", "hydra", "distcheck")
GOOD = Folder("/data", ("--path",), "folder", file_system="nfs4", source="nas:/data", mount="/data", device=7,
              space=ROOM, write_MBps=300.0, read_MBps=900.0)  # fmt: skip
replace = msgspec.structs.replace


def changed(folder=GOOD, /, **fields):
    return replace(folder, **fields)


ABSENT = Folder("/data", ("--path",), "absent")
LOCAL = changed(file_system="xfs")
CLOSED = changed(write_error="Read-only file system")
HOME = changed(path="/home/u", named_by=("HOME",), file_system="ext4")
NFS_HOME = changed(HOME, file_system="nfs4")
ROOT = changed(HOME, file_system="virtiofs", mount="/")
CACHE = changed(path="/cache", named_by=("HF_HOME",), file_system="ext4")
DENIED = changed(HOME, write_error="Permission denied")
REMOUNTED = changed(HOME, write_error="Read-only file system", remounted=True)
LUSTRE = changed(CACHE, file_system="lustre")
NO_SPACE, LITTLE = replace(ROOM, free_bytes=0), replace(ROOM, free_bytes=50 * MIB)


def apart(folder, **fields):
    """Return a folder that does not show the leader's file."""
    return changed(folder, sees_sentinel=False, **fields)


def without(folder):
    return Folder(folder.path, folder.named_by, "absent")


@pytest.fixture
def job_with(job_of, change):
    """Return a job of one node for each folder; on the leader's, and where it is shared, the sentinel is there."""

    def job_with(*folders, launcher="slurm", command="gate"):
        job = job_of(len(folders), 2, launcher, looks=("environment", "meeting", "storage"), command=command)
        for number, folder in enumerate(folders):
            found = folder
            if number == 0 and len(folders) > 1 and folder.state == "folder" and not folder.write_error:
                found = replace(folder, holds_sentinel=True)
            elif folder.state == "folder" and folder.sees_sentinel is None:
                found = replace(folder, sees_sentinel=True)
            job = change.node(job, number, storage=Storage((found,)))
        return job

    return job_with


@pytest.fixture
def said(judge):
    """Return each finding of a job as one line: storage-full error job unconfirmed node1 node2."""

    def lines(job):
        return [
            " ".join((f.rule, f.severity, f.scope, "confirmed" if f.confirmed else "unconfirmed", *f.nodes))
            for f in judge(job, *OURS).findings
        ]

    return lines


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("folder", [GOOD, HOME, CACHE, without(CACHE)])
def test_a_healthy_folder_is_silent_on_every_launcher(job_with, silent, launcher, folder):
    assert silent(job_with(folder, folder, folder, launcher=launcher))


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        ((GOOD, GOOD, ABSENT), "storage-path-missing error node confirmed node3"),
        ((GOOD, ABSENT), "storage-path-missing error node unconfirmed node2"),
        ((HOME, HOME, without(HOME)), "storage-path-missing warning node confirmed node3"),
        ((CACHE, CACHE, without(CACHE)), ""),
        ((LUSTRE, LUSTRE, without(LUSTRE)), "storage-path-missing warning node confirmed node3"),
        # A folder in which no node can write may be meant so.
        ((GOOD, GOOD, CLOSED), "storage-read-only error node confirmed node3"),
        ((HOME, HOME, DENIED), "storage-read-only warning node confirmed node3"),
        ((CLOSED, CLOSED), "storage-read-only warning job unconfirmed node1 node2"),
        ((DENIED, DENIED), ""),
        ((REMOUNTED,), "storage-read-only error node unconfirmed node1"),
        ((changed(REMOUNTED, file_system="squashfs"),), ""),
        # Full: by space, files or an attempt to write, on a disk or a file server.
        ((LOCAL, changed(LOCAL, space=NO_SPACE)), "storage-full error node unconfirmed node2"),
        ((LOCAL, changed(LOCAL, space=replace(ROOM, free_files=0))), "storage-full error node unconfirmed node2"),
        ((LOCAL, changed(LOCAL, write_error="No space left on device")), "storage-full error node unconfirmed node2"),
        ((LOCAL, changed(LOCAL, write_error="Disk quota exceeded")), "storage-full error node unconfirmed node2"),
        ((LOCAL, changed(LOCAL, space=LITTLE)), "storage-full warning node unconfirmed node2"),
        ((LOCAL, changed(LOCAL, space=replace(ROOM, free_bytes=150 * MIB))), ""),
        ((LOCAL, changed(LOCAL, space=replace(ROOM, total_bytes=0, free_bytes=0))), ""),
        ((changed(space=NO_SPACE),) * 2, "storage-full error job unconfirmed node1 node2"),
        ((changed(CACHE, space=NO_SPACE),), "storage-full warning node unconfirmed node1"),
        # Slow by itself, or far below the other nodes.
        ([changed(read_MBps=rate) for rate in (300.0, 300.0, 0.5)], "storage-slow warning node confirmed node3"),
        ([changed(read_MBps=rate) for rate in (300.0, 300.0, 4.0)], "storage-slow warning node confirmed node3"),
        ([changed(read_MBps=rate) for rate in (30.0, 30.0, 4.0)], ""),
        ([changed(read_MBps=rate) for rate in (300.0, 300.0, 20.0)], ""),
        ([changed(read_MBps=4.0)], ""),
        ([changed(read_MBps=0.5)] * 2, "storage-slow warning job confirmed node1 node2"),
        # Not shared: without the leader's file. The root of a virtual machine is its own.
        ((GOOD, GOOD, apart(GOOD, file_system="tmpfs")), "storage-not-shared error node confirmed node3"),
        ((GOOD, apart(GOOD, file_system="tmpfs")), "storage-not-shared error job confirmed node2"),
        ((LOCAL, apart(LOCAL)), "storage-not-shared warning job confirmed node2"),
        ((HOME, apart(HOME)), ""),
        ((NFS_HOME, NFS_HOME, apart(HOME)), "storage-not-shared warning node confirmed node3"),
        ((ROOT, apart(ROOT)), ""),
        ((changed(ROOT, mount="/home"), apart(ROOT, mount="/home")), "storage-not-shared warning job confirmed node2"),
    ],
)  # fmt: skip
def test_a_folder_is_reported_at_the_nodes_where_it_is_at_fault(job_with, said, folders, expected):
    assert said(job_with(*folders)) == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (ABSENT, "/data does not exist"),
        (replace(ABSENT, state="other"), "/data is not a folder"),
        (replace(ABSENT, state="unreadable", error="Stale file handle"), "/data cannot be opened: Stale file handle"),
    ],
)
def test_a_path_that_no_node_has_is_a_fault_of_the_job(job_with, only, folder, words):
    found, _ = only(job_with(folder, folder))
    assert (found.rule, found.scope, found.nodes) == ("storage-path-missing", "job", ("node1", "node2"))
    assert words in found.message
    assert found.fix.commands == ("ls -ld /data", "findmnt --target /data")


def test_the_lone_node_of_distcheck_node_is_at_fault_itself(job_with, said):
    assert said(job_with(ABSENT, command="node")) == ["storage-path-missing error node confirmed node1"]


def test_a_message_about_many_nodes_and_a_long_path_stays_short(job_with, only):
    long = changed(path="/x" * 400)
    found, _ = only(job_with(*[long] * 5, *[without(long)] * 4))
    assert len(found.nodes) == 4


def test_a_full_disk_is_one_finding_for_all_folders_on_it_and_none_beside_the_folder_for_temporary_files(
    job_with, said, change
):
    full = changed(HOME, space=NO_SPACE)
    job = change.node(job_with(full), 0, storage=Storage((full, changed(full, path="/cache"))))
    assert said(job) == ["storage-full warning node unconfirmed node1"]
    assert said(change.node(job, 0, tmp=NO_SPACE)) == []


@pytest.mark.parametrize("of", ["job", "node"])
@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (NO_SPACE, ["host-disk-full"]),
        (replace(NO_SPACE, total_bytes=1 << 41), ["storage-full", "host-disk-full"]),
        (ROOM, ["storage-full"]),
    ],
)
def test_a_disk_that_also_has_the_temporary_files_is_one_finding(job_with, judge, change, of, space, expected):
    full = changed(space=NO_SPACE, write_error="No space left on device")
    state = NodeState(Resolution("node1", ("10.0.0.1",), 0.1), {"/tmp": space}, (-1, -1))
    job = change.node(job_with(full), 0, **{"tmp": space} if of == "job" else {"state": state})
    job = change.asked(job, looks=(*job.asked.looks, "node"))
    rules = [f.rule for f in judge(job, "host.storage", "host.node").findings]
    assert [rule for rule in rules if rule in {"storage-full", "host-disk-full"}] == expected


def test_what_the_leader_cannot_write_is_not_compared(job_with, judge):
    made = judge(job_with(CLOSED, apart(CLOSED)), *OURS)
    assert [f.rule for f in made.findings] == ["storage-read-only"]
    assert [(n.rule, n.nodes, n.required) for n in made.not_checked] == [("storage-not-shared", ("node2",), False)]


@pytest.mark.parametrize(("lost", "paths", "listed"), [((), (), True), ((2,), (), False), ((2,), ("/data",), True)])
def test_a_node_whose_looking_process_never_came_is_not_listed_again(job_of, change, judge, lost, paths, listed):
    job = change.asked(job_of(2, 2), looks=("environment", "meeting", "storage"), paths=paths, command="gate")
    job = change.node(job, 0, storage=Storage(folders=()))
    kept = change.keep(job, *(n for n in range(4) if n not in lost))
    gaps = [n for n in judge(kept).not_checked if n.rule == "storage-path-missing"]
    expected = [(("node2",), "no process looked", bool(paths))] if listed else []
    assert [(n.nodes, n.reason, n.required) for n in gaps] == expected


@pytest.mark.parametrize("paths", [(), ("/data",)])
def test_a_node_that_could_not_look_is_not_checked_and_needed_only_for_a_named_folder(job_with, judge, change, paths):
    job = change.asked(job_with(GOOD, GOOD), paths=paths)
    made = judge(change.node(job, 1, storage=Missing(reason="crashed")), "host.storage")
    assert [(n.rule, n.reason, n.nodes, n.required) for n in made.not_checked] == [
        ("storage-path-missing", "crashed", ("node2",), bool(paths))
    ]
