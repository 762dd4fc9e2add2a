"""Equal parts of different messages, kept once.

Each message is decoded into objects of its own, although the nodes of a job have the same software and links, and the
ranks of a node see the same GPUs. In a job of a hundred thousand ranks these copies take much of the leader's memory,
and the rules mostly wait for memory. So a part that equals the last one of its kind becomes that object. Only parts
that are usually equal are compared, and only with the last ones: a search among all would cost more than it saves.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import force_setattr

from distcheck.facts.base import Missing
from distcheck.facts.cuda import CudaView
from distcheck.facts.gpu import Gpus
from distcheck.facts.host import HostFacts
from distcheck.facts.infiniband import Infiniband
from distcheck.facts.nccl import NcclLog
from distcheck.rollcall.protocol import NodeReport, PeerReport, Report, RunReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from distcheck.facts.base import Facts
    from distcheck.facts.node import NodeFacts
    from distcheck.facts.rank import ProcessFacts, RankFacts, RankRun
    from distcheck.rollcall.protocol import FromFollower

Uuids = tuple[str, ...]


class Parts:
    """Parts of one kind of facts, with the last object of each."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._of: Callable[[Facts], tuple[object, ...]] = attrgetter(*names)
        self._last: list[object] = [None] * len(names)

    def share(self, facts: Facts) -> None:
        """Replace the parts that equal the last ones."""
        last = self._last
        for place, part in enumerate(self._of(facts)):
            if part == last[place]:
                force_setattr(facts, self._names[place], last[place])
            elif part is not None and not isinstance(part, Missing):
                last[place] = part


class Sharing:
    """Lets messages refer to equal parts of those before them."""

    def __init__(self) -> None:
        self._of_node = Parts("torch", "pci", "modules")
        self._of_host = Parts("cpu_model", "settings", "numa_cpus")
        self._of_health = Parts("ecc", "remapped_rows", "clocks", "pcie", "nvlinks", "fabric")
        self._of_port = Parts("partition_keys", "counters")
        self._of_process = Parts("ancestors", "command", "installed", "libraries")
        self._of_limits = Parts("memory", "tasks", "user_tasks", "namespaces")
        self._variables: dict[str, str] = {}
        """Those of the last rank."""
        self._of_run = Parts("wrong", "checked", "device")
        self._of_log = Parts("version", "network", "devices", "gdr_devices", "plugins_missing")
        self._names: dict[str, str] = {}
        self._views: dict[Uuids, tuple[Uuids, object]] = {}
        """What CUDA shows, by the UUIDs of the GPUs that a rank may see."""

    def share(self, word: FromFollower) -> None:
        """Change a message in place; it must be new, so that nobody else refers to its facts."""
        if isinstance(word, Report):
            self._node(word.node)
            self._process(word.process)
            for rank in word.ranks:
                self._rank(rank)
        elif isinstance(word, NodeReport):
            self._node(word.node)
        elif isinstance(word, RunReport):
            for run in word.runs.values():
                self._run(run)
        elif isinstance(word, PeerReport):
            for trial in word.trials:
                self._name(trial, "source", "target")

    def _node(self, node: NodeFacts) -> None:
        self._of_node.share(node)
        if isinstance(node.host, HostFacts):
            self._of_host.share(node.host)
        for interface in () if isinstance(node.interfaces, Missing) else node.interfaces:
            self._name(interface, "name")
        for gpu in node.gpus.devices if isinstance(node.gpus, Gpus) else ():
            self._name(gpu, "uuid", "name")
            if gpu.health is not None:
                self._of_health.share(gpu.health)
        for hca in node.infiniband.hcas if isinstance(node.infiniband, Infiniband) else ():
            self._name(hca, "name", "driver", "board")
            for port in hca.ports:
                self._name(port, "link_layer", "state", "physical_state", "speed")
                self._of_port.share(port)

    def _process(self, process: ProcessFacts) -> None:
        self._of_process.share(process)
        if process.limits is not None:
            self._of_limits.share(process.limits)

    def _rank(self, rank: RankFacts) -> None:
        self._name(rank, "gpu")
        last, variables = self._variables, rank.environment
        for name, value in variables.items():
            if last.get(name) == value:
                variables[name] = last[name]
        self._variables = variables
        uuids = rank.visible_gpus
        if not isinstance(uuids, tuple):
            return
        if (known := self._views.get(uuids)) is not None:
            force_setattr(rank, "visible_gpus", known[0])
            if rank.cuda == known[1]:
                force_setattr(rank, "cuda", known[1])
            return
        uuids = tuple([self._names.setdefault(uuid, uuid) for uuid in uuids])
        force_setattr(rank, "visible_gpus", uuids)
        for device in rank.cuda.devices if isinstance(rank.cuda, CudaView) else ():
            self._name(device, "uuid")
        self._views[uuids] = uuids, rank.cuda

    def _run(self, run: RankRun) -> None:
        self._name(run, "gpu")
        self._of_run.share(run)
        if isinstance(run.nccl, NcclLog):
            self._of_log.share(run.nccl)

    def _name(self, facts: Facts, *fields: str) -> None:
        """Replace names by the first object of the same text, which is faster to compare."""
        for field in fields:
            name = getattr(facts, field)
            if isinstance(name, str):
                force_setattr(facts, field, self._names.setdefault(name, name))
