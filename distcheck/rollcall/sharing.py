"""Equal parts of different messages, kept once.

Each message is decoded into objects of its own, although the nodes of a job have the same software and links, and the
ranks of a node see the same GPUs. In a job of a hundred thousand ranks these copies take much of the leader's memory,
and the rules mostly wait for memory. So a part that equals the last one of its kind becomes that object. Only parts
that are usually equal are compared, and only with the last ones: a search among all would cost more than it saves.

Facts are frozen. Only the descriptors of their fields can change them in every version of msgspec.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from distcheck.facts.base import Missing
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
    from collections.abc import Callable

    from distcheck.facts.base import Facts
    from distcheck.rollcall.protocol import FromFollower

Uuids = tuple[str, ...]


def _setter(of: type[Facts], name: str) -> Callable[[Facts, object], None]:
    member: Any = getattr(of, name)
    setter: Callable[[Facts, object], None] = member.__set__
    return setter


_see, _show = _setter(RankFacts, "visible_gpus"), _setter(RankFacts, "cuda")


class Parts:
    """Parts of one kind of facts, with the last object of each."""

    def __init__(self, of: type[Facts], *names: str) -> None:
        self._of: Callable[[Facts], tuple[object, ...]] = attrgetter(*names)
        self._set = [_setter(of, name) for name in names]
        self._last: list[object] = [None] * len(names)

    def share(self, facts: Facts) -> None:
        """Replace the parts that equal the last ones."""
        last = self._last
        for place, part in enumerate(self._of(facts)):
            if part == last[place]:
                self._set[place](facts, last[place])
            elif part is not None and not isinstance(part, Missing):
                last[place] = part


class Names:
    """Names in one kind of facts. Those of the same text become the first such object, which is faster to compare."""

    def __init__(self, known: dict[str, str], of: type[Facts], *names: str) -> None:
        self._known = known
        self._members = [(attrgetter(name), _setter(of, name)) for name in names]

    def share(self, facts: Facts) -> None:
        """Replace the names by those that are known."""
        for get, put in self._members:
            name = get(facts)
            if isinstance(name, str):
                put(facts, self._known.setdefault(name, name))


class Sharing:
    """Lets messages refer to equal parts of those before them."""

    def __init__(self) -> None:
        known: dict[str, str] = {}
        self._names = known
        self._of_node = Parts(NodeFacts, "torch", "pci", "modules")
        self._of_host = Parts(HostFacts, "cpu_model", "settings", "numa_cpus")
        self._in_interface = Names(known, Interface, "name")
        self._in_gpu = Names(known, Gpu, "uuid", "name")
        self._of_health = Parts(GpuHealth, "ecc", "remapped_rows", "clocks", "pcie", "nvlinks", "fabric")
        self._in_hca = Names(known, Hca, "name", "driver", "board")
        self._in_port = Names(known, HcaPort, "link_layer", "state", "physical_state", "speed")
        self._of_port = Parts(HcaPort, "partition_keys", "counters")
        self._of_process = Parts(ProcessFacts, "ancestors", "command", "installed", "libraries")
        self._of_limits = Parts(Limits, "memory", "tasks", "user_tasks", "namespaces")
        self._in_rank = Names(known, RankFacts, "gpu")
        self._variables: dict[str, str] = {}
        """Those of the last rank."""
        self._in_run = Names(known, RankRun, "gpu")
        self._of_run = Parts(RankRun, "wrong", "checked", "device")
        self._of_log = Parts(NcclLog, "version", "network", "devices", "gdr_devices", "plugins_missing")
        self._in_trial = Names(known, PeerTrial, "source", "target")
        self._in_view = Names(known, CudaDevice, "uuid")
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
                self._in_trial.share(trial)

    def _node(self, node: NodeFacts) -> None:
        self._of_node.share(node)
        if isinstance(node.host, HostFacts):
            self._of_host.share(node.host)
        for interface in () if isinstance(node.interfaces, Missing) else node.interfaces:
            self._in_interface.share(interface)
        for gpu in node.gpus.devices if isinstance(node.gpus, Gpus) else ():
            self._in_gpu.share(gpu)
            if gpu.health is not None:
                self._of_health.share(gpu.health)
        for hca in node.infiniband.hcas if isinstance(node.infiniband, Infiniband) else ():
            self._in_hca.share(hca)
            for port in hca.ports:
                self._in_port.share(port)
                self._of_port.share(port)

    def _process(self, process: ProcessFacts) -> None:
        self._of_process.share(process)
        if process.limits is not None:
            self._of_limits.share(process.limits)

    def _rank(self, rank: RankFacts) -> None:
        self._in_rank.share(rank)
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
            self._in_view.share(device)
        self._views[uuids] = uuids, rank.cuda

    def _run(self, run: RankRun) -> None:
        self._in_run.share(run)
        self._of_run.share(run)
        if isinstance(run.nccl, NcclLog):
            self._of_log.share(run.nccl)
