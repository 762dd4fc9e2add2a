"""Folders and files that are full, forbidden or not shared, and the file that serves as rendezvous."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import LIKELY, told

_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_FILE_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/FileStore.cpp"
_THD = "https://github.com/pytorch/pytorch/blob/v0.4.1/torch/lib/THD/base/init_methods/InitMethodFile.cpp"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/gpt_dataset.py"
_NEMO = "https://github.com/NVIDIA/NeMo/blob/main/nemo/collections/nlp/data/language_modeling/text_memmap_dataset.py"
_host = partial(told, about="start-up")
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
    _host(
        r"flock: (?:Function not implemented|No locks available|Input/output error|Stale)",
        _RENDEZVOUS,
        source=_FILE_STORE,
    ),
    _host(r"open\(/\S+\): (?:No such file|Permission denied|Stale|Input/output)", _RENDEZVOUS, source=_FILE_STORE),
    _host(r"cannot access '\S+' file: ", _RENDEZVOUS, source=_THD),
    _host(r"Timeout waiting for key: ", _RENDEZVOUS, weight=LIKELY, source=_FILE_STORE, near=r"FileStore|file://"),
    _host(r"No locks available", _RENDEZVOUS, weight=LIKELY, source=_ERRNO, near=_IN_RENDEZVOUS, unless=r"flock: "),
)
