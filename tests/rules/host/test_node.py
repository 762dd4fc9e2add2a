"""A single node: each fault is reported for the node that has it, and a healthy node is silent."""

from __future__ import annotations

import msgspec
import pytest

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.facts.network import Resolution
from distcheck.facts.node import NodeState, TorchBuild
from distcheck.facts.pci import Pci, PciPlace
from distcheck.facts.placement import Placement
from distcheck.facts.rank import RankFacts
from distcheck.facts.storage import Space
from distcheck.rules.diagnose import diagnose

replace = msgspec.structs.replace

GIB = 1 << 30
MIB = 1 << 20
OURS = ("host.node", "gpu.mapping")


def space(total=GIB, free=GIB, files=1000, *, writable=True):
    return Space(total_bytes=total, free_bytes=free, free_files=files, writable=writable)


def state(name=None, shm=None, tmp=None, open_files=(1024, 1 << 20)):
    return NodeState(
        own_name=name or Resolution(name="node1", addresses=("10.0.0.1",), seconds=0.001),
        spaces={"/dev/shm": shm or space(), "/tmp": tmp or space()},
        open_files=open_files,
    )


@pytest.fixture
def lone(job_of, change):
    """A job of `distcheck node` on nodes of four GPUs; `nodes` of them, merged as `distcheck report` does."""

    def lone(nodes=1, *, gpus=None, accelerator="nvidia", answer=..., states=None):
        job = job_of(nodes, 1, gpus=4)
        job = change.asked(job, command="node", looks=("node", "gpu"), gpus=gpus)
        rows = tuple(RankFacts(process=r.process, placement=Placement(), environment={}) for r in job.ranks)
        job = change.job(job, ranks=rows)
        for n, node in enumerate(job.nodes):
            found = node.gpus if answer is ... else answer
            own = states[n] if states else state(Resolution(node.name, (f"10.0.0.{n + 1}",), 0.001))
            job = change.node(job, n, accelerator=accelerator, gpus=found, state=own)
        return job

    return lone


@pytest.fixture
def said(judge):
    """Return (rule, severity, confirmed, nodes) of each finding, and the exit code."""

    def said(job):
        diagnosis = judge(job, *OURS)
        found = [(f.rule, f.severity, f.confirmed, f.nodes) for f in diagnosis.findings]
        return found, diagnosis.verdict.exit_code

    return said


NO_GPU = Gpus(driver="550", cuda_driver="12.4", devices=())
LOST = Missing(reason="NVML error 15: a GPU is lost")
THREE = tuple(Gpu(i, f"GPU-{i}", f"0000:0{i}:00.0", "H100", GIB, 0, mig=False) for i in range(3))
ONE_LOST = Gpus("550", "12.4", (*THREE, Gpu(3, *[LOST] * 6, lost=LOST.reason)))


@pytest.mark.parametrize(
    ("options", "found", "code"),
    [
        *(({"gpus": gpus}, [], 0) for gpus in (None, 0, 3, 4)),
        ({"accelerator": "none", "answer": None}, [], 0),
        ({"accelerator": "none", "answer": NO_GPU}, [], 0),
        ({"answer": NO_GPU}, [("gpu-fewer-than-needed", "error", False, ("node1",))], 20),
        ({"gpus": 5}, [("gpu-fewer-than-needed", "error", True, ("node1",))], 40),
        ({"gpus": 4, "answer": ONE_LOST}, [("gpu-fell-off-bus", "error", True, ("node1",))], 40),
    ],
)
def test_gpu_fewer_than_needed_by_what_nvml_lists(lone, said, options, found, code):
    assert said(lone(**options)) == (found, code)


NO_LIBRARY = "NVML error 12: NVIDIA's driver library is not installed: libnvidia-ml.so.1 was not found"


@pytest.mark.parametrize(
    ("reason", "gpus", "accelerator", "code", "command"),
    [
        (NO_LIBRARY, 4, "none", 40, "ldconfig -p | grep libnvidia-ml; cat /proc/driver/nvidia/version"),
        (NO_LIBRARY, 4, "nvidia", 40, "ldconfig -p | grep libnvidia-ml; cat /proc/driver/nvidia/version"),
        (NO_LIBRARY, None, "nvidia", 20, "ldconfig -p | grep nvidia-ml"),  # a container without the driver's libraries
        (NO_LIBRARY, None, "none", 0, ""),
        (NO_LIBRARY, 0, "none", 0, ""),
        ("NVML error 9: the NVIDIA kernel module is not loaded", 4, "none", 40, "sudo modprobe nvidia"),
        ("NVML error 18: driver/library version mismatch", 4, "none", 40, "sudo reboot"),
        ("NVML error 4: no permission", 4, "nvidia", 20, "ls -l /dev/nvidiactl /dev/nvidia0; id"),
        ("NVML did not answer within 7.5 s: a GPU hangs", 4, "nvidia", 20, "timeout -s KILL 30 nvidia-smi"),
    ],
)
def test_where_gpus_must_be_a_driver_that_does_not_load_is_confirmed_and_named(
    lone, said, judge, change, reason, gpus, accelerator, code, command
):
    torch = TorchBuild("2.9", None if gpus else "12.8", None)  # that of distcheck says nothing of the node
    job = change.node(lone(gpus=gpus, accelerator=accelerator, answer=Missing(reason=reason)), 0, torch=torch)
    assert said(job) == ([("gpu-nvml-init-failed", "error", code == 40, ("node1",))] if code else [], code)
    for finding in judge(job, *OURS).findings:
        assert finding.message == f"node1: {reason}" + (f"; expected {gpus} GPUs (--gpus)" if gpus else "")
        assert command in finding.fix.commands
        assert finding.owner == ("user" if gpus is None else "admin")


@pytest.mark.parametrize("shown", [False, True])
def test_the_fix_of_a_missing_gpu_goes_by_the_pci_bus(lone, only, change, shown):
    job = lone(gpus=5)
    listed = {gpu.pci for gpu in job.nodes[0].gpus.devices}
    places = dict.fromkeys([*listed, *(["0000:f1:00.0"] if shown else [])], PciPlace((), None))
    finding, _ = only(change.node(job, 0, pci=Pci(gpus=places, nics=())))
    more = "; its PCI bus shows 0000:f1:00.0 too" if shown else ""
    assert finding.message == f"node1: NVML lists 4 GPUs; expected 5 (--gpus){more}"
    assert finding.fix.commands[-1] == ("sudo reboot" if shown else "sudo poweroff")


def test_the_rule_alone_does_not_pass_without_a_driver(lone):
    job = lone(gpus=4, accelerator="none", answer=Missing(reason=NO_LIBRARY))
    diagnosis = diagnose(job, select=["gpu-fewer-than-needed"])
    assert (diagnosis.findings, diagnosis.verdict.exit_code) == ((), 20)


@pytest.mark.parametrize("accelerator", ["nvidia", "none", "amd"])
def test_a_missing_pynvml_blames_no_node(lone, said, accelerator):
    answer = Missing(reason="the Python module pynvml (package nvidia-ml-py) cannot be imported: gone")
    assert said(lone(gpus=4, accelerator=accelerator, answer=answer)) == ([], 20)


@pytest.mark.parametrize(
    ("faulty", "rule", "severity", "code"),
    [
        (state(shm=space(writable=False)), "host-shm-not-writable", "error", 20),
        (state(shm=Missing(reason="/dev/shm: No such file or directory")), "host-shm-not-writable", "error", 20),
        (state(shm=space(64 * MIB, 64 * MIB)), "host-shm-too-small", "warning", 0),
        (state(shm=space(GIB, 60 * MIB)), "host-shm-too-small", "warning", 0),
        (state(shm=space(GIB, 0)), "host-shm-too-small", "error", 20),
        (state(tmp=space(writable=False)), "host-disk-full", "error", 20),
        (state(tmp=Missing(reason="/tmp: No such file or directory")), "host-disk-full", "error", 20),
        (state(tmp=space(GIB, 99 * MIB)), "host-disk-full", "warning", 0),
        (state(tmp=space(GIB, 4096)), "host-disk-full", "error", 20),
        (state(tmp=space(files=0)), "host-disk-full", "error", 20),
        (state(Missing(reason="node1: Name or service not known")), "host-own-name-unresolvable", "warning", 0),
        (state(Resolution("node1", ("10.9.9.9",), 0.1)), "host-own-name-unresolvable", "warning", 0),
        (state(Resolution("node1", ("127.0.1.1",), 0.1)), "host-own-name-unresolvable", "info", 0),
        (state(open_files=(1024, 1024)), "host-nofile", "warning", 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_of_one_node_names_that_node(lone, only, faulty, rule, severity, code):
    own_name = Resolution("node2", ("10.0.0.2",), 0.001)
    named = faulty if faulty.own_name != state().own_name else replace(faulty, own_name=own_name)
    found, exit_code = only(lone(2, states=[state(), named]))
    assert (found.rule, found.severity, found.nodes, exit_code) == (rule, severity, ("node2",), code)


@pytest.mark.parametrize(
    "healthy",
    [
        {"tmp": space(files=None)},
        {"open_files": (1024, -1)},
        {"shm": space(65 * MIB, 65 * MIB)},
        {"name": Resolution("node1", ("127.0.1.1", "10.0.0.1"), 0.1)},
    ],
    ids=["no count of files", "no limit", "just enough", "both addresses"],
)
def test_unusual_but_healthy_states_are_silent(lone, silent, healthy):
    assert silent(lone(states=[state(**healthy)]))


def test_a_node_that_does_not_answer_is_not_a_pass(lone, judge):
    silent = Missing(reason="this node did not answer within 7 s: its resolver or a file system hangs")
    diagnosis = judge(lone(states=[silent]), *OURS)
    assert (diagnosis.findings, diagnosis.verdict.exit_code) == ((), 20)
    assert {n.rule for n in diagnosis.not_checked} == {
        "host-shm-not-writable", "host-shm-too-small", "host-disk-full", "host-own-name-unresolvable", "host-nofile",
    }  # fmt: skip


def test_a_fault_that_nodes_share_is_one_finding_and_of_most_nodes_has_scope_system(lone, only, judge):
    states = [state(Resolution(f"node{n}", (f"10.0.0.{n}",), 0.1), open_files=(1, 1)) for n in (1, 2)]
    found, _ = only(lone(2, states=states))
    assert found.message == "node1 and node2: the hard limit of open files is 1; expected 4096 or more"
    assert found.nodes == ("node1", "node2")
    diagnosis = judge(lone(3, gpus=8), *OURS)
    assert ({f.scope for f in diagnosis.findings}, diagnosis.verdict.exit_code) == ({"system"}, 30)


def small(mib):
    return {"shm": space(mib * MIB, mib * MIB)}


def scratch(tmp):
    return {"tmp": tmp, "tmp_folder": "/scratch/my tmp"}


@pytest.mark.parametrize(
    ("facts", "backend", "expected"),
    [
        (small(64), "nccl", "host-shm-too-small warning"),
        (small(64), "gloo", "host-shm-too-small info"),
        (small(64), "auto", "host-shm-too-small info"),
        (small(65), "nccl", ""),
        ({"shm": None}, "nccl", ""),
        (scratch(space(8 * MIB, 0)), "auto", "host-disk-full error"),
        (scratch(space(GIB, 60 * MIB)), "auto", "host-disk-full warning"),
        (scratch(space(GIB, 101 * MIB)), "auto", ""),
        (scratch(Missing(reason="/tmp: No such file or directory")), "auto", "host-disk-full error"),
        (scratch(None), "auto", ""),
    ],
)
def test_the_folders_of_a_node_that_measures_are_judged_too(job_of, change, judge, facts, backend, expected):
    job = change.node(job_of(3, 2, looks=("environment", "meeting", "collectives"), backend=backend), 1, **facts)
    skipped = change.job(job, skipped={"collectives": "not run because of something else"})
    for looked in (job, skipped):  # the room is known even if the collectives were not run
        found = judge(looked, "host.node").findings
        assert [(f.rule, f.severity, f.nodes) for f in found] == ([(*expected.split(), ("node2",))] if expected else [])


@pytest.mark.parametrize("look", ["collectives", "isolation"])
def test_a_full_temporary_directory_is_named(job_of, change, judge, look):
    job = change.node(job_of(3, 2, looks=("environment", "meeting", look)), 1, **scratch(space(GIB, 60 * MIB)))
    (found,) = judge(job, "host.node").findings
    assert "node2: /scratch/my tmp has" in found.message
    assert found.fix.commands[0] == "df -h '/scratch/my tmp'; df -i '/scratch/my tmp'"


@pytest.mark.parametrize(
    ("shm", "reason"),
    [
        (Missing(reason="/dev/shm: No such file or directory"), "/dev/shm: No such file or directory"),
        (space(writable=False), "/dev/shm is not writable"),
    ],
)
def test_unusable_shared_memory_is_listed_as_not_checked(job_of, change, judge, shm, reason):
    job = change.node(job_of(3, 2, looks=("environment", "meeting", "collectives")), (0, 2), shm=shm)
    said = judge(change.node(job, 1, shm=space()), "host.node")
    (missed,) = said.not_checked
    assert (missed.rule, missed.reason, missed.nodes) == ("host-shm-too-small", reason, ("node1", "node3"))
    assert (missed.required, said.findings, said.verdict.exit_code) == (False, (), 0)
