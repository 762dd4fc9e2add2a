"""A training job whose fault is chosen by name: ``train.py FAULT FOLDER``; ``--start spawn`` starts its ranks, too.

The faults are functions of the modules beside this one. Each is decorated with the answer that `distcheck hang` must
give; the line that it must name is marked `# <- here`. The folder is where ranks note that they are there.
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

from job import MODULES, Job


def run(fault: str, folder: Path) -> None:
    """Run one rank, whose environment is that of torchrun or of a person who starts ranks by hand."""
    name = next(name for name in MODULES if f"\ndef {fault}(" in Path(__file__).with_name(f"{name}.py").read_text())
    getattr(importlib.import_module(name), fault)(Job(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), folder))


def spawned(rank: int, size: int, fault: str, folder: Path) -> None:
    """Run one rank that torch.multiprocessing has started."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    run(fault, folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--start", choices=("spawn", "fork"))
    asked = parser.parse_args()
    if asked.start is None:
        run(asked.fault, asked.folder)
        return
    import torch.multiprocessing as mp

    with mp.Manager():  # a child beside the ranks that is none
        mp.start_processes(spawned, (4, asked.fault, asked.folder), nprocs=4, start_method=asked.start)


if __name__ == "__main__":
    main()
