"""Three nodes with their own copies of the software, one of which is another: torch, the script, a network driver."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cluster.inside import reports

NODES = ("node1", "node2", "node3")
VERSION = Path(find_spec("torch").origin).with_name("version.py")


def test_another_torch_script_and_driver_on_one_node_are_each_reported_there_once(make_cluster):
    cluster = make_cluster(3, slurm=False)
    for node in NODES:
        odd = node == "node3"
        cluster.write(node, "/tmp/train.py", f"print({odd})\n")
        drivers = (
            "mount -t tmpfs none /sys/module && mkdir /sys/module/mlx5_core && echo $1 >/sys/module/mlx5_core/version"
        )
        assert cluster.run(node, "sh", "-c", drivers, "sh", "5.8-2.0.3" if odd else "24.10-3.2.5").code == 0
    cluster.write("node3", str(VERSION), "__version__ = '2.0.9+cpu'\ncuda: Optional[str] = None\nhip = None\n")
    meeting = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "3", "LOCAL_RANK": "0"}
    command = (
        "distcheck",
        "gate",
        "--format",
        "json",
        "--output",
        "/tmp/report.json",
        "--",
        "python3",
        "/tmp/train.py",
    )
    running = [
        cluster.start(node, *command, env={**meeting, "RANK": str(rank)}, cwd="/tmp") for rank, node in enumerate(NODES)
    ]
    ended = [run.wait(150) for run in running]
    assert [e.code for e in ended] == [30, 30, 30], ended
    (report,) = reports(ended[0]._replace(out=cluster.read("node1", "/tmp/report.json")))
    told = [(f["rule"], f["severity"], f["ranks"], f["nodes"]) for f in report["findings"] if f["severity"] != "info"]
    assert sorted(told) == [
        ("command-file-differs", "warning", [2], ["node3"]),
        ("sw-ofed-kernel", "warning", [2], ["node3"]),
        ("sw-torch-version-differs", "error", [2], ["node3"]),
    ], report["findings"]
