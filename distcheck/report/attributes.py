"""What is known of each rank and its node as names and texts, and what differs between ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from distcheck.facts.base import Missing
from distcheck.facts.gpu import Gpus
from distcheck.facts.infiniband import Infiniband
from distcheck.facts.job import Collectives, Job
from distcheck.facts.network import Interface
from distcheck.facts.node import NodeFacts, TorchBuild
from distcheck.facts.quantities import tally
from distcheck.facts.rank import ProcessFacts, RankFacts

_MADE_UP = re.compile(r"(?:(veth)\w{4,}|(br-|cali|lxc|eni|gke|azv|tap|enx)[0-9a-f-]{5,}|[0-9a-f]{15})")
"""Names of interfaces that are random or an address: the host's ends of containers, their bridges, USB adapters."""

Attributes = dict[str, str]


class Spread(NamedTuple):
    """The values of one attribute, each with the ranks that have it; the commonest first."""

    name: str
    values: tuple[tuple[str, tuple[int, ...]], ...]


def absent(name: str) -> str:
    """Return the value of an attribute for a rank that lacks it; only a variable is known not to be there."""
    return "(not set)" if name.startswith("variable:") else "(not known)"


def of_ranks(job: Job) -> dict[int, Attributes]:
    """Return the attributes of every numbered rank: its node's hardware and software, its process, its variables."""
    nodes = {node.key: of_node(node) for node in job.nodes}
    shared = {process.uid: nodes[process.node] | of_process(process) for process in job.processes}
    ran = of_collectives(job)
    return {
        rank.placement.rank or 0: ran | shared[rank.process] | _of_rank(rank)
        for rank in job.ranks
        if rank.placement.rank is not None or job.asked.command == "node"
    }


def of_collectives(job: Job) -> Attributes:
    """Return what the collectives ran with, or would."""
    ran, asked = job.collectives, job.asked.backend
    if not isinstance(ran, Collectives):
        return _known({"software: backend": job.asked.backend_name or asked}) if asked != "auto" else {}
    return _known({"software: backend": job.asked.backend_name or ran.backend, "software: NCCL in use": ran.nccl})


def of_node(node: NodeFacts) -> Attributes:
    """Return the hardware and software of a node."""
    gpus = node.gpus if isinstance(node.gpus, Gpus) else None
    devices = gpus.devices if gpus else ()
    firmware = [gpu.health.vbios for gpu in devices if gpu.health]
    hcas = node.infiniband.hcas if isinstance(node.infiniband, Infiniband) else ()
    return _known(
        {
            "hardware: GPUs": tally(gpu.name for gpu in devices if isinstance(gpu.name, str)),
            "hardware: GPU firmware": tally(bios for bios in firmware if isinstance(bios, str)),
            "hardware: CPUs": node.cpus,
            "hardware: RDMA adapters": ", ".join(sorted(hca.name for hca in hcas)),
            "software: GPU driver": gpus.driver if gpus else None,
            "software: CUDA of the driver": gpus.cuda_driver if gpus else None,
            "software: kernel": node.kernel,
            "software: distcheck": node.distcheck,
        }
        | _networks(node.interfaces if isinstance(node.interfaces, tuple) else ())
        | {f"software: module {name}": version for name, version in node.modules.items()}
    )


def _networks(interfaces: Iterable[Interface]) -> Attributes:
    """Return the state of each interface; those with names that no other node has are one attribute: veth*."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for link in interfaces:
        if link.name != "lo":
            made_up = _MADE_UP.fullmatch(link.name)
            name = f"{made_up[1] or made_up[2] or ''}*" if made_up else link.name
            found[f"network: {name}"].add(f"{'up' if link.up else 'down'}, MTU {link.mtu_bytes}")
    return {name: "; ".join(sorted(states)) for name, states in found.items()}


def of_process(process: ProcessFacts) -> Attributes:
    """Return the software of a process."""
    installed = process.installed
    build = installed.torch if isinstance(installed.torch, TorchBuild) else None
    return _known(
        {
            "software: Python": installed.python,
            "software: environment": installed.prefix,
            "software: torch": build.version if build else None,
            "software: CUDA of torch": build.cuda if build else None,
            "software: NCCL": installed.nccl,
        }
    )


def _of_rank(rank: RankFacts) -> Attributes:
    place = rank.placement
    return _known(
        {
            "place: launcher": place.launcher,
            "place: world size": place.world_size,
            "place: local rank": place.local_rank,
            "place: master": place.master_addr,
            "place: master port": place.master_port,
            "place: GPU": rank.gpu,
            "place: CPUs": rank.cpu_list,
        }
        | {f"variable: {name}": value for name, value in rank.environment.items()}
    )


def _known(pairs: Mapping[str, object]) -> Attributes:
    return {
        name: str(value) for name, value in pairs.items() if not isinstance(value, Missing) and value not in {None, ""}
    }


def spread(known: Mapping[int, Attributes]) -> list[Spread]:
    """Return the values of every attribute, in the order in which the ranks have them."""
    found: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, attributes in known.items():
        for name, value in attributes.items():
            found[name][value].append(rank)
    spreads = []
    for name, values in found.items():
        having = sum(map(len, values.values()))
        if having < len(known):
            values[absent(name)] = [rank for rank, attributes in known.items() if name not in attributes]
        ordered = sorted(values.items(), key=lambda item: -len(item[1]))
        spreads.append(Spread(name, tuple((value, tuple(ranks)) for value, ranks in ordered)))
    return sorted(spreads, key=lambda one: _KINDS.index(one.name.partition(":")[0]))


_KINDS = ("place", "hardware", "software", "network", "variable")
