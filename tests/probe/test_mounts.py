from __future__ import annotations

from distcheck.probe.mounts import unescaped


def test_blanks_and_letters_of_a_mount_point_are_as_they_were():
    assert unescaped(r"/data\040set/\134x") == "/data set/\\x"
    assert unescaped("/données/训练") == "/données/训练"
