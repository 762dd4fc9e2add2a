"""The processes and ranks of the nodes of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations, combinations_with_replacement
from math import comb

from distcheck.facts.gpu import Gpus
from distcheck.facts.job import Job
from distcheck.facts.node import NodeFacts

Kind = tuple[int, frozenset[str]]
"""A node's number of ranks and models of GPU."""


class Members:
    """The processes and ranks of each node."""

    def __init__(self, job: Job) -> None:
        self.nodes: dict[str, NodeFacts] = {node.key: node for node in job.nodes}
        self.names = job.node_names
        self.by_node: dict[str, dict[str, tuple[int, ...]]] = {}
        lost = {process.uid for process in job.processes if process.lost}
        for rank in job.ranks:
            if rank.placement.rank is not None and rank.process not in lost:
                of_node = self.by_node.setdefault(self.names[job.node_of(rank).key], {})
                of_node[rank.process] = (*of_node.get(rank.process, ()), rank.placement.rank)
        self.local_ranks = {r.placement.rank: r.placement.local_rank or 0 for r in job.ranks}
        self._gpus = {r.placement.rank: r.gpu for r in job.ranks}
        self._models = {self.names[node.key]: _models(node) for node in job.nodes}
        self._machines = {
            self.names[node.key]: node.boot_id if isinstance(node.boot_id, str) else node.key for node in job.nodes
        }

    def parts(self, nodes: Sequence[str]) -> dict[str, dict[int, tuple[int, int]]]:
        """Return each process's ranks with their number in the group and the group's size."""
        ranks = [(uid, rank) for node in nodes for uid, here in self.by_node[node].items() for rank in here]
        parts: dict[str, dict[int, tuple[int, int]]] = {}
        for number, (uid, rank) in enumerate(ranks):
            parts.setdefault(uid, {})[rank] = (number, len(ranks))
        return parts

    def facing(self, nodes: Sequence[str]) -> dict[int, tuple[int, int]]:
        """Return two nodes' ranks paired by local rank; empty if their local ranks differ."""
        if len(nodes) != 2:
            return {}
        one, other = ([rank for here in self.by_node[node].values() for rank in here] for node in nodes)
        places = [self.local_ranks[rank] for rank in one]
        if places != [self.local_ranks[rank] for rank in other] or not 1 < len(places) == len(set(places)):
            return {}
        return dict(zip(places, zip(one, other, strict=True), strict=True))

    def device(self, node: str, rank: int, backend: str) -> str:
        """Return what a rank computes on: with NCCL the model of its GPU or MIG part, if known."""
        models = self._models[node]
        if backend != "nccl" or not models:
            return backend
        taken = self._gpus.get(rank)
        return models.get(taken or "") or " and ".join(sorted(set(models.values())))

    def like(self, nodes: Sequence[str]) -> str:
        """Return what makes groups comparable: ranks per node, GPU models, number of machines."""
        return _like(map(self._kind, nodes), len({self._machines[node] for node in nodes}))

    def without_like(self) -> tuple[str, ...]:
        """Return the nodes without a comparable pair of other nodes; their speed is not judged."""
        if len(self.by_node) < 2:
            return ()
        kinds = {node: self._kind(node) for node in self.by_node}
        number = Counter(kinds.values())
        all_pairs: Counter[str] = Counter()
        own: dict[str, Counter[str]] = {node: Counter() for node in kinds}
        for one, other in combinations_with_replacement(number, 2):
            all_pairs[_like((one, other), 2)] += comb(number[one], 2) if one == other else number[one] * number[other]
        for node, kind in kinds.items():
            for other, there in number.items():
                own[node][_like((kind, other), 2)] += there - (kind == other)
        # Pods on one machine are closer to each other.
        machines: dict[str, list[str]] = {}
        for node in kinds:
            machines.setdefault(self._machines[node], []).append(node)
        for pair in (pair for here in machines.values() for pair in combinations(here, 2)):
            for counted in (all_pairs, *(own[node] for node in pair)):
                counted[_like(map(kinds.__getitem__, pair), 2)] -= 1
                counted[_like(map(kinds.__getitem__, pair), 1)] += 1
        return tuple(node for node, its in own.items() if all(all_pairs[like] == its[like] for like in +its))

    def _kind(self, node: str) -> Kind:
        return sum(map(len, self.by_node[node].values())), frozenset(self._models[node].values())


def _like(kinds: Iterable[Kind], machines: int) -> str:
    counts, models = zip(*kinds, strict=True)
    return f"{sorted(counts)} ranks on {sorted(frozenset().union(*models))} of {machines} machines"


def _models(node: NodeFacts) -> dict[str, str]:
    """Return the models of a node's GPUs, by the UUIDs of the GPUs and of their MIG devices."""
    models: dict[str, str] = {}
    for gpu in node.gpus.devices if isinstance(node.gpus, Gpus) else ():
        if isinstance(gpu.name, str):
            models[gpu.uuid if isinstance(gpu.uuid, str) else f"GPU {gpu.index}"] = gpu.name
            models |= dict.fromkeys(gpu.mig_uuids, f"part of {gpu.name}")
    return models
