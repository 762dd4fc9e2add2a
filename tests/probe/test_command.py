from __future__ import annotations

import hashlib
import os
import stat
import sys

import pytest

from distcheck.facts.storage import CommandFile
from distcheck.probe import command


@pytest.fixture
def found(monkeypatch):
    def found(words, script="", here="", path="/nowhere"):
        monkeypatch.setenv("PATH", path)
        return [seen for file in command.files_of(words, script, here) for seen in command.look_at(file)]

    return found


def test_words_are_the_program_on_path_the_script_and_other_files(found, tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "data").mkdir()
    program = tmp_path / "run"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    digest = hashlib.sha256(b"import torch\n").hexdigest()
    here = str(tmp_path)
    assert found(("run", "train.py", f"{here}/data", "absent.yaml"), "train.py", here, here) == [
        CommandFile("run", "program", f"{here}/run", "file", "", 4, hashlib.sha256(b"\x7fELF").hexdigest()),
        CommandFile("train.py", "script", f"{here}/train.py", "file", "", 13, digest, mentions=()),
        CommandFile(f"{here}/data", "argument", f"{here}/data", "folder"),
        CommandFile("absent.yaml", "argument", f"{here}/absent.yaml", "absent"),
    ]


def test_a_program_that_is_not_on_path_is_absent(found):
    assert found(("run",)) == [CommandFile("run", "program", "", "absent")]
    assert found(("",)) == []  # a run from outside


@pytest.mark.parametrize(("there", "near"), [("train.py", "train.py"), ("data", ""), ("", "")])
def test_a_script_that_is_absent_comes_with_the_name_most_like_it(found, tmp_path, there, near):
    folder = tmp_path / "code"
    if there:
        folder.mkdir()
        (folder / there).touch()
    (seen,) = found(("", "code/trian.py"), "code/trian.py", str(tmp_path))
    assert (seen.state, seen.near) == ("absent", near)


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("import torch  # launch with torchrun, as a fork\n", ()),
        ("import torch.multiprocessing as mp\nmp.spawn(main)\n", ("spawn", "multiprocess")),
        ("rank = os.environ['SLURM_PROCID']\n", ("SLURM_",)),
        ("rank = os.environ.get('RANK', 0)\n", ("'RANK'",)),
    ],
)
def test_a_script_is_read_for_words_that_tell_where_its_ranks_come_from(found, tmp_path, text, mentions):
    (tmp_path / "train.py").write_text(text)
    (seen,) = found(("", "train.py"), "train.py", str(tmp_path))
    assert seen.mentions == mentions


MODULES = {
    "alone.py": "", "pack/__init__.py": "raise SystemExit", "pack/train.py": "", "pack/run/__init__.py": "",
    "pack/run/__main__.py": "", "spread/__init__.py": "__path__ = [__path__[0] + '/far']", "spread/far/train.py": "",
    "loose/train.py": "",
}  # fmt: skip
_SAYS_NOTHING = "#!/bin/sh\nexec true\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return what is found of a module in a folder with MODULES."""
    for name, text in MODULES.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    monkeypatch.chdir(tmp_path)

    def module(name, *python, **more):
        seen = command.look_for_module((*(python or (sys.executable,)), name), **more)
        return [(file.role, file.state, file.path.removeprefix(f"{tmp_path}/")) for file in seen]

    return module


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "path"),
    [("alone", "alone.py"), ("pack.train", "pack/train.py"), ("pack.run", "pack/run/__main__.py"),
     ("loose.train", "loose/train.py"), ("alnoe", None), ("pack.trian", None), ("pack", None), ("alone.x", None),
     ("loose", None), ("nopack.train", None)],
)  # fmt: skip
def test_a_module_is_found_as_python_finds_it_and_no_package_is_imported(module, name, path):
    assert module(name) == [("module", "absent" if path is None else "file", path or "")]


@pytest.mark.process
def test_a_module_that_only_an_import_could_find_is_undecided(module, tmp_path):
    assert module("spread.train") == []
    assert module("alone", str(tmp_path / "nopython")) == []
    (tmp_path / "launcher").write_text(_SAYS_NOTHING)
    (tmp_path / "launcher").chmod(0o755)
    assert module("alone", str(tmp_path / "launcher")) == []


@pytest.mark.process
def test_a_module_is_looked_for_with_the_launchers_python_and_its_options(module, tmp_path):
    launcher = tmp_path / "torchrun"
    launcher.write_text(f"#!{sys.executable}\n")
    launcher.chmod(0o755)
    assert module("alone", str(launcher)) == [("module", "file", "alone.py")]
    assert module("alone", sys.executable, "-I") == [("module", "absent", "")]
    if sys.version_info >= (3, 11):
        assert module("alone", safe_path=True) == [("module", "absent", "")]


@pytest.mark.parametrize("line", ["#!{}", "#!/usr/bin/env {}", "#! /usr/bin/env -S A=1 {} -u"])
def test_the_interpreter_of_a_program_is_a_file_too(found, tmp_path, line):
    python = tmp_path / "python9"
    python.write_text("")
    python.chmod(0o755)
    program = tmp_path / "torchrun"
    program.write_text(line.format(python) + "\nimport sys\n")
    program.chmod(0o755)
    _, interpreter = found(("torchrun",), path=str(tmp_path))
    assert (interpreter.role, interpreter.path, interpreter.state) == ("interpreter", str(python), "file")


@pytest.mark.parametrize("text", [b"", b"echo started\n"])
def test_a_program_of_text_without_an_interpreter_cannot_be_started(found, tmp_path, text):
    program = tmp_path / "train"
    program.write_bytes(text)
    program.chmod(0o755)
    (seen,) = found((str(program),))
    assert (seen.state, seen.error) == ("unreadable", "its first line names no interpreter")


def test_a_fifo_a_socket_and_a_device_are_not_opened(found, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    seen = found(("run", f"{tmp_path}/fifo", f"{tmp_path}/socket", "/dev/zero", "/dev/null/x"))
    assert [file.state for file in seen[1:]] == ["other", "other", "other", "absent"]


def test_a_large_file_is_sampled_at_both_ends_and_in_the_middle(found, tmp_path):
    size, digests = 9 << 20, set()
    for place in (None, 0, size // 2, size - 1):
        with (tmp_path / "model.bin").open("wb") as file:
            file.truncate(size)
            if place is not None:
                file.seek(place)
                file.write(b"x")
        _, seen = found(("run", f"{tmp_path}/model.bin"))
        assert seen.size_bytes == size
        digests.add(seen.sha256)
    assert len(digests) == 4


def test_packages_are_the_distributions_in_the_folders_of_modules(tmp_path):
    for name in ("Numpy-2.2.6.dist-info", "typing_extensions-4.16.0.dist-info", "old-1.0-py3.11.egg-info", "src"):
        (tmp_path / name).mkdir()
    seen = command.packages([str(tmp_path), str(tmp_path / "absent")])
    assert seen.names == ("numpy==2.2.6", "old==1.0", "typing-extensions==4.16.0")
    (tmp_path / "Numpy-2.2.6.dist-info").rename(tmp_path / "Numpy-2.2.7.dist-info")
    assert command.packages([str(tmp_path)]).sha256 != seen.sha256


def test_an_etcd_module_is_found_without_importing_it(tmp_path, monkeypatch):
    assert command.etcd() is False
    (tmp_path / "etcd.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert command.etcd() is True
