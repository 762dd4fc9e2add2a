"""Collect what a process knows about itself and about the ranks for which it reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from distcheck.facts.base import Missing, legible
from distcheck.facts.cuda import CudaView
from distcheck.facts.files import read
from distcheck.facts.gpu import Gpus
from distcheck.facts.libraries import Libraries
from distcheck.facts.node import NodeFacts
from distcheck.facts.placement import Placement
from distcheck.facts.rank import Installed, ProcessFacts, RankFacts
from distcheck.facts.storage import WORKING_DIRECTORY
from distcheck.facts.touch import ask, silent
from distcheck.probe import host, limits, nccl_files, ports, process
from distcheck.probe.environment import hidden
from distcheck.probe.working_directory import working_directory
from distcheck.selection.counted import HOSTFILES

_MOST_BYTES = 1 << 22
_FOLDERS = ("PWD", "HOME", "TMPDIR")


def process_facts(
    uid: str,
    node: NodeFacts,
    environ: Mapping[str, str] = os.environ,
    placements: Iterable[Placement] = (),
    libraries: Libraries | Missing | None = None,
) -> ProcessFacts:
    """Collect the facts of this process, which reports for these ranks."""
    placements = tuple(placements)
    first = next((p for p in placements if p.rank in {0, None}), None)
    if placements:
        _ask_folders(environ)
    files, gpus = nccl_files.read(environ), node.accelerator != "none"
    found = ProcessFacts(
        uid=uid,
        node=node.key,
        pid=os.getpid(),
        command=process.command_of(os.getpid()),
        ancestors=process.ancestors(),
        agent=process.agent(environ),
        installed=Installed(python=node.python, prefix=sys.prefix, torch=node.torch, nccl=host.nccl_beside(node.torch)),
        shm_device=process.shm_device(environ, gpus=gpus),
        locked_memory_bytes=process.locked_memory(),
        nccl_files=files,
        named_paths=nccl_files.named_paths(environ, files),
        hosts_listed=hosts_listed(environ),
        stage="node",
        free_ports=ports.free_near(first.master_port, node.unprivileged_port_start, node.ephemeral_ports)
        if first is not None
        else (),
        libraries=libraries,
        memory_policy_error=limits.memory_policy_error() if gpus else None,
        given_devices=process.given_devices(environ) if gpus else "",
        silent=tuple(replace(one, source=hidden(one.source)[:200]) for one in silent()),
        terminal=process.terminal_of(os.getpid()),
    )
    return legible(found)


def hosts_listed(environ: Mapping[str, str]) -> dict[str, int]:
    """Return how many hosts a scheduler's files list, by the variable that names each; unreadable ones are left out.

    Each line begins with a host, and one of several slots has several lines.
    """
    found: dict[str, int] = {}
    for name in HOSTFILES:
        with suppress(OSError, ValueError):
            raw = read(Path(environ[name]), _MOST_BYTES, name) if environ.get(name) else b""
            lines = raw.decode("utf-8", "replace").splitlines()
            hosts = {words[0].partition(":")[0] for line in lines if (words := line.partition("#")[0].split())}
            found |= {name: len(hosts)} if hosts else {}
    return found


def _ask_folders(environ: Mapping[str, str]) -> None:
    """Look at the folders that every process of a job uses, so that those that do not answer are known."""
    named = {WORKING_DIRECTORY: working_directory()} | {name: environ.get(name, "") for name in _FOLDERS}
    for name, folder in named.items():
        if folder.startswith("/"):
            ask(folder, name)


def rank_facts(
    uid: str,
    node: NodeFacts,
    placement: Placement,
    variables: dict[str, str],
    cuda: CudaView | Missing | None = None,
) -> RankFacts:
    """Return the facts of a rank, with the GPU that it will take.

    CUDA decides which GPUs the rank sees. If CUDA could not be asked or does not start, NVML's list and the rank's
    variables decide.
    """
    uuids: tuple[str, ...] | Missing | None = None
    device = None
    if isinstance(node.gpus, Gpus):
        from distcheck.selection.gpu_variables import selected

        uuids, _, unknown = selected(variables, node.gpus.devices, node.accelerator).shown
        if unknown:
            uuids = Missing(reason=unknown)
    elif isinstance(node.gpus, Missing):
        uuids = node.gpus
    if isinstance(cuda, CudaView):
        from distcheck.probe.cuda import as_nvml_names

        devices = node.gpus.devices if isinstance(node.gpus, Gpus) else ()
        cuda = as_nvml_names(cuda, devices, predicted=uuids if isinstance(uuids, tuple) else ())
        named = tuple(shown.uuid for shown in cuda.devices)
        uuids = named if all(named) and not cuda.error else uuids
    if isinstance(uuids, tuple):
        from distcheck.selection.visible_devices import device_of

        device = device_of(placement.local_rank, uuids)
    return RankFacts(
        process=uid,
        placement=placement,
        environment=variables,
        visible_gpus=uuids,
        gpu=device,
        cuda=cuda,
        cpu_list=process.allowed_cpu_list(),
        cpus=process.allowed_cpus(),  # the rank is this process, or one that it forks
    )
