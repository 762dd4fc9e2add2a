"""Rules about GPUs that others use, or whose settings keep a job from using them fully."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.gpu import GpuProcess, Gpus
from distcheck.facts.job import Job
from distcheck.facts.ranges import fold
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix, Severity
from distcheck.rules.gpu.readings import Reading, by_node, findings, judged, not_read, number, on_grace, readings
from distcheck.rules.wording import grouped, listed, numbers_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_MUCH_BYTES = 1 << 30
"""More than a driver and a display need."""
_BUSY_PERCENT = 20
_EXCLUSIVE, _PROHIBITED = (1, 3), 2


def _clients(reading: Reading) -> tuple[GpuProcess, ...]:
    """Return the processes that compute on a GPU through the Multi-Process Service."""
    clients = reading.health.mps_processes
    return () if isinstance(clients, Missing) else clients


def _shares(reading: Reading) -> bool:
    """Return whether the Multi-Process Service runs on a GPU, seen by its clients or the daemon."""
    gpus = reading.node.gpus
    return bool(_clients(reading)) or (isinstance(gpus, Gpus) and gpus.mps_daemon)


def _pids(processes: Collection[GpuProcess]) -> str:
    """Return the numbers of processes: process 4711, processes 4711 and 4712."""
    return f"{'process' if len(processes) == 1 else 'processes'} {listed([str(each.pid) for each in processes])}"


def _others(reading: Reading) -> str:
    """Return what uses a GPU before the job starts, '' if nothing is seen."""
    if _shares(reading) or reading.gpu.mig is True:
        return ""  # each MIG device has its own users
    health, used = reading.health, number(reading.gpu.memory_used_bytes)
    if health.processes and not isinstance(health.processes, Missing):
        held = sum(process.memory_bytes or 0 for process in health.processes)
        words = f", with {held / 1e9:.1f} GB of its memory" if held else ""
        return f"in use by {_pids(health.processes)}{words}"
    otherwise = on_grace(reading) or health.display is True
    if used > _MUCH_BYTES and not otherwise:
        return f"{used / 1e9:.1f} GB of its memory in use by processes that are hidden from here"
    return ""


@rule("gpu", severity="warning", scope="gpu")
def gpu_other_processes(job: Job) -> Iterator[Outcome]:
    """Another process computes on a GPU, or holds its memory, before the job starts.

    You would see ``CUDA out of memory`` although the model fits, or a rank that is slower than the others.
    Mostly it is a process of an earlier job that did not end.

    Found by NVML's list of processes and, where processes are hidden, as in containers, by more than 1 GiB of memory in
    use. On Grace the kernel keeps files in the GPU's memory, and a display needs some too, so memory alone proves
    nothing there. With the Multi-Process Service, gpu-mps-active reports it. For ``distcheck node`` it is an info
    finding, because a job may be running.

    Fix: end the process if it is yours: ``kill``; request exclusive GPUs: ``#SBATCH --exclusive``.
    """
    yield from judged(
        job,
        _others,
        Fix(
            "End your own processes; request exclusive GPUs from the scheduler.",
            ("nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv -i {gpu}", "#SBATCH --exclusive"),
        ),
        among=[r for r in readings(job) if r.health.processes or number(r.gpu.memory_used_bytes) > _MUCH_BYTES],
        severity="info" if "node" in job.asked.looks else "warning",
        owner="unknown",
    )


def _strangers(job: Job) -> dict[tuple[str, int], str]:
    """Return by GPU which processes on it belong to other GPUs.

    A GPU has an owner when a process is on it and nowhere else. A process on several GPUs is a stranger on those that
    have owners, if all but one have (the last is its home) and it is not the only such process there.
    """
    strangers: dict[tuple[str, int], str] = {}
    for node, group in by_node(job).items():
        on: dict[int, set[int]] = {}
        held: dict[tuple[int, int], int] = {}
        for reading in (each for each in group if each.health.processes):
            processes = reading.health.processes
            if isinstance(processes, Missing) or _shares(reading) or reading.gpu.mig is True:
                continue
            for process in processes:
                on.setdefault(process.pid, set()).add(reading.gpu.index)
                held[process.pid, reading.gpu.index] = process.memory_bytes or 0
        owned = {next(iter(gpus)) for gpus in on.values() if len(gpus) == 1}
        strays = {pid: gpus & owned for pid, gpus in on.items() if len(gpus) > 1 and len(gpus - owned) <= 1}
        for gpu in sorted(owned):
            pids = sorted(pid for pid, gpus in strays.items() if gpu in gpus)
            if len(pids) > 1 or any(on[pid] <= owned for pid in pids):
                size = sum(held[pid, gpu] for pid in pids)
                others = sorted({other for pid in pids for other in on[pid]} - {gpu})
                words = f"process {pids[0]}" if len(pids) == 1 else f"processes {listed([str(pid) for pid in pids])}"
                verb = "also uses" if len(pids) == 1 else "also use"
                words += f" of {'GPU' if len(others) == 1 else 'GPUs'} {fold(others)} {verb} it"
                strangers[node, gpu] = f"{words}, with {size / 1e9:.1f} GB of its memory" if size else words
    return strangers


@rule("gpu", severity="warning", scope="gpu")
def gpu_stray_context(job: Job) -> Iterator[Outcome]:
    """Processes that work on other GPUs have a context on this one too and hold its memory.

    A tensor, a pinned buffer or a library touched ``cuda:0`` before ``set_device`` was called. Every rank of a running
    job then holds about half a GB of GPU 0, and rank 0 gets ``CUDA out of memory``.

    Found by NVML's list of processes: either several processes share GPUs with the one process that is on that GPU
    alone, or one process is on several GPUs that each have their own process. A process that works on several GPUs by
    itself is not reported. GPUs shared by MPS or MIG are left out.

    Fix: ``torch.cuda.set_device(local_rank)`` before any other CUDA call; torch 2.15 and later name the line with
    ``TORCH_CUDA_CHECK_STRAY_CONTEXT=warn``.

    See: https://github.com/karpathy/nanoGPT/pull/116
    """
    strangers = _strangers(job)
    yield from judged(
        job,
        lambda r: strangers.get((r.node.key, r.gpu.index), ""),
        Fix(
            "Have every process take its own GPU before any other CUDA call.",
            (
                '# in the script, before any other CUDA call: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
                "export TORCH_CUDA_CHECK_STRAY_CONTEXT=warn",
                "nvidia-smi --query-compute-apps=gpu_bus_id,pid,used_memory --format=csv",
            ),
        ),
        among=readings(job) if strangers else (),
        owner="user",
    )


@rule("gpu", severity="warning", scope="gpu")
def gpu_utilisation_before_start(job: Job) -> Iterator[Outcome]:
    """A GPU is busy before the job starts, and no process is visible on it.

    Another container or virtual machine shares it, and the job will be slower.

    Found by NVML's utilisation of the last second, at 20 % or more. A GPU without persistence mode is left out, because
    it may look busy when it has just been woken. If a process is visible, gpu-other-processes reports it.

    Fix: wait, or request exclusive GPUs: ``#SBATCH --exclusive``.
    """

    def say(reading: Reading) -> str:
        busy = number(reading.health.utilisation_percent)
        quiet = busy < _BUSY_PERCENT or reading.health.persistence is not True or reading.gpu.mig is True
        return "" if quiet or _others(reading) or _shares(reading) else f"{busy} % busy before the job starts"

    yield from judged(
        job,
        say,
        Fix(
            "Wait, or request exclusive GPUs.",
            ("nvidia-smi dmon -s u -c 5 -i {gpu}", "#SBATCH --exclusive"),
        ),
        among=[r for r in readings(job) if r.health.utilisation_percent],
        severity="info" if "node" in job.asked.looks else "warning",
        owner="unknown",
    )


@rule("gpu", severity="warning", scope="gpu")
def gpu_exclusive_mode(job: Job) -> Iterator[Outcome]:
    """A GPU allows only one process at a time.

    A second process gets ``CUDA error: all CUDA-capable devices are busy or unavailable``: a rank that takes the wrong
    GPU first, a data loader that touches CUDA, or a process of an earlier job that has not ended.

    Found by NVML's compute mode. It is a warning where another process is on the GPU or several ranks take it, and else
    an info: a job with one process per GPU that calls ``set_device`` first is not affected. The Multi-Process Service
    counts as one process.

    Fix: call ``torch.cuda.set_device(local_rank)`` before anything else; ``sudo nvidia-smi -c DEFAULT``.

    See: https://docs.nvidia.com/deploy/mps/
    """

    def say(reading: Reading, *, crowded: bool) -> str:
        several = bool(_others(reading)) or (len(reading.ranks) > 1 and not _shares(reading))
        return "compute mode exclusive: one process at a time" if several is crowded else ""

    exclusive = [reading for reading in readings(job) if reading.health.compute_mode in _EXCLUSIVE]
    fix = Fix(
        "Have every process take its GPU before any other CUDA call, or set the default mode.",
        (
            '# in the script: torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            "sudo nvidia-smi -i {gpu} -c DEFAULT",
        ),
    )
    severity: Severity = "info" if "node" in job.asked.looks else "warning"
    yield from judged(job, partial(say, crowded=True), fix, among=exclusive, severity=severity)
    yield from findings(judged(job, partial(say, crowded=False), fix, among=exclusive, severity="info"))


@rule("gpu", scope="gpu")
def gpu_prohibited_mode(job: Job) -> Iterator[Outcome]:
    """A GPU allows no process to use it.

    You would see ``CUDA error: all CUDA-capable devices are busy or unavailable`` on the rank that takes it.

    Found by NVML's compute mode. An administrator has set it, so the hardware is not blamed.

    Fix: ``sudo nvidia-smi -c DEFAULT``.
    """

    def say(reading: Reading) -> str | Missing:
        mode = reading.health.compute_mode
        if isinstance(mode, Missing):
            return mode
        return "compute mode prohibited: CUDA cannot use it" if mode == _PROHIBITED else ""

    yield from judged(
        job,
        say,
        Fix("Set the default mode.", ("sudo nvidia-smi -i {gpu} -c DEFAULT",)),
        among=[r for r in readings(job) if r.health.compute_mode],
        severity="error",
    )


@rule("gpu", severity="info", scope="node")
def gpu_persistence_off(job: Job) -> Iterator[Outcome]:
    """The driver puts a GPU to sleep when no process uses it.

    The first CUDA call then takes seconds, a different time on each node, and settings such as clocks are lost between
    jobs. An info finding.

    Found by NVML's persistence mode.

    Fix: ``sudo systemctl enable --now nvidia-persistenced``, or ``sudo nvidia-smi -pm 1`` until the next reboot.
    """
    yield from judged(
        job,
        lambda r: "persistence mode is off" if r.health.persistence is False else "",
        Fix(
            "Run NVIDIA's persistence daemon.",
            ("sudo systemctl enable --now nvidia-persistenced", "sudo nvidia-smi -pm 1"),
        ),
        severity="info",
        scope="node",
    )


@rule("gpu", severity="warning", scope="node", owner="unknown")
def gpu_mps_active(job: Job) -> Iterator[Outcome]:
    """NVIDIA's Multi-Process Service runs on a node, between processes and their GPUs.

    It renumbers the GPUs by its own CUDA_VISIBLE_DEVICES, limits memory and threads, and one process that crashes takes
    down the others: ``CUDA_ERROR_MPS_RPC_FAILURE``. NCCL connects processes on one GPU only from 2.30 on, with
    NCCL_MULTI_RANK_GPU_ENABLE=1.

    Found by its processes in NVML's list, or by the daemon nvidia-cuda-mps-control. It is a warning where other
    processes use the job's GPUs through it; one rank per GPU works with it as without it. For ``distcheck node`` it is
    an info, because a job may be running.

    Fix: ``echo quit | nvidia-cuda-mps-control`` if it is not needed.

    See: https://docs.nvidia.com/deploy/mps/, https://github.com/NVIDIA/nccl/issues/418
    """
    yield from not_read(job)
    using = [reading for reading in readings(job) if reading.used and _shares(reading)]
    for group in grouped(using, lambda reading: reading.node.key).values():
        node = group[0].node
        clients = {process.pid: process for reading in group for process in _clients(reading)}
        users = f", in use by {_pids(clients.values())}" if clients else ""
        yield Fault(
            severity="warning" if clients and "node" not in job.asked.looks else "info",
            ranks=numbers_of(rank for reading in group for rank in reading.ranks),
            nodes=(node.name,),
            message=f"{node.name}: NVIDIA's Multi-Process Service is active{users}",
            evidence={"gpus": listed([str(reading.gpu.index) for reading in group], most=16)},
            fix=Fix(
                "Stop it if it is not needed.",
                (
                    "ps -C nvidia-cuda-mps-control,nvidia-cuda-mps-server -o pid,user,args",
                    "echo quit | nvidia-cuda-mps-control",
                ),
            ),
        )
