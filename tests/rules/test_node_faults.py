"""What `distcheck node` makes of each fault of a node, in both modes, and which of them prolog.sh lets Slurm drain."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from made.hcas import infiniband as adapter
from made.nvml_jobs import PROFILES
from made.policies import policy
from rules.fabric.conftest import collected, read  # noqa: F401 fixtures
from rules.fabric.test_faults import DOWN, but
from rules.gpu.test_xids import xid
from rules.host.conftest import HEALTHY
from rules.host.test_node import GIB, MIB, space, state
from rules.host.test_storage import GOOD

from distcheck.facts.base import Missing
from distcheck.facts.host import StuckProcess
from distcheck.facts.placement import Placement
from distcheck.facts.rank import RankFacts
from distcheck.facts.storage import Folder, Storage
from distcheck.rules.diagnose import diagnose
from distcheck.run.node import reason

replace = msgspec.structs.replace
PROLOG = Path(__file__).parents[2] / "docs" / "schedulers" / "slurm" / "prolog.sh"
H200 = PROFILES["h200"]
RAILS = [adapter(f"mlx5_{n}") for n in range(8)]
EXPECT = {"gpu-model": "NVIDIA H200", "driver": "570.*", "kernel": "6.8.*", "adapters": 8}


def gpu(rule, line):
    """Return a fault that NVML tells of GPU 3."""
    return rule, {"text": f"3.{line}\n"}


def driver(answer):
    return "gpu-nvml-init-failed", {"gpus": Missing(reason=answer)}


def folder(rule, **fields):
    return rule, {"storage": Storage((replace(GOOD, **fields),))}


FULL = folder("storage-full", write_error="No space left on device")
SILENT, ABSENT = (Storage((Folder("/data", ("--path",), state),)) for state in ("silent", "absent"))
STUCK = replace(HEALTHY, stuck=(StuckProcess(7, "ls", "blocked", "rpc_wait"),))
DRAINED = {
    "a lost GPU": gpu("gpu-fell-off-bus", "lost yes"),
    "a missing GPU": ("gpu-fewer-than-needed", {"text": "count 7\n"}),
    "uncorrected memory errors": gpu("gpu-ecc-uncorrected", "ecc.1.0 2"),
    "no spare row of memory left": gpu("gpu-row-remap-pending", "rows 3 1 0 1"),
    "a GPU that asks for a reset": gpu("gpu-needs-reset", "field.230 type 1 1"),
    "a GPU that asks for a reboot": gpu("gpu-needs-reset", "field.230 type 1 2"),
    "a driver that is not installed": driver("NVML error 12: libnvidia-ml.so.1 was not found"),
    "a driver that is not loaded": driver("NVML error 9: the NVIDIA kernel module is not loaded"),
    "a driver of another version": driver("NVML error 18: driver/library version mismatch"),
    "a file system that is not mounted": ("storage-path-missing", {"storage": ABSENT}),
    "another model of GPU": ("gpu-model-not-expected", {"expect": {"gpu-model": "NVIDIA B200"}}),
    "another driver": ("gpu-driver-not-expected", {"expect": {"driver": "580.*"}}),
    "another kernel": ("host-kernel-not-expected", {"expect": {"kernel": "5.14.*"}}),
    "a missing adapter": ("ib-fewer-adapters-than-expected", {"rails": RAILS[:7]}),
    "an adapter without a link": ("ib-fewer-active-adapters-than-expected", {"rails": but("mlx5_2", RAILS, **DOWN)}),
    "a lost GPU beside a full file server": ("gpu-fell-off-bus", {"text": "3.lost yes\n", **FULL[1]}),
}
SUSPECTED = {
    "a driver that does not answer": driver("NVML did not answer within 7.5 s: a GPU hangs"),
    "a driver that may not be asked": driver("NVML error 4: no permission"),
    "Xid 79, from which the driver concludes nothing": (
        "gpu-xid-recent",
        {"text": "field.230 !3\n", "xids": (xid(79),)},
    ),
    "an unknown request of a GPU": gpu("gpu-needs-reset", "field.230 type 1 77"),
    "a fabric that is not up": gpu("gpu-fabric-manager-down", "fabric.state 2"),
    "an unhealthy fabric": gpu("gpu-nvls-multicast-broken", "fabric.summary 2"),
    "an NVLink that is down": gpu("gpu-nvlink-down", "link.state.5 0"),
    "a GPU in prohibited mode": gpu("gpu-prohibited-mode", "compute_mode 2"),
    "a /dev/shm without room": ("host-shm-too-small", {"state": state(shm=space(GIB, 0))}),
    "a /dev/shm that is not writable": ("host-shm-not-writable", {"state": state(shm=space(writable=False))}),
    "a full /tmp": ("host-disk-full", {"state": state(tmp=space(GIB, 4096))}),
    "a file server that hangs": ("storage-hangs", {"storage": SILENT}),
    "a disk that became read-only": folder(
        "storage-read-only", file_system="ext4", remounted=True, write_error="Read-only file system"
    ),
    "no look at the GPUs": ("", {"gpus": Missing(reason="the Python module pynvml cannot be imported")}),
}
"""Unknown, or not certain enough."""
WARNED = {
    "an adapter without a link that nobody expects": (
        "ib-port-down",
        {"rails": but("mlx5_2", RAILS, **DOWN), "expect": {"adapters": 7}},
    ),
    "a hot GPU": gpu("gpu-thermal-throttle", "reasons 0x40"),
    "a GPU on a narrow bus": gpu("gpu-pcie-downgraded", "pcie.width 8"),
    "a limited GPU": gpu("gpu-power-cap", "power.limit 400000"),
    "errors of an NVLink": gpu("gpu-nvlink-errors", "field.161.5 7000"),
    "Xid 94": ("gpu-xid-recent", {"xids": (xid(94),)}),
    "a small /dev/shm": ("host-shm-too-small", {"state": state(shm=space(64 * MIB, 64 * MIB))}),
    "processes stuck in the kernel": ("host-stuck-processes", {"host": STUCK}),
}
FAULTS = [
    *((name, 40, *fault) for name, fault in DRAINED.items()),
    *((name, 20, *fault) for name, fault in SUSPECTED.items()),
    ("a full file server", 30, *FULL),
    *((name, 0, *fault) for name, fault in WARNED.items()),
    ("nothing", 0, "", {}),
]


@pytest.fixture
def node_with(fake_nvml, job_of, change, read):  # noqa: F811 a fixture
    """Return the facts of `distcheck node` on a node of eight GPUs and adapters, with what is given changed."""

    def node_with(mode, text="", expect=EXPECT, rails=RAILS, **fields):
        job = job_of(1, 1, looks=("node", "gpu", "storage"), gpus=8)
        site = policy({"mode": mode, "expect": EXPECT | expect, "required-paths": ["/data"]})
        job = change.asked(job, command="node", gpus=8, paths=("/data",), policy=site)
        job = change.job(job, ranks=(RankFacts(process=job.ranks[0].process, placement=Placement(), environment={}),))
        given = {"state": state(), "host": HEALTHY, "storage": Storage((GOOD,)), "infiniband": read(rails), **fields}
        return change.node(job, 0, **{"gpus": fake_nvml.read(H200 + text), **given})

    return node_with


def drains(code):
    """Return whether prolog.sh fails, so that Slurm drains the node."""
    (codes,) = re.findall(r"^    ([\d |]+)\) exit 1 ;;", PROLOG.read_text(), re.MULTILINE)
    return str(code) in codes.split(" | ")


@pytest.mark.parametrize(("fault", "code", "rule", "fields"), FAULTS)
def test_enforcing_drains_what_is_confirmed_and_observing_nothing(node_with, fault, code, rule, fields):
    job = node_with("enforce", **fields)
    enforced = diagnose(job)
    assert (enforced.verdict.exit_code, drains(code)) == (code, code == 40), enforced
    found = {f.rule for f in enforced.findings if f.severity != "info"}
    assert found == {rule, "storage-full" if "full file server" in fault else rule} - {""}, enforced
    line = reason(job, enforced, {})
    assert line.startswith("distcheck: ") == (code != 0)
    assert f"[{rule}" in line or not (code and rule)
    assert len(line) <= 200

    job = node_with("observe", **fields)
    observed = diagnose(job)
    assert (observed.verdict.exit_code, drains(0), reason(job, observed, {})) == (0, False, "")
    assert (observed.would.exit_code if observed.would else 0) == code
