"""Shapes of errors about memory, disks, open files, threads and shared memory that run out, in anyone's words.

They count only on lines that no table knows, and less than a known message.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import SHAPE, told

_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_LIMITS = "https://man7.org/linux/man-pages/man2/getrlimit.2.html"
_SHM = "https://man7.org/linux/man-pages/man7/shm_overview.7.html"
_HOST_MEMORY = r"\b(?:host|system|cpu|node|physical|main|server|virtual)\b"
_OF_GPU = r"out of resource|num_stages|Hardware limit|per block|smem|kernel"
_MEMORY = "host-memory-low host-oom-kills"
_DISK = "storage-full host-disk-full"
_FAILED = r"\b(?:could ?n[o']t|can ?n[o']t|can't|fail(?:ed|s|ure)?(?: to| in)?|unable to|error(?: while)?|not)\b"
_start = partial(told, about="start-up", weight=SHAPE, fallback=True)
_killed = partial(told, about="process killed", weight=SHAPE, fallback=True)

SPELLINGS = (
    # Memory.
    *(
        _killed(
            rf"{words}.{{0,30}}{_HOST_MEMORY}.{{0,12}}\b(?:memory|ram)\b",
            _MEMORY,
            source=_LIMITS,
            unless=r"CUDA|GPU|HBM",
        )
        for words in ("out of", "enough", "insufficient", "exhausted", "exceed")
    ),
    *(
        _killed(rf"\b{words}\b.{{0,60}}\b(?:exceed|reached)", _MEMORY, source=_LIMITS, unless=r"CUDA|GPU|HBM")
        for words in ("memory limit", "memory quota", "memory usage", "ram limit")
    ),
    _killed(
        r"\bexceed\w*.{0,40}\b(?:memory|ram) (?:limit|quota|request)", _MEMORY, source=_LIMITS, unless=r"CUDA|GPU|HBM"
    ),
    _killed(r"\bENOMEM\b", _MEMORY, source=_ERRNO),
    # Disks, files, threads.
    *(
        _start(rf"\b{words}\b", _DISK, source=_ERRNO)
        for words in (
            "ENOSPC",
            "EDQUOT",
            "disk (?:is )?full",
            "disk quota",
            "quota exceeded",
            "enough disk space",
            "enough free space",
            "insufficient (?:disk )?space",
            "out of disk",
        )
    ),
    *(
        _start(rf"\b{words}\b", "host-nofile net-open-files", source=_LIMITS)
        for words in ("EMFILE", "ENFILE", "open files? limit", "out of file descriptors", "file descriptor limit")
    ),
    _start(
        rf"{_FAILED}.{{0,20}}\b(?:create|start|spawn) (?:a |new |any )*threads?\b",
        "host-nproc-pids",
        source=_LIMITS,
        unless=r"CUDA|cublas|cudnn",
    ),
    *(
        _start(rf"{first}.{{0,60}}{second}", "host-shm-too-small host-shm-not-writable", source=_SHM, unless=_OF_GPU)
        for first, second in (
            (r"\bshared memory\b", r"\b(?:insufficient|exhausted|full|fail|too small|unable|limit|not enough)"),
            (r"\b(?:insufficient|exhausted|not enough|out of|unable|fail\w*|increase)\b", r"\bshared memory\b"),
            (r"/dev/shm", r"\b(?:insufficient|exhausted|full|fail|too small|unable|not enough|bigger|larger)"),
            (r"\b(?:increase|raise|enlarge|not enough|insufficient)\b", r"/dev/shm"),
        )
    ),
)
