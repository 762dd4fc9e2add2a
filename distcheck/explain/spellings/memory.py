"""The memory of a node or of its cgroup is used up: the kernel, schedulers, Ray, Python, C++ and torch word it."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import LIKELY, SYMPTOM, told

_KERNEL = "https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer"
_CGROUP = "https://slurm.schedmd.com/cgroup.conf.html"
_KUBERNETES = "https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/"
_PRESSURE = "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/"
_RAY = "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html"
_LSF = "https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-termination-reasons"
_PBS = "https://help.altair.com/2022.1.0/PBS%20Professional/PBSUserGuide2022.1.pdf"
_ALLOCATOR = "https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp"
_PYTHON = "https://docs.python.org/3/library/exceptions.html#MemoryError"
_CLONE = "https://man7.org/linux/man-pages/man2/clone.2.html"
_PINNED = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html"
_killed = partial(told, about="process killed")
_MEMORY = "host-memory-low host-oom-kills"
_THREADS = "host-nproc-pids"

SPELLINGS = (
    _killed(r"oom[-_ ]kill(?:er|ed)? event(?! in Step)", _MEMORY, source=_CGROUP),
    _killed(r"oom[-_ ]kill event in Step", _MEMORY, source=_CGROUP, weight=LIKELY),  # srun's line names task and node
    _killed(r"oom-kill:constraint", _MEMORY, source=_KERNEL),
    _killed(r"invoked oom-killer", _MEMORY, source=_KERNEL),
    _killed(r"oom_reaper: reaped process", _MEMORY, source=_KERNEL),
    _killed(r"Out of memory: Kill(?:ed)? process", _MEMORY, source=_KERNEL),
    _killed(r"Memory cgroup out of memory", _MEMORY, source=_KERNEL),
    _killed(r"cgroup out-of-memory handler", _MEMORY, source=_CGROUP),
    _killed(r"OOMKill(?!er)", _MEMORY, source=_KUBERNETES),
    _killed(r"(?<!tasks have been )OOM[- _]Killed", _MEMORY, source=_KUBERNETES),
    _killed(r"TERM_MEMLIMIT", _MEMORY, source=_LSF),
    _killed(r"PBS: job killed: (?:v?mem|pmem) .*exceeded limit", _MEMORY, source=_PBS),
    _killed(r"The node was low on resource: memory", _MEMORY, source=_KUBERNETES),
    _killed(r"\bMemoryPressure\b(?!\s+False)", _MEMORY, weight=LIKELY, source=_PRESSURE),
    _killed(r"\bPIDPressure\b(?!\s+False)", _THREADS, weight=LIKELY, source=_PRESSURE),
    _killed(r"\bDiskPressure\b(?!\s+False)", "host-disk-full storage-full", source=_PRESSURE),
    _killed(
        r"The node was low on resource: (?:ephemeral-storage|nodefs|imagefs|inodes)",
        "host-disk-full storage-full",
        source=_PRESSURE,
    ),
    _killed(r"node running low on memory", _MEMORY, source=_RAY),
    _killed(r"Memory on the node \(IP: .* where the ", _MEMORY, source=_RAY),
    _killed(r"exceeds the memory usage threshold", _MEMORY, source=_RAY),
    _killed(r"killed due to memory pressure", _MEMORY, source=_RAY),
    _killed(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory", _MEMORY, source=_ALLOCATOR),
    _killed(r"\[Errno 12\] Cannot allocate memory", _MEMORY, source=_PYTHON),
    _killed(
        r"Cannot allocate memory",
        _MEMORY,
        weight=SYMPTOM,
        source=_PYTHON,
        unless=r"ibv_|infiniband|OpenFabrics|NET/IB|static TLS|libfabric|memlock|/dev/shm|shared memory object",
    ),
    _killed(r"cudaHost(?:Alloc|Register)\b.{0,40}out of memory", _MEMORY, source=_PINNED),
    _killed(r"MemoryError: Unable to allocate \d", _MEMORY, weight=LIKELY, source=_PYTHON),
    _killed(r"CANCELLED DUE TO MEMORY LIMIT", _MEMORY, source=_CGROUP),
    _killed(r"Exceeded (?:job|step) memory limit", _MEMORY, source=_CGROUP),
    _killed(r"exceeded memory limit \(\d+ > \d+\)", _MEMORY, source=_CGROUP),
    _killed(r"Unable to allocate \S+ [KMGTP]?i?B for an array", _MEMORY, weight=LIKELY, source=_PYTHON),
    _killed(r"(?:^|\s)MemoryError(?::|$)", _MEMORY, weight=SYMPTOM, source=_PYTHON),
    _killed(r"std::bad_alloc", _MEMORY, weight=SYMPTOM, source=_PYTHON),
    _killed(r"what\(\): +Resource temporarily unavailable", _THREADS, about="start-up", weight=LIKELY, source=_KERNEL),
    _killed(r"pthread_create failed for thread", _THREADS, about="start-up", source=_KERNEL),
    _killed(r"Thread creation failed: Resource temporarily unavailable", _THREADS, about="start-up", source=_KERNEL),
    # EAGAIN of pthread_create() and fork(), in the words of C++, Rust, Go, Java and the shells
    *(
        _killed(pattern, _THREADS, about="start-up", weight=LIKELY, source=_CLONE)
        for pattern in (
            r"what\(\): +(?:thread: )?Resource temporarily unavailable",
            r"std::system_error.{0,40}Resource temporarily unavailable",
            r"ThreadPoolBuildError .*(?:WouldBlock|code: 11\b)",
            r"failed to spawn thread: .*(?:WouldBlock|code: 11\b)",
            r"failed to create new OS thread",
            r"may need to increase max user processes",
            r"unable to create (?:new )?native thread",
            r"Cannot fork$",
            r"OMP: System error #11",
            r"(?:v?fork|clone)(?:\(\))?(?: failed)?: Resource temporarily unavailable",
        )
    ),
    _killed(r"fork: (?:retry: )?Resource temporarily unavailable", _THREADS, about="start-up", source=_KERNEL),
    _killed(
        r"BlockingIOError: \[Errno 11\]",
        _THREADS,
        about="start-up",
        weight=LIKELY,
        source=_KERNEL,
        near=r"fork|popen|subprocess",
    ),
)
