"""The history of nodes: what many writers leave in it, and what is read of it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys

import pytest

from distcheck.facts.base import Missing
from distcheck.facts.history import SCHEMA, Failure, Noted, PastRun
from distcheck.probe import history, history_file
from distcheck.probe.history import collect, total, write
from distcheck.probe.history_file import LARGEST_BYTES, append, name_of, parse, read_file

NOW = 1_795_000_000.0
DAY = 86400.0
BAD = Noted("gpu-fell-off-bus", "error", "gpu", confirmed=True)


def line(number, node="node3", *findings, at=NOW, command="gate", **more):
    run = PastRun(SCHEMA, node, at, f"run{number}", command, "pass", findings=findings, **more)
    return history_file.msgspec.json.encode(run).decode()


def written(folder, node, *lines):
    for text in lines:
        append(folder / name_of(node), text)


def test_lines_that_are_torn_foreign_newer_or_repeated_are_skipped_and_counted():
    whole = [line(1), line(2)]
    newer = json.dumps({"schema": SCHEMA + 1, "hosts": []})
    text = "\n".join([whole[0], whole[0][:40], "", newer, '{"a": 1}', "\0" * 7, "[" * 5000, whole[1], whole[1], "41"])
    found = parse(text.encode() + b"\n\xff\xfe\n")
    assert [run.run for run in found.runs] == ["run1", "run2"]
    assert (found.unreadable, found.newer) == (6, 1)


def test_a_writer_begins_a_new_line_after_a_torn_one(tmp_path):
    path = tmp_path / "node3.jsonl"
    path.write_text(line(1) + "\n" + line(2)[:50])
    append(path, line(3))
    found = read_file(path, LARGEST_BYTES)
    assert ([run.run for run in found.runs], found.unreadable) == (["run1", "run3"], 1)


def test_a_file_that_has_grown_is_cut_to_its_newest_lines(tmp_path):
    path = tmp_path / "node3.jsonl"
    path.write_text("".join(line(n) + "\n" for n in range(LARGEST_BYTES // len(line(1)) + 100)))
    append(path, line("last"))
    assert LARGEST_BYTES / 2.1 < path.stat().st_size <= LARGEST_BYTES / 2
    found = read_file(path, LARGEST_BYTES)
    assert found.runs[-1].run == "runlast"
    assert found.unreadable == 0
    numbers = [int(run.run.removeprefix("run")) for run in found.runs[:-1]]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[0] > 1000
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_the_folder(tmp_path):
    for mode in (0o1777, 0o770, 0o755):
        (folder := tmp_path / f"{mode:o}").mkdir()
        folder.chmod(mode)
        before = os.umask(0o077)
        try:
            append(folder / "node3.jsonl", line(1))
        finally:
            os.umask(before)
        assert stat.S_IMODE((folder / "node3.jsonl").stat().st_mode) == mode & 0o666


def test_a_pipe_a_link_or_a_folder_in_place_of_a_file_is_neither_read_nor_written(tmp_path):
    target = tmp_path / "elsewhere"
    target.touch()
    os.mkfifo(tmp_path / name_of("pipe"))
    (tmp_path / name_of("link")).symlink_to(target)
    (tmp_path / name_of("folder")).mkdir()
    nodes = ("pipe", "link", "folder")
    errors = write(tmp_path, {node: line(1, node) for node in nodes}, 5)
    assert [error.partition(":")[0] for error in errors] == [str(tmp_path / name_of(node)) for node in nodes]
    found = collect(tmp_path, nodes, 5, NOW)
    assert [reason.partition(":")[0] for reason in found.unread] == [name_of(node) for node in nodes]
    assert target.stat().st_size == 0


def test_the_name_of_a_node_never_leaves_the_folder(tmp_path):
    names = ["../up", "a/b", ".hidden", "node3", "x" * 300, "no de\n", "knoten-ü"]
    assert write(tmp_path, {name: line(1, name) for name in names}, 5) == []
    assert sorted(path.parent for path in tmp_path.rglob("*")) == [tmp_path] * len(names)
    assert total(tmp_path, 5).lines == len(names)
    assert not list(tmp_path.glob(".*"))


def test_only_recent_failures_of_the_last_runs_of_each_command_count(tmp_path):
    many = [line(n, "node3", *([BAD] if n in {0, 5, 9} else [])) for n in range(12)]
    checks = [line(f"n{n}", command="node") for n in range(12)]
    old = line("old", "node4", BAD, at=NOW - 31 * DAY)
    written(tmp_path, "node3", *many, *checks)
    written(tmp_path, "node4", old, line("new", "node4"))
    found = collect(tmp_path, ("node3", "node4", "node5"), 5, NOW)
    (recent,) = found.recent
    assert (recent.node, recent.command, recent.runs) == ("node3", "gate", 10)
    assert recent.failures == (Failure(NOW, ("gpu-fell-off-bus",)),) * 2
    assert found.unread == ()


@pytest.mark.parametrize(
    "harmless",
    [
        Noted("gpu-x", "error", "gpu", confirmed=False),
        Noted("gpu-x", "warning", "gpu", confirmed=True),
        Noted("env-x", "error", "rank", confirmed=True),
        Noted("net-x", "error", "link", confirmed=True),
        Noted("gpu-x", "error", "system", confirmed=True),
    ],
)
def test_what_does_not_exclude_a_node_is_no_failure_of_it(tmp_path, harmless):
    written(tmp_path, "node3", *(line(n, "node3", harmless) for n in range(10)))
    assert collect(tmp_path, ("node3",), 5, NOW).recent == ()
    assert total(tmp_path, 5).nodes[0].failed == 0


def test_a_figure_with_enough_earlier_values_is_kept_oldest_first(tmp_path):
    for n in range(40):
        figures = {"usual": n + 1.0} | ({"rare": 1.0} if n < 6 else {})
        written(tmp_path, "node3", line(n, figures=figures, torch=f"2.{n}"))
    (figure,) = collect(tmp_path, ("node3",), 5, NOW).figures
    assert (figure.node, figure.name, figure.versions) == ("node3", "usual", "torch 2.39")
    assert figure.values == tuple(float(n) for n in range(11, 41))


def test_another_nodes_lines_in_a_file_count_for_nobody(tmp_path):
    written(tmp_path, "node3", *(line(n, "node4", BAD, figures={"f": 1.0}) for n in range(9)))
    found = collect(tmp_path, ("node3", "node4"), 5, NOW)
    assert (found.recent, found.figures) == ((), ())


def test_the_totals_show_the_nodes_that_failed_most_often_first(tmp_path):
    other = Noted("isolation-bad-node", "error", "node", confirmed=True)
    written(tmp_path, "node1", *(line(n, "node1") for n in range(5)))
    written(tmp_path, "node2", *(line(n, "node2", *([BAD] if n else [])) for n in range(5)))
    written(tmp_path, "node3", line(0, "node3", BAD), *(line(n, "node3", BAD, other, at=NOW + n) for n in range(1, 4)))
    written(tmp_path, "node4", line(0, "node4", BAD), line(1, "node4"))
    (tmp_path / "notes.txt").write_text("not a history")
    (tmp_path / name_of("node5")).write_text("torn\n" + json.dumps({"schema": 9}))
    found = total(tmp_path, 5)
    assert [(n.node, n.failed, n.runs) for n in found.nodes] == [
        ("node3", 4, 4), ("node2", 4, 5), ("node4", 1, 2), ("node1", 0, 5)
    ]  # fmt: skip
    worst = found.nodes[0]
    assert worst.last_failure == Failure(NOW + 3, ("gpu-fell-off-bus", "isolation-bad-node"))
    assert worst.rules == {"gpu-fell-off-bus": 4, "isolation-bad-node": 3}
    assert (found.lines, found.unreadable, found.newer) == (16, 1, 1)


@pytest.mark.parametrize("kind", ["file", "pipe", "nothing"])
def test_what_is_no_folder_is_reported_with_its_name(tmp_path, kind):
    path = tmp_path / "history"
    {"file": path.touch, "pipe": lambda: os.mkfifo(path), "nothing": lambda: None}[kind]()
    wrong = f"{path}: No such file or directory; create it with: mkdir -p {path}"
    wrong = wrong if kind == "nothing" else f"{path} is not a folder"
    assert collect(path, ("node3",), 5, NOW) == total(path, 5) == Missing(reason=wrong)
    assert write(path, {"node3": line(1)}, 5) == [wrong]


@pytest.mark.process
def test_eight_processes_append_at_the_same_time_and_no_line_is_lost_or_torn(tmp_path):
    program = (
        "import sys; from pathlib import Path; from distcheck.probe.history_file import append\n"
        "for n in range(200): append(Path(sys.argv[1]), sys.argv[2].replace('NUMBER', f'{sys.argv[3]}.{n}'))"
    )
    path = tmp_path / "node3.jsonl"
    text = line("NUMBER", torch="x" * 60)
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), text, str(n)]) for n in range(8)]
    assert [writer.wait(60) for writer in writers] == [0] * 8
    found = read_file(path, 1 << 22)
    assert (len(found.runs), found.unreadable) == (1600, 0)
    assert {run.run for run in found.runs} == {f"run{w}.{n}" for w in range(8) for n in range(200)}


@pytest.mark.process
def test_a_child_reads_and_writes(tmp_path):
    async def ask(folder, seconds=20.0):
        failed = await history.append(folder, {"node3": line(1, "node3", BAD)}, seconds)
        return failed, await history.read(folder, ("node3",), seconds), await history.totals(folder, seconds)

    failed, read, totals = asyncio.run(ask(str(tmp_path)))
    assert (failed, read.folder, totals.nodes[0].failed) == ("", str(tmp_path), 1)


def test_a_name_that_is_not_utf_8_and_a_process_without_descriptors_are_reasons_and_no_errors(monkeypatch):
    async def ask(folder, *nodes):
        return await history.read(folder, nodes, 5), await history.append(folder, dict.fromkeys(nodes, "{}"), 5)

    for folder, node in (("/h\udcff", "node3"), ("/h", "node\udcff")):
        found, failed = asyncio.run(ask(folder, node))
        assert found.reason == failed == f"the history {folder!a}: its name, or that of a node, is not UTF-8"

    def no_descriptor(_name):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("distcheck.probe.child.memory_file", no_descriptor)
    found, failed = asyncio.run(ask("/h", "node3"))
    assert found.reason == failed
    assert failed.startswith("could not start the process that queries the history /h: the limit of open files")
