from __future__ import annotations

import pytest

from distcheck.probe.mounts import Mount, mount_at, unescaped

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
    (tmp_path / "proc/self/mountinfo").write_text(MOUNTS)
    assert mount_at(path, tmp_path) == mount


def test_blanks_and_letters_of_a_mount_point_are_as_they_were():
    assert unescaped(r"/data\040set/\134x") == "/data set/\\x"
    assert unescaped("/données/训练") == "/données/训练"
