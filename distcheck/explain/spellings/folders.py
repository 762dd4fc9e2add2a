"""Folders that are missing, not writable or full, in the words of Python, shells, tools, libraries and containers.

storage.py and filesystems.py have what names its cause alone. Here a path decides: a folder, or a file that other nodes
have. Words: strerror() of glibc; std::io::Error of Rust; fs.PathError of Go; libuv of Node.js; coreutils.
"""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CAUSE, HINT, LIKELY, SYMPTOM, told

_PYTHON = "https://docs.python.org/3/library/exceptions.html#PermissionError"
_COREUTILS = "https://www.gnu.org/software/coreutils/manual/html_node/mkdir-invocation.html"
_RUST = "https://doc.rust-lang.org/std/io/enum.ErrorKind.html"
_LIBUV = "https://nodejs.org/api/errors.html#common-system-errors"
_GO = "https://pkg.go.dev/io/fs#PathError"
_FUSE = "https://man7.org/linux/man-pages/man3/errno.3.html"
_host = partial(told, about="start-up")
_DENIED = "storage-read-only storage-path-missing"
_HANGS = "storage-hangs storage-path-missing"
_FOLDER = r"/(?!dev/|proc/|sys/|run/|var/run/|bin/|sbin/|usr/s?bin/|etc/)"
"""Paths of files that a job writes, in contrast to devices, programs and what belongs to root."""
_WRITTEN = (
    r"(?:cache|te?mp|logs?|outputs?|out|results?|runs?|check-?points?|ckpts?|saved?|work_?dirs?|exp(?:eriment)?s?|wandb"
    r"|locks?|lightning_logs|tensorboard|triton|torch_extensions|nltk_data|datasets?_cache|site-packages|dist-packages)\b"
)
"""Names of folders and files that a program writes."""
_EXECUTED = r"_execute_child|subprocess\.py|posix_spawn|os\.exec|Popen\("
_TOOLS = r"\b(?:mkdir|touch|cp|mv|tee|ln|install|rsync|tar|mktemp|chmod|chown):"
_SHELL = "https://www.gnu.org/software/coreutils/manual/html_node/index.html"
_HUB = "https://github.com/huggingface/huggingface_hub/blob/main/src/huggingface_hub/file_download.py"
_TRANSFORMERS = "https://github.com/huggingface/transformers/blob/main/src/transformers/utils/hub.py"
_SERIALIZE = "https://github.com/pytorch/pytorch/blob/main/torch/serialization.py"
_STREAM = "https://en.cppreference.com/w/cpp/io/basic_ios/clear"
_ARROW = "https://github.com/apache/arrow/blob/main/cpp/src/arrow/util/io_util.cc"
_RAY = "https://github.com/ray-project/ray/blob/master/src/ray/common/file_system_monitor.cc"
_HDF5 = "https://github.com/HDFGroup/hdf5/blob/develop/src/H5FDsec2.c"
_SQLITE = "https://www.sqlite.org/rescode.html"
_KUBERNETES = "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/"
_MOUNT = "https://man7.org/linux/man-pages/man8/mount.8.html"
_SINGULARITY = "https://apptainer.org/docs/user/latest/bind_paths_and_mounts.html"
_TRAINER = "https://github.com/huggingface/transformers/blob/main/src/transformers/trainer_utils.py"
_DCP = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/checkpoint/filesystem.py"
_FUSE_KERNEL = "https://docs.kernel.org/filesystems/fuse.html"
_CEPH = "https://docs.ceph.com/en/latest/cephfs/troubleshooting/"
_GPFS = "https://www.ibm.com/docs/en/storage-scale/5.2.0?topic=messages"
_BEEGFS = "https://doc.beegfs.io/latest/advanced_topics/client_tuning.html"
_NFS = "https://github.com/torvalds/linux/blob/master/fs/nfs/nfs4state.c"
_LOCK = "https://py-filelock.readthedocs.io/en/latest/api.html#filelock.Timeout"
_MOUNT_CONTAINER = "https://github.com/opencontainers/runc/blob/main/libcontainer/init_linux.go"
_start = partial(told, about="start-up")
_FULL = "storage-full host-disk-full"
_CLOSED = "storage-read-only host-disk-full"
_MISSING = "storage-path-missing storage-not-shared"
_MOUNTED = (
    r"/(?:mnt|media|data\d*|dataset\w*|datasets|scratch|lustre\w*|gpfs\w*|fsx\w*|nfs\w*|efs|beegfs|weka|shared\w*|share"
    r"|project\w*|work\w*|home\d*|ckpt\w*|checkpoint\w*|models?|output\w*|results?|storage\w*|cephfs|vast|users|nas\w*|raid\w*)\b"
)
"""The beginning of a path at which clusters mount a file system."""
_MOUNTED_FOLDER = rf"{_MOUNTED}[^'\"\s.]*"
_SEVERAL_NODES = (
    r"nnodes[= ]+['\"]?[2-9]|num_nodes[= ]+['\"]?[2-9]|node[-_]rank[= ]+['\"]?[1-9]|--hostfile|pdsh@|srun: error"
    r"|machine_rank[= ]+[1-9]|\bworker-\d+\b|\[1,\d+\]<std"
)

SPELLINGS = (
    # Python.
    _host(
        rf"PermissionError: \[Errno 13\] Permission denied: b?['\"]{_FOLDER}(?:\S*[/_.-])?{_WRITTEN}",
        _DENIED,
        weight=SYMPTOM,
        source=_PYTHON,
        unless=rf"{_EXECUTED}|SemLock|os\.(?:chdir|listdir|scandir|getcwd)\(|socket|ssh",
    ),
    _host(r"^\s*\[Errno 13\] Permission denied: *(?:b?['\"]/|$)", _DENIED, weight=SYMPTOM, source=_PYTHON),
    # Tools.
    _host(
        rf"{_TOOLS} .*['\"\u2018`]?{_FOLDER}\S*: Permission denied",
        _DENIED,
        weight=SYMPTOM,
        source=_COREUTILS,
        unless=r"sshd",
    ),
    _host(
        r"(?:sh|line \d+|\d+): /\S+\.(?:log|out|err|txt|json|csv|tmp): Permission denied",
        _DENIED,
        weight=LIKELY,
        source=_COREUTILS,
    ),
    # Rust, Go, Node.js.
    _host(r"\bkind: PermissionDenied\b", _DENIED, weight=SYMPTOM, source=_RUST, near=r"serializ|writ|sav|creat|cache"),
    _host(r"\bkind: ReadOnlyFilesystem\b", "storage-read-only", weight=LIKELY, source=_RUST),
    _host(r"\bEACCES: permission denied, (?:mkdir|open|copyfile|rename)\b", _DENIED, weight=LIKELY, source=_LIBUV),
    _host(r"\bEROFS: read-only file system", "storage-read-only", weight=LIKELY, source=_LIBUV),
    _host(r"\b(?:mkdir|create|rename) /\S+: permission denied\b", _DENIED, weight=SYMPTOM, source=_GO),
    # A mount of FUSE whose process has ended; sockets have the same error.
    *(
        _host(pattern, _HANGS, weight=LIKELY, source=_FUSE)
        for pattern in (
            r"Transport endpoint is not connected: b?['\"]",
            r"cannot (?:access|open|stat|create \w+|touch) ['\"\u2018`]?/\S+: Transport endpoint is not connected",
            r"\bkind: (?:NotConnected|StaleNetworkFileHandle)\b.*(?:endpoint|Stale)",
        )
    ),
    # a folder that is not there, or is not a folder
    _start(rf"No such file or directory: '{_MOUNTED_FOLDER}'", _MISSING, weight=SYMPTOM, source=_PYTHON),
    _start(rf"NotADirectoryError: .*'{_MOUNTED}", _MISSING, weight=SYMPTOM, source=_PYTHON),
    _start(
        rf"\bDirectory '?{_MOUNTED}\S* (?:does not exist|doesn't exist|not found)",
        _MISSING,
        weight=SYMPTOM,
        source=_PYTHON,
    ),
    *(
        _start(
            rf"\b{words}\b.{{0,80}}(?:does not exist|doesn't exist|not found|no such)",
            _MISSING,
            weight=SYMPTOM,
            source=_TRAINER,
        )
        for words in (
            r"(?:checkpoint|output|data|dataset|working|save|log|cache) director(?:y|ies)",
            r"(?:checkpoint|output|data|dataset|working|save|log|cache) folder",
            r"mount point",
        )
    ),
    _start(rf"skipping mount of {_MOUNTED}", _MISSING, weight=HINT, source=_SINGULARITY),
    _start(
        rf"\b(?:tee|ls|cp|mv|cat|cd|rsync|find): .*{_MOUNTED}\S*: No such file or directory",
        _MISSING,
        weight=HINT,
        source=_SHELL,
    ),
    _start(rf"ls: cannot access '?{_MOUNTED}\S*: No such file", _MISSING, weight=SYMPTOM, source=_SHELL),
    _start(rf"mount point {_MOUNTED}\S* does not exist", _MISSING, weight=LIKELY, source=_MOUNT),
    _start(r"hostPath type check failed", "storage-path-missing", weight=LIKELY, source=_KUBERNETES),
    _start(r"chdir to cwd \(", "storage-path-missing", source=_MOUNT_CONTAINER),
    _start(r"trying to mount a directory onto a file", "storage-path-missing", weight=LIKELY, source=_MOUNT_CONTAINER),
    # a file that one node wrote, on another node
    _start(
        rf"FileNotFoundError: .*'{_MOUNTED}",
        "storage-not-shared storage-path-missing command-file-missing",
        weight=SYMPTOM,
        source=_PYTHON,
        near=_SEVERAL_NODES,
    ),
    _start(
        r"No such file or directory: '\S*/(?:\.metadata|latest_checkpointed_iteration\.txt|latest|tracker\.json)'",
        _MISSING,
        weight=SYMPTOM,
        source=_DCP,
    ),
    # nothing may be written
    *(
        _start(rf"Permission denied: '{path}", "storage-read-only storage-path-missing", weight=SYMPTOM, source=_PYTHON)
        for path in (
            _MOUNTED,
            r"/\.(?:cache|triton|local|config|nv|keras|torch|vllm|deepspeed|flashinfer|netrc|inductor)",
            r"/root/\.\w+",
            r"/(?:root|opt|app|code|src|usr/local|var|tmp|logs?)/\S",
            r"(?:\./)?(?:output|checkpoint|result|log|save|wandb|runs|ckpt)\w*",
        )
    ),
    *(
        _start(pattern, _CLOSED, weight=weight, source=source)
        for pattern, weight, source in (
            (r"problem when trying to write in your cache folder", SYMPTOM, _TRANSFORMERS),
            (r"PermissionError at \S+ when downloading", LIKELY, _HUB),
            (r"Check cache directory permissions", LIKELY, _HUB),
            (
                r"\b(?:folder|directory|path|cache|location) .{0,80}\b(?:is not|isn't|not) writ(?:e?able|able)\b",
                SYMPTOM,
                _HUB,
            ),
            (r"\b(?:no|without|lacks?|lacking|missing) write (?:permission|access)", SYMPTOM, _HUB),
            (r"while serializing: I/O error: Permission denied", LIKELY, _RUST),
            (r"kind: (?:ReadOnlyFilesystem|PermissionDenied)\b", LIKELY, _RUST),
            (r"Unable to (?:synchronously )?(?:create|open) file .*errno = (?:13|30)\b", LIKELY, _HDF5),
            (r"\bEROFS\b", LIKELY, _PYTHON),
            (r"cannot open file '?\S+'? for writing", SYMPTOM, _STREAM),
            (r"RuntimeError: File \S+ cannot be opened", SYMPTOM, _SERIALIZE),
            (r"(?:mkdir|touch|cp|mv|tee|install|rsync): .*Permission denied", HINT, _SHELL),
            (r"attempt to write a readonly", LIKELY, _SQLITE),
        )
    ),
    # what does not answer
    *(
        _start(pattern, "storage-hangs storage-slow", weight=weight, source=source)
        for pattern, weight, source in (
            (rf"Connection timed out: '{_MOUNTED}", CAUSE, _PYTHON),
            (rf"Software caused connection abort: '{_MOUNTED}", LIKELY, _PYTHON),
            (r"\bceph: mds\d+ (?:hung|caps stale|session (?:lost|blocklisted))", LIKELY, _CEPH),
            (r"\blibceph: (?:osd|mon|mds)\d+ \S+ socket (?:closed|error)", SYMPTOM, _CEPH),
            (r"\bslow (?:ops|requests are blocked)\b", SYMPTOM, _CEPH),
            (r"\btransport endpoint not connected", SYMPTOM, _FUSE_KERNEL),
            (r"\bmmfs\S*: .*lease (?:expired|overdue)", LIKELY, _GPFS),
            (r"\bmmfs\S*: .*Lost connection", LIKELY, _GPFS),
            (r"GPFS: 6027-(?:2171|711|2706|482|777)", SYMPTOM, _GPFS),
            (r"BeeGFS.{0,40}(?:Communication error|timed out|unreachable|not responding)", LIKELY, _BEEGFS),
            (r"NFS: state manager: .*failed", LIKELY, _NFS),
            (r"nfs4_reclaim_open_state: Lock reclaim failed", LIKELY, _NFS),
            (r"\bCIFS.{0,60}not responded in", LIKELY, _NFS),
            (r"(?:The )?file lock '\S+' could not be acquired", LIKELY, _LOCK),
            (r"\bThe file lock \S+ could not be acquired", LIKELY, _LOCK),
        )
    ),
    # full
    *(
        _start(pattern, _FULL, weight=weight, source=source)
        for pattern, weight, source in (
            (r"\[Errno 122\] (?!Disk quota)", LIKELY, _ARROW),
            (r"\berrno ?[=:] ?28\b", LIKELY, _HDF5),
            (r"\(os error (?:28|122)\)", LIKELY, _RUST),
            (r"Not enough free disk space to download", SYMPTOM, _HUB),
            (r"basic_ios::clear: iostream error", SYMPTOM, _STREAM),
            (r"\bis over \d+% full, available space: ", LIKELY, _RAY),
            (r"OutOfDiskError\b", LIKELY, _RAY),
            (
                r"\b(?:no|out of|insufficient|not enough) (?:free |disk |storage )*space (?:left|available|on)\b",
                SYMPTOM,
                _PYTHON,
            ),
            (r"Write failed:? (?:disk|no space)", LIKELY, _SHELL),
            (r"OperationalError: disk I/O error", SYMPTOM, _SQLITE),
            (r"\binodes? .{0,30}\b(?:exhausted|limit|full|exceeded)", SYMPTOM, _SHELL),
            (r"(?:user|group|project|block|file|soft|hard) quota .{0,30}\b(?:exceeded|reached)", LIKELY, _SHELL),
            (r"over (?:disk |file |block )?quota\b", SYMPTOM, _SHELL),
        )
    ),
    _start(r"\[Errno 28\] (?!No space)", "host-disk-full storage-full", weight=LIKELY, source=_ARROW),
    _start(
        r"Usage of EmptyDir volume \"\S*shm\S*\" exceeds the limit",
        "host-shm-too-small",
        about="process killed",
        source=_KUBERNETES,
    ),
)
