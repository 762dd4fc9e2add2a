"""The examples of docs/python.md for frameworks: at their hooks with stand-ins, and with the frameworks themselves."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import distcheck

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
NAMES = ("Lightning", "Accelerate", "Ray Train")
LIGHTNING = """
if __name__ == "__main__":
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "limit_val_batches": 0}
    trainer = Trainer(strategy=CheckedDDP(), devices=2, accelerator="cpu", max_steps=1, **quiet)
    trainer.fit(BoringModel())
    print("DONE", trainer.global_rank)
"""
ACCELERATE = 'print("DONE", accelerator.process_index)\naccelerator.end_training()\n'
RAY = """
def train():
    print("DONE", ray.train.get_context().get_world_rank())

if __name__ == "__main__":
    import os
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False)
    two = {"scaling_config": ScalingConfig(num_workers=2), "run_config": RunConfig(storage_path=os.getcwd())}
    TorchTrainer(train, torch_config=CheckedTorchConfig(), **two).fit()
"""


def example(name):
    return re.search(r"(?s)```python\n(.*?)```", PAGE.partition(f"\n### {name}\n")[2])[1]


def test_an_example_has_at_most_thirty_lines():
    assert {name: example(name).count("\n") for name in NAMES if example(name).count("\n") > 30} == {}


@pytest.fixture
def events(monkeypatch):
    """What happened, in order; distcheck.preflight() only notes its arguments."""
    found = []
    monkeypatch.setattr(distcheck, "preflight", lambda *words, **given: found.append((*words, given)), raising=False)
    return found


@pytest.fixture
def standing_in(monkeypatch):
    """Put modules with these contents in the place of real ones, with their packages."""

    def put(**modules):
        for dotted, contents in modules.items():
            parts = dotted.split("__")
            for depth in range(1, len(parts) + 1):
                name = ".".join(parts[:depth])
                if name not in sys.modules or depth == len(parts):
                    monkeypatch.setitem(sys.modules, name, ModuleType(name))
            vars(sys.modules[".".join(parts)]).update(contents)
        return {"__name__": "train"}

    return put


def test_lightning_checks_its_ranks_before_the_process_group(events, standing_in):
    class Strategy:
        """As pytorch_lightning/strategies/ddp.py has it."""

        global_rank, local_rank, world_size = None, 1, 8
        cluster_environment = SimpleNamespace(main_address="node1", main_port=29511)

        def set_world_ranks(self):
            self.global_rank = 5

        def setup_distributed(self):
            events.append("process group")

    names = standing_in(lightning__pytorch__strategies={"DDPStrategy": Strategy})
    exec(example("Lightning"), names)
    names["CheckedDDP"]().setup_distributed()
    place = {"rank": 5, "world_size": 8, "local_rank": 1, "master_addr": "node1", "master_port": 29511}
    assert events == [("gate", {**place, "check": True}), "process group"]


def test_accelerate_checks_its_ranks_before_the_accelerator(events, standing_in):
    accelerator = SimpleNamespace(print=lambda *_: None)
    names = standing_in(accelerate={"Accelerator": lambda: events.append("process group") or accelerator})
    exec(example("Accelerate"), names)
    assert events == [("gate", {"check": True}), "process group"]


def test_ray_checks_every_worker_before_the_process_group(events, standing_in):
    class Workers:
        """As ray/train/_internal/base_worker_group.py has them: the function's arguments follow it."""

        def __len__(self):
            return 2

        def execute_single(self, rank, function):
            assert rank == 0
            return function()

        def execute_single_async(self, rank, func, *args, **kwargs):
            assert rank == args[0]
            return lambda: func(*args, **kwargs)

    class Backend:
        def on_start(self, *_):
            events.append("process group")

    class Config:
        @property
        def backend_cls(self):
            return Backend

    names = standing_in(
        ray={"get": lambda futures: [future() for future in futures]},
        ray__train={"get_context": lambda: SimpleNamespace(get_local_rank=lambda: 0)},
        ray__train___internal__utils={"get_address_and_port": lambda: ("node1", 29511)},
        ray__train__torch={"TorchConfig": Config},
        ray__train__torch__config={"_TorchBackend": Backend},
    )
    sys.modules["ray"].train = sys.modules["ray.train"]
    exec(example("Ray Train"), names)
    config = names["CheckedTorchConfig"]()
    config.backend_cls().on_start(Workers(), config)
    place = {"local_rank": 0, "world_size": 2, "master_addr": "node1", "master_port": 29511, "check": True}
    assert events == [("gate", {"rank": 0, **place}), ("gate", {"rank": 1, **place}), "process group"]


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory):
    """A virtual environment with the frameworks, and the packages of this one."""
    venv = tmp_path_factory.mktemp("frameworks") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{ROOT}\n")
    install = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "numpy", "lightning", "accelerate"]
    subprocess.run([*install, "ray[train]"], check=True)
    return venv / "bin" / "python"


@pytest.fixture
def short():
    """A folder with a short name: Ray has sockets in it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize(("name", "rest"), [("Lightning", LIGHTNING), ("Accelerate", ACCELERATE), ("Ray Train", RAY)])
def test_a_framework_trains_only_if_the_checks_pass(frameworks, start, tmp_path, short, name, rest, passes):
    script, saved = tmp_path / "train.py", tmp_path / "saved"
    script.write_text(f"{example(name)}\n{rest}")
    saved.mkdir()
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if name == "Accelerate" else []
    env = {"DISTCHECK_SAVE": str(saved), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true",
           "RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": short,
           "PYTHONWARNINGS": "ignore"}  # fmt: skip
    env |= {} if passes else {"DISTCHECK_MIN_BUSBW": "1000000"}
    ended = start(*words, str(script), program=[str(frameworks)], env=env).wait(300)
    done = {rank for rank in (0, 1) if f"DONE {rank}" in ended.out}
    assert done == ({0, 1} if passes else set()), ended
    assert (ended.code == 0) == passes, ended
    assert len([*saved.iterdir()]) == 2, ended  # a job of each process
    assert ("PreflightError" in ended.out + ended.err) != passes, ended


TYPED = {
    "accelerate launch --multi_gpu --num_processes 2 --main_process_port {port}": """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
accelerator.wait_for_everyone()
print("DONE", accelerator.process_index, accelerator.num_processes)
accelerator.end_training()
""",
    "fabric run --accelerator cpu --devices 2 --main-port {port}": """
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=2)
fabric.barrier()
print("DONE", fabric.global_rank, fabric.world_size)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize(("line", "text"), TYPED.items(), ids=["accelerate", "fabric"])
def test_a_frameworks_own_launcher_starts_the_ranks_that_were_tested(frameworks, start, port, tmp_path, line, text):
    script = tmp_path / "train.py"
    script.write_text(text)
    program, *words = line.format(port=port).split()
    env = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONWARNINGS": "ignore", "HF_HOME": str(tmp_path)}
    gate = ("-m", "distcheck", "gate", "--sizes", "1M:1M", "--")
    command = (str(frameworks.with_name(program)), *words, str(script))
    ended = start(*gate, *command, program=[str(frameworks)], env=env).wait(300)
    assert (ended.code, sorted(re.findall(r"DONE \d \d", ended.out))) == (0, ["DONE 0 2", "DONE 1 2"]), ended
    assert re.search(r"placement from .*: 2 ranks on this node", ended.err), ended
