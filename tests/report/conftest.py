"""Jobs to report on, with fixed diagnoses, so that the goldens do not depend on the rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from made.reported import LOOKS, Case, build, case

import distcheck.rules
from distcheck.facts.asked import Asked
from distcheck.facts.job import Job
from distcheck.rules import Rule
from distcheck.rules.finding import Finding, Fix, NamedGpu, NotChecked

GOLDENS = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="rewrite tests/report/golden")


_STYLE = re.compile(r"(?<=<style>\n).*?(?=</style>)", re.DOTALL)
_SCRIPT = re.compile(r"(?<=<script>).*?(?=</script>)|(?<=script-src 'sha256-)[\w+/=]+", re.DOTALL)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file; of a web page, the style and the script are the same for all and left out."""

    def compare(name: str, text: str) -> None:
        path = GOLDENS / name
        if path.suffix == ".html":
            text = _SCRIPT.sub("copy.js", _STYLE.sub("style.css\n", text))
        if request.config.getoption("--update-goldens", default=False):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return compare


def gpu_duplicate(job: Job) -> Iterator[Finding]:
    """Two ranks run on one GPU.

    NCCL refuses a communicator in which two ranks have one device: ``Duplicate GPU detected``. Every rank
    then stops.

    Found by comparing UUIDs.

    Fix: give each rank its own GPU.
    """
    del job
    yield from ()


def net_mtu_differs(job: Job) -> Iterator[Finding]:
    """The MTU differs between ranks."""
    del job
    yield from ()


def env_rank_unset(job: Job) -> Iterator[Finding]:
    """A variable that torch needs is not set."""
    del job
    yield from ()


def probe_rule_crashed(job: Job) -> Iterator[Finding]:
    """A rule of distcheck crashed."""
    del job
    yield from ()


RULES = (
    Rule("env-rank-unset", "environment", "environment", (), env_rank_unset),
    Rule("net-mtu-differs", "network", "peers", (), net_mtu_differs),
    Rule("gpu-duplicate", "gpu", "gpu", ("slurm-same-gpu-for-all",), gpu_duplicate),
    Rule("probe-rule-crashed", "probe", "environment", (), probe_rule_crashed),
)


@pytest.fixture(autouse=True)
def fixed_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    distcheck.rules.all_rules()  # a module that is first imported during a test would register its rules among these
    monkeypatch.setattr(distcheck.rules, "_rules_of", lambda _families: RULES)
    monkeypatch.setattr(distcheck.rules, "_registered", {rule.name: rule for rule in RULES})


def duplicate(rank: int) -> Finding:
    return Finding(
        rule="gpu-duplicate",
        aliases=("slurm-same-gpu-for-all",),
        scope="rank",
        ranks=(rank, rank + 1),
        nodes=("node2",),
        message=f"ranks {rank} and {rank + 1} both run on GPU-node2-0 (0000:10:00.0)",
        evidence={"uuid": "GPU-node2-0", "ranks": [rank, rank + 1], "CUDA_VISIBLE_DEVICES": {"node2": "0"}},
        fix=Fix(
            "Let every task see all GPUs of its node.",
            ("srun --gpus-per-task=0 --gres=gpu:8 python train.py --a-long-option=" + "x" * 120,),
        ),
        docs="docs/rules/gpu.mapping.md#gpu-duplicate",
    )


@pytest.fixture
def job_of() -> Callable[..., Job]:
    return build


@pytest.fixture
def judge() -> Callable[..., Case]:
    return case


@pytest.fixture
def healthy() -> Case:
    return case(build(2, 4))


@pytest.fixture
def failing() -> Case:
    return case(
        build(3, 16, measured=False),
        *(duplicate(rank) for rank in range(16, 30, 2)),
        Finding(
            rule="gpu-lost",
            severity="error",
            scope="gpu",
            owner="admin",
            ranks=(32,),
            nodes=("node3",),
            gpus=(NamedGpu("node3", 0, "GPU-node3-0"),),
            message="GPU 0 of node3 fell off the bus",
            evidence={"nvml": "GPU is lost", "since": None, "traceback": "line one\nline two"},
            fix=Fix("Drain the node and reset the GPU.", ("scontrol update nodename=node3 state=drain", "reboot")),
            docs="docs/rules/gpu.mapping.md#gpu-lost",
        ),
        Finding(
            rule="net-mtu-differs",
            severity="warning",
            scope="link",
            owner="admin",
            confirmed=False,
            ranks=(40,),
            message="rank 40 sees MTU 1500 on eth0; the other 47 ranks see 9000",
            evidence={"mtu": [1500, 9000, 9000]},
            fix=Fix("Set one MTU."),
            docs="docs/rules/network.master_reachability.md#net-mtu-differs",
        ),
        Finding(rule="env-nccl-set", severity="info", message="NCCL_DEBUG is set", fix=Fix("Nothing to do.")),
        NotChecked(rule="nccl-slow", reason="no expectation is known for this card", required=False),
        NotChecked(rule="coll-wrong-result", reason="the collectives were not started", ranks=(1, 2, 3)),
        NotChecked(rule="coll-hang", reason="the collectives were not started"),
    )


@pytest.fixture
def empty() -> Case:
    return case(Job(distcheck="0.1.0", run="r2", asked=Asked("report", ("environment",)), met=True))


@pytest.fixture
def missing() -> Case:
    return case(
        build(1, 4, world=8, gpus=False, measured=False),
        Finding(
            rule="env-rank-missing",
            ranks=(4, 5, 6, 7),
            message="ranks 4-7 of 8 did not come within 20 s",
            fix=Fix("Start the missing node."),
        ),
    )


@pytest.fixture
def single() -> Case:
    job = build(1, 1, gpus=False)
    return case(msgspec.structs.replace(job, asked=Asked("bandwidth", LOOKS, started_here=True)))


HOSTILE = (
    "<script>alert('x')</script> \"quoted\" | `tick` \\ \n::error::\r\x1b[31mred\x1b[0m \x00 \u202e]]> "
    "& {{ 7*7 }} \udcff"
)


@pytest.fixture
def hostile() -> Case:
    job = build(1, 2, measured=False)
    node = msgspec.structs.replace(job.nodes[0], name=f"node {HOSTILE}")
    return case(
        msgspec.structs.replace(job, nodes=(node,), asked=Asked(HOSTILE, LOOKS)),
        Finding(
            rule="net-mtu-differs",
            scope="node",
            ranks=(1,),
            nodes=(f"node {HOSTILE}",),
            message=HOSTILE,
            evidence={HOSTILE: HOSTILE, "nested": {"list": [HOSTILE, float("nan"), {1, 2}], 3: None}},
            fix=Fix(HOSTILE, (f"echo {HOSTILE}",)),
            docs="docs/rules/network.master_reachability.md#net-mtu-differs",
        ),
        Finding(rule="gpu-duplicate", severity="warning", message=HOSTILE * 20, fix=Fix(HOSTILE)),
        NotChecked(rule="env-rank-unset", reason=HOSTILE, nodes=(HOSTILE,)),
    )


@pytest.fixture(params=["healthy", "failing", "empty", "missing", "single", "hostile"])
def any_job(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found
