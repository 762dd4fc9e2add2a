"""A host that runs out of memory, threads or files, whose clock is wrong, or whose kernel is stuck, in further words.

memory.py, shared_memory.py and machine.py have the most common ones.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import HINT, LIKELY, SYMPTOM, told

_SYSTEMD = "https://github.com/systemd/systemd/blob/main/src/core/unit.c"
_EARLYOOM = "https://github.com/rfjakob/earlyoom"
_TH = "https://github.com/torch/torch7/blob/master/lib/TH/THGeneral.c"
_CPU = "https://github.com/pytorch/pytorch/blob/main/c10/core/impl/alloc_cpu.cpp"
_PINNED = "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/CachingHostAllocator.cpp"
_ARROW = "https://github.com/apache/arrow/blob/main/cpp/src/arrow/memory_pool.cc"
_RAY = "https://docs.ray.io/en/latest/ray-core/scheduling/ray-oom-prevention.html"
_DASK = "https://distributed.dask.org/en/stable/worker-memory.html"
_SPARK = "https://spark.apache.org/docs/latest/configuration.html"
_SAGEMAKER = "https://docs.aws.amazon.com/sagemaker/latest/dg/inference-pipeline-troubleshoot.html"
_COLAB = "https://research.google.com/colaboratory/faq.html"
_SGE = "https://gridscheduler.sourceforge.net/htmlman/htmlman5/queue_conf.html"
_RUST = "https://doc.rust-lang.org/std/alloc/fn.handle_alloc_error.html"
_NODE = "https://nodejs.org/api/cli.html#--max-old-space-sizesize-in-mib"
_BLAS = "https://github.com/OpenMathLib/OpenBLAS/blob/develop/driver/others/memory.c"
_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_OMP = "https://github.com/llvm/llvm-project/blob/main/openmp/runtime/src/kmp_settings.cpp"
_MANAGER = "https://github.com/pytorch/pytorch/blob/main/torch/lib/libshm/core.cpp"
_SEMAPHORE = "https://docs.python.org/3/library/multiprocessing.html#synchronization-primitives"
_LOGIND = "https://www.freedesktop.org/software/systemd/man/latest/logind.conf.html#RemoveIPC="
_STREAMING = "https://github.com/mosaicml/streaming/blob/main/streaming/base/shared/prefix.py"
_CMA = "https://github.com/openucx/ucx/blob/master/src/uct/sm/scopy/cma/cma_ep.c"
_AWS = "https://docs.aws.amazon.com/IAM/latest/UserGuide/signature-v4-troubleshooting.html"
_GOOGLE = "https://cloud.google.com/iam/docs/troubleshooting-iam"
_AZURE = "https://learn.microsoft.com/rest/api/storageservices/common-rest-api-error-codes"
_X509 = "https://github.com/golang/go/blob/master/src/crypto/x509/verify.go"
_KERBEROS = "https://web.mit.edu/kerberos/krb5-latest/doc/admin/troubleshoot.html"
_ETCD = "https://github.com/etcd-io/etcd/blob/main/server/etcdserver/api/rafthttp/probing_status.go"
_APT = "https://wiki.debian.org/AptCLI"
_TAR = "https://www.gnu.org/software/tar/manual/"
_WATCHDOG = "https://docs.kernel.org/admin-guide/lockup-watchdogs.html"
_STEPD = "https://slurm.schedmd.com/troubleshoot.html"
_THERMAL = "https://github.com/torvalds/linux/blob/master/drivers/thermal/intel/therm_throt.c"
_killed = partial(told, about="process killed")
_start = partial(told, about="start-up")
_MEMORY = "host-memory-low host-oom-kills"
_STUCK = "host-stuck-processes storage-hangs"
_NO_SHM = "host-shm-not-writable host-shm-too-small"

SPELLINGS = (
    # memory: what kills, and what is killed
    *(
        _killed(pattern, _MEMORY, source=source)
        for pattern, source in (
            (r"systemd-oomd\b.*\bkilled", _SYSTEMD),
            (r"of this unit has been killed by the OOM killer", _SYSTEMD),
            (r"Failed with result 'oom-kill'", _SYSTEMD),
            (r"earlyoom\b.*sending SIG(?:TERM|KILL)", _EARLYOOM),
            (r"low memory! at or below SIG(?:TERM|KILL) limits", _EARLYOOM),
            (r"\bkilled by (?:the )?(?:kernel'?s? |linux |host |system )?(?:OOM|out[- ]of[- ]memory)\b", _SYSTEMD),
            (r"Torch: not enough memory: you tried to allocate", _TH),
            (r"RayOutOfMemoryError", _RAY),
            (
                r"^(?!.*root causes).*\bkill(?:ed|ing) .{0,60}\bdue to (?:the )?(?:host |node |high )?memory (?:pressure|usage|limit)",
                _RAY,
            ),
            (r"Your session crashed after using all available RAM", _COLAB),
            (r"notebook tried to allocate more memory than is available", _COLAB),
            (r"instance type with more memory", _SAGEMAKER),
            (r"Container killed by YARN for exceeding", _SPARK),
            (r"running beyond (?:physical|virtual) memory limits", _SPARK),
            (r"job killed: .*\bmem\w* .*exceed", _SGE),
            (r"PBS: job killed: (?:v|p|pv)?mem", _SGE),
            (r"exceed\w* .{0,20}\b[hs]_(?:vmem|rss|data)\b", _SGE),
            (r"\b[hs]_vmem\b.{0,30}\b(?:exceed|limit)", _SGE),
        )
    ),
    *(
        _killed(pattern, _MEMORY, weight=LIKELY, source=source)
        for pattern, source in (
            (r"ArrowMemoryError: (?:malloc|realloc|posix_memalign) ", _ARROW),
            (r"alloc_cpu\.cpp:\d+\]", _CPU),
            (r"CPUAllocator\.cpp:\d+\] .*(?:posix_memalign|memory)", _CPU),
            (r"memory allocation of \d+ bytes failed", _RUST),
            (r"kind: OutOfMemory, message: \"Cannot allocate", _RUST),
            (r"JavaScript heap out of memory", _NODE),
            (r"java\.lang\.OutOfMemoryError: (?!unable to create)", _SPARK),
            (r"OpenBLAS error: Memory allocation still failed", _BLAS),
            (r"\bxmalloc: .*cannot allocate \d+ bytes", _ERRNO),
            (r"fatal: Out of memory, (?:malloc|calloc|realloc) failed", _ERRNO),
            (r"pinned memory.{0,60}\b(?:exhausted|not enough|out of memory)", _PINNED),
            (r"failed to allocate memory on (?:the )?host\b", _PINNED),
            (r"failed to (?:allocate|alloc|register|pin) .{0,30}\b(?:pinned|page-locked|host) memory", _PINNED),
            (r"Container killed on request\. Exit code is 137", _SPARK),
        )
    ),
    _killed(
        r"CUDA error: out of memory",
        _MEMORY,
        weight=LIKELY,
        source=_PINNED,
        trace=r"pin_memory\([^\n]*\n(?:[ ~^]*\n)?[^\n]*$",
    ),
    _killed(r"\bKilledWorker\b", _MEMORY, weight=SYMPTOM, source=_DASK),
    _killed(r"Unmanaged memory use is high", "host-memory-low", weight=HINT, source=_DASK),
    # threads and processes
    *(
        _start(pattern, "host-nproc-pids", weight=weight, source=source)
        for pattern, weight, source in (
            (r"blas_thread_init: RLIMIT_NPROC \d", LIKELY, _BLAS),
            (r"blas_thread_init: .*ensure that", LIKELY, _BLAS),
            (r"Thread \S* ?creation via pthread_create", LIKELY, _ERRNO),
            (r"thread constructor failed: ", LIKELY, _ERRNO),
            (r"\bTasksMax\b.{0,60}\b(?:reached|limit|exceed)", LIKELY, _SYSTEMD),
            (r"number of (?:user )?processes .{0,40}\b(?:exceed|limit reached)", SYMPTOM, _ERRNO),
        )
    ),
    _start(
        r"\bBlockingIOError: \[Errno 11\]",
        "host-nproc-pids",
        weight=SYMPTOM,
        source=_ERRNO,
        unless=r"lock|socket|recv|pipe",
    ),
    # open files
    *(
        _start(pattern, "host-nofile net-open-files", weight=weight, source=_ERRNO)
        for pattern, weight in (
            (r"VFS: file-max limit \d+ reached", LIKELY),
            (r"open[- ]file(?:[- ]descriptors?)? limit is too (?:low|small)", SYMPTOM),
            (r"file descriptors? limit .{0,40}\b(?:too low|too small|insufficient|less than)", HINT),
            (r"inotify (?:instance|watch)\w* limit reached", SYMPTOM),
            (r"torch\.multiprocessing\.set_sharing_strategy\('file_system'\)", LIKELY),
        )
    ),
    # shared memory and semaphores
    *(
        _start(pattern, rules, source=source)
        for pattern, rules, source in (
            (r"Permission denied: '/(?:psm_|sem\.|torch_)", _NO_SHM, _SEMAPHORE),
            (r"OMP: Error #\d+: Function Can't open SHM", _NO_SHM, _OMP),
            (r"shm_open(?:\(\S*\))?:? (?:failed: )?(?:Permission denied|Read-only|Function not)", _NO_SHM, _ERRNO),
            (r"lacks a functioning sem_open implementation", _NO_SHM, _SEMAPHORE),
            (r"could not generate a random directory for manager socket", "host-disk-full", _MANAGER),
            (
                r"(?:error executing|no response from) torch_shm_manager",
                "host-disk-full host-shm-not-writable",
                _MANAGER,
            ),
            (r"/dev/shm\S*'?:? (?:Permission denied|Read-only file system)", _NO_SHM, _ERRNO),
            (r"plasma\S*: .*(?:mmap|fallocate|ftruncate).*No space left", "host-shm-too-small", _RAY),
            (r"shm_broadcast.*No space left", "host-shm-too-small", _ERRNO),
            (r"Cannot allocate memory: '/(?:psm_|torch_|dev/shm)", "host-shm-too-small host-memory-low", _ERRNO),
            (r"clean_stale_shared_memory", "host-shm-stale-files", _STREAMING),
            (r"File exists: '/(?:dev/shm/\w|\d{6}_\w+')", "host-shm-stale-files", _STREAMING),
            (r"Call to shm_open failed:? ?.*File exists", "host-shm-stale-files", _ERRNO),
            (r"No such file or directory: '/dev/shm/\w", "host-shm-removed-by-systemd host-shm-not-writable", _LOGIND),
            (r"No such file or directory: '/(?:psm_|sem\.|mp-)\w", "host-shm-removed-by-systemd", _LOGIND),
        )
    ),
    _start(
        r"No space left on device \(errno 28\)",
        "host-shm-too-small host-disk-full",
        source=_ERRNO,
        near=r"System call: +ftruncate",
    ),
    # processes of a host that may not read one another
    *(
        _start(pattern, "host-ptrace-pidns", weight=weight, source=_CMA)
        for pattern, weight in (
            (r"process_vm_(?:readv|writev)\S* .*(?:not permitted|denied)", LIKELY),
            (r"CMA support is not available due to restrictive ptrace", HINT),
            (r"pidfd_(?:open|getfd)\S* .*(?:not permitted|denied|No such process)", LIKELY),
            (r"\bptrace: Operation not permitted", SYMPTOM),
        )
    ),
    # the clock
    *(
        _start(pattern, "host-clock-skew", weight=weight, source=source)
        for pattern, weight, source in (
            (r"Signature not yet current", LIKELY, _AWS),
            (r"Signature expired: \S+ is now earlier than", LIKELY, _AWS),
            (r"difference between the request time and the current time is too large", LIKELY, _AWS),
            (r"Token must be a short-lived token", LIKELY, _GOOGLE),
            (r"Token used (?:before issued|too early)", LIKELY, _GOOGLE),
            (r"Request date header too old", LIKELY, _AZURE),
            (r"Client assertion is not within its valid time range", LIKELY, _AZURE),
            (r"not yet valid: current time \S+ is before", LIKELY, _X509),
            (r"\bClock skew too great", LIKELY, _KERBEROS),
            (r"clock difference against peer \S+ is too high", LIKELY, _ETCD),
            (r"Release file for \S+ is not valid yet", LIKELY, _APT),
            (r"time stamp .{0,60} in the future", HINT, _TAR),
            (r"modification time .{0,60} in the future", HINT, _TAR),
            (r"time warp or clock problem", HINT, _TAR),
            (r"System clock (?:wrong by|synchronized: no)", HINT, _STEPD),
            (r"\bclocks? (?:is|are) not (?:in sync|synchroni[sz]ed)", SYMPTOM, _STEPD),
            (r"\b(?:possible|detected|large|excessive) clock (?:skew|drift)\b", SYMPTOM, _STEPD),
        )
    ),
    # the kernel waits
    *(
        _killed(pattern, _STUCK, weight=weight, source=source)
        for pattern, weight, source in (
            (r"BUG: soft lockup - CPU#", LIKELY, _WATCHDOG),
            (r"Watchdog detected hard LOCKUP", LIKELY, _WATCHDOG),
            (r"self-detected stall on CPU", LIKELY, _WATCHDOG),
            (r"detected stalls on CPUs/tasks", LIKELY, _WATCHDOG),
            (r"\bKill task failed\b", LIKELY, _STEPD),
        )
    ),
    _killed(r"uninterruptible (?:disk )?(?:sleep|state)", _STUCK, weight=SYMPTOM, source=_WATCHDOG),
    _killed(r"D \(disk sleep\)", _STUCK, weight=SYMPTOM, source=_WATCHDOG),
    told(r"cpu clock throttled", "host-cpu-throttled", about="start-up", weight=HINT, source=_THERMAL),
)
