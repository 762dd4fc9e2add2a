"""Run healthy jobs on a node of the test cluster: ``python tests/benchmarks/slurm_prolog.py JOBS`` prints JSON.

The docs' prolog.sh is Prolog and Epilog, so that each job checks the node twice, with two GPUs as NVML tells.
"quiet" and "busy" (beside two busy loops) are the seconds of each check; "findings" is how many failed or reported
anything beside PASS. slurmd runs the package installed in the folder that PYTHONPATH names; without one, the checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from cluster.cluster import Cluster  # noqa: E402 it is no installed package
from cluster.recipes import Recipes  # noqa: E402

INSTALLED, LOG = "/shared/installed", "/var/log/checks"
TIMED = f"""\
#!/bin/bash
start=$EPOCHREALTIME
/etc/slurm/prolog.sh
code=$?
echo "$start $EPOCHREALTIME $code $(cat "/run/distcheck/${{SLURM_SCRIPT_CONTEXT%_slurmd}}.log" | tr '\\n' ' ')" >>{LOG}
exit $code
"""


def checks(cluster: Cluster, jobs: int, *, busy: bool) -> list[tuple[float, bool]]:
    """Return of each check of so many jobs how long it took, and whether it found nothing."""
    cluster.run("node1", "rm", "-f", LOG)
    loops = [cluster.start("node1", "sh", "-c", "while :; do :; done") for _ in range(2 * busy)]
    for _ in range(jobs):
        if (ended := cluster.run("head", "srun", "--immediate=60", "true")).code:
            sys.exit(f"a job failed: {ended.out}{ended.err}")
    cluster.run("head", "sh", "-c", "while squeue --noheader --states=all | grep -q ' CG '; do sleep 0.1; done")
    for loop in loops:
        loop.interrupt(signal.SIGKILL)
    lines = [line.split(" ", 3) for line in cluster.read("node1", LOG).splitlines()]
    return [(float(end) - float(start), code == "0" and said.startswith("PASS: ")) for start, end, code, said in lines]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = ["-o", f"{folder}/libnvidia-ml.so.1", str(TESTS / "nvml" / "fake_nvml.c")]
        subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", *library], check=True)
        cluster = Cluster(1)
        try:
            Recipes(cluster, Path(folder)).everywhere()
            settings = f"distcheck={sys.prefix}/bin/distcheck gpus=2\n"
            if installed := os.environ.get("PYTHONPATH"):
                shutil.copytree(installed, cluster.shared / "installed")
                settings += f"export PYTHONPATH={INSTALLED}\n"
            cluster.write("node1", "/etc/default/distcheck", settings)
            cluster.write("node1", "/etc/slurm/timed", TIMED)
            cluster.slurm(Prolog="/etc/slurm/timed", Epilog="/etc/slurm/timed")
            checks(cluster, 2, busy=False)  # the first ones read files that later ones have in memory
            found = {name: checks(cluster, int(sys.argv[1]), busy=name == "busy") for name in ("quiet", "busy")}
        finally:
            cluster.conclude()
    seconds = {name: [took for took, _ in its] for name, its in found.items()}
    print(json.dumps(seconds | {"findings": sum(not well for its in found.values() for _, well in its)}))


main()
