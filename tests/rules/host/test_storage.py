"""Folders that are absent, read-only, full, hung, slow or not shared on some nodes."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.network import Resolution
from distcheck.facts.node import NodeState
from distcheck.facts.storage import Folder, Space, Storage

MIB = 1 << 20
ROOM = Space(total_bytes=1 << 40, free_bytes=1 << 39, free_files=None, writable=True)
LAUNCHERS = ("by hand", "torchrun", "slurm", "openmpi", "hydra", "distcheck")
GOOD = Folder("/data", ("--path",), "folder", file_system="nfs4", source="nas:/data", mount="/data", device=7,
              space=ROOM, write_MBps=300.0, read_MBps=900.0)  # fmt: skip
replace = msgspec.structs.replace


def changed(folder=GOOD, /, **fields):
    return replace(folder, **fields)


ABSENT = Folder("/data", ("--path",), "absent")
HOME = changed(path="/home/u", named_by=("HOME",), file_system="ext4")
CACHE = changed(path="/cache", named_by=("HF_HOME",), file_system="ext4")


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
def told(judge):
    return lambda job: [
        (f.rule, f.severity, f.scope, f.confirmed, f.nodes) for f in judge(job, "storage", "shared_folders").findings
    ]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("folder", [GOOD, HOME, CACHE, replace(CACHE, state="absent")])
def test_a_healthy_folder_is_silent_on_every_launcher(job_with, judge, launcher, folder):
    made = judge(job_with(folder, folder, folder, launcher=launcher), "storage")
    assert (made.findings, made.not_checked) == ((), ())


def test_a_folder_that_one_node_lacks_is_a_fault_of_the_node(job_with, told):
    assert told(job_with(GOOD, GOOD, ABSENT)) == [("storage-path-missing", "error", "node", True, ("node3",))]
    assert told(job_with(GOOD, ABSENT)) == [("storage-path-missing", "error", "node", False, ("node2",))]


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (ABSENT, "/data does not exist"),
        (replace(ABSENT, state="other"), "/data is not a folder"),
        (replace(ABSENT, state="unreadable", error="Stale file handle"), "/data cannot be opened: Stale file handle"),
    ],
)
def test_a_path_that_no_node_has_is_a_fault_of_the_job(job_with, judge, folder, words):
    (found,) = judge(job_with(folder, folder), "storage", "shared_folders").findings
    assert (found.rule, found.scope, found.nodes) == ("storage-path-missing", "job", ("node1", "node2"))
    assert words in found.message


def test_the_lone_node_of_distcheck_node_is_at_fault_itself(job_with, told):
    assert told(job_with(ABSENT, command="node")) == [("storage-path-missing", "error", "node", True, ("node1",))]


@pytest.mark.parametrize(
    ("folder", "reported"), [(HOME, True), (CACHE, False), (replace(CACHE, file_system="lustre"), True)]
)
def test_a_folder_of_a_variable_that_one_node_lacks_is_a_warning_if_it_should_be_there(
    job_with, told, folder, reported
):
    absent = Folder(folder.path, folder.named_by, "absent")
    warned = [("storage-path-missing", "warning", "node", True, ("node3",))]
    assert told(job_with(folder, folder, absent)) == (warned if reported else [])


def test_a_folder_in_which_one_node_cannot_write_is_named_there(job_with, told):
    closed = changed(write_error="Read-only file system")
    assert told(job_with(GOOD, GOOD, closed)) == [("storage-read-only", "error", "node", True, ("node3",))]
    home = changed(HOME, write_error="Permission denied")
    assert told(job_with(HOME, HOME, home)) == [("storage-read-only", "warning", "node", True, ("node3",))]


def test_a_folder_in_which_no_node_can_write_may_be_meant_so(job_with, told):
    closed = changed(write_error="Read-only file system")
    assert told(job_with(closed, closed)) == [
        ("storage-read-only", "warning", "job", False, ("node1", "node2")),
    ]
    home = changed(HOME, write_error="Permission denied")
    assert told(job_with(home, home)) == []


def test_a_disk_that_the_kernel_made_read_only_is_an_error_without_other_nodes(job_with, told):
    closed = changed(HOME, write_error="Read-only file system", remounted=True)
    assert told(job_with(closed)) == [("storage-read-only", "error", "node", False, ("node1",))]
    image = replace(closed, file_system="squashfs")
    assert told(job_with(image)) == []


def test_the_root_of_a_virtual_machine_is_its_own(job_with, told):
    root = changed(HOME, file_system="virtiofs", mount="/")
    assert told(job_with(root, changed(root, sees_sentinel=False))) == []
    shared = changed(root, mount="/home")
    assert told(job_with(shared, changed(shared, sees_sentinel=False))) == [
        ("storage-not-shared", "warning", "job", True, ("node2",))
    ]


def test_a_message_about_many_nodes_and_a_long_path_stays_short(job_with, judge):
    long = changed(path="/x" * 400)
    absent = Folder(long.path, long.named_by, "absent")
    (found,) = judge(job_with(*[long] * 5, *[absent] * 4), "storage", "shared_folders").findings
    assert len(found.nodes) == 4


@pytest.mark.parametrize(
    ("change_of", "severity"),
    [
        ({"space": replace(ROOM, free_bytes=0)}, "error"),
        ({"space": replace(ROOM, free_files=0)}, "error"),
        ({"write_error": "No space left on device"}, "error"),
        ({"write_error": "Disk quota exceeded"}, "error"),
        ({"space": replace(ROOM, free_bytes=50 * MIB)}, "warning"),
        ({"space": replace(ROOM, free_bytes=150 * MIB)}, None),
        ({"space": replace(ROOM, total_bytes=0, free_bytes=0)}, None),
    ],
)
def test_a_full_file_system_is_named_by_how_full_it_is(job_with, told, change_of, severity):
    local = changed(file_system="xfs")
    found = told(job_with(local, changed(local, **change_of)))
    assert found == ([("storage-full", severity, "node", False, ("node2",))] if severity else [])


def test_a_full_file_server_is_one_finding_of_the_job_and_a_variables_folder_a_warning(job_with, told):
    full = replace(ROOM, free_bytes=0)
    assert told(job_with(changed(space=full), changed(space=full))) == [
        ("storage-full", "error", "job", False, ("node1", "node2"))
    ]
    assert told(job_with(changed(CACHE, space=full))) == [("storage-full", "warning", "node", False, ("node1",))]


def test_a_full_disk_is_reported_once_for_all_folders_on_it_and_not_beside_the_folder_for_temporary_files(
    job_with, told, change
):
    full = changed(HOME, space=replace(ROOM, free_bytes=0))
    job = job_with(full)
    job = change.node(job, 0, storage=Storage((full, changed(full, path="/cache"))))
    assert told(job) == [("storage-full", "warning", "node", False, ("node1",))]
    assert told(change.node(job, 0, tmp=full.space)) == []


@pytest.mark.parametrize("of", ["job", "node"])
def test_a_disk_on_which_no_file_can_be_created_is_one_finding_with_the_folder_for_temporary_files(
    job_with, judge, change, of
):
    full = changed(space=replace(ROOM, free_bytes=0), write_error="No space left on device")

    def rules(space):
        state = NodeState(Resolution("node1", ("10.0.0.1",), 0.1), {"/tmp": space}, (-1, -1))
        job = change.node(job_with(full), 0, **{"tmp": space} if of == "job" else {"state": state})
        job = replace(job, asked=replace(job.asked, looks=(*job.asked.looks, "node")))
        return [f.rule for f in judge(job, "storage", "node").findings if f.rule in {"storage-full", "host-disk-full"}]

    assert rules(full.space) == ["host-disk-full"]
    assert rules(replace(full.space, total_bytes=1 << 41)) == ["storage-full", "host-disk-full"]
    assert rules(ROOM) == ["storage-full"]


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ((300.0, 300.0, 0.5), ("node3",)),
        ((300.0, 300.0, 4.0), ("node3",)),
        ((30.0, 30.0, 4.0), ()),
        ((300.0, 300.0, 20.0), ()),
        ((4.0,), ()),
        ((0.5, 0.5), ("node1", "node2")),
    ],
)
def test_a_folder_is_slow_by_itself_or_far_below_the_other_nodes(job_with, told, rates, slow):
    found = told(job_with(*(changed(read_MBps=rate) for rate in rates)))
    assert [(rule, severity, nodes) for rule, severity, _, _, nodes in found] == (
        [("storage-slow", "warning", slow)] if slow else []
    )


def test_a_folder_without_the_leaders_file_is_another_file_system(job_with, told):
    other = changed(sees_sentinel=False, file_system="tmpfs")
    assert told(job_with(GOOD, GOOD, other)) == [("storage-not-shared", "error", "node", True, ("node3",))]
    assert told(job_with(GOOD, other)) == [("storage-not-shared", "error", "job", True, ("node2",))]


def test_local_file_systems_at_one_path_are_a_warning_if_named_and_else_no_fault(job_with, told):
    local = changed(file_system="xfs")
    assert told(job_with(local, changed(local, sees_sentinel=False))) == [
        ("storage-not-shared", "warning", "job", True, ("node2",))
    ]
    assert told(job_with(HOME, changed(HOME, sees_sentinel=False))) == []
    network = changed(HOME, file_system="nfs4")
    assert told(job_with(network, network, changed(HOME, sees_sentinel=False))) == [
        ("storage-not-shared", "warning", "node", True, ("node3",))
    ]


def test_what_the_leader_cannot_write_is_not_compared(job_with, judge):
    closed = changed(write_error="Read-only file system")
    made = judge(job_with(closed, changed(closed, sees_sentinel=False)), "storage", "shared_folders")
    assert [f.rule for f in made.findings] == ["storage-read-only"]
    assert [(n.rule, n.nodes, n.required) for n in made.not_checked] == [("storage-not-shared", ("node2",), False)]


@pytest.mark.parametrize(("lost", "paths", "listed"), [((), (), True), ((2,), (), False), ((2,), ("/data",), True)])
def test_a_node_whose_looking_process_never_came_is_not_listed_again(job_of, change, judge, lost, paths, listed):
    job = change.asked(job_of(2, 2), looks=("environment", "meeting", "storage"), paths=paths, command="gate")
    job = change.node(job, 0, storage=Storage(folders=()))
    kept = change.keep(job, *(n for n in range(4) if n not in lost))
    gaps = [n for n in judge(kept).not_checked if n.rule == "storage-path-missing"]
    assert [(n.nodes, n.reason, n.required) for n in gaps] == (
        [(("node2",), "no process looked", bool(paths))] if listed else []
    )


@pytest.mark.parametrize("paths", [(), ("/data",)])
def test_a_node_that_could_not_look_is_not_checked_and_needed_only_for_a_named_folder(job_with, judge, change, paths):
    job = job_with(GOOD, GOOD)
    job = replace(job, asked=replace(job.asked, paths=paths))
    made = judge(change.node(job, 1, storage=Missing(reason="crashed")), "storage")
    assert [(n.rule, n.reason, n.nodes, n.required) for n in made.not_checked] == [
        ("storage-path-missing", "crashed", ("node2",), bool(paths))
    ]
