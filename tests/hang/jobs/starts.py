"""Ranks that do not come as far as the others, or not yet.

Nothing here imports torch before it is needed.
"""

from __future__ import annotations

import importlib
import sys
import time

from job import Job, case


@case("hung", odd=(2,))
def before_init(job: Job) -> None:
    import torch.distributed as dist

    job.ready()
    if job.rank == 2:
        time.sleep(3600)  # <- here
    dist.init_process_group("gloo")  # <- waits


@case("hung", odd=(3,), at="library_3.py:1")
def stuck_import(job: Job) -> None:
    """A module's first line reads a file that does not come."""
    import torch.distributed as dist

    (job.folder / f"library_{job.rank}.py").write_text(f"open({str(job.fifo('licence'))!r}).read()\n")
    sys.path.append(str(job.folder))
    job.ready()
    if job.rank == 3:
        importlib.import_module(f"library_{job.rank}")
    dist.init_process_group("gloo")  # <- waits


@case("not hung", "slow")
def importing(job: Job) -> None:
    """The job has just begun: every rank is busy with modules."""
    (job.folder / f"large_{job.rank}.py").write_text("for number in range(10**10):\n    pass\n")
    sys.path.append(str(job.folder))
    job.ready()
    importlib.import_module(f"large_{job.rank}")
