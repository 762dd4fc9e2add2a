from __future__ import annotations

import hashlib
import os
import stat

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
        CommandFile("train.py", "script", f"{here}/train.py", "file", "", 13, digest),
        CommandFile(f"{here}/data", "argument", f"{here}/data", "folder"),
        CommandFile("absent.yaml", "argument", f"{here}/absent.yaml", "absent"),
    ]


def test_a_program_that_is_not_on_path_is_absent(found):
    assert found(("run",)) == [CommandFile("run", "program", "", "absent")]


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
        assert (seen.sampled, seen.size_bytes) == (True, size)
        digests.add(seen.sha256)
    assert len(digests) == 4


def test_packages_are_the_distributions_in_the_folders_of_modules(tmp_path):
    for name in ("Numpy-2.2.6.dist-info", "typing_extensions-4.16.0.dist-info", "old-1.0-py3.11.egg-info", "src"):
        (tmp_path / name).mkdir()
    seen = command.packages([str(tmp_path), str(tmp_path / "absent")])
    assert seen.names == ("numpy==2.2.6", "old==1.0", "typing-extensions==4.16.0")
    assert seen.number == 3
    (tmp_path / "Numpy-2.2.6.dist-info").rename(tmp_path / "Numpy-2.2.7.dist-info")
    assert command.packages([str(tmp_path)]).sha256 != seen.sha256


def test_an_etcd_module_is_found_without_importing_it(tmp_path, monkeypatch):
    assert command.etcd() is False
    (tmp_path / "etcd.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert command.etcd() is True
