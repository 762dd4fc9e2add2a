"""Rules about what the nodes of an inference engine must share: its model, versions and sizes."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fix
from distcheck.rules.job.engines import engines
from distcheck.rules.wording import brief, found, grouped, listed, majority, named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from distcheck.facts.job import Job
    from distcheck.facts.rank import RankFacts
    from distcheck.rules.job.engines import StartedEngine

_PROBLEMS = {
    "absent": "does not exist", "unreadable": "cannot be read", "silent": "is on a file system that does not answer",
}  # fmt: skip


def _ranks(several: list[StartedEngine]) -> list[RankFacts]:
    return [rank for each in several for rank in each.ranks]


def _odd(groups: Mapping[Any, list[RankFacts]]) -> list[RankFacts]:
    """Return the ranks outside of the majority; all of them where there is none."""
    usual = majority(groups)
    return [rank for what, ranks in groups.items() if what != usual for rank in ranks]


@rule("environment", "vllm-model-missing", scope=("job", "rank"), unless=("storage-hangs",))
def engine_model_missing(job: Job) -> Iterator[Outcome]:
    """The model of an inference engine is a path that does not exist on a node.

    The engine takes it for a name of Hugging Face then: ``HFValidationError: Repo id must be in the form
    'repo_name' or 'namespace/repo_name'``. Where only some nodes lack it, the others wait for them.

    Found on every node for a model that begins with ``/``, ``./`` or ``../``. Other names are downloaded, or may be,
    and are not judged.

    Fix: Correct the path, copy the model to all nodes, or use a shared folder.
    """
    for model, several in grouped((e for e in engines(job) if e.engine.model), lambda each: each.engine.model).items():
        lacking = [each for each in several if each.engine.model_state in _PROBLEMS]
        there = [each.node.name for each in several if each.engine.model_state in {"file", "folder"}]
        if not lacking:
            continue
        first = lacking[0].engine
        where = f"; it exists on {listed(there)}" if there else ""
        text = "Copy it to all nodes, or use a shared folder." if there else "Correct the path in COMMAND."
        look = f"ls -d {quote(model)}" if there else f"ls {quote(model.rstrip('/').rpartition('/')[0] or '/')}"
        yield found(
            job,
            _ranks(lacking),
            f"{named(job, _ranks(lacking))}: {first.name}'s model {brief(model, 100)} "
            f"{_PROBLEMS[first.model_state]}{where}",
            Fix(text, (look,)),
            scope="rank" if there else "job",
        )


@rule("environment", scope="rank")
def engine_packages_differ(job: Job) -> Iterator[Outcome]:
    """The nodes of an inference engine have different versions of it, or of a library on which its nodes must agree.

    Its processes exchange objects and messages of their own format: ``AttributeError`` or a hang on some node. NIXL
    compares its versions when instances connect; Ray refuses a node of another version. A warning for flashinfer and
    nixl.

    Found in the metadata of the packages that COMMAND's own Python finds on each node. No package is imported.

    Fix: Install the same versions on all nodes, or use one image.
    See: https://github.com/vllm-project/vllm/pull/44718
    """
    known = [each for each in engines(job) if each.engine.versions and each.stated.nodes > 1]
    for package in dict.fromkeys(name for each in known for name in each.engine.versions):
        groups = grouped(known, lambda each: each.engine.versions.get(package, "none"))  # noqa: B023 called at once
        if len(groups) < 2:
            continue
        yield found(
            job,
            _odd(ranks := {version: _ranks(several) for version, several in groups.items()}),
            f"{package} is {listed([f'{version} on {named(job, those)}' for version, those in ranks.items()])}",
            Fix("Install the same version on all nodes, or use one image.", (f"pip show {package}",)),
            severity="error" if package in {"vllm", "sglang", "ray"} else "warning",
            evidence={each.node.name: each.engine.program for each in known[:8]},
        )


@rule("meeting", scope="job")
def engine_sizes_differ(job: Job) -> Iterator[Outcome]:
    """The nodes of an inference engine were given different sizes of its parallel groups.

    Each node works out by itself which rank belongs to which group. With different sizes of the same product their
    groups have different members, and the start hangs in the first collective until NCCL's watchdog ends it.

    Found by comparing --tensor-parallel-size, --pipeline-parallel-size, --data-parallel-size and --nnodes in COMMAND on
    all nodes.

    Fix: give all nodes the same sizes.
    See: https://github.com/vllm-project/vllm/pull/44718
    """
    several = [each for each in engines(job) if each.stated.nodes > 1]
    groups = grouped(several, lambda each: f"{each.stated.nodes} nodes, {each.stated.mesh or 'one rank'}")
    if len(groups) > 1:
        shown = [f"{sizes} on {named(job, _ranks(those))}" for sizes, those in groups.items()]
        yield found(
            job,
            _ranks(several),
            f"{several[0].engine.name}'s sizes differ: {listed(shown)}",
            Fix("Give all nodes the same sizes."),
            evidence={sizes: named(job, _ranks(those)) for sizes, those in groups.items()},
        )
