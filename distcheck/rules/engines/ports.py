"""Rules about the ports of an inference engine: valid, free, and each of them used once."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.facts.network import Bind
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault, Fix
from distcheck.rules.job.engines import StartedEngine, each_engine, engines
from distcheck.rules.job.settings import LARGEST_PORT
from distcheck.rules.network.port_owners import holder, owner_commands
from distcheck.rules.wording import found, grouped, listed
from distcheck.selection.launch_commands.engine_needs import USUAL_PORTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.engine import FixedPort
    from distcheck.facts.job import Job

_MANY = 4
"""Ports from which a start is likely to meet one that an outgoing connection holds."""


@rule("environment", "vllm-port-in-use", scope="rank", of=each_engine)
def engine_port_in_use(job: Job, started: StartedEngine) -> Fault | None:
    """A port that an inference engine needs is taken by another process on its node.

    vLLM ends with ``error while attempting to bind on address ('0.0.0.0', 8000)``. SGLang waits for each port of
    data-parallel attention for 30 s, then ends with ``ValueError: dist_init_port at 20000 is not available``. Beside
    --port these are, in vLLM, --data-parallel-rpc-port, and the side channel of NIXL on 5600 + the replica's number; in
    SGLang, with data-parallel attention, 1 to 6 and 13 above --dist-init-addr (without it 233 above --port), and the
    bootstrap server of --disaggregation-mode prefill on 8998. The port where the nodes meet is net-port-in-use's.

    Found in the kernel's table of listening sockets on the engine's node. No port is bound for it.

    Fix: end that process, or use another port.
    See: https://github.com/sgl-project/sglang/pull/30833
    """
    taken = [port for port in started.engine.ports if port.owner is not None]
    if not taken:
        return None
    binds = [Bind(port.number, "in-use", owner=port.owner) for port in taken]
    said = {str(port): holder(bind)[0] for port, bind in zip(taken, binds, strict=True)}
    commands = (*owner_commands(job, started.ranks[0], binds[0]), started.moved(taken[0]))
    more = f"; so are {len(said) - 1} more of its ports" if len(said) > 1 else ""
    first = str(taken[0])
    fix = Fix("End that process, or use another port.", commands)
    return Fault(f"{started.engine.name}'s port {first} is taken by {said[first]}{more}", fix, evidence=said)


@rule("environment", scope="rank", of=each_engine)
def engine_port_range(_: Job, started: StartedEngine) -> Fault | None:
    """A port that an inference engine needs is beyond 65535.

    It ends with ``OverflowError: bind(): port must be 0-65535``, or with an error of ZeroMQ. SGLang adds 13 to the port
    of --dist-init-addr for the handshake of data-parallel attention.

    Found by working out its ports from COMMAND's options.

    Fix: use a port below 32768.
    See: https://github.com/sgl-project/sglang/issues/20257
    """
    beyond = [port for port in started.engine.ports if port.number > LARGEST_PORT]
    if not beyond:
        return None
    port = beyond[0]
    needs = f"port {port.number - port.distance} needs port {port}" if port.distance else f"is {port.number}"
    usual = USUAL_PORTS[started.engine.name][port.option]
    fix = Fix("Use a port below the ephemeral range.", (started.moved(port, usual),))
    return Fault(f"{started.engine.name}'s {port.option} {needs}, expected at most {LARGEST_PORT}", fix)


@rule("environment", scope="rank")
def engine_ports_collide(job: Job) -> Iterator[Outcome]:
    """Two fixed ports of the inference engines of a node are the same.

    The second server to listen there ends, usually minutes later, when the model is loaded.

    Found by comparing the ports of all engines of the job on one node, also those that one engine uses for different
    purposes.

    Fix: give each of them a port of its own.
    See: https://docs.vllm.ai/en/latest/features/nixl_connector_usage.html
    """
    for several in grouped(engines(job), lambda each: each.node.key).values():
        uses = [(each, port) for each in several for port in each.engine.ports if port.number]
        pairs = [(a, b) for a, b in combinations(uses, 2) if _same(a[1], b[1])]
        for (one, first), (other, second) in pairs[:1]:  # the other ports of two engines meet for the same reason
            options = listed(list(dict.fromkeys((first.option, second.option))))
            who = f"two engines (processes {one.process.pid} and {other.process.pid})"
            yield found(
                job,
                one.ranks if one is other else [*one.ranks, *other.ranks],
                f"{one.engine.name if one is other else who} on {one.node.name} will listen twice on port "
                f"{first.number}: {options}",
                Fix("Give each of them a port of its own.", (other.moved(first if second.meets else second),)),
            )


def _same(one: FixedPort, other: FixedPort) -> bool:
    apart = one.host and other.host and one.host != other.host
    return one.number == other.number and not apart and not (one.meets and other.meets)


@rule("environment", severity="warning", scope="rank", of=each_engine)
def engine_port_ephemeral(_: Job, started: StartedEngine) -> Fault | Missing | None:
    """A port that an inference engine needs is in the ephemeral range of its node.

    Any outgoing connection may hold it when the engine starts, also one of its own: ``dist_init_port at 50000 is not
    available in 30 seconds``. An info for one port; a warning for the block of neighbouring ports that SGLang's
    data-parallel attention needs. Silent about ports among net.ipv4.ip_local_reserved_ports, and about the one where
    the nodes meet, which env-master-port-ephemeral reports.

    Found by comparing its ports with net.ipv4.ip_local_port_range of the node.

    Fix: use ports below that range, or reserve them.
    See: https://github.com/sgl-project/sglang/issues/37215
    """
    node = started.node
    if isinstance(node.ephemeral_ports, Missing):
        return node.ephemeral_ports
    ranges = node.reserved_ports if isinstance(node.reserved_ports, tuple) else ()
    low, high = node.ephemeral_ports
    inside = [p for p in started.engine.ports if low <= p.number <= high and not p.meets]
    inside = [p for p in inside if not any(first <= p.number <= last for first, last in ranges)]
    if not inside:
        return None
    last = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
    numbers = ",".join(str(port.number) for port in inside)
    return Fault(
        f"{started.engine.name}'s port {inside[0]}{last}: in the ephemeral range {low} to {high}; "
        "an outgoing connection may take it before the engine does",
        Fix(
            "Use ports below that range, or reserve them.",
            (f"sudo sysctl -w net.ipv4.ip_local_reserved_ports={numbers}",),
        ),
        severity="warning" if len(inside) >= _MANY else "info",
    )


@rule("environment", "vllm-port-uri", scope="rank", of=each_engine)
def engine_port_variable(_: Job, started: StartedEngine) -> Fault | None:
    """VLLM_PORT or SGLANG_PORT is not a number.

    vLLM ends with ``ValueError: VLLM_PORT 'tcp://10.43.1.39:8000' appears to be a URI``, and before 0.9 with a number
    that int() does not take. Kubernetes sets that variable in every pod of a namespace with a Service named vllm.
    SGLANG_PORT is a warning: SGLang 0.5.10 ends, too, where it looks for a free port; later ones ignore the value.
    Neither variable is the port of the API: both are the first of the ports among which the engine looks for free ones.

    Found by reading the variable as the engine does.

    Fix: Rename the Service, or set enableServiceLinks: false in the pod; unset the variable.

        unset {variable|VLLM_PORT}

    See: https://github.com/vllm-project/vllm/issues/15613
    """
    text, name = started.engine.port_variable, f"{started.engine.name.upper()}_PORT"
    if text is None:
        return None
    try:
        int(text)
    except ValueError:
        why = "; Kubernetes sets it for a Service of this name" if "://" in text else ""
        said = f"{name} is {text[:80]!r}; expected a number{why}"
        return Fault(said, severity="error" if name == "VLLM_PORT" else "warning", values={"variable": (name,)})
    return None
