"""Equal parts of different messages, kept once.

Each message is decoded into objects of its own, although the nodes of a job have the same software and links, and the
ranks of a node see the same GPUs. In a job of a hundred thousand ranks these copies take much of the leader's memory,
and the rules mostly wait for memory. So a part that equals the last one of its kind becomes that object. Only parts
that are usually equal are compared, and only with the last ones: a search among all would cost more than it saves.

Facts are frozen. Only the descriptors of their fields can change them in every version of msgspec.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from distcheck.facts.base import Facts, Missing
from distcheck.facts.cuda import CudaDevice, CudaView
from distcheck.facts.gpu import Gpu, GpuHealth, Gpus
from distcheck.facts.host import HostFacts, Limits
from distcheck.facts.infiniband import Hca, HcaPort, Infiniband
from distcheck.facts.nccl import NcclLog
from distcheck.facts.network import Interface, PeerTrial
from distcheck.facts.node import NodeFacts
from distcheck.facts.rank import ProcessFacts, RankFacts, RankRun
from distcheck.rollcall.protocol import NodeReport, PeerReport, Report, RunReport

if TYPE_CHECKING:
    from distcheck.rollcall.protocol import FromFollower

Uuids = tuple[str, ...]
Setters = dict[type, tuple[tuple[str, Callable[[object, object], None]], ...]]
"""By kind of facts: names of fields, with what sets them."""


def _setters(kinds: dict[type[Facts], tuple[str, ...]]) -> Setters:
    return {of: tuple((name, getattr(of, name).__set__) for name in names) for of, names in kinds.items()}


_NAMES = _setters({
    Interface: ("name",),
    Gpu: ("uuid", "name"),
    Hca: ("name", "driver", "board"),
    HcaPort: ("link_layer", "state", "physical_state", "speed"),
    RankFacts: ("gpu",),
    RankRun: ("gpu",),
    PeerTrial: ("source", "target"),
    CudaDevice: ("uuid",),
})  # fmt: skip
"""Texts; those that are equal become the first such object, which is faster to compare."""
_PARTS = _setters({
    NodeFacts: ("torch", "pci", "modules"),
    HostFacts: ("settings",),
    GpuHealth: ("ecc", "remapped_rows", "clocks", "pcie", "nvlinks", "fabric"),
    HcaPort: ("partition_keys", "counters"),
    ProcessFacts: ("ancestors", "command", "installed", "libraries"),
    Limits: ("memory", "tasks", "user_tasks", "namespaces"),
    RankRun: ("wrong", "checked", "device"),
    NcclLog: ("version", "network", "devices", "gdr_devices", "plugins_missing"),
})  # fmt: skip
"""Parts that are compared with the last ones of their kind."""
((_, _see), (_, _show)) = _setters({RankFacts: ("visible_gpus", "cuda")})[RankFacts]


class Sharing:
    """Lets messages refer to equal parts of those before them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._last: defaultdict[type, dict[str, object]] = defaultdict(dict)
        """The last parts, by kind of facts and name."""
        self._variables: dict[str, str] = {}
        """Those of the last rank."""
        self._views: dict[Uuids, tuple[Uuids, object]] = {}
        """What CUDA shows, by the UUIDs of the GPUs that a rank may see."""

    def share(self, word: FromFollower) -> None:
        """Change a message in place; it must be new, so that nobody else refers to its facts."""
        if isinstance(word, Report):
            self._node(word.node)
            self._share(word.process, word.process.limits)
            for rank in word.ranks:
                self._rank(rank)
        elif isinstance(word, NodeReport):
            self._node(word.node)
        elif isinstance(word, RunReport):
            for run in word.runs.values():
                self._share(run, run.nccl)
        elif isinstance(word, PeerReport):
            self._share(*word.trials)

    def _share(self, *each: object) -> None:
        """Replace what is equal to something known in these facts."""
        for facts in each:
            of = type(facts)
            for name, put in _NAMES.get(of, ()):
                if isinstance(text := getattr(facts, name), str):
                    put(facts, self._names.setdefault(text, text))
            last = self._last[of]
            for name, put in _PARTS.get(of, ()):
                if (part := getattr(facts, name)) == last.get(name):
                    put(facts, last.get(name))
                elif part is not None and not isinstance(part, Missing):
                    last[name] = part

    def _node(self, node: NodeFacts) -> None:
        self._share(node, node.host, *(() if isinstance(node.interfaces, Missing) else node.interfaces))
        for gpu in node.gpus.devices if isinstance(node.gpus, Gpus) else ():
            self._share(gpu, gpu.health)
        for hca in node.infiniband.hcas if isinstance(node.infiniband, Infiniband) else ():
            self._share(hca, *hca.ports)

    def _rank(self, rank: RankFacts) -> None:
        self._share(rank)
        last, variables = self._variables, rank.environment
        for name, value in variables.items():
            if (same := last.get(name)) == value and same is not None:
                variables[name] = same
        self._variables = variables
        uuids = rank.visible_gpus
        if not isinstance(uuids, tuple):
            return
        if (known := self._views.get(uuids)) is not None:
            _see(rank, known[0])
            if rank.cuda == known[1]:
                _show(rank, known[1])
            return
        uuids = tuple([self._names.setdefault(uuid, uuid) for uuid in uuids])
        _see(rank, uuids)
        for device in rank.cuda.devices if isinstance(rank.cuda, CudaView) else ():
            self._share(device)
        self._views[uuids] = uuids, rank.cuda
