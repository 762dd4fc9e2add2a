"""What every rule owes its reader, whoever wrote it."""

import re
from collections import Counter
from pathlib import Path

import pytest

from distcheck.explain import explain
from distcheck.facts import Asked, Job
from distcheck.finding import Finding, NotChecked
from distcheck.rules import FAMILIES, Rule, all_rules

TESTS = Path(__file__).parent.parent
PREFIXES = {
    "env", "net", "gpu", "nccl", "ib", "roce", "gdr", "perf", "host", "sw", "torch", "torchrun", "elastic",
    "launch", "slurm", "mpi", "k8s", "deepspeed", "accelerate", "coll", "collective", "isolation", "probe", "tool",
}  # fmt: skip
"""Families of problems in the field's catalogues, and our own: collectives, isolation and the probe."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "each" in metafunc.fixturenames:
        metafunc.parametrize("each", all_rules(), ids=lambda rule: rule.name)


@pytest.fixture(scope="module")
def sources() -> str:
    files = (path for path in sorted(TESTS.rglob("test_*.py")) if path != Path(__file__))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_the_summary_is_one_sentence(each: Rule) -> None:
    assert re.fullmatch(r"[A-Z`\d].*\.", each.summary), each.summary
    assert each.doc.split("\n")[1:2] in ([], [""]), "a blank line follows the summary"


def test_it_says_why_it_hurts_and_how_it_is_mended(each: Rule) -> None:
    assert re.search(r"(?m)^Fix: \S", each.doc)
    prose = each.doc.split("\n\n")[1:]
    assert prose
    assert not prose[0].startswith(("Fix:", "See:"))


def test_its_name_is_kebab_case_and_starts_with_a_family(each: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", each.name)
    assert each.name.split("-")[0] in PREFIXES


def test_it_has_a_page_and_an_explanation(each: Rule) -> None:
    assert each.family in FAMILIES
    assert each.look in FAMILIES[each.family].looks
    assert each.page == f"docs/rules/{each.family}.md#{each.name}"
    assert each.summary.replace("``", "`") in explain(each.name)


def test_a_test_mentions_it(each: Rule, sources: str) -> None:
    assert re.search(rf"(?<![\w-])({each.name}|{each.name.replace('-', '_')})(?![\w-])", sources)


def test_it_has_nothing_to_say_of_an_empty_job_but_findings_and_gaps(each: Rule) -> None:
    looks = ("environment", "meeting", "peers", "gpu", "collectives")
    job = Job(distcheck="0.1.0", run="r", asked=Asked("gate", looks), met=True)
    assert all(isinstance(outcome, Finding | NotChecked) for outcome in each.judge(job))


def test_no_name_or_alias_means_two_things() -> None:
    names = Counter(name for rule in all_rules() for name in {rule.name, *rule.aliases})
    assert [name for name, times in names.items() if times > 1] == []
