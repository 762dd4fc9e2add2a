"""Folders and files that are full, forbidden or not shared, and the file that serves as rendezvous."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from distcheck.explain.spelling import LIKELY, SYMPTOM, told

_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_FILE_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/FileStore.cpp"
_THD = "https://github.com/pytorch/pytorch/blob/v0.4.1/torch/lib/THD/base/init_methods/InitMethodFile.cpp"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/gpt_dataset.py"
_NEMO = "https://github.com/NVIDIA/NeMo/blob/main/nemo/collections/nlp/data/language_modeling/text_memmap_dataset.py"
_TRITON = "https://github.com/triton-lang/triton/blob/main/python/triton/runtime/cache.py"
_NFS = "https://man7.org/linux/man-pages/man5/nfs.5.html"
_LUSTRE = "https://doc.lustre.org/lustre_manual.xhtml"
_LOCK = "https://github.com/tox-dev/filelock"
_CACHE_RACE = (
    "Ranks write the same cache on a shared file system at the same time. Give each node a cache of its own:"
    " TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, TORCH_EXTENSIONS_DIR, HF_DATASETS_CACHE."
)
CODE_CACHE = r"\.triton/|triton[_/]cache|/inductor|torchinductor_|torch_extensions|torch_compile_cache|flashinfer/"
CACHE = r"filelock|\.lock\b|_cache_file_name|/\.cache/|/cache-\w+\.arrow"
_ARROW = "https://github.com/huggingface/datasets/blob/main/src/datasets/arrow_dataset.py"
_DISTCP = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/checkpoint/filesystem.py"
_ZERO = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/engine.py"
_FUSED = "https://github.com/NVIDIA/Megatron-LM/blob/v2.5/megatron/fused_kernels/__init__.py"
_WRITER = "https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc"
_SERIALIZATION = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/serialization.cpp"
_NUMPY = "https://github.com/numpy/numpy/blob/main/numpy/_core/src/multiarray/convert.c"
_RUST = "https://doc.rust-lang.org/std/io/enum.ErrorKind.html"
_TEMPFILE = "https://docs.python.org/3/library/tempfile.html#tempfile.gettempdir"
_host = partial(told, about="start-up")
_FULL = "storage-full host-disk-full"
_RENDEZVOUS = "net-file-rendezvous-nfs"
_IN_RENDEZVOUS = r"init_process_group|FileStore|file_rendezvous|file://|init_method|init_distributed"


def _too_many(values: Mapping[str, str]) -> bool:
    return int(values["joined"]) > int(values["world"])


SPELLINGS = (
    _host(  # what rank 0 wrote for all nodes: Megatron, GPT-NeoX, NeMo, Levanter
        r"No such file or directory: '\S*(?:_idx|_index|index-cache|indices|/cache/|_cache/)\S*\.(?:npy|idx|bin|parquet|arrow|npz)'",
        "storage-not-shared storage-path-missing",
        weight=LIKELY,
        source=_MEGATRON,
    ),
    _host(  # what one rank of the first node prepared: Hugging Face Datasets
        r"(?:Failed to open local file|No such file or directory:) '\S*/cache-[0-9a-f]+\w*\.arrow'",
        "storage-not-shared storage-path-missing",
        weight=LIKELY,
        source=_ARROW,
    ),
    _host(  # what each rank saved in the folder of its own node: torch's distributed checkpoints
        r"No such file or directory: '\S*/__\d+_\d+\.distcp'",
        "storage-not-shared storage-path-missing",
        weight=LIKELY,
        source=_DISTCP,
    ),
    _host(  # the ranks' parts of a checkpoint; they are missing also if the number of ranks has changed
        r"No such file or directory: '\S*(?:zero_pp_rank_\d+_mp_rank_\d+\w*|random_states_\d+)\.(?:pt|pkl)'",
        "storage-not-shared storage-path-missing",
        weight=SYMPTOM,
        source=_ZERO,
    ),
    _host(  # rank 0 compiles for all nodes: Megatron up to core 0.6
        r"/fused_kernels/build/\S+: cannot open shared object file",
        "storage-not-shared storage-path-missing",
        weight=LIKELY,
        source=_FUSED,
    ),
    _host(r"Memory Map for \S+ is not found", "storage-not-shared storage-path-missing", source=_NEMO),
    # Caches on a shared file system that the ranks write at the same time
    *(
        told(pattern, about="application", weight=LIKELY, source=_TRITON, near=CODE_CACHE, says=_CACHE_RACE)
        for pattern in (
            r"Stale file handle",
            r"cannot stat shared object",
            r"file too short$",
            r"invalid ELF header",
            r"Directory not empty",
            r"FileNotFoundError: .*(?:\.tmp\.|tmp\.pid|\.json'|\.cubin|\.ttir|\.so')",
        )
    ),
    _host(r"Stale file handle", weight=LIKELY, source=_LOCK, near=CACHE, unless=CODE_CACHE, says=_CACHE_RACE),
    # FileStore's calls, each with the words of errno: SYSASSERT
    _host(r"(?:Error|what\(\)): +flock: [A-Z]", _RENDEZVOUS, source=_FILE_STORE),
    _host(
        r"(?<!\w)flock: (?:Function not implemented|No locks available|Input/output|Stale)",
        _RENDEZVOUS,
        source=_FILE_STORE,
    ),
    _host(
        r"open\(/\S+\): (?:No such|Permission|Stale|Input/output|Read-only|Is a dir|Not a dir|Transport|No space|Disk quota)",
        _RENDEZVOUS,
        source=_FILE_STORE,
    ),
    _host(r"Error: lseek: ", _RENDEZVOUS, weight=LIKELY, source=_FILE_STORE, near=_IN_RENDEZVOUS),
    _host(r"cannot access '\S+' file: ", _RENDEZVOUS, source=_THD),
    # What the kernel and mount say about a file server
    *(
        _host(pattern, "storage-hangs storage-path-missing", weight=weight, source=source)
        for pattern, weight, source in (
            (r"\bnfs: server \S+ not responding", LIKELY, _NFS),
            (r"mount\.(?:nfs|lustre|beegfs|ceph)\S*: (?!.*already)", LIKELY, _NFS),
            (r"\bLustreError: ", SYMPTOM, _LUSTRE),
            (r"\bLustre: .*was lost; in progress operations", LIKELY, _LUSTRE),
        )
    ),
    _host(  # the file of an earlier run holds addresses at which nobody listens any more
        r"(?:NCCL WARN Connect to|Call to connect returned|connect \[\S+\]:\d+:|SO_ERROR:).*Connection refused",
        f"{_RENDEZVOUS} net-nccl-auto-wrong-iface",
        source=_FILE_STORE,
        near=r"(?:init[_-]?method|dist[_-]url|init_file)\W{1,4}(?:store-)?file://|rendezvous.{0,20}file:///",
    ),
    _host(
        r"in store[ -]based barrier .*\(world_size=(?P<world>\d+), worker_count=(?P<joined>\d+)",
        f"{_RENDEZVOUS} env-rank-duplicate",
        source=_FILE_STORE,
        near=r"(?:init[_-]?method|dist[_-]url|init_file)\W{1,4}file://",
        only=_too_many,
    ),
    _host(r"Timeout waiting for key: ", _RENDEZVOUS, weight=LIKELY, source=_FILE_STORE, near=r"FileStore|file://"),
    # a file that could not be written, without the words of errno: the disk or the quota is full
    _host(r"PytorchStreamWriter failed writing (?:file|central directory|data)", _FULL, weight=LIKELY, source=_WRITER),
    _host(r"inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d", _FULL, weight=LIKELY, source=_WRITER),
    _host(r"write\(\): fd \d+ failed with (?!Broken pipe|Bad file)", _FULL, weight=LIKELY, source=_SERIALIZATION),
    _host(r"OSError: \d+ requested and \d+ written", _FULL, weight=LIKELY, source=_NUMPY),
    _host(r"kind: (?:StorageFull|QuotaExceeded|FilesystemQuotaExceeded)\b", _FULL, source=_RUST),
    _host(r"No usable temporary directory found in", "host-disk-full storage-full", source=_TEMPFILE),
    _host(
        r"RuntimeError: Parent directory \S+ does not exist",
        "storage-path-missing storage-not-shared",
        weight=LIKELY,
        source=_WRITER,
    ),
    _host(r"No locks available", _RENDEZVOUS, weight=LIKELY, source=_ERRNO, near=_IN_RENDEZVOUS, unless=r"flock: "),
)
