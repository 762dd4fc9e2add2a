"""The architecture: facts flow one way, and heavy imports stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import distcheck
from distcheck.cli.main import app
from distcheck.probe.network import free_port
from distcheck.rules import FAMILIES

ROOT = Path(distcheck.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
FLOORS = (
    ("cli",),
    ("explain", "run"),
    ("report", "rules"),
    ("isolation", "launch"),
    ("rollcall", "expectation"),
    ("collectives",),
    ("probe",),
    ("selection",),
    ("facts",),
)
"""The packages from the top down: each imports from floors below its own only."""
BESIDE = {("report", "rules")}
"""What else may be imported on a floor: a report asks what a rule is called and explains."""


@cache
def imports(path: Path) -> set[str]:
    """Return every module that a file names in an import, wherever in the file it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def dotted(path: Path) -> str:
    return ".".join(("distcheck", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@cache
def graph() -> dict[str, set[str]]:
    """Return the modules that each module imports; a module of a package is not its package."""
    known = {dotted(path) for path in MODULES}
    found: dict[str, set[str]] = {}
    for path in MODULES:
        named = imports(path) & known
        # "from package import module" names the package too, though nothing of it is used.
        plain = {n for n in named if not any(m.startswith(f"{n}.") for m in named) or uses(path, n, known)}
        found[dotted(path)] = plain - {dotted(path)}
    return found


def uses(path: Path, package: str, known: set[str]) -> bool:
    """Whether a file takes something from a package that is no module of it."""
    froms = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.module == package)
    return any(f"{package}.{alias.name}" not in known for node in froms for alias in node.names)


def circles(edges: dict[str, set[str]]) -> list[str]:
    """Return the names that are in a circle, or lead to one: what is left when leaves are taken off again and again."""
    left = {name: set(to) for name, to in edges.items()}
    while leaves := [name for name, to in left.items() if not to & left.keys()]:
        for name in leaves:
            del left[name]
    return sorted(left)


def joined(edges: dict[str, set[str]], depth: int) -> dict[str, set[str]]:
    """Return the same between packages: names are cut to so many parts, and shorter ones left out."""

    def cut(name: str) -> str:
        parts = name.split(".")
        return ".".join(parts[:depth]) if len(parts) > depth else ""

    found: dict[str, set[str]] = {}
    for name, to in edges.items():
        if cut(name):
            found.setdefault(cut(name), set()).update({cut(t) for t in to} - {"", cut(name)})
    return found


def test_what_finds_circles_finds_them():
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["a", "b", "c"]
    assert joined({"x.a.f": {"x.b.g"}, "x.b.g": {"x.b.h"}, "x.b.h": set()}, 2) == {"x.a": {"x.b"}, "x.b": set()}


def test_fourteen_entries_at_most_stand_under_the_package():
    beside = {"__pycache__", "__init__.py", "py.typed"}  # the package itself, and the marker of PEP 561
    assert len([path for path in ROOT.iterdir() if path.name not in beside]) <= 14


@pytest.mark.long
def test_no_files_import_each_other_in_a_circle():
    assert circles(graph()) == []


@pytest.mark.parametrize("depth", [2, 3])
def test_no_packages_import_each_other_in_a_circle(depth):
    assert circles(joined(graph(), depth)) == []


def test_imports_go_down_the_floors():
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} == set(floor)
    upward = {
        (name, to)
        for name, edges in graph().items()
        for to in edges
        if (a := name.split(".")[1:2]) and (b := to.split(".")[1:2]) and a != b and a[0] in floor and b[0] in floor
        if floor[b[0]] <= floor[a[0]] and (a[0], b[0]) not in BESIDE
    }
    assert upward == set()


def test_no_class_name_means_two_things():
    names = [
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name for name in names if names.count(name) > 1} == set()


def within(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def test_only_collectives_import_torch():
    assert {p for p in MODULES if "torch" in roots(p)} <= set(within("collectives"))


def test_only_the_nvml_gateway_imports_pynvml():
    assert [p.relative_to(ROOT).as_posix() for p in MODULES if "pynvml" in roots(p)] == ["probe/nvml.py"]


def test_rules_do_no_input_or_output():
    forbidden = {"socket", "subprocess", "psutil", "pynvml", "asyncio", "pathlib", "os", "shutil", "torch"}
    assert {p.name: roots(p) & forbidden for p in within("rules") if roots(p) & forbidden} == {}


def test_rules_import_facts_and_data_tables_only():
    allowed = ("distcheck.rules", "distcheck.facts", "distcheck.selection", "distcheck.collectives.plan",
               "distcheck.collectives.dimensions", "distcheck.expectation", "distcheck.isolation.figures",
               "distcheck.isolation.state")  # fmt: skip
    for path in within("rules"):
        ours = {n for n in imports(path) if n.startswith("distcheck.")}
        assert {n for n in ours if not n.startswith(allowed)} <= {"distcheck.collectives"}, path


@pytest.mark.parametrize("folder", ["probe", "launch", "rollcall", "collectives", "selection", "facts"])
def test_what_runs_on_the_nodes_knows_no_rules_reports_or_command_line(folder):
    for path in within(folder):
        forbidden = ("distcheck.rules", "distcheck.report", "distcheck.cli", "typer")
        assert not [n for n in imports(path) if n.startswith(forbidden)], path


def test_expectations_know_no_rules_and_no_reports():
    for path in within("expectation"):
        forbidden = ("distcheck.rules", "distcheck.report", "distcheck.probe", "torch")
        assert not [n for n in imports(path) if n.startswith(forbidden)], path


def test_reports_judge_nothing():
    for path in within("report"):
        assert not [n for n in imports(path) if n.endswith(".diagnose.diagnose")], path


def loaded_after(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.process
def test_the_command_line_starts_without_torch_asyncio_or_a_renderer():
    assert not loaded_after("import distcheck.cli.main") & {
        "torch",
        "asyncio",
        "tabulate",
        "jinja2",
        "psutil",
        "pynvml",
    }


@pytest.mark.process
def test_env_without_options_loads_nothing_that_only_other_runs_need():
    one_rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}  # fmt: skip
    loaded = loaded_after(
        f"import contextlib, io, os\nos.environ.update({one_rank})\nsys.argv[1:] = ['env']\n"
        "from distcheck.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n    main()"
    )
    assert {"distcheck.run.entry", "distcheck.report.text", "tabulate"} <= loaded  # it went to its end
    assert not loaded & {"pydantic", "rich", "torch", "asyncio", "jinja2", "psutil", "pynvml", "multiprocessing",
                         "json", "tomllib", "distcheck.cli.policy_file",
                         "distcheck.run.driver", "distcheck.run.node", "distcheck.probe.gpu"}  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    ["node --gpus 0 --timeout 20 --format json --ignore gpu-duplicate", "explain env-rank-unset --format json",
     "report /nonexistent --baseline /nonexistent"],
)  # fmt: skip
def test_options_and_arguments_are_converted_without_pydantic(words):
    loaded = loaded_after(
        f"import contextlib, io\nsys.argv[1:] = {words.split()!r}\nfrom distcheck.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n    main()"
    )
    assert "typer" in loaded
    assert not {name for name in loaded if name.partition(".")[0] == "pydantic"}


def test_only_the_command_that_is_called_is_read():
    def names(*words: str) -> list[str]:
        return [c.callback.__name__ for c in app(list(words)).registered_commands]

    assert names("env", "--strict") == ["env"]
    everything = ["env", "net", "gpu", "bandwidth", "isolate", "gate", "node", "hang", "policy", "report", "explain"]
    assert names() == names("--help") == names("evn") == names("--", "env") == everything


@pytest.mark.process
def test_who_follows_on_a_node_loads_no_rules_reports_or_command_line():
    loaded = loaded_after("import distcheck.run.remote_probe, distcheck.run.driver, distcheck.run.follower")
    assert "distcheck.run.record" in loaded
    assert not [n for n in loaded if n.startswith(("distcheck.rules", "distcheck.report", "distcheck.cli", "typer"))]


@pytest.mark.process
def test_the_program_of_the_ranks_starts_without_typer_or_torch():
    assert not loaded_after("import distcheck.launch.local.forkserver") & {"torch", "typer", "tabulate", "pydantic"}


@pytest.mark.process
def test_nothing_is_unpickled_anywhere():
    for path in MODULES:
        assert not roots(path) & {"pickle", "marshal", "shelve", "dill"}, path


@pytest.mark.process
def test_a_bare_shell_imports_no_launchers_rules():
    judged = loaded_after(
        "from distcheck.facts.job import Asked, Job\nfrom distcheck.rules.diagnose import diagnose\n"
        "diagnose(Job('0', 'run', Asked('env', ('environment', 'meeting')), met=True))"
    )
    launchers = {f"distcheck.rules.{module}" for module, family in FAMILIES.items() if family.variables}
    assert {"distcheck.rules.launchers.torchrun", "distcheck.rules.launchers.slurm"} <= launchers
    assert "distcheck.rules.environment.variables" in judged
    assert not judged & (launchers | {"distcheck.rules.job.agents"})
