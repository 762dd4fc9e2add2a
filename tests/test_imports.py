"""The architecture: facts flow one way, and heavy imports stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import distcheck
from distcheck.cli.main import _app
from distcheck.probe.network import free_port
from distcheck.rules import FAMILIES

ROOT = Path(distcheck.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Return every module that a file names in an import, wherever in the file it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


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


def test_rules_import_facts_findings_and_data_tables_only():
    allowed = (
        "distcheck.rules",
        "distcheck.facts",
        "distcheck.selection",
        "distcheck.collectives.plan",
        "distcheck.expectation",
    )
    for path in within("rules"):
        ours = {n for n in imports(path) if n.startswith("distcheck.")}
        assert {n for n in ours if not n.startswith(allowed)} == set(), path


@pytest.mark.parametrize("folder", ["probe", "launch", "rollcall", "collectives"])
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


def test_the_command_line_starts_without_torch_asyncio_or_a_renderer():
    assert not loaded_after("import distcheck.cli.main") & {
        "torch",
        "asyncio",
        "tabulate",
        "jinja2",
        "psutil",
        "pynvml",
    }


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
                         "distcheck.run.context", "distcheck.run.node", "distcheck.probe.gpu"}  # fmt: skip


def test_only_the_command_that_is_called_is_read():
    def names(*words: str) -> list[str]:
        return [c.callback.__name__ for c in _app(list(words)).registered_commands]

    assert names("env", "--strict") == ["env"]
    everything = ["env", "net", "gpu", "bandwidth", "isolate", "gate", "node", "report", "explain"]
    assert names() == names("--help") == names("evn") == names("--", "env") == everything


def test_the_program_of_the_ranks_starts_without_typer_or_torch():
    assert not loaded_after("import distcheck.launch.local.forkserver") & {"torch", "typer", "tabulate", "pydantic"}


def test_without_a_token_nothing_is_sealed():
    loaded = loaded_after(
        "import distcheck.run.context, distcheck.run.leader, distcheck.run.follower\n"
        "from distcheck.rollcall import identity\n"
        "from distcheck.facts import Placement\n"
        "identity.job_key({}, Placement()), identity.job_secret({})"
    )
    assert "distcheck.rollcall.server" in loaded
    assert "distcheck.rollcall.seal" not in loaded


def test_nothing_is_unpickled_anywhere():
    for path in MODULES:
        assert not roots(path) & {"pickle", "marshal", "shelve", "dill"}, path


def test_a_bare_shell_imports_no_launchers_rules():
    judged = loaded_after(
        "from distcheck.facts import Asked, Job\nfrom distcheck.rules.diagnose import diagnose\n"
        "diagnose(Job('0', 'run', Asked('env', ('environment', 'meeting')), met=True))"
    )
    launchers = {f"distcheck.rules.{family.module}" for family in FAMILIES.values() if family.variables}
    assert {"distcheck.rules.launchers.torchrun", "distcheck.rules.launchers.slurm"} <= launchers
    assert "distcheck.rules.environment.variables" in judged
    assert not judged & (launchers | {"distcheck.rules.job.agents"})
