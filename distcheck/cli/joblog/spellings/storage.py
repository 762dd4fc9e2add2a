"""Folders and files that are full, forbidden or not shared, and the file that serves as rendezvous."""

from __future__ import annotations

from functools import partial

from distcheck.cli.joblog.spelling import LIKELY, SYMPTOM, told

_ERRNO = "https://man7.org/linux/man-pages/man3/errno.3.html"
_FILE_STORE = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/FileStore.cpp"
_THD = "https://github.com/pytorch/pytorch/blob/v0.4.1/torch/lib/THD/base/init_methods/InitMethodFile.cpp"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/gpt_dataset.py"
_NEMO = "https://github.com/NVIDIA/NeMo/blob/main/nemo/collections/nlp/data/language_modeling/text_memmap_dataset.py"
_ARROW = "https://github.com/huggingface/datasets/blob/main/src/datasets/arrow_dataset.py"
_DISTCP = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/checkpoint/filesystem.py"
_ZERO = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/engine.py"
_FUSED = "https://github.com/NVIDIA/Megatron-LM/blob/v2.5/megatron/fused_kernels/__init__.py"
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
