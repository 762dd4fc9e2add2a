"""What to run next where no rule names the cause of an error: it goes by the fault."""

from __future__ import annotations

import re

from distcheck.explain.fixes import PARTITIONS, STACK
from distcheck.explain.hang import Hang
from distcheck.explain.sighting import Sighting
from distcheck.explain.spelling import ERROR

_COMMAND = "COMMAND  # COMMAND: what starts the job"
_COMPARED = f"TORCH_DISTRIBUTED_DEBUG=DETAIL {_COMMAND}; the ranks then compare every collective"
_DUMPED = ("distcheck explain --flight DUMPS  # DUMPS: what the ranks wrote, by default ~/.cache/torch/*_trace_rank_*",)
_IN_SLURM = "sacct -j {job} --format=JobID,State,ExitCode,Elapsed,Timelimit"
BY_TAG: dict[str, tuple[str, ...]] = {
    "mismatch": (
        "grep -rn -B 30 'Detected mismatch between' LOGS  # LOGS: the job's logs; where in the script each rank is",
    ),
    "differ": (_COMPARED,),
    "gloo": (_COMPARED,),  # its Flight Recorder writes no file by itself
    "time-limit": (_IN_SLURM,),
    "sigterm": (
        "distcheck explain --log LOGS  # LOGS: all logs of the job, of sbatch and srun, --output and --error",
        f"{_IN_SLURM.format(job='JOB')}  # with Slurm; JOB: the number of the job",
    ),
    "stack": ("grep -rn -A 30 'Fatal Python error' LOGS  # LOGS: the job's logs; where in the script the process was",),
    "crash": (f"PYTHONFAULTHANDLER=1 {_COMMAND}; a rank that crashes prints its stack",),
    "memory": (
        "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv  # on the node: who holds memory",
        "nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv --loop=5  # there, while the job runs",
    ),
    "kernel": (f"CUDA_LAUNCH_BLOCKING=1 {_COMMAND}; the trace then shows the call that failed",),
    "collective": (
        "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        'export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$PWD/nccl_trace_rank_"  # then start the job again',
        "distcheck explain --flight nccl_trace_rank_*  # after the next hang: names the rank that holds up the others",
    ),
    "status": (f"NCCL_DEBUG=WARN {_COMMAND}; NCCL then writes what failed, and why",),
    "refused": (PARTITIONS,),
}
"""By what the tables say of the fault; of several tags the first here decides."""
BY_CLASS: dict[str, tuple[str, ...]] = {
    "start-up": (
        "distcheck env  # in place of the script, started in the same way",
        "distcheck gate -- COMMAND  # in the job's launcher; COMMAND: what it starts now",
    ),
    "network": (
        "distcheck net --hosts NODES  # the nodes of the job, as in node1,node2",
        f"NCCL_DEBUG=WARN {_COMMAND}",
    ),
    "GPU": ("distcheck gpu --nproc auto  # on the node of the rank", "sudo dmesg -T | grep -i xid"),
    "process killed": (
        "sudo dmesg -T | grep -i -E 'oom|killed process'  # on the node of the rank",
        "distcheck node  # there, too",
    ),
    "application": (f"TORCH_DISTRIBUTED_DEBUG=DETAIL TORCH_SHOW_CPP_STACKTRACES=1 {_COMMAND}",),
    "": (
        "distcheck hang  # on a node of the job, if it still runs: the rank that holds it up, and its line",
        "distcheck gate --nproc auto",
        f"NCCL_DEBUG=WARN TORCH_DISTRIBUTED_DEBUG=DETAIL {_COMMAND}",
    ),
}
"""Where no tag decides."""
_OF_GLOO = re.compile(r"gloo/|gloo::|Gloo\b")
"""What the code of Gloo and of its process groups writes, in contrast to a script that names the backend."""
_JOB = re.compile(r"\*\*\* (?:JOB|STEP) (\d+)")


def steps(seen: Sighting, found: Hang | None, *, dumped: bool) -> tuple[str, ...]:
    """Return what to run if no rule names the cause of an error; nothing where its line says all, as a script's does.

    `found` is what the lines of all ranks prove, `dumped` whether they wrote dumps of the Flight Recorder.
    """
    tags = seen.tags | ({"differ"} if found and found.kind == "mismatch" else set())
    tags |= {"gloo"} if _OF_GLOO.search(seen.text) else set()
    tags -= {"collective"} if "script" in tags else set()
    tag = next((tag for tag in BY_TAG if tag in tags), None)
    if tag == "gloo" and found and "collective" in tags:
        return (*(STACK.format(rank=rank, on="  # on its node, while it hangs") for rank in found.ranks[:1]), _COMPARED)
    if tag == "time-limit":
        job = _JOB.search(seen.text)
        return (_IN_SLURM.format(job=job[1] if job else "JOB"),)
    if dumped and tag in {"differ", "collective"} and "collective" in tags:
        return _DUMPED
    if tag:
        return BY_TAG[tag]
    of_script = seen.spelling.about == "application" and seen.spelling.weight >= ERROR
    return () if of_script else BY_CLASS[seen.spelling.about]
