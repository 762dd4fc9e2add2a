"""The spellings of known errors, as data: one table per layer that writes them."""

from __future__ import annotations

from distcheck.cli.joblog.spelling import Spelling
from distcheck.cli.joblog.spellings import (
    application,
    cuda,
    cuda_libraries,
    cuda_texts,
    endings,
    errors,
    gloo,
    kubernetes,
    launchers,
    machine,
    memory,
    missing_gpus,
    mpi,
    names,
    nccl,
    nccl_calls,
    nccl_networks,
    nccl_plugins,
    nccl_warnings,
    placement,
    ray,
    rdma,
    rendezvous,
    shapes,
    shared_memory,
    slurm,
    sockets,
    storage,
    store,
    xids,
)

TABLES: tuple[Spelling, ...] = (
    *placement.SPELLINGS,
    *rendezvous.SPELLINGS,
    *store.SPELLINGS,
    *names.SPELLINGS,
    *gloo.SPELLINGS,
    *sockets.SPELLINGS,
    *slurm.SPELLINGS,
    *mpi.SPELLINGS,
    *launchers.SPELLINGS,
    *ray.SPELLINGS,
    *kubernetes.SPELLINGS,
    *memory.SPELLINGS,
    *storage.SPELLINGS,
    *shared_memory.SPELLINGS,
    *cuda.SPELLINGS,
    *cuda_libraries.SPELLINGS,
    *missing_gpus.SPELLINGS,
    *xids.SPELLINGS,
    *nccl.SPELLINGS,
    *nccl_calls.SPELLINGS,
    *nccl_networks.SPELLINGS,
    *nccl_plugins.SPELLINGS,
    *nccl_warnings.SPELLINGS,
    *rdma.SPELLINGS,
    *cuda_texts.SPELLINGS,
    *machine.SPELLINGS,
    *application.SPELLINGS,
    *endings.SPELLINGS,
)
"""Earlier ones go first where two match the same line with the same weight."""

UNKNOWN: tuple[Spelling, ...] = (*shapes.SPELLINGS, *errors.SPELLINGS)
"""Errors that no table knows; they come after the messages that docstrings quote."""
