"""What starting probes by ssh costs the starting machine: ``python tests/benchmarks/outside.py [--json] [HOSTS ...]``.

``distcheck env --hosts`` runs as a user would run it, with 8 ranks on each host. In place of ssh there is a script that
takes 0.3 s to log in and then sends what a healthy probe sends; the first host also sends the merged job, once all
others have logged in or distcheck tells it that no more will come, and then all end. So the probes' own work is not
measured: on a cluster as many machines do it. Each number of hosts is measured twice: all healthy, and with a last host
that hangs, whose ssh gives up after its timeout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import tabulate

sys.path.insert(0, str(Path(__file__).parents[1]))

HOSTS = (16, 128, 1024)
PER_HOST = 8
SSH = """#!/bin/sh
eval "host=\\${$(($# - 1))}"
cd FOLDER || exit 1
read -r number hangs < hosts
if [ "$host" = "$hangs" ]; then
    sleep 5
    echo "ssh: connect to host $host port 22: Connection timed out" >&2
    exit 255
fi
sleep 0.3
cat "$host"
read -r assignment
cat "$host.facts"
: > "here/$host"
if [ -e "$host.job" ]; then
    if [ "$hangs" ]; then
        read -r close
    else
        until set -- here/*; [ $# -ge "$number" ]; do sleep 0.2; done
    fi
    cat "$host.job"
    exec sleep 1 > end
fi
read -r never < end
"""
"""A few processes each: what these take of the CPU is not distcheck's, and real ones take more."""


def prepare(folder: Path, hosts: int, *, hangs: bool) -> None:
    """Write the fake ssh, and what each host sends, into a folder."""
    from made.jobs import healthy_job, reports_of
    from msgspec.structs import replace

    from distcheck import __version__
    from distcheck.launch.remote import frames
    from distcheck.launch.remote.frames import Arrived, Collected, Concluded

    (folder / "bin").mkdir()
    (folder / "here").mkdir()
    os.mkfifo(folder / "end")
    ssh = folder / "bin" / "ssh"
    ssh.write_text(SSH.replace("FOLDER", str(folder)))
    ssh.chmod(0o755)
    (folder / "hosts").write_text(f"{hosts} node{hosts}\n" if hangs else f"{hosts}\n")
    job = healthy_job(hosts, PER_HOST, "distcheck", gpus=PER_HOST)
    for i, report in enumerate(reports_of(job)):
        name = report.node.name
        (folder / name).write_bytes(b"".join(frames.encode(f"{i:08x}", 0, Arrived(__version__, name, 1))))
        (folder / f"{name}.facts").write_bytes(b"".join(frames.encode(f"{i:08x}", 1, Collected(report))))
    here = hosts - hangs
    heard = replace(job, nodes=job.nodes[:here], processes=job.processes[:here], ranks=job.ranks[: here * PER_HOST])
    (folder / "node1.job").write_bytes(b"".join(frames.encode(f"{0:08x}", 2, Concluded(heard))))


def launched(hosts: int, *, hangs: bool) -> dict[str, Any]:
    """Return what a run on so many hosts took: of this machine, without ssh and the probes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, hosts, hangs=hangs)
        look = ["env", "--hosts", f"node[1-{hosts}]", "--nproc", str(PER_HOST), "--format", "json", "--quiet"]
        environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        command = [sys.executable, str(Path(__file__)), "--run", *look]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        arrived = max((path.stat().st_mtime for path in (folder / "here").iterdir()), default=0.0)
    try:
        report, cost = json.loads(ended.stdout), json.loads(ended.stderr.splitlines()[-1])
    except (ValueError, IndexError):
        raise SystemExit(ended.stdout[-2000:] + ended.stderr[-2000:]) from None
    errors = {f["rule"]: f["nodes"] for f in report["findings"] if f["severity"] == "error"}
    expected = {"launch-node-unreachable": [f"node{hosts}"]} if hangs else {}
    if errors != expected or len(report["ranks"]) != PER_HOST * hosts:
        raise SystemExit(f"{errors} in a report of {len(report['ranks'])} ranks")
    last_login = arrived - cost.pop("began")
    return {"hosts": hosts, "one_hangs": hangs, "last_login": last_login, **cost}


def run(arguments: list[str]) -> None:
    """Run distcheck in this process; the last line of stderr is what that took."""
    began, most_files = time.time(), [0]

    def watch() -> None:
        while True:
            most_files[0] = max(most_files[0], len(list(Path("/proc/self/fd").iterdir())))
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()
    from distcheck.__main__ import main as distcheck

    sys.argv = ["distcheck", *arguments]
    with contextlib.suppress(SystemExit):
        distcheck()
    used = resource.getrusage(resource.RUSAGE_SELF)
    cost = {
        "began": began,
        "seconds": time.time() - began,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "mib": used.ru_maxrss / 1024,
        "files": most_files[0],
    }
    sys.stderr.write(f"\n{json.dumps(cost)}\n")


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", nargs="*", type=int, default=HOSTS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--healthy", action="store_true", help="only with healthy hosts")
    parser.add_argument("--hangs", action="store_true", help="only with one that hangs")
    chosen = parser.parse_args()
    ways = [False] * (not chosen.hangs) + [True] * (not chosen.healthy)
    rows = [launched(hosts, hangs=hangs) for hosts in chosen.hosts for hangs in ways]
    print(json.dumps(rows) if chosen.json else tabulate.tabulate(rows, headers="keys", floatfmt=".3g"))


if __name__ == "__main__":
    main()
