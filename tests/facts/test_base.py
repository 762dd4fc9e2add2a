"""Facts hold text that every message and report can hold."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.base import Missing, legible
from distcheck.facts.host import CgroupLimit, Limits
from distcheck.facts.storage import CommandFile


@pytest.mark.parametrize("path", ["/data", "/donn\u00e9es", "/a b\n"])
def test_facts_whose_text_is_utf_8_stay_the_same_object(path):
    facts = CommandFile(path, "argument", path, "absent")
    assert legible(facts) is facts


def test_bytes_that_are_not_utf_8_are_replaced_wherever_they_are_in_facts():
    cgroup = CgroupLimit(limit=7, used=1, cgroup="/job_\udce4")
    found = legible(Limits(memory=cgroup, user_tasks=(3, 2), namespaces={"ipc": "\udcff"}))
    assert found == Limits(
        memory=msgspec.structs.replace(cgroup, cgroup="/job_\ufffd"), user_tasks=(3, 2), namespaces={"ipc": "\ufffd"}
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Limits) == found
    assert legible(Missing(reason="/\udce4: denied")) == Missing(reason="/\ufffd: denied")
