"""Folders and files that are full, forbidden or not shared, and the file that serves as rendezvous."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import LIKELY, told

_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_FILE_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/FileStore.cpp"
_THD = "https://github.com/pytorch/pytorch/blob/v0.4.1/torch/lib/THD/base/init_methods/InitMethodFile.cpp"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/gpt_dataset.py"
_NEMO = "https://github.com/NVIDIA/NeMo/blob/main/nemo/collections/nlp/data/language_modeling/text_memmap_dataset.py"
_WRITER = "https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc"
_SERIALIZATION = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/serialization.cpp"
_NUMPY = "https://github.com/numpy/numpy/blob/main/numpy/_core/src/multiarray/convert.c"
_RUST = "https://doc.rust-lang.org/std/io/enum.ErrorKind.html"
_TEMPFILE = "https://docs.python.org/3/library/tempfile.html#tempfile.gettempdir"
_host = partial(told, about="start-up")
_FULL = "storage-full host-disk-full"
_RENDEZVOUS = "net-file-rendezvous-nfs"
_IN_RENDEZVOUS = r"init_process_group|FileStore|file_rendezvous|file://|init_method|init_distributed"

SPELLINGS = (
    _host(  # what rank 0 wrote for all nodes: Megatron, GPT-NeoX, NeMo, Levanter
        r"No such file or directory: '\S*(?:_idx|_index|index-cache|indices|/cache/|_cache/)\S*\.(?:npy|idx|bin|parquet|arrow|npz)'",
        "storage-not-shared storage-path-missing",
        weight=LIKELY,
        source=_MEGATRON,
    ),
    _host(r"Memory Map for \S+ is not found", "storage-not-shared storage-path-missing", source=_NEMO),
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
