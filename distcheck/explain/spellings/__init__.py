"""The spellings of known errors, as data: one table per layer that writes them."""

from __future__ import annotations

from importlib import import_module

from distcheck.explain.spelling import Spelling
from distcheck.explain.spellings import guesses

_LAYERS = (
    "working_folder", "aborts", "agents", "services", "variables", "transports", "tools", "own_words", "placement",
    "empties", "parallel_sizes",
    "rendezvous", "store", "names", "gloo", "sockets", "languages", "slurm_steps", "slurm", "batch", "mpi_starting",
    "mpi", "shells", "ssh", "mpi_networks", "mpich", "trackers", "frameworks", "launchers", "ray", "containers",
    "kubernetes", "hosts", "memory", "storage", "filesystems", "folders", "shared_memory", "gpu_sharing",
    "device_ordinals", "cuda", "cuda_libraries", "missing_gpus", "rocm", "accelerators", "xids", "nccl",
    "nccl_calls", "nccl_networks", "nccl_plugins", "libfabric", "nccl_warnings", "nccl_notes", "rdma", "cuda_texts",
    "machine", "packages", "application", "scripts", "differing_ranks", "torch_frames", "exits", "endings",
)  # fmt: skip
"""The modules of this package; earlier ones go first where two match the same line with the same weight."""


def _table(layer: str) -> tuple[Spelling, ...]:
    found: tuple[Spelling, ...] = import_module(f"{__name__}.{layer}").SPELLINGS
    return found


TABLES: tuple[Spelling, ...] = tuple(spelling for layer in _LAYERS for spelling in _table(layer))

UNKNOWN: tuple[Spelling, ...] = (
    *_table("counts"), *_table("shortages"), *_table("shapes"), guesses.STARTING, *_table("errors"), *guesses.SPELLINGS,
)  # fmt: skip
"""Errors that no table knows; they come after the messages that docstrings quote."""
