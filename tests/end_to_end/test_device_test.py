"""The device test in real ranks on CPUs: wrong products and a rank with a CPU limit are named at their rank."""

import pytest

SMALL = ("bandwidth", "--nproc", "2", "--sizes", "1M:1M", "--op", "all_reduce", "--format", "json")


@pytest.fixture
def throttled(cgroups):
    """Give a process a twenty-fifth of a CPU, in a cgroup of its own; needs root and the CPU controller.

    On a busy machine, the other ranks do not have a whole one either.
    """

    def throttled(pid):
        first, second = {"cpu": {"cpu.cfs_quota_us": 4000}}, {"cpu.max": "4000 100000"}
        (folder,) = cgroups(first, second)
        (folder / "cgroup.procs").write_text(str(pid))

    return throttled


@pytest.mark.process
def test_a_rank_with_a_cpu_limit_is_named(start, throttled):
    running = start(*SMALL)
    throttled(running.ranks(2)[1].pid)
    ended = running.wait()
    assert (ended.code, [(f["rule"], f["ranks"]) for f in ended.report["findings"]]) == (
        0,
        [("perf-slow-rank", [1])],
    ), ended
