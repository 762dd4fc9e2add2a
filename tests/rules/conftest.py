"""Healthy jobs of any shape as facts, and ways to change one thing about them."""

from __future__ import annotations

import re
import shlex
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from misread import elsewhere, misleading, misquoted, misread

from distcheck.facts.asked import Asked
from distcheck.facts.gpu import Gpu, Gpus
from distcheck.facts.job import Job
from distcheck.facts.nccl import NcclFile
from distcheck.facts.network import Attempt, Bind, Interface, Resolution
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.placement import Placement
from distcheck.facts.rank import Installed, ProcessFacts, RankFacts, Role
from distcheck.report.sections import why as why_of
from distcheck.rules import Rule, all_rules, find_rule
from distcheck.rules.diagnose import Diagnosis, diagnose
from distcheck.rules.finding import SEVERITIES, Finding
from distcheck.selection.placement import local_placements, place, rank_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LAUNCHERS = (
    "by hand",
    "torchrun",
    "slurm",
    "openmpi",
    "hydra",
    "mvapich",
    "pals",
    "jsrun",
    "horovod",
    "distcheck",
)
PORT = 29500
replace = msgspec.structs.replace


def launcher_variables(launcher: str, shape: Sequence[int], rank: int, local_rank: int, node: int) -> dict[str, str]:
    """Return what a launcher itself sets in a rank's environment."""
    world, here = sum(shape), shape[node]
    prefix = {
        "openmpi": "OMPI_COMM_WORLD_",
        "mvapich": "MV2_COMM_WORLD_",
        "jsrun": "JSM_NAMESPACE_",
        "horovod": "HOROVOD_",
    }
    if launcher in prefix:
        numbers = {"RANK": rank, "SIZE": world, "LOCAL_RANK": local_rank, "LOCAL_SIZE": here}
        return {prefix[launcher] + name: str(value) for name, value in numbers.items()}
    variables: dict[str, dict[str, Any]] = {
        "by hand": {},
        "distcheck": {},
        "torchrun": {
            "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GROUP_RANK": node, "GROUP_WORLD_SIZE": len(shape),
            "ROLE_RANK": rank, "ROLE_WORLD_SIZE": world, "ROLE_NAME": "default",
        },
        "slurm": {
            "SLURM_JOB_ID": 77, "SLURM_STEP_ID": 0, "SLURM_JOB_NODELIST": f"node[1-{len(shape)}]",
            "SLURM_PROCID": rank, "SLURM_NTASKS": world, "SLURM_LOCALID": local_rank,
            "SLURM_NODEID": node, "SLURM_NNODES": len(shape),
        },
        "hydra": {
            "PMI_RANK": rank, "PMI_SIZE": world, "MPI_LOCALRANKID": local_rank, "MPI_LOCALNRANKS": here,
        },
        "pals": {
            "PALS_RANKID": rank, "PMI_SIZE": world, "PALS_LOCAL_RANKID": local_rank, "PMI_LOCAL_SIZE": here,
            "PALS_NODEID": node,
        },
    }  # fmt: skip
    return {name: str(value) for name, value in variables[launcher].items()}


def node_of(number: int, gpus: int) -> NodeFacts:
    """Return a healthy node: node1 has the address 10.0.0.1 and GPUs GPU-1-0, GPU-1-1, ..."""
    name = f"node{number}"
    devices = tuple(
        Gpu(
            index=i,
            uuid=f"GPU-{number}-{i}",
            pci=f"0000:{i + 1:02x}:00.0",
            name="NVIDIA H100",
            memory_bytes=80 << 30,
            memory_used_bytes=0,
            mig=False,
        )
        for i in range(gpus)
    )
    return NodeFacts(
        key=f"{name}/boot/net",
        name=name,
        hostname=name,
        boot_id=f"boot-{number}",
        network_namespace="net:[1]",
        kernel="6.8.0",
        python="3.11.7",
        distcheck="0.1.0",
        torch=TorchBuild(version="2.13.0", cuda="12.2" if gpus else None, hip=None),
        interfaces=(
            Interface(name="lo", address="127.0.0.1", up=True, mtu_bytes=65536),
            Interface(name="eth0", address=f"10.0.0.{number}", up=True, mtu_bytes=1500),
        ),
        ephemeral_ports=(32768, 60999),
        unprivileged_port_start=1024,
        accelerator="nvidia" if gpus else "none",
        gpus=Gpus(driver="580.95", cuda_driver="13.0", devices=devices) if gpus else None,
    )


def process_of(node: NodeFacts, number: int, launcher: str, *, leader: bool, alone: bool, master: str) -> ProcessFacts:
    """Return a process that met everybody it should; pid 100 is the first."""
    agent = launcher == "torchrun"
    attempt = Attempt(address=master, port=PORT, door="master", outcome="agent" if agent else "met")
    return ProcessFacts(
        uid=f"process-{number}",
        node=node.key,
        pid=100 + number,
        command=("python", "-m", "distcheck", "env"),
        installed=Installed(node.python, "/opt/venv", node.torch),
        ancestors=("/usr/bin/python /usr/bin/torchrun --nnodes 2 distcheck", "bash") if agent else ("bash", "sshd"),
        stage="done",
        role=Role.ALONE if alone else Role.LEADER if leader else Role.FOLLOWER,
        bind=Bind(port=PORT, outcome="agent" if agent else "bound") if leader and not alone else None,
        free_ports=(PORT + 1, PORT + 2) if leader else (),
        master_resolution=Resolution(
            name=master, addresses=("127.0.0.1" if master == "localhost" else "10.0.0.1",), seconds=0.001
        ),
        attempts=() if leader or alone else (attempt,),
    )


def healthy_job(
    nodes: int = 1,
    per_node: int | Sequence[int] = 2,
    launcher: str = "by hand",
    looks: Sequence[str] = ("environment", "meeting"),
    *,
    gpus: int = 0,
    mapped: bool = True,
    **asked: Any,
) -> Job:
    """Return a healthy job.

    Args:
        nodes: how many nodes; node1 holds rank 0 and is MASTER_ADDR (localhost when it is the only node).
        per_node: ranks per node, or the ranks of each node.
        launcher: one of LAUNCHERS; every rank is a process of its own, but with "distcheck" each node is.
        looks: what was looked at.
        gpus: NVIDIA GPUs on every node; rank i of a node takes the i-th.
        mapped: False leaves RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE to the launcher.
        asked: further fields of `Asked`.
    """
    shape = (per_node,) * nodes if isinstance(per_node, int) else tuple(per_node)
    world, master = sum(shape), "node1" if len(shape) > 1 else "localhost"
    here = tuple(node_of(n + 1, gpus) for n in range(len(shape)))
    placements = local_placements(world, master, PORT) if launcher == "distcheck" else ()
    processes: list[ProcessFacts] = []
    ranks: list[RankFacts] = []
    for n, node in enumerate(here):
        for local_rank in range(shape[n]):
            rank = len(ranks)
            if launcher != "distcheck" or local_rank == 0:
                processes.append(
                    process_of(node, len(processes), launcher, leader=rank == 0, alone=world == 1, master=master)
                )
            environment = launcher_variables(launcher, shape, rank, local_rank, n)
            environment |= {"MASTER_ADDR": master, "MASTER_PORT": str(PORT)}
            if mapped:
                environment |= {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_RANK": str(local_rank),
                    "LOCAL_WORLD_SIZE": str(shape[n]),
                }
            placement = place(environment)
            if launcher == "distcheck":
                placement = replace(placements[rank], local_rank=local_rank, local_world_size=shape[n], node_rank=n)
                environment = rank_environment({}, placement)
            ranks.append(
                RankFacts(
                    process=processes[-1].uid,
                    placement=placement,
                    environment=environment,
                    visible_gpus=tuple(f"GPU-{n + 1}-{i}" for i in range(gpus)) if gpus else None,
                    gpu=f"GPU-{n + 1}-{local_rank}" if local_rank < gpus else None,
                )
            )
    asked.setdefault("started_here", launcher == "distcheck")
    return Job(
        distcheck="0.1.0",
        run="run",
        asked=Asked(command=asked.pop("command", "env"), looks=tuple(looks), **asked),
        met=True,
        nodes=here,
        processes=tuple(processes),
        ranks=tuple(ranks),
    )


def _chosen(where: int | Sequence[int] | None, length: int) -> set[int]:
    return set(range(length)) if where is None else {where} if isinstance(where, int) else set(where)


def change_environment(
    job: Job, where: int | Sequence[int] | None, options: Placement | None = None, **variables: str | None
) -> Job:
    """Set variables (None unsets) of the ranks at these positions (None: all) and place them again."""
    chosen = _chosen(where, len(job.ranks))

    def changed(rank: RankFacts) -> RankFacts:
        merged: dict[str, str | None] = {**rank.environment, **variables}
        environment = {name: value for name, value in merged.items() if value is not None}
        return replace(rank, environment=environment, placement=place(environment, options))

    return replace(job, ranks=tuple(changed(r) if i in chosen else r for i, r in enumerate(job.ranks)))


def change_rank(job: Job, where: int | Sequence[int] | None, **fields: Any) -> Job:
    """Change fields of the RankFacts at these positions (None: all)."""
    chosen = _chosen(where, len(job.ranks))
    return replace(job, ranks=tuple(replace(r, **fields) if i in chosen else r for i, r in enumerate(job.ranks)))


def change_process(job: Job, where: int | Sequence[int] | None, **fields: Any) -> Job:
    """Change fields of the processes that speak for the ranks at these positions (None: all)."""
    uids = {job.ranks[i].process for i in _chosen(where, len(job.ranks))}
    return replace(job, processes=tuple(replace(p, **fields) if p.uid in uids else p for p in job.processes))


def change_nccl_file(
    job: Job, where: int | Sequence[int] | None, *lines: str, path: str = "/etc/nccl.conf", origin: str = "system"
) -> Job:
    """Give the NCCL of these ranks (None: all) a configuration file with these lines."""
    return change_process(job, where, nccl_files=(NcclFile(path=path, origin=origin, library="nccl", lines=lines),))


def change_node(job: Job, where: int | Sequence[int] | None, **fields: Any) -> Job:
    """Change fields of the nodes at these positions (None: all)."""
    chosen = _chosen(where, len(job.nodes))
    return replace(job, nodes=tuple(replace(n, **fields) if i in chosen else n for i, n in enumerate(job.nodes)))


def keep_ranks(job: Job, *positions: int) -> Job:
    """Leave only the ranks at these positions, with their processes and nodes, as a partial report does."""
    ranks = tuple(job.ranks[i] for i in positions)
    processes = tuple(p for p in job.processes if p.uid in {r.process for r in ranks})
    nodes = tuple(n for n in job.nodes if n.key in {p.node for p in processes})
    return replace(job, ranks=ranks, processes=processes, nodes=nodes)


CONTRACT = ("environment", "leaks", "ranks", "local_ranks", "master", "master_port")
"""The families that judge the variables of a job; a module of tests may have others, in OURS."""


@pytest.fixture
def job_of() -> Callable[..., Job]:
    """Build a healthy job: see `healthy_job`."""
    return healthy_job


@pytest.fixture
def change() -> SimpleNamespace:
    """Change one thing of a job; every function returns a new job."""
    return SimpleNamespace(
        environment=change_environment,
        rank=change_rank,
        process=change_process,
        nccl_file=change_nccl_file,
        node=change_node,
        keep=keep_ranks,
        job=replace,
        asked=lambda job, **fields: replace(job, asked=replace(job.asked, **fields)),
    )


def _reads_well(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else [value]
    return all(item is None or isinstance(item, str | int | float) for item in items)


_PLACEHOLDER = re.compile(r"\.\.\.|…|/path/to/|<[\w ]+>|\bHOST\w*|\b(?:VALUE|WATTS|JOB|POD|None)\b|(?<!\$)\{[a-z_]+\}")


def unpasteable(command: str, job: Job) -> str:
    """Say what keeps a fix's command from being pasted as it is, '' for nothing.

    No ellipsis and no placeholder; and no port of the default kind where the job's ranks have another.
    """
    if gap := _PLACEHOLDER.search(command):
        return f"{gap[0]!r} stands for something"
    ports = {r.placement.master_port for r in job.ranks if r.placement.master_port is not None}
    known = ports | {port for p in job.processes for port in p.free_ports}
    known |= {int(n) for r in job.ranks for n in re.findall(r"\d+", r.environment.get("MASTER_PORT", ""))}
    given = {int(port) for port in re.findall(r"(?:MASTER_PORT[ =]|master[-_]port[ =])(\d+)", command)}
    return f"port {given - known} is none of the job's {known}" if known and given - known else ""


_NAMES = re.compile(r"(?<![\w-])(node|eth|ens|bond|mlx5_|ibp|rocep)(?=\d)")
_JUDGED_WITH_ODD_NAMES: set[str] = set()


def split_at_names(job: Job, rules: Sequence[Rule], findings: Sequence[Finding]) -> list[str]:
    """Return the commands that a shell would split if nodes, interfaces and adapters had odd names.

    Each kind of command is judged once, because judging takes twice as long with it.
    """
    kinds = {re.sub(r"\d+", "", command) for finding in findings for command in finding.fix.commands}
    if kinds <= _JUDGED_WITH_ODD_NAMES:
        return []
    _JUDGED_WITH_ODD_NAMES.update(kinds)
    odd = msgspec.json.decode(_NAMES.sub(r"\1'&", msgspec.json.encode(job).decode()), type=Job)
    return [c for f in diagnose(odd, rules=rules).findings for c in f.fix.commands if _is_split(c)]


def _is_split(command: str) -> bool:
    words = command.partition(": ")[2] if command.startswith("# ") else command
    try:
        return "&" in shlex.shlex(words, posix=True, punctuation_chars="&")
    except ValueError:  # no closing quotation mark
        return True


def agrees_with_its_record(finding: Finding) -> None:
    """Hold that a rule reports no more than its record says; the engine gives faults of most nodes the scope system."""
    known = find_rule(finding.rule)
    assert known is not None, finding.rule
    assert SEVERITIES.index(finding.severity) >= SEVERITIES.index(known.severity), f"{known.name}: {finding.severity}"
    shared = {"system"} if {"node", "gpu"} & set(known.scope) else set()
    assert finding.scope in shared.union(known.scope), f"{known.name}: {finding.scope}"


@pytest.fixture
def judge() -> Callable[..., Diagnosis]:
    """Judge a job by the rules of these families, by all rules when none is named."""

    def judged(job: Job, *families: str) -> Diagnosis:
        rules: tuple[Rule, ...] = all_rules()
        rules = tuple(r for r in rules if r.family in families) if families else rules
        said = diagnose(job, rules=rules)
        assert split_at_names(job, rules, said.findings) == []
        for finding in said.findings:
            agrees_with_its_record(finding)
            assert "\n" not in finding.message, finding.message
            assert "{}" not in finding.message, finding.message
            assert len(finding.message) <= 300, finding.message
            wrong = {c: why for c in finding.fix.commands if (why := unpasteable(c, job) or misleading(c))}
            texts = (finding.message, finding.fix.text, *map(str, finding.evidence.values()))
            wrong |= {text: why for text in texts if (why := misread(text))}
            wrong |= {text: why for text in (finding.fix.text, *finding.fix.commands) if (why := elsewhere(text, job))}
            wrong |= {text: why for text in [why_of(finding.rule)] if (why := misquoted(text, finding))}
            assert not wrong, f"{finding.rule}: {wrong}"
            nested = {name: value for name, value in finding.evidence.items() if not _reads_well(value)}
            assert not nested, f"{finding.rule}: the text report prints this as JSON: {nested}"
        return said

    return judged


@pytest.fixture
def ours(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The families that a module of tests is about."""
    return getattr(request.module, "OURS", CONTRACT)


@pytest.fixture
def only(judge, ours):
    """Return the one finding of a job, by these families and `more`, and its exit code."""

    def one(job, *more):
        diagnosis = judge(job, *ours, *more)
        assert len(diagnosis.findings) == 1, [f.message for f in diagnosis.findings]
        return diagnosis.findings[0], diagnosis.verdict.exit_code

    return one


@pytest.fixture
def rules(judge, ours):
    """Return the names of the rules that find something in a job, by these families and `more`."""
    return lambda job, *more: [f.rule for f in judge(job, *ours, *more).findings]


@pytest.fixture
def found(judge, ours):
    """Return the findings of a job by rule, of which none has two, and its exit code."""

    def by_rule(job):
        diagnosis = judge(job, *ours)
        assert len({f.rule for f in diagnosis.findings}) == len(diagnosis.findings)
        return {f.rule: f for f in diagnosis.findings}, diagnosis.verdict.exit_code

    return by_rule


@pytest.fixture
def silent(judge, ours):
    """Whether a job has no finding, by these families and `more`, and nothing that was not checked."""
    return lambda job, *more: judge(job, *ours, *more)[:2] == ((), ())
