"""What starting probes by ssh costs the starting machine: ``python tests/benchmarks/outside.py HOSTS`` prints JSON.

``distcheck env --hosts`` runs as a user would run it, with 8 ranks on each host. In place of ssh there is a script that
takes 0.3 s to log in and then sends what a healthy probe sends; the first host also sends the merged job, once
distcheck tells it that no more will come, and then all end. So the probes' own work is not measured: on a cluster as
many machines do it. The last host hangs: its ssh gives up after its timeout.
"""

from __future__ import annotations

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

sys.path.insert(0, str(Path(__file__).parents[1]))

PER_HOST = 8
SSH = """#!/bin/sh
eval "host=\\${$(($# - 1))}"
cd FOLDER || exit 1
read -r hangs < hosts
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
    read -r close
    cat "$host.job"
    exec sleep 1 > end
fi
read -r never < end
"""
"""A few processes each: what these take of the CPU is not distcheck's, and real ones take more."""


def prepare(folder: Path, hosts: int) -> None:
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
    (folder / "hosts").write_text(f"node{hosts}\n")
    job = healthy_job(hosts, PER_HOST, "distcheck", gpus=PER_HOST)
    for i, report in enumerate(reports_of(job)):
        name = report.node.name
        (folder / name).write_bytes(b"".join(frames.encode(f"{i:08x}", 0, Arrived(__version__))))
        (folder / f"{name}.facts").write_bytes(b"".join(frames.encode(f"{i:08x}", 1, Collected(report))))
    here = hosts - 1
    heard = replace(job, nodes=job.nodes[:here], processes=job.processes[:here], ranks=job.ranks[: here * PER_HOST])
    (folder / "node1.job").write_bytes(b"".join(frames.encode(f"{0:08x}", 2, Concluded(heard))))


def launched(hosts: int) -> dict[str, Any]:
    """Return what a run on so many hosts took of this machine, without ssh and the probes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, hosts)
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
    if errors != {"launch-node-unreachable": [f"node{hosts}"]} or len(report["ranks"]) != PER_HOST * hosts:
        raise SystemExit(f"{errors} in a report of {len(report['ranks'])} ranks")
    return {"last_login": arrived - cost["began"], **cost}


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
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "mib": used.ru_maxrss / 1024,
        "files": most_files[0],
    }
    sys.stderr.write(f"\n{json.dumps(cost)}\n")


def main() -> None:
    if sys.argv[1] == "--run":
        run(sys.argv[2:])
    else:
        print(json.dumps(launched(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
