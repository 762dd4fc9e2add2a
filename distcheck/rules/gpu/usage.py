"""Rules about GPUs that others use, or whose settings keep a job from using them fully."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import GpuProcess, Gpus
from distcheck.facts.job import Job
from distcheck.rules import Answer, rule
from distcheck.rules.finding import Fault, Severity
from distcheck.rules.gpu.readings import Reading, by_node, each_gpu, number, on_grace
from distcheck.rules.wording import listed

if TYPE_CHECKING:
    from collections.abc import Collection

_MUCH_BYTES = 1 << 30
"""More than a driver and a display need."""
_EXCLUSIVE, _PROHIBITED = (1, 3), 2


def _severity(job: Job) -> Severity:
    """Return info for `distcheck node`, because a job may be running there; else warning."""
    return "info" if "node" in job.asked.looks else "warning"


def _clients(reading: Reading) -> tuple[GpuProcess, ...]:
    """Return the processes that compute on a GPU through the Multi-Process Service."""
    clients = reading.health.mps_processes
    return () if isinstance(clients, Missing) else clients


def _through_mps(reading: Reading) -> bool:
    """Return whether the Multi-Process Service runs on a GPU, seen by its clients or the daemon."""
    gpus = reading.node.gpus
    return bool(_clients(reading)) or (isinstance(gpus, Gpus) and gpus.mps_daemon)


def _processes(pids: Collection[int]) -> str:
    """Return the numbers of processes: process 4711, processes 4711 and 4712."""
    return f"{'process' if len(pids) == 1 else 'processes'} {listed(list(map(str, pids)))}"


def _size(bytes_: int) -> str:
    return f", with {bytes_ / 1e9:.1f} GB of its memory" if bytes_ else ""


def _others(reading: Reading) -> str:
    """Return what uses a GPU before the job starts, '' if nothing is seen."""
    if _through_mps(reading) or reading.gpu.mig is True:
        return ""  # each MIG device has its own users
    health, used = reading.health, number(reading.gpu.memory_used_bytes)
    if health.processes and not isinstance(health.processes, Missing):
        size = _size(sum(process.memory_bytes or 0 for process in health.processes))
        return f"in use by {_processes([process.pid for process in health.processes])}{size}"
    if used > _MUCH_BYTES and not on_grace(reading) and health.display is not True:
        return f"{used / 1e9:.1f} GB of its memory in use by processes that are hidden from here"
    return ""


@rule("gpu", severity="warning", scope="gpu", owner="unknown", of=each_gpu)
def gpu_other_processes(job: Job, reading: Reading) -> Answer:
    """Another process computes on a GPU, or holds its memory, before the job starts.

    You would see ``CUDA out of memory`` although the model fits, or a rank that is slower than the others.
    Mostly it is a process of an earlier job that did not end.

    Found by NVML's list of processes and, where processes are hidden, as in containers, by more than 1 GiB of memory in
    use. On Grace the kernel keeps files in the GPU's memory, and a display needs some too, so memory alone proves
    nothing there. With the Multi-Process Service, gpu-mps-active reports it. For ``distcheck node`` it is an info
    finding, because a job may be running.

    Fix: End your own processes; request exclusive GPUs from the scheduler.

        nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv -i {gpu}
        #SBATCH --exclusive
    """
    users = _others(reading)
    return Fault(users, severity=_severity(job)) if users else None


@rule("gpu", severity="warning", scope="gpu", owner="admin", of=each_gpu)
def gpu_exclusive_mode(job: Job, reading: Reading) -> Answer:
    """A GPU allows only one process at a time.

    A second process gets ``CUDA error: all CUDA-capable devices are busy or unavailable``: a rank that takes the wrong
    GPU first, a data loader that touches CUDA, or a process of an earlier job that has not ended.

    Found by NVML's compute mode. It is a warning where another process is on the GPU or several ranks take it, and else
    an info: a job with one process per GPU that calls ``set_device`` first is not affected. The Multi-Process Service
    counts as one process.

    Fix: Have every process take its GPU before any other CUDA call, or set the default mode.

        # in the script: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        sudo nvidia-smi -i {gpu} -c DEFAULT

    See: https://docs.nvidia.com/deploy/mps/
    """
    if reading.health.compute_mode not in _EXCLUSIVE:
        return None
    crowded = bool(_others(reading)) or (len(reading.ranks) > 1 and not _through_mps(reading))
    return Fault("compute mode exclusive: one process at a time", severity=_severity(job) if crowded else "info")


@rule("gpu", scope="gpu", owner="admin", of=each_gpu)
def gpu_prohibited_mode(_: Job, reading: Reading) -> Answer:
    """A GPU allows no process to use it.

    You would see ``CUDA error: all CUDA-capable devices are busy or unavailable`` on the rank that takes it.

    Found by NVML's compute mode. An administrator has set it, so the hardware is not blamed.

    Fix: Set the default mode.

        sudo nvidia-smi -i {gpu} -c DEFAULT
    """
    mode = reading.health.compute_mode
    if isinstance(mode, Missing):
        return mode
    if mode != _PROHIBITED:
        return None
    return Fault("compute mode prohibited: CUDA cannot use it", confirmed=False)


@rule("gpu", severity="warning", scope="node", owner="unknown", of=each_gpu)
def gpu_mps_active(job: Job, reading: Reading) -> Answer:
    """NVIDIA's Multi-Process Service runs on a node, between processes and their GPUs.

    It renumbers the GPUs by its own CUDA_VISIBLE_DEVICES, limits memory and threads, and one process that crashes takes
    down the others: ``CUDA_ERROR_MPS_RPC_FAILURE``. NCCL connects processes on one GPU only from 2.30 on, with
    NCCL_MULTI_RANK_GPU_ENABLE=1.

    Found by its processes in NVML's list, or by the daemon nvidia-cuda-mps-control. It is a warning where other
    processes use the job's GPUs through it; one rank per GPU works with it as without it. For ``distcheck node`` it is
    an info, because a job may be running.

    Fix: Stop it if it is not needed.

        ps -C nvidia-cuda-mps-control,nvidia-cuda-mps-server -o pid,user,args
        echo quit | nvidia-cuda-mps-control

    See: https://docs.nvidia.com/deploy/mps/, https://github.com/NVIDIA/nccl/issues/418
    """
    if not reading.used or not _through_mps(reading):
        return None
    clients = {process.pid for each in by_node(job)[reading.node.key] if each.used for process in _clients(each)}
    users = f", in use by {_processes(sorted(clients))}" if clients else ""
    words = f"NVIDIA's Multi-Process Service is active{users}"
    return Fault(words, severity=_severity(job) if clients else "info")
