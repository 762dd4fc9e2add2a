"""The commands and scripts of docs/concepts.md on one node; tests/cluster/test_concepts.py has those on two."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from cluster.simulated import FOUR_GPUS

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import build_figures
import examples

PAGE = (Path(build_figures.__file__).parent / "concepts.md").read_text()
SCRIPT, METHODS, GROUPS = (
    re.search(rf"(?s)<!-- {name} -->\n```python\n(.*?)```", PAGE)[1] for name in ("train.py", "init methods", "groups")
)
REPORTS = {name: example.command for name, example in examples.EXAMPLES.items() if example.page == "docs/concepts.md"}
TRAIN = re.findall(r"(?m)^\$ (torchrun .*train\.py.*)$", PAGE)
LINE = r"rank \d of {}, local rank \d: the sum of all ranks is \d+"
ONE_IMPORT = """
import json, os, sys, torch
for code, world in json.load(sys.stdin):
    for rank in range(world):
        if os.fork() == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank % 4), "WORLD_SIZE": str(world)}
            sys.stdout = os.fdopen(os.dup(1), "w")
            os.dup2(2, 1)  # Gloo prints lines of its own, in pieces
            exec(code, {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)
    if any(os.wait()[1] for _ in range(world)):
        sys.exit(f"a rank failed: {code}")
    print("end", flush=True)
"""
"""The ranks of several jobs as forks of one process, because each import of torch takes long."""


def shown(pattern):
    return sorted(re.findall(rf"(?m)^{pattern}$", PAGE))


def test_the_figures_are_up_to_date():
    assert build_figures.stale() == [], "run python docs/build_figures.py"


def test_the_tests_know_every_command_and_every_script_of_the_page():
    commands = re.findall(r"(?m)^\$ (.*)$", PAGE)
    assert len(TRAIN) == 3
    assert set(commands) == {*TRAIN, *(line for command in REPORTS.values() for line in command.splitlines())}
    assert len(re.findall(r"(?m)^```python$", PAGE)) == 3


def test_the_scripts_of_the_page_print_what_it_shows(start, port, other_port, tmp_path):
    groups = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    groups += f"rank, world_size = dist.get_rank(), dist.get_world_size()\n{GROUPS}dist.destroy_process_group()\n"
    lines = METHODS.replace("29501", str(other_port)).replace("/tmp/meeting", str(tmp_path / "meeting")).splitlines()
    assert [re.search('"(env|tcp|file)://', line)[1] for line in lines] == ["env", "tcp", "file"]
    methods = "import os, torch.distributed as dist\nrank, world_size = int(os.environ['RANK']), 2\n"
    for line in lines:
        # Without the barrier a rank may leave while the other one still connects to it.
        used = "print(dist.get_rank(), 'of', dist.get_world_size())\ndist.barrier()\ndist.destroy_process_group()\n"
        methods += f"{line}\n{used}"
    jobs = tmp_path / "jobs.json"
    jobs.write_text(json.dumps([[SCRIPT, 4], [SCRIPT, 8], [groups, 8], [methods, 2]]))
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ended = start("-c", f'exec {sys.executable} -c "$0" < {jobs}', ONE_IMPORT, program=["bash"], env=env).wait()
    assert ended.code == 0, ended
    four, eight, grouped, met, _ = (sorted(part.splitlines()) for part in ended.out.split("end\n"))
    assert four == shown(LINE.format(4))
    assert eight == shown(LINE.format(8))
    assert len(grouped) == 16
    assert [line for line in grouped if line.startswith("rank 5:")] == shown("rank 5: .*")
    assert met == ["0 of 2"] * 3 + ["1 of 2"] * 3


@pytest.mark.parametrize("name", ["one-node", "visible-devices"])
def test_each_local_rank_has_the_gpu_of_the_recorded_report(start, fake_nvml, name):
    env = fake_nvml.variables(FOUR_GPUS)
    env |= {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "DISTCHECK_FORMAT": "json", "OMP_NUM_THREADS": "1"}
    ended = start("-c", REPORTS[name], program=["bash"], env=env).wait()
    assert ended.code == 0, ended
    assert mapped(ended.report) == mapped(report_of(name))


def mapped(report):
    return [(row["rank"], row["local_rank"], row["gpu"]["index"], row["gpu"]["pci"]) for row in report["ranks"]]


def report_of(name):
    """Return the JSON report of a recorded job."""
    job = examples.recorded(name)
    return json.loads(examples.render("json", job, examples.diagnose(job)))


@pytest.mark.slow  # five imports of torch; the script and torchrun are tested apart in every change
def test_torchrun_runs_the_script(start, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    ended = start("-c", TRAIN[0], program=["bash"], env=env).wait()
    assert ended.code == 0, ended
    assert sorted(re.findall(LINE.format(4), ended.out)) == shown(LINE.format(4))
