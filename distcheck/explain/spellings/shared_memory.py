"""Shared memory, files and limits of the host: NCCL, torch's DataLoader, Python."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, SYMPTOM, told
from distcheck.explain.spellings.storage import CACHE, CODE_CACHE

_SHM = "https://github.com/NVIDIA/nccl/blob/master/src/misc/shmutils.cc"
_LOADER = "https://github.com/pytorch/pytorch/blob/main/torch/utils/data/_utils/signal_handling.py"
_MAPPED = "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/MapAllocator.cpp"
_SIGNAL = "https://man7.org/linux/man-pages/man7/signal.7.html"
_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_REDUCTION = "https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor"
_SEMAPHORE = "https://docs.python.org/3/library/multiprocessing.html#synchronization-primitives"
_NGC = "https://docs.nvidia.com/deeplearning/frameworks/user-guide/index.html"
_RAY = "https://docs.ray.io/en/latest/ray-core/objects/object-spilling.html"
_host = partial(told, about="start-up")
_SMALL = "host-shm-too-small"
_IN_MEMORY = r"/dev/shm|shared[ _]?mem|Memory file system|\bshm\b|sharedctypes|multiprocessing/(?:heap|synchronize|connection)|shm_open|/torch_\d|'/(?:psm_|sem\.|torch_|mp-)"

SPELLINGS = (
    _host(r"DataLoader worker .*killed by signal: Bus error", _SMALL, source=_LOADER),
    _host(
        r"DataLoader worker .*killed by signal: Killed",
        source=_LOADER,
        about="process killed",
        says="A data loader's worker was ended by SIGKILL. Most often the host or its cgroup ran out of memory: look for"
        " OOM kills in the kernel log.",
    ),
    _host(r"insufficient shared memory \(shm\)", _SMALL, source=_LOADER),
    _host(r"out of shared memory", _SMALL, weight=LIKELY, source=_LOADER),
    _host(r"Error while creating shared memory segment", _SMALL, source=_SHM),
    _host(
        r"failed to (?:extend|create|open) (?:shared memory file )?/dev/shm/nccl-",
        _SMALL,
        source=_SHM,
        near=r"No space left|os error 28|extend",
    ),
    _host(
        r"failed to (?:create|open) (?:shared memory file )?/dev/shm/nccl-",
        "host-shm-not-writable",
        source=_SHM,
        unless=r"No space left",
    ),
    _host(
        r"Call to (?:posix_fallocate|ftruncate|shm_open|fallocate) failed",
        _SMALL,
        source=_SHM,
        unless=r"Permission denied|Read-only",
    ),
    _host(
        r"Call to (?:posix_fallocate|ftruncate|shm_open|fallocate) failed",
        "host-shm-not-writable",
        source=_SHM,
        near=r"Permission denied|Read-only",
    ),
    _host(r"shm_open .*failed.*No space left", _SMALL, source=_SHM),
    _host(
        r"unable to (?:write to file|mmap .* from file|resize file|allocate shared memory)",
        _SMALL,
        source=_MAPPED,
        near=r"/torch_|shm",
    ),
    _host(r"Torch: unable to mmap memory: you tried to mmap 0GB", _SMALL, source=_MAPPED),
    _host(r"unable to open shared memory object .*Too many open files", "host-nofile", source=_MAPPED),
    _host(r"unable to open shared memory object .*(?:No space left|Cannot allocate)", _SMALL, source=_MAPPED),
    _host(  # the reason is missing before torch 1.12: most often it is EMFILE
        r"unable to open shared memory object(?!.*(?:denied|Read-only|exists))",
        "host-nofile host-shm-not-writable host-shm-too-small",
        weight=LIKELY,
        source=_MAPPED,
    ),
    _host(
        r"unable to open shared memory object.*(?:denied|Read-only|exists)",
        "host-shm-not-writable host-shm-too-small host-nofile",
        weight=LIKELY,
        source=_MAPPED,
    ),
    _host(r"No space left on device", _SMALL, source=_ERRNO, near=_IN_MEMORY),
    _host(r"No space left on device", "host-disk-full storage-full", source=_ERRNO, unless=_IN_MEMORY),
    _host(r"Read-only file system", "storage-read-only host-disk-full", weight=SYMPTOM, source=_ERRNO),
    _host(r"Disk quota exceeded", "storage-full host-disk-full", weight=LIKELY, source=_ERRNO),
    _host(r"signal SIGBUS", _SMALL, source=_SIGNAL),
    _host(r"Signal \d+ \(SIGBUS\)", _SMALL, source=_SIGNAL),
    _host(r"signal:? \d+ \(Bus error", _SMALL, source=_SIGNAL),
    _host(r"exitcode\s*: -7\b", _SMALL, source=_SIGNAL),
    _host(r"exits with return code = -7\b", _SMALL, source="https://github.com/deepspeedai/DeepSpeed/issues/4002"),
    _host(r"died with <Signals\.SIGBUS", _SMALL, source=_SIGNAL),
    _host(r"exit code:? 135\b", _SMALL, source=_SIGNAL),
    _host(r"Fatal Python error: Bus error", _SMALL, source=_SIGNAL),
    _host(r"Bus error \(core dumped\)", _SMALL, source=_SIGNAL),
    _host(r"tasks? [\d,-]+: Bus error", _SMALL, source=_SIGNAL),
    _host(r"\bBus error\b", _SMALL, weight=SYMPTOM, source=_SIGNAL),
    _host(r"\bSIGBUS\b", _SMALL, weight=SYMPTOM, source=_SIGNAL),
    _host(r"Permission denied: '/dev/shm\b", "host-shm-not-writable", source=_ERRNO),
    _host(r"No such file or directory: '/dev/shm'", "host-shm-not-writable", source=_ERRNO),
    _host(  # sem_open needs /dev/shm
        r"\[Errno (?:2|13|30|38)\] (?:No such|Permission|Read-only|Function not)",
        "host-shm-not-writable",
        weight=LIKELY,
        source=_SEMAPHORE,
        trace=r"_multiprocessing\.SemLock",
    ),
    _host(r"SHMEM allocation limit is set to the default of 64MB", _SMALL, weight=HINT, source=_NGC),
    _host(r"File exists: '/?(?:dev/shm/)?(?:psm_|nccl-|torch_)", "host-shm-stale-files", weight=LIKELY, source=_ERRNO),
    _host(r"instead of /dev/shm because /dev/shm has only", _SMALL, weight=HINT, source=_RAY),
    _host(r"received \d+ items of ancdata", "host-nofile net-open-files", source=_REDUCTION),
    _host(r"Too many open files", "host-nofile net-open-files", source=_ERRNO),
    _host(r"can't start new thread", "host-nproc-pids", source=_ERRNO),
    _host(r"(?:Failed|unable) to create (?:a )?new (?:native )?thread", "host-nproc-pids", source=_ERRNO),
    _host(r"pthread_create(?:\(\))? failed", "host-nproc-pids", weight=LIKELY, source=_ERRNO),
    _host(r"fork: (?:retry: )?(?:No child processes|Resource temporarily)", "host-nproc-pids", source=_ERRNO),
    _host(r"unable to allocate necessary resources for OMP thread", "host-nproc-pids", source=_ERRNO),
    _host(r"fork rejected by pids controller", "host-nproc-pids", source=_ERRNO),
    _host(
        r"cannot allocate memory in static TLS block",
        source="https://github.com/pytorch/pytorch/issues/2575",
        says="A library was loaded too late for its thread-local memory: import it before torch, or LD_PRELOAD it.",
    ),
    _host(
        r"Resource temporarily unavailable",
        "host-nproc-pids",
        weight=LIKELY,
        source=_ERRNO,
        near=r"fork|thread|clone|spawn|pthread",
        unless=r"ibv_|recv",
    ),
    _host(
        r"Stale file handle",
        "storage-hangs storage-not-shared",
        weight=LIKELY,
        source=_ERRNO,
        unless=rf"{CODE_CACHE}|{CACHE}",
    ),
    _host(
        r"Transport endpoint is not connected",
        "storage-hangs storage-path-missing",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=r"socket|NCCL|gloo",
    ),
    _host(r"No locks available", "net-file-rendezvous-nfs", source=_ERRNO),
    _host(r"flock: Function not implemented", "net-file-rendezvous-nfs", source=_ERRNO),
    _host(r"process_vm_readv\S* .*Operation not permitted", "host-ptrace-pidns", source=_ERRNO),
    _host(r"pidfd_getfd.*Operation not permitted", "host-ptrace-pidns", source=_ERRNO),
)
