"""What Slurm does with the docs' scripts: five faults in both modes, each exit code, the tasks, slurmctld's load."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from cluster.recipes import RECIPES, Recipes, administer
from real.waiting import until

FAULTS = {
    "node1": ("1.lost yes\n", "gpu-fell-off-bus"),
    "node2": ("ecc 1\n0.ecc.1.0 2\n", "gpu-ecc-uncorrected"),
    "node3": ("count 1\n", "gpu-fewer-than-needed"),
    "node4": ("", "storage-path-missing"),
    "node5": ("0.name hang\n", ""),
}
"""What NVML says of a node, and the rule by which it is drained; a driver that does not answer is unknown."""
BAD = {node: rule for node, (_, rule) in FAULTS.items() if rule}
POLICY = 'mode = "{mode}"\nrequired-paths = ["/scratch"]\n'
PERIODIC = {"REQUEST_PING", "MESSAGE_NODE_REGISTRATION_STATUS", "REQUEST_STATS_INFO"}
STUB = """\
#!/bin/sh
read -r code </tmp/code
while [ $# -gt 1 ]; do
    [ "$1" != --reason-file ] || echo "distcheck: stub" >"$2"
    shift
done
if [ "$code" = left ]; then sleep 900 </dev/null >/dev/null 2>&1 & echo $! >>/tmp/left; exit 40; fi
[ "$code" != hangs ] || exec sleep 900
exit "$code"
"""
"""A distcheck that ends with the code of a file; it may leave a process behind, or not end."""


def lines_of_the_page():
    """Return the lines of slurm.conf that docs/schedulers/slurm.md shows for Prolog and Epilog."""
    page = (RECIPES.parent / "slurm.md").read_text()
    block = page.split("## Prolog and Epilog\n\n```\n# slurm.conf\n")[1].split("```")[0]
    return dict(line.split()[0].split("=") for line in block.splitlines())


@pytest.fixture
def five(make_cluster, fake_nvml):
    """Five nodes with the docs' scripts, and a fault on each."""
    cluster = make_cluster(5)
    recipes = Recipes(cluster, fake_nvml.folder)
    recipes.everywhere()
    for node, (fault, _) in FAULTS.items():
        recipes.nvml(node, fault)
        if node != "node4":
            cluster.run(node, "mkdir", "/scratch")
    cluster.slurm(**lines_of_the_page())
    return recipes


@pytest.mark.slow
def test_observing_drains_nothing_enforcing_what_is_confirmed_and_neither_what_is_unknown(five):
    cluster = five.cluster

    def run_a_job_and_a_health_check_everywhere(mode):
        for node in FAULTS:
            cluster.write(node, "/etc/distcheck/policy.toml", POLICY.format(mode=mode))
        jobs = {
            node: cluster.start("head", "srun", "--immediate=60", f"--nodelist={node}", "hostname") for node in FAULTS
        }
        ended = {node: job.wait() for node, job in jobs.items()}
        assert ended["node5"].seconds < 60, "the hung driver"
        for node in FAULTS:
            five.check_health(node)
        return {node for node, job in ended.items() if job.code}

    assert run_a_job_and_a_health_check_everywhere("observe") == set()
    for node, rule in BAD.items():
        assert five.state(node) == ("idle", "none")
        (said,) = [s for s in cluster.read(node, "/run/distcheck/prolog.log").splitlines() if s.startswith("WARN: ")]
        assert f"[{rule}] exit code 0 (mode observe); would have been exit code 40 ({node})" in said
        assert cluster.read(node, "/run/distcheck/prolog.reason") == ""

    assert run_a_job_and_a_health_check_everywhere("enforce") == set(BAD)
    for node, rule in BAD.items():
        state, reason = five.state(node)
        assert (state, f"[{rule}]" in reason) == ("drained", True), reason
    assert five.state("node5") == ("idle", "none")
    assert " did not answer within " in cluster.read("node5", "/run/distcheck/prolog.reason")

    administer(cluster, "node2", "State=DRAIN", "Reason=waits for the vendor")
    for mode, healthy in (("observe", False), ("enforce", True)):
        for node in FAULTS:
            cluster.write(node, "/etc/distcheck/policy.toml", POLICY.format(mode=mode))
            if healthy:
                five.nvml(node)
                cluster.run(node, "mkdir", "-p", "/scratch")
            five.check_health(node)
        in_use = {node for node in BAD if five.state(node)[0].startswith("idle")}
        assert in_use == (set(BAD) - {"node2"} if healthy else set())
    assert five.state("node2") == ("drained", "waits for the vendor")


@pytest.fixture
def recipes(cluster, fake_nvml):
    recipes = Recipes(cluster, fake_nvml.folder)
    recipes.everywhere()
    return recipes


def test_only_exit_code_40_drains_and_what_a_check_leaves_behind_stops_no_later_one(cluster, recipes):
    cluster.write("node1", "/shared/stub", STUB)
    for node in ("node1", "node2"):
        cluster.write(node, "/etc/default/distcheck", "distcheck=/shared/stub\n")
    cluster.write("node2", "/tmp/code", "hangs\n")
    stuck = cluster.start("node2", "env", "-i", "/etc/slurm/prolog.sh")
    administer(cluster, "node1", "State=DRAIN", "Reason=distcheck: older")
    for code in ("2", "20", "30", "70", "127"):
        cluster.write("node1", "/tmp/code", f"{code}\n")
        recipes.check_health("node1", code=0 if code in {"20", "30"} else int(code))
        assert recipes.state("node1") == ("drained", "distcheck: older"), code
        assert cluster.run("node1", "env", "-i", "/etc/slurm/prolog.sh").code == 0
    cluster.write("node1", "/tmp/code", "0\n")
    recipes.check_health("node1")
    until(lambda: recipes.state("node1")[0] == "idle")
    for code in ("0", "2", "10", "20", "20", "30", "70", "127"):
        cluster.write("node1", "/tmp/code", f"{code}\n")
        recipes.check_health("node1", code=0 if code in {"0", "10", "20", "30"} else int(code))
        assert recipes.state("node1") == ("idle", "none"), code
    cluster.write("node1", "/tmp/code", "left\n")
    recipes.check_health("node1")
    assert recipes.state("node1") == ("drained", "distcheck: stub")
    assert cluster.run("node1", "env", "-i", "/etc/slurm/prolog.sh").code == 1
    cluster.write("node1", "/tmp/code", "0\n")
    recipes.check_health("node1")
    cluster.run("node1", "sh", "-c", "kill $(cat /tmp/left)")
    until(lambda: recipes.state("node1") == ("idle", "none"))
    ended = stuck.wait()
    assert ended.code == 0
    assert 14 < ended.seconds < 80


def test_a_task_is_told_what_its_own_prolog_suspects(cluster, recipes):
    recipes.nvml("node2", "init !999\n")
    cluster.slurm(Prolog="/etc/slurm/prolog.sh", TaskProlog="/etc/slurm/task_prolog.sh")

    def lines(*words):
        return cluster.run("node1", "srun", "--nodelist=node2", "--ntasks=2", *words, "hostname").out.splitlines()

    told = lines()
    assert told.count("node2") == 2
    assert len(told) == 3
    assert min(told).startswith("distcheck: UNKNOWN: node2: NVML error 999")
    assert lines("--comment=nodistcheck") == ["node2", "node2"]


def test_the_epilog_drains_a_node_whose_gpu_a_job_lost(cluster, recipes):
    cluster.slurm(Prolog="/etc/slurm/prolog.sh", Epilog="/etc/slurm/prolog.sh")
    losing = ("srun", "--nodelist=node2", "sh", "-c", "echo 1.lost yes >>/etc/distcheck-fake-nvml")
    assert cluster.run("node1", *losing).code == 0
    assert until(lambda: recipes.drained("node2"))[1] == "Epilog error"
    recipes.check_health("node2")
    assert "[gpu-fell-off-bus]" in recipes.state("node2")[1]


def test_prolog_and_epilog_send_slurmctld_nothing(cluster, recipes):
    def sent(script):
        """Return how many messages of each kind reach slurmctld during a job, by its own statistics."""
        cluster.slurm(Prolog=script, Epilog=script)
        cluster.run("head", "sdiag", "--reset")
        assert cluster.run("node1", "srun", "--nodes=4", "hostname").code == 0
        kinds = r"^\s+([A-Z_]+)\s+\( *\d+\) count:(\d+)"

        def counted():
            said = {
                kind: int(count) for kind, count in re.findall(kinds, cluster.run("head", "sdiag").out, re.MULTILINE)
            }
            return said if said.get("MESSAGE_EPILOG_COMPLETE") == 4 else None

        return Counter({kind: count for kind, count in until(counted).items() if kind not in PERIODIC})

    cluster.run("head", "sh", "-c", "printf '#!/bin/sh\\nexec /usr/bin/scontrol show node node1\\n' >/shared/chatty")
    cluster.run("head", "chmod", "755", "/shared/chatty")
    nothing = sent("/bin/true")
    assert sent("/etc/slurm/prolog.sh") == nothing
    assert sent("/shared/chatty") - nothing == {"REQUEST_NODE_INFO": 8, "REQUEST_PARTITION_INFO": 8}
