"""The configuration files of NCCL, and the files that its variables name, as a process finds them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distcheck.facts.base import Missing
from distcheck.probe import nccl_files

DUMPED = Path(__file__).parents[1] / "recorded" / "nccl" / "2.28.9_h200_vm_topology.xml"


@pytest.fixture
def write(tmp_path):
    def write(path, text):
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    return write


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setattr(nccl_files, "_listed_home", lambda: "/home/listed")


def test_a_machine_without_files_has_none(tmp_path):
    assert nccl_files.read({"HOME": "/home/eve"}, tmp_path) == ()


def test_every_file_is_read_with_what_names_it(tmp_path, write):
    for path in ("home/eve/.nccl.conf", "home/listed/.nccl.conf", "etc/nccl.conf", "home/listed/.rccl.conf", "job"):
        write(path, "NCCL_DEBUG=INFO\n")
    found = nccl_files.read({"HOME": "/home/eve", "NCCL_CONF_FILE": "/job"}, tmp_path)
    assert [(f.path, f.origin, f.library) for f in found] == [
        ("/job", "NCCL_CONF_FILE", "nccl"),
        ("/home/eve/.nccl.conf", "HOME", "nccl"),
        ("/home/listed/.nccl.conf", "passwd", "nccl"),
        ("/etc/nccl.conf", "system", "nccl"),
        ("/home/listed/.rccl.conf", "passwd", "rccl"),
    ]
    assert nccl_files.read({"HOME": "/home/listed"}, tmp_path)[0].origin == "HOME+passwd"


def test_a_named_file_that_does_not_exist_is_still_there_and_empty(tmp_path):
    (file,) = nccl_files.read({"NCCL_CONF_FILE": "/nowhere"}, tmp_path)
    assert file.lines == ()
    assert (
        nccl_files.named_paths({"NCCL_CONF_FILE": "/nowhere"}, (file,), tmp_path)["NCCL_CONF_FILE"].state == "missing"
    )


def test_only_lines_about_nccl_are_collected_and_secrets_are_not(tmp_path, write):
    lines = [
        "# NCCL_ALGO=Ring",
        "AWS_SECRET_ACCESS_KEY=abc",
        "export NCCL_ALGO=Tree",
        " NCCL_NET = IB\r",
        "NCCL_TOKEN=abc",
    ]
    write("etc/nccl.conf", "\n".join([*lines, "FI_PROVIDER=efa", "OFI_NCCL_URL=http://eve:abc@host/"]))
    (file,) = nccl_files.read({}, tmp_path)
    assert file.lines == (
        "export NCCL_ALGO=Tree", " NCCL_NET = IB", "NCCL_TOKEN=(redacted)", "FI_PROVIDER=efa",
        "OFI_NCCL_URL=http://(redacted)@host/",
    )  # fmt: skip


def test_a_file_that_cannot_be_opened_is_missing_and_a_pipe_does_not_block(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").symlink_to("nccl.conf")
    (file,) = nccl_files.read({}, tmp_path)
    assert isinstance(file.lines, Missing)
    (tmp_path / "etc/nccl.conf").unlink()
    os.mkfifo(tmp_path / "etc/nccl.conf")
    assert nccl_files.read({}, tmp_path)[0].lines == ()


def test_the_files_that_variables_name_are_looked_at(tmp_path, write):
    gpus = "".join(f'<pci busid="0000:{n:02x}:00.0" class="0x030200" link_speed=""/>' for n in (7, 0x47))
    write("topo.xml", f'<system><pci busid="0000:01:00.0" class="0x020700"/>{gpus}</system>')
    write("sys/bus/pci/devices/0000:07:00.0", "")
    environ = {"NCCL_TOPO_FILE": "/topo.xml", "NCCL_DEBUG_FILE": "/nowhere/log", "NCCL_GRAPH_FILE": ""}
    found = nccl_files.named_paths(environ, (), tmp_path)
    assert list(found) == ["NCCL_TOPO_FILE", "NCCL_DEBUG_FILE"]
    assert (found["NCCL_TOPO_FILE"].state, found["NCCL_TOPO_FILE"].absent_devices) == ("readable", ("0000:47:00.0",))
    assert (found["NCCL_DEBUG_FILE"].state, found["NCCL_DEBUG_FILE"].folder) == ("missing", "missing")


@pytest.mark.parametrize(("here", "absent"), [("0000:00:06.0", ()), ("0000:00:07.0", ("0000:00:06.0",))])
def test_a_topology_that_nccl_itself_wrote_fits_the_machine_with_its_gpu_only(tmp_path, write, here, absent):
    write("topo.xml", DUMPED.read_text())
    write(f"sys/bus/pci/devices/{here}", "")
    found = nccl_files.named_paths({"NCCL_TOPO_FILE": "/topo.xml"}, (), tmp_path)["NCCL_TOPO_FILE"]
    assert (found.state, found.absent_devices) == ("readable", absent)


def test_the_topology_file_that_nccl_reads_unasked_is_looked_at(tmp_path, write):
    write("var/run/nvidia-topologyd/virtualTopology.xml", "<system/>")
    assert nccl_files.named_paths({}, (), tmp_path)["NCCL_TOPO_FILE"].state == "readable"


def test_a_folder_with_a_name_that_is_too_long_is_missing(tmp_path):
    found = nccl_files.named_paths({"NCCL_DEBUG_FILE": "/" + "a" * 300 + "/log"}, (), tmp_path)
    assert (found["NCCL_DEBUG_FILE"].state, found["NCCL_DEBUG_FILE"].folder) == ("missing", "missing")
