"""What every rule owes its reader, whoever wrote it."""

import ast
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from made.amd_jobs import ROCM
from made.nvml_jobs import LOOKS
from made.policies import policy
from rules.conftest import unpasteable

import distcheck
from distcheck.cli.explain import explanation
from distcheck.expectation import baseline
from distcheck.expectation.past import figures
from distcheck.facts.asked import Asked
from distcheck.facts.base import Missing
from distcheck.facts.device import DeviceTest
from distcheck.facts.engine import Engine
from distcheck.facts.gpu import Amd, GpuHealth
from distcheck.facts.history import History, PastFigure
from distcheck.facts.host import CpuQuota, Limits
from distcheck.facts.infiniband import Hca, HcaPort, Infiniband
from distcheck.facts.isolation import CulpritFacts, Isolation
from distcheck.facts.job import Collectives, Job, Launched, LaunchedNode, Measurement
from distcheck.facts.launch_command import Stated
from distcheck.facts.libraries import Libraries, NcclPlugin
from distcheck.facts.mesh import Mesh
from distcheck.facts.nccl import NcclLog
from distcheck.facts.network import Attempt, Bind, Resolution
from distcheck.facts.node import NO_TORCH, TorchBuild
from distcheck.facts.placement import Variables
from distcheck.facts.rank import Agent, Installed, RankRun
from distcheck.facts.storage import CommandFile, Storage
from distcheck.report.sections import why
from distcheck.rules import FAMILIES, all_rules, find_rule
from distcheck.rules.completion import outcomes
from distcheck.rules.diagnose import Diagnosis
from distcheck.rules.finding import SEVERITIES, Finding, NotChecked

TESTS = Path(__file__).parent.parent
RULES = Path(distcheck.__file__).parent / "rules"
PREFIXES = {
    "env", "net", "gpu", "nccl", "ib", "roce", "gdr", "perf", "host", "sw", "torch", "torchrun", "elastic",
    "launch", "slurm", "mpi", "k8s", "deepspeed", "accelerate", "coll", "collective", "isolation", "probe", "tool",
    "storage", "command", "mesh", "step", "engine", "hang",
}  # fmt: skip
"""Families of problems in the field's catalogues, and our own: collectives, isolation and the probe."""


def test_every_summary_is_one_sentence() -> None:
    for rule in all_rules():
        assert re.fullmatch(r"[A-Z`\d].*\.", rule.summary), rule.summary
        assert rule.doc.split("\n")[1:2] in ([], [""]), f"{rule.name}: a blank line follows the summary"


def test_every_rule_says_why_it_hurts_and_how_it_is_mended() -> None:
    for rule in all_rules():
        assert re.search(r"(?m)^Fix: \S", rule.doc), rule.name
        prose = rule.doc.split("\n\n")[1:]
        assert prose, rule.name
        assert not prose[0].startswith(("Fix:", "See:")), rule.name


def test_the_words_of_a_rule_speak_to_the_reader() -> None:
    assert [rule.name for rule in all_rules() if re.search(r"(?i)\bthe user\s+(would|will|sees)\b", rule.doc)] == []


def test_every_name_is_kebab_case_and_starts_with_a_family() -> None:
    for rule in all_rules():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
        assert rule.name.split("-")[0] in PREFIXES, rule.name


def test_every_rule_has_a_page_and_an_explanation() -> None:
    for rule in all_rules():
        assert rule.family in FAMILIES, rule.name
        assert rule.look in FAMILIES[rule.family].looks, rule.name
        assert rule.page == f"docs/rules/{rule.family}.md#{rule.name}"
        assert rule.summary.replace("``", "`") in explanation(rule.name)


def test_the_version_of_every_rule_is_in_the_changelog() -> None:
    changelog = (RULES.parent.parent / "docs" / "changelog.md").read_text(encoding="utf-8")
    for version in {rule.since for rule in all_rules()}:
        assert re.search(rf"(?m)^## {re.escape(version)}( |$)", changelog), version


def test_the_rules_that_explain_a_rule_exist_can_be_as_severe_and_are_not_explained_by_it() -> None:
    for rule in all_rules():
        todo, causes = list(rule.unless), set[str]()
        while todo:
            cause = find_rule(name := todo.pop())
            assert cause is not None, name
            assert cause.name == name, f"{name} is an alias"
            assert SEVERITIES.index(cause.severity) <= SEVERITIES.index(rule.severity), f"{name} is milder"
            todo += set(cause.unless) - causes
            causes.add(name)
        assert rule.name not in causes


def blocked_store(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job whose ranks 2-3 do not reach the port that torchrun's agent chose for the ranks."""
    agent = Agent(program="torchrun", pid=9, arguments=("--rdzv-backend=c10d", "train.py"), exported=Variables({}))
    job = change.process(job_of(2, 2, "torchrun"), None, agent=agent)
    job = change.process(job, 0, bind=Bind(port=45319, outcome="agent"))
    lost = Attempt(address="10.0.0.1", port=45319, door="master", outcome="timeout")
    return change.process(job, [2, 3], attempts=(lost,))


def two_versions_of_nccl(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job whose ranks 2-3 load another NCCL than torch's own."""
    job = change.process(job_of(4, 2, "slurm", looks=("environment", "gpu"), gpus=2), None, libraries=NCCL)
    other = {"nccl": "/opt/nccl/libnccl.so.2", "version": "2.26.2", "found_by": "LD_LIBRARY_PATH"}
    return change.process(job, [2, 3], libraries=change.job(NCCL, own_version="2.27.3", **other))


def one_old_driver(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job of torch for CUDA 13, one node of which has a driver for CUDA 12."""
    job = job_of(4, 2, "slurm", looks=("gpu",), gpus=2)
    job = change.process(job, None, installed=Installed("3.11.7", "/opt/venv", TorchBuild("2.10.0", "13.0", None)))
    gpus = job.nodes[1].gpus
    job = change.node(job, None, gpus=change.job(gpus, driver="580.65", cuda_driver="13.0"))
    return change.node(job, 1, gpus=change.job(gpus, driver="535.183", cuda_driver="12.2"))


def one_foreign_plugin(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job on one node of which the network plugin that it asks for does not load."""
    job = job_of(4, 2, "slurm", looks=("environment", "gpu", "collectives"), gpus=2)
    job = change.environment(job, None, NCCL_NET_PLUGIN="/opt/libnccl-net.so")
    job = change.process(job, None, libraries=NCCL)
    unfit = NcclPlugin("net", "/opt/libnccl-net.so", error="libfabric.so.1: cannot open shared object file")
    job = change.process(job, [2, 3], libraries=change.job(NCCL, plugins=(unfit,)))
    log = NcclLog(version="2.27.3", ranks=8, nodes=4, network="Socket", plugins_missing=("NET libnccl-net.so",))
    run = RankRun(pid=1, step="done", outcome="done", nccl=log)
    return change.rank(job, [2, 3], run=run)


def one_node_rank_twice(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job of two nodes with the same node rank, and so with the same rank."""
    return change.environment(job_of(2, 1), None, NODE_RANK="0", RANK="0")


def dealt_to_nodes_in_turn(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job of tensor groups of two ranks, whose ranks are on two nodes in turn."""
    job = change.asked(job_of(2, 2, "slurm"), mesh=Mesh({"dp": 2, "tp": 2}))
    for number, place in enumerate((0, 2, 1, 3)):
        local = job.ranks[place].environment["LOCAL_RANK"]
        job = change.environment(job, place, RANK=str(number), SLURM_PROCID=str(number), SLURM_LOCALID=local)
    return job


def half_as_fast_as_before(cause: str) -> Callable[..., Job]:
    """Return a function that makes a job whose all_reduce was twice as fast in earlier runs, because of one GPU."""
    slow = {"matmul_TFLOPS": 60.0, "memory_GBps": 300.0, "h2d_GBps": 5.0}
    slow = {name: value for name, value in slow.items() if cause.endswith(SLOW_WORK.get(name, "-"))}

    def make(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
        job = job_of(4, 2, looks=("environment", "meeting", "gpu", "collectives"), gpus=2, command="gate")
        test = DeviceTest("bfloat16", 8192, 600.0, 3000.0, 50.0, 50.0)
        tests = [change.job(test, **slow), *[test] * 7]
        for n, one in enumerate(tests):
            job = change.rank(job, n, run=RankRun(1, "done", "done", device="NVIDIA H100", device_test=one))
        rows = [Measurement("all_reduce", 1 << 26, "float32", 5, (0.01 * n,) * 8, uncertainty=0.01) for n in (1, 2)]
        before, now = (change.job(job, collectives=Collectives("nccl", measurements=(row,))) for row in rows)
        if not slow:
            now = change.asked(now, baseline=baseline.of(before, "before.json"))
        fast, low = (next(f for f in figures(j) if not f.ranks) for j in (before, now))
        past = PastFigure(low.node, low.name, (fast.value,) * 7 + (low.value,) * 2)
        return change.job(now, history=History("/h", figures=(past,)))

    return make


def one_small_cpu_limit(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job of whose ranks, which share half a CPU, one got almost nothing of it."""
    job = job_of(1, 4, looks=("environment", "meeting", "collectives"))
    job = change.process(job, None, limits=Limits(cpu=CpuQuota(0.5, 100, 60, "/sys/fs/cgroup/job")))
    for n, speed in enumerate((0.05, 0.05, 0.005, 0.05)):
        test = DeviceTest("float32", 256, speed, 100 * speed)
        job = change.rank(job, n, run=RankRun(1, "done", "done", device="cpu", device_test=test))
    return job


def one_node_without_torch(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job on one node of which torch is not installed, so that its ranks do not start and it fails alone."""
    job = job_of(4, 2, looks=("environment", "meeting", "collectives", "isolation"), command="gate")
    installed = Installed("3.11.7", "/opt/venv", Missing(reason=NO_TORCH))
    job = change.process(job, [2, 3], installed=installed)
    lost = RankRun(
        1, "started", "not started", "torch cannot be imported: ModuleNotFoundError: No module named 'torch'"
    )
    job = change.rank(job, [2, 3], run=lost)
    culprit = CulpritFacts("node", ("node2",), (), "failed", certain=True, evidence=(), sentence="it fails alone")
    return change.job(job, isolation=Isolation("found", "node2 is bad", culprits=(culprit,), rounds=2))


def one_broken_probe(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job that lost a process in which distcheck itself failed."""
    job = change.asked(job_of(2, 1, launcher="distcheck"), looks=("launch", "environment", "meeting"))
    job = change.process(job, 1, lost="it closed the connection")
    words = "distcheck 0.1.0: the probe failed: RuntimeError: no such thing"
    nodes = LaunchedNode("node1", (0,), "reported"), LaunchedNode("node2", (1,), "reported", 70, words)
    return change.job(job, launched=Launched("ssh", ("python3",), nodes))


def python_in_a_batch_shell(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return two ranks that distcheck started in a batch shell of four tasks, where COMMAND is Python."""
    asked = {"program": "python", "script": "train.py", "processes": "1", "batch_shell": True}
    job = job_of(launcher="distcheck", looks=("environment", "storage"), command="gate", **asked)
    script = CommandFile("train.py", "script", "/job/train.py", "file", mentions=())
    job = change.node(job, None, storage=Storage(files=(script,)))
    slurm = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4"}
    return change.job(job, ranks=tuple(change.job(rank, environment=rank.environment | slurm) for rank in job.ranks))


SLOW_WORK = {"matmul_TFLOPS": "compute", "memory_GBps": "memory", "h2d_GBps": "host-copy"}
NCCL = Libraries(nccl="/venv/nccl/lib/libnccl.so.2", version="2.27.3", found_by="torch")


def one_launch_line_on_both_nodes(node_rank: int) -> Callable[..., Job]:
    """Two nodes whose launch commands name this node rank, so that the ranks of the second are those."""

    def made(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
        job = job_of(2, 2, "distcheck", ("environment", "meeting"), told="placement from torchrun's arguments: ...")
        for rank in (2, 3):
            number = 2 * node_rank + rank - 2
            job = change.rank(job, rank, placement=msgspec.structs.replace(job.ranks[rank].placement, rank=number))
        first = Stated("torchrun", "2", 2, 0, 0, "node1", 29500)
        return change.process(
            change.process(job, 0, launch=first), 2, launch=msgspec.structs.replace(first, node_rank=node_rank)
        )

    return made


def two_nodes_that_meet_at_localhost(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    job = job_of(2, 2, "distcheck", ("environment", "meeting"), told="placement from torchrun's arguments: …")
    job = change.environment(job, None, MASTER_ADDR="localhost")
    job = change.process(job, None, master_resolution=Resolution("localhost", ("127.0.0.1",), 0.0))
    for node in range(2):
        job = change.process(job, 2 * node, launch=Stated("torchrun", "2", 2, 0, node, "localhost", 29500))
    return job


def a_model_on_a_dead_mount(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    job = job_of(1, 2, "distcheck", looks=("environment", "storage"), told="placement from vllm's arguments: …")
    stated = Stated("vllm", "2", engine=Engine("vLLM", model="/nas/m", model_state="silent"))
    job = change.node(job, 0, storage=Storage(files=(CommandFile("/nas/m", "argument", "/nas/m", "silent"),)))
    return change.process(job, 0, launch=stated)


def one_card_in_cpx(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a job on two nodes with AMD GPUs, one of which is a part of its card."""
    job = job_of(2, 2, looks=LOOKS, gpus=2)
    for n in range(2):
        modes = ("SPX", "CPX" if n else "SPX")
        gpus = tuple(
            msgspec.structs.replace(
                gpu,
                memory_bytes=gpu.memory_bytes // (8 if mode == "CPX" else 1),
                health=GpuHealth(amd=Amd(compute_partition=mode)),
            )
            for gpu, mode in zip(job.nodes[n].gpus.devices, modes, strict=True)
        )
        job = change.node(
            job, n, accelerator="amd", gpus=msgspec.structs.replace(job.nodes[n].gpus, devices=gpus), torch=ROCM
        )
    for i, rank in enumerate(job.ranks):
        own = job.node_of(rank).gpus.devices[rank.placement.local_rank]
        job = change.rank(job, i, gpu=own.uuid)
    return job


def one_adapter_down(job_of: Callable[..., Job], change: SimpleNamespace) -> Job:
    """Return a node whose policy expects five adapters, of which one has no link."""
    up = HcaPort(1, "InfiniBand", "ACTIVE", "LinkUp")
    ports = (up, up, up, up, HcaPort(1, "InfiniBand", "DOWN", "Polling"))
    hcas = tuple(Hca(f"mlx5_{n}", (port,), board="MT_1") for n, port in enumerate(ports))
    job = change.node(job_of(1, 1, looks=("environment", "node")), 0, infiniband=Infiniband(hcas))
    return change.asked(job, command="node", policy=policy({"expect": {"adapters": 5}}))


EXPLAINED: dict[str, dict[str, Callable[..., Job]]] = {
    "net-master-unreachable": {"torchrun-store-port-extra": blocked_store},
    "command-processes-differ": {"slurm-no-srun": python_in_a_batch_shell},
    "env-master-addr-localhost-multinode": {"command-endpoint-local": two_nodes_that_meet_at_localhost},
    "env-rank-duplicate": {"command-node-rank-duplicate": one_launch_line_on_both_nodes(0)},
    "env-rank-out-of-range": {"command-node-rank-beyond": one_launch_line_on_both_nodes(2)},
    "engine-model-missing": {"storage-hangs": a_model_on_a_dead_mount},
    "torchrun-node-rank-duplicated": {"env-rank-duplicate": one_node_rank_twice},
    "sw-nccl-shadowed": {"sw-nccl-version-differs": two_versions_of_nccl},
    "sw-driver-differs-nodes": {"sw-driver-too-old": one_old_driver},
    "gpu-mixed-models": {"gpu-partition-differs": one_card_in_cpx},
    "sw-plugin-abi": {"nccl-net-plugin-missing": one_foreign_plugin},
    "probe-process-lost": {"launch-probe-broken": one_broken_probe},
    "perf-slow-rank": {"perf-cgroup-cpu-quota": one_small_cpu_limit},
    "collective-failed": {"sw-torch-missing": one_node_without_torch},
    "ib-port-down": {"ib-fewer-active-adapters-than-expected": one_adapter_down},
    "isolation-bad-node": {"sw-torch-missing": one_node_without_torch},
    "env-rank-order-not-node-major": {"mesh-rank-order": dealt_to_nodes_in_turn},
    "perf-below-history": {
        cause: half_as_fast_as_before(cause)
        for cause in ("gpu-slow-compute", "gpu-slow-memory", "gpu-slow-host-copy", "perf-below-baseline")
    },
}
"""Jobs in which a rule's finding is explained, by rule and by the rule that explains it."""


def test_a_rule_is_silent_where_a_rule_of_its_record_explains_it(
    job_of: Callable[..., Job], change: SimpleNamespace, judge: Callable[..., Diagnosis]
) -> None:
    assert {name: set(jobs) for name, jobs in EXPLAINED.items()} == {
        r.name: set(r.unless) for r in all_rules() if r.unless
    }
    for rule in all_rules():
        for cause in rule.unless:
            job = EXPLAINED[rule.name][cause](job_of, change)
            assert any(isinstance(outcome, Finding) for outcome in outcomes(rule, job)), "it would report this job"
            assert [f.rule for f in judge(job).findings if f.rule in {rule.name, cause}] == [cause]


def test_the_looks_of_a_family_are_those_of_its_rules() -> None:
    """`FAMILIES` repeats the looks, so that a module is imported only if the job asked for one of them."""
    for name, family in FAMILIES.items():
        rules = [rule for rule in all_rules() if rule.family == name]
        assert set(family.looks) == {look for rule in rules for look in (rule.look, *rule.also)}, name


def test_a_test_mentions_every_rule() -> None:
    files = (path for path in TESTS.rglob("test_*.py") if path != Path(__file__) and ".venv" not in path.parts)
    words = {word for path in files for word in re.findall(r"[\w-]+", path.read_text(encoding="utf-8"))}
    assert [rule.name for rule in all_rules() if words.isdisjoint({rule.name, rule.name.replace("-", "_")})] == []


def test_no_rule_has_anything_to_say_of_an_empty_job_but_findings_and_gaps() -> None:
    looks = ("environment", "meeting", "peers", "gpu", "collectives")
    job = Job(distcheck="0.1.0", run="r", asked=Asked("gate", looks), met=True)
    for rule in all_rules():
        assert all(isinstance(outcome, Finding | NotChecked) for outcome in outcomes(rule, job)), rule.name


def words_of(path: Path) -> list[str]:
    """Return the string constants of a module, docstrings aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose)
    return [node.value for node in constants if isinstance(node.value, str)]


def test_no_words_of_a_rule_leave_out_what_is_to_be_typed_or_hold_a_usual_port() -> None:
    for path in sorted(RULES.rglob("*.py")):
        for words in words_of(path):
            if words == "…":
                continue  # what others wrote is cut
            wrong = re.search(r"\.\.\.|…|<\w+>|HOST_OF|\b29[45]\d\d\b|nproc-per-node[= ][3-9]", words)
            assert not wrong, f"{path.relative_to(RULES)}: {words}"


@pytest.mark.parametrize(
    ("command", "right"),
    [
        ("export MASTER_PORT=29500", True),
        ("export MASTER_PORT=29501", True),
        ("export MASTER_PORT=29511", False),
        ("torchrun --master-port=29511 train.py", False),
        ("torchrun --rdzv-id=${SLURM_JOB_ID:?} train.py", True),
        ("torchrun --nnodes 4 ...", False),
        ("docker run --gpus all …", False),
        ("ping <node>", False),
        ("torchrun --master-addr HOST train.py", False),
        ("# add to docker run: --gpus all", True),
    ],
)
def test_what_cannot_be_pasted_is_recognised_in_every_finding(
    job_of: Callable[..., Job], command: str, *, right: bool
) -> None:
    assert (unpasteable(command, job_of()) == "") == right


def test_no_name_or_alias_means_two_things() -> None:
    names = Counter(name for rule in all_rules() for name in {rule.name, *rule.aliases})
    assert [name for name, times in names.items() if times > 1] == []


def test_a_reports_why_ends_before_how_the_problem_is_found():
    assert why("nccl-comm-id-set").endswith("It is left from a program that uses NCCL without torch.")
    assert not [rule.name for rule in all_rules() if "Found by" in why(rule.name) or len(why(rule.name)) < 30]
