from __future__ import annotations

import os

import pytest

from distcheck.facts import mounts
from distcheck.facts.mounts import Mount, mount_at, remote_mount, unescaped

MOUNTS = """\
22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda1 ro,errors=remount-ro
40 22 0:40 / /data\\040set rw - nfs4 server:/x rw,vers=4.2
41 22 0:41 / /scratch rw - autofs systemd-1 rw
42 22 0:42 / /scratch rw,nosuid shared:3 master:1 - tmpfs  rw
a line of another kernel
"""
ROOT = Mount("/", ("rw", "relatime"), "ext4", "/dev/vda1", ("ro", "errors=remount-ro"))
DATA = Mount("/data set", ("rw",), "nfs4", "server:/x", ("rw", "vers=4.2"))
SCRATCH = Mount("/scratch", ("rw", "nosuid"), "tmpfs", "", ("rw",))


@pytest.mark.parametrize(
    ("path", "mount"),
    [("/", ROOT), ("/data", ROOT), ("/data set", DATA), ("/data set/x", DATA), ("/data sets", ROOT),
     ("/scratch/x", SCRATCH)],
)  # fmt: skip
def test_a_path_is_on_the_mount_nearest_to_it_and_in_front(tmp_path, path, mount):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_bytes(MOUNTS.encode() + b"43 22 0:43 / /m\xe9 rw - tmpfs none rw\n")
    assert mount_at(path, tmp_path) == mount


@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("here/file", None),
        ("here/none/file", None),
        ("nas", "nas"),
        ("nas/x/../../here", "nas"),
        ("here/../nas/x", "nas"),
        ("link", "nas"),
        ("link/deep/file", "nas"),
        ("second/../link", "nas"),
        ("loop/file", None),
        ("auto/u", "auto"),
        ("inside/nas", None),
    ],
)
def test_a_path_is_followed_to_the_first_mount_that_may_not_answer_and_no_further(tmp_path, monkeypatch, path, point):
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("second/home")
    (tmp_path / "second").symlink_to(tmp_path / "nas")
    (tmp_path / "loop").symlink_to("loop")
    shown = {"/": ROOT} | {
        str(tmp_path / name): Mount(str(tmp_path / name), (), kind, "", ())
        for name, kind in (("nas", "fuse.sshfs"), ("auto", "autofs"), ("inside", "overlay"))
    }
    monkeypatch.setattr(mounts, "_shown_once", lambda: shown)
    read, readlink = list[str](), os.readlink
    monkeypatch.setattr(os, "readlink", lambda place: (read.append(place), readlink(place))[1])
    monkeypatch.chdir(tmp_path)
    for form in (path, f"{tmp_path}/{path}", f"//{tmp_path}/./{path}/"):
        found = remote_mount(form)
        assert (found and found.point) == (point and str(tmp_path / point))
    assert not [place for place in read if place.startswith((str(tmp_path / "nas"), str(tmp_path / "auto")))]


def test_blanks_and_letters_of_a_mount_point_are_as_they_were():
    assert unescaped(r"/data\040set/\134x") == "/data set/\\x"
    assert unescaped("/données/训练") == "/données/训练"
