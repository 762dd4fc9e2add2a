"""`distcheck node` as Slurm itself runs it: the Prolog and the HealthCheckProgram of the docs, on real nodes."""

from __future__ import annotations

import json
import re
import sys

import pytest
from cluster.recipes import LOG, RECIPES, Recipes, administer
from real.waiting import until

BAD = "1.lost yes\n"


@pytest.fixture
def recipes(cluster, fake_nvml):
    """Four nodes of two GPUs each, as NVML says, with the docs' scripts installed."""
    recipes = Recipes(cluster, fake_nvml.folder)
    yield recipes
    recipes.stop_checking()


def test_without_any_environment_a_node_sees_itself(cluster, recipes):
    recipes.nvml("node1")
    node = cluster.run("node1", "env", "-i", f"{sys.prefix}/bin/distcheck", "node", "--gpus", "2", "--format", "json")
    assert (node.code, node.rules) == (0, [])
    assert node.report["ranks"][0]["node"] == "node1"


def test_the_prolog_lets_a_healthy_job_run(cluster, recipes):
    recipes.everywhere()
    cluster.slurm(Prolog="/etc/slurm/prolog.sh")
    ended = cluster.run("node1", "srun", "--nodes=4", "hostname")
    assert (ended.code, sorted(ended.out.split())) == (0, ["node1", "node2", "node3", "node4"])
    saved = json.loads(cluster.read("node3", "/run/distcheck/prolog.json"))
    assert saved["nodes"][0]["state"]["slurm_context"] == "prolog_slurmd"
    assert cluster.read("node3", "/run/distcheck/prolog.reason") == ""
    assert recipes.state("node3")[1] == "none"


def test_the_prolog_refuses_a_node_with_a_lost_gpu_and_gives_the_reason(cluster, recipes):
    recipes.everywhere()
    recipes.nvml("node2", BAD)
    log = cluster.start("node2", sys.executable, "-c", LOG)
    until(lambda: cluster.run("node2", "test", "-S", "/dev/log").code == 0)
    cluster.slurm(Prolog="/etc/slurm/prolog.sh")
    refused = cluster.run("node1", "srun", "--nodelist=node2", "hostname")
    assert refused.code != 0
    assert "node2" not in refused.out
    state, reason = until(lambda: recipes.drained("node2"))
    assert (state.startswith("drain"), reason) == (True, "Prolog error")
    told = cluster.read("node2", "/run/distcheck/prolog.reason")
    assert told.startswith("distcheck: FAIL: node2: GPU 1")
    assert "[job=" in told
    (line,) = log.wait().out.splitlines()
    assert "distcheck[" in line
    assert "FAIL: node2: GPU 1" in line
    good = cluster.run("node1", "srun", "--nodes=3", "hostname")
    assert sorted(good.out.split()) == ["node1", "node3", "node4"]


@pytest.mark.parametrize("trouble", ["distcheck is not there", "only suspected"])
def test_the_prolog_stops_no_job_for_an_unknown_verdict(cluster, recipes, trouble):
    recipes.everywhere()
    if trouble == "only suspected":
        recipes.nvml("node2", "init !999\n")
    else:
        cluster.write("node2", "/etc/default/distcheck", "distcheck=/nowhere/distcheck\n")
    cluster.slurm(Prolog="/etc/slurm/prolog.sh")
    assert cluster.run("node1", "srun", "--nodelist=node2", "hostname").out == "node2\n"
    assert recipes.state("node2")[1] == "none"


def test_the_prolog_refuses_a_node_without_a_driver_and_a_suspected_one_where_the_site_writes_so(cluster, recipes):
    recipes.everywhere()
    gone = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/dev/nvidiactl"
    assert cluster.run("node2", "rm", *gone).code == 0
    recipes.nvml("node3", "init !999\n")
    prolog = (RECIPES / "prolog.sh").read_text()
    assert prolog.count("\n    40) ") == 1
    cluster.write("node3", "/etc/slurm/prolog.sh", prolog.replace("\n    40) ", "\n    20 | 40) "))
    cluster.slurm(Prolog="/etc/slurm/prolog.sh")
    for node, reason in (
        ("node2", "FAIL: node2: NVML error 12: NVIDIAs driver library is not "),
        ("node3", "UNKNOWN: node3: NVML error 999"),
    ):
        assert cluster.run("node1", "srun", f"--nodelist={node}", "hostname").code != 0
        until(lambda node=node: recipes.drained(node))
        told = cluster.read(node, "/run/distcheck/prolog.reason")
        assert told.startswith(f"distcheck: {reason}"), told


def test_the_health_check_drains_a_bad_node_and_resumes_only_what_it_drained(cluster, recipes):
    recipes.everywhere()
    recipes.nvml("node2", BAD)
    recipes.nvml("node3", BAD)
    administer(cluster, "node3", "State=DRAIN", "Reason=fan is noisy")
    administer(cluster, "node4", "State=DRAIN", "Reason=reserved for Ann")
    recipes.start_checking(seconds=3)
    state, reason = until(lambda: recipes.drained("node2"))
    assert state.startswith("drain")
    assert reason.startswith("distcheck: FAIL: node2: GPU 1")
    assert recipes.state("node1") == ("idle", "none")
    recipes.nvml("node2")
    recipes.nvml("node3")
    until(lambda: recipes.state("node2") == ("idle", "none"))
    before = cluster.run("node4", "stat", "--format=%Y", "/run/distcheck/health.json").out
    until(lambda: cluster.run("node4", "stat", "--format=%Y", "/run/distcheck/health.json").out != before)
    assert recipes.state("node3") == ("drained", "fan is noisy")
    assert recipes.state("node4") == ("drained", "reserved for Ann")


def test_the_health_check_hands_on_why_the_prolog_refused(cluster, recipes):
    recipes.everywhere()
    recipes.nvml("node2", BAD)
    cluster.slurm(Prolog="/etc/slurm/prolog.sh")
    assert cluster.run("node1", "srun", "--nodelist=node2", "hostname").code != 0
    until(lambda: recipes.drained("node2"))
    recipes.nvml("node2")  # repaired before anybody asked
    recipes.check_health("node2")
    state, reason = recipes.state("node2")
    assert (state, reason[:31], " [job=" in reason) == ("drained", "distcheck: FAIL: node2: GPU 1: ", True)
    recipes.check_health("node2")
    assert until(lambda: recipes.state("node2") == ("idle", "none"))
    administer(cluster, "node2", "State=DRAIN", "Reason=Prolog error")  # of another script
    cluster.write("node2", "/run/distcheck/prolog.reason", "distcheck: UNKNOWN: exit code 20: check again\n")
    recipes.check_health("node2")
    assert recipes.state("node2") == ("drained", "Prolog error")


def test_the_scripts_need_no_path():
    for name in ("prolog.sh", "task_prolog.sh", "health_check.sh"):
        text = (RECIPES / name).read_text()
        assert text.startswith("#!/bin/sh\n")
        assert re.search(r"^PATH=\S*/bin$", text, re.MULTILINE)
