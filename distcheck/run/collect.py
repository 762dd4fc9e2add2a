"""Collects the facts of the node, the process and its ranks, before the roll call."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Mapping

import msgspec

from distcheck.facts.base import Missing, legible, legible_text
from distcheck.facts.cuda import CudaView
from distcheck.facts.engine import Engine
from distcheck.facts.gpu import Gpus
from distcheck.facts.held import Held
from distcheck.facts.host import HostFacts
from distcheck.facts.infiniband import Infiniband
from distcheck.facts.launch_command import Stated
from distcheck.facts.libraries import Libraries
from distcheck.facts.network import NetworkFacts
from distcheck.facts.node import TorchBuild
from distcheck.facts.pci import Pci
from distcheck.facts.placement import Placement
from distcheck.facts.storage import Storage
from distcheck.launch.local.supervisor import LocalRanks
from distcheck.probe import environment, gpu, host, infiniband, links, pci
from distcheck.probe.own import process_facts, rank_facts
from distcheck.probe.state import SHM, space, temporary
from distcheck.rollcall import resolution
from distcheck.run import storage
from distcheck.run.context import Session
from distcheck.selection.placement import rank_environment

_DRIVER_SECONDS = 10.0
_OWN_NAME_SECONDS = 2.0
_ADAPTER_SECONDS = 5.0
_ENGINE_SECONDS = 8.0
_HELD_SECONDS = 3.0


async def start_ranks(run: Session) -> None:
    """Start this process's ranks, if it has any that are to measure."""
    if run.request.starts_ranks and run.asked.measures:
        run.local = LocalRanks(
            run.request.placements,
            inherit=not run.asked.started_here,
            training="training" in run.asked.looks,
        )
        await run.local.start()
        run.dog.group = run.local.group


async def collect(run: Session) -> None:
    """Collect this node's, this process's and its ranks' facts."""
    environ = run.request.environ
    looks_at_gpus = "gpu" in run.asked.looks
    looking = asyncio.ensure_future(storage.look(run))
    needing = asyncio.ensure_future(_launch(run))
    # The accelerator decides whether NCCL's or Gloo's interface matters.
    accelerator = gpu.accelerator() if looks_at_gpus or "peers" in run.asked.looks else "none"
    gpus = None
    shown: list[CudaView | Missing] | list[None] = [None] * len(run.request.placements)
    hanging: Pci | Missing | None = None
    loaded: Libraries | Missing | None = None
    if looks_at_gpus and accelerator != "none":
        driver, places = _ask_drivers(run, accelerator), pci.places(min(_DRIVER_SECONDS, run.remaining(5.0)))
        (gpus, shown), hanging, loaded = await asyncio.gather(driver, places, _libraries(run))
        accelerator = gpu.accelerator(answer=gpus)
    network, adapters, state = await asyncio.gather(_network_facts(run), _infiniband(run, accelerator), _health(run))
    node = run.record.node = host.collect(
        environ,
        accelerator=accelerator,
        gpus=gpus,
        pci=hanging,
        network=network,
        infiniband=adapters,
        policy=run.asked.policy,
    )
    node = run.record.node = msgspec.structs.replace(node, storage=await looking)
    if run.asked.measures:
        folder, room = temporary(environ)
        node = run.record.node = msgspec.structs.replace(
            node, host=state, shm=space(SHM), tmp=legible(room), tmp_folder=legible_text(folder)
        )
    run.record.process = process_facts(run.uid, node, environ, run.request.placements, loaded)
    run.record.process = msgspec.structs.replace(run.record.process, launch=await needing)
    _add_limits(run)
    _add_command(run)
    run.record.process = msgspec.structs.replace(run.record.process, held=await _held(run))
    run.record.ranks = tuple(
        rank_facts(run.uid, node, placement, environment.collect(_variables(run, placement)), view)
        for placement, view in zip(run.request.placements, shown, strict=True)
    )
    if run.request.on_collected is not None:
        run.request.on_collected(run.record.report())


async def _ask_drivers(run: Session, accelerator: str) -> tuple[Gpus | Missing, list[CudaView | Missing] | list[None]]:
    """Query the driver for the node's GPUs and, at the same time, CUDA for the GPUs of each rank."""
    seconds = min(_DRIVER_SECONDS, run.remaining(5.0))
    ranks = run.request.placements
    # The process of local rank 0 reads the GPUs' health for the whole node.
    local = ranks[0].local_rank or 0
    told = gpu.gpus(seconds, accelerator, others=ranks[0].local_world_size or 0 if local and len(ranks) == 1 else 0)
    if accelerator == "amd" or run.asked.backend not in {"auto", "nccl"}:
        return await told, [None] * len(ranks)
    from distcheck.probe import cuda

    return await asyncio.gather(told, cuda.views([_variables(run, rank) for rank in ranks], seconds))


async def _launch(run: Session) -> Stated | None:
    """Return what COMMAND states; of an inference engine with what it will need here."""
    stated = run.request.launch and legible(run.request.launch)
    if stated is None or stated.engine is None:
        return stated
    from distcheck.probe import engine
    from distcheck.probe.child import ask

    seconds = min(_ENGINE_SECONDS, run.remaining(5.0))
    found = await ask(engine.question(stated.engine), Engine, seconds, in_part=lambda last, _: last)
    return msgspec.structs.replace(stated, engine=stated.engine if isinstance(found, Missing) else found)


def _variables(run: Session, rank: Placement) -> Mapping[str, str]:
    """Return the environment of a rank: what distcheck sets, if it starts the rank."""
    environ = run.request.environ
    return rank_environment(environ, rank) if run.asked.started_here else environ


async def _libraries(run: Session) -> Libraries | Missing | None:
    """Ask which NCCL this process's torch would load; None if its torch uses neither CUDA nor ROCm."""
    torch = host.torch_build()
    if run.asked.backend not in {"auto", "nccl"} or not isinstance(torch, TorchBuild) or not (torch.cuda or torch.hip):
        return None
    from distcheck.probe import libraries

    return await libraries.libraries(run.request.environ, min(_DRIVER_SECONDS, run.remaining(5.0)))


def _add_command(run: Session) -> None:
    """Add whether COMMAND's rendezvous has its module, on the node that will run it."""
    backend = run.asked.rendezvous_backend or run.request.environ.get("PET_RDZV_BACKEND", "")
    if run.record.process is None or run.asked.started_here:
        return
    if run.asked.program == "torchrun" and backend.startswith("etcd"):
        from distcheck.probe import command

        run.record.process = msgspec.structs.replace(run.record.process, etcd=command.etcd())


async def _network_facts(run: Session) -> NetworkFacts | None:
    if "peers" not in run.asked.looks:
        return None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)  # before distcheck raises its own limit; -1 is RLIM_INFINITY
    limit = min(_OWN_NAME_SECONDS, run.remaining(3.0))
    own_name = await resolution.resolve(socket.gethostname(), limit)
    environ, path = run.request.environ, run.asked.rendezvous_file
    return await resolution.in_thread(lambda: links.collect(environ, own_name, open_files=files, rendezvous=path))


async def _health(run: Session) -> HostFacts | Missing | None:
    """Read the state of the node's operating system once per node, if ranks are to measure."""
    if not run.asked.measures or run.request.placements[0].local_rank:
        return None
    from distcheck.probe import health

    return await health.health(min(_ADAPTER_SECONDS, run.remaining(5.0)))


async def _held(run: Session) -> Held | Missing | None:
    """Look whether other processes hold what the debugging aids of the ranks use; None if they use none."""
    from distcheck.probe import held

    ranks = run.request.placements
    storage = run.record.node.storage if run.record.node is not None else None
    files = storage.files if isinstance(storage, Storage) else ()
    server = next((file.debug_port for file in files if file.debug_port is not None), None)
    environ = _variables(run, ranks[0]) if run.asked.backend in {"auto", "nccl"} else {}
    task = held.uses(environ, ranks, server)
    if task is None:
        return None
    from distcheck.probe.child import ask

    return await ask(held.question(task), Held, min(_HELD_SECONDS, run.remaining(5.0)))


def _add_limits(run: Session) -> None:
    """Add what this process's ranks may use, if they are to measure."""
    if run.record.process is None or not run.asked.measures:
        return
    from distcheck.probe.limits import limits

    run.record.process = msgspec.structs.replace(run.record.process, limits=limits())


async def _infiniband(run: Session, accelerator: str) -> Infiniband | Missing | None:
    """Read the node's RDMA adapters once per node, if the ranks will use NCCL."""
    backend, ranks = run.asked.backend, run.request.placements
    uses_nccl = backend == "nccl" or (backend == "auto" and accelerator != "none")
    judged = run.asked.measures or "peers" in run.asked.looks
    if not judged or not uses_nccl or ranks[0].local_rank:
        return None
    return await infiniband.infiniband(min(_ADAPTER_SECONDS, run.remaining(5.0)))
