"""Every option that writes, at every kind of place: what was there keeps its kind and gets the output."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from typer.main import get_command

from distcheck.cli.main import MODULES, app

WRITES = {"output": "PASS", "save": '"schema":1', "exclude_file": "", "passing_file": "\n", "reason_file": ""}
"""The options that write, and a part of what each writes about a healthy node."""
LOG = "termination_log"
"""The variable that names one more output."""
BEFORE = "before\n"
Places = tuple[dict[str, Path], Callable[[str], str]]
"""A path for each output, and what came out there."""


def test_these_are_all_options_that_write():
    options = {
        param.name
        for name in MODULES
        for param in get_command(app([name])).commands[name].params
        if (getattr(param, "help", "") or "").startswith(("Write", "Save")) and param.metavar in {"FILE", "PATH"}
    }
    assert options == set(WRITES)


@contextmanager
def plain_links(folder: Path) -> Iterator[Places]:
    yield _links(folder, BEFORE)


@contextmanager
def dangling_links(folder: Path) -> Iterator[Places]:
    yield _links(folder, None)


def _links(folder: Path, text: str | None) -> Places:
    links, there = {name: folder / name for name in (*WRITES, LOG)}, folder / "there"
    there.mkdir()
    for name, link in links.items():
        link.symlink_to(f"there/{name}")
        if text is not None:
            (there / name).write_text(text)

    def written(name: str) -> str:
        assert links[name].is_symlink()
        return (there / name).read_text()

    return links, written


@contextmanager
def descriptors(folder: Path) -> Iterator[Places]:
    with ExitStack() as opened:
        files = {name: opened.enter_context((folder / name).open("w")) for name in (*WRITES, LOG)}
        for name, file in files.items():
            file.write(BEFORE)
            file.flush()
            os.set_inheritable(file.fileno(), True)  # noqa: FBT003
            (folder / f"{name}-link").symlink_to(f"/proc/self/fd/{file.fileno()}")

        def written(name: str) -> str:
            assert (folder / f"{name}-link").is_symlink()
            before, text = (folder / name).read_text()[: len(BEFORE)], (folder / name).read_text()[len(BEFORE) :]
            assert before == BEFORE
            return text

        yield {name: folder / f"{name}-link" for name in files}, written


@contextmanager
def pipes(folder: Path) -> Iterator[Places]:
    paths, got, readers = (
        {name: folder / name for name in (*WRITES, LOG)},
        dict[str, str](),
        dict[str, threading.Thread](),
    )
    for name, path in paths.items():
        os.mkfifo(path)
        reader = threading.Thread(target=lambda n=name, p=path: got.update({n: p.read_text()}), daemon=True)
        reader.start()
        readers[name] = reader

    def written(name: str) -> str:
        readers[name].join(20)
        assert paths[name].is_fifo()
        return got[name]

    yield paths, written


@pytest.mark.parametrize("kind", [plain_links, dangling_links, descriptors, pipes])
def test_what_is_there_keeps_its_kind(distcheck, tmp_path, kind):
    with kind(tmp_path) as (places, written):
        done = distcheck("node", *_options(places), env=_log(places), close_fds=False)
        assert (done.code, done.out, done.err) == (0, "", "")
        for name, part in {**WRITES, LOG: "PASS"}.items():
            text = written(name)
            assert part in text if part else text == "", name
    assert not list(tmp_path.rglob(".*"))


def test_only_a_job_is_saved_in_a_folder(distcheck, tmp_path):
    for name in {*WRITES} - {"save"}:
        done = distcheck("node", *_options({name: tmp_path}))
        assert done.code == 2
        assert done.err.endswith(f"{tmp_path}: this is a folder; name a file in it, for example {tmp_path}/FILE\n")
    (tmp_path / "link").symlink_to("jobs")
    (tmp_path / "jobs").mkdir()
    done = distcheck("node", *_options({"save": tmp_path / "link"}), env=_log({LOG: tmp_path}))
    assert (done.code, done.err) == (0, "")
    (saved,) = (tmp_path / "jobs").iterdir()
    done = distcheck("report", saved, "--output", tmp_path / "report", "--format", "json")
    assert (done.code, (tmp_path / "report").read_text()[0]) == (0, "{")


def test_a_report_to_the_standard_output_follows_what_is_in_the_log(start, tmp_path):
    """Through a link of our own: a distcheck that replaces it must not replace that of the machine."""
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    with (tmp_path / "log").open("w") as log:
        log.write(BEFORE)
        log.flush()
        done = start("node", "--output", "stdout", "--save", "stdout", stdout=log).wait()
        log.write("after\n")
    text = (tmp_path / "log").read_text()
    assert (done.code, text.startswith(BEFORE), text.endswith("\nafter\n")) == (0, True, True)
    assert (text.count("PASS"), text.count('"schema":1')) == (2, 1)
    assert (tmp_path / "stdout").is_symlink()


def _options(places: dict[str, Path]) -> list[str]:
    given = {name: path for name, path in places.items() if name != LOG}
    return [word for name, path in given.items() for word in (f"--{name.replace('_', '-')}", str(path))]


def _log(places: dict[str, Path]) -> dict[str, str]:
    return {"DISTCHECK_TERMINATION_LOG": str(places[LOG])}
