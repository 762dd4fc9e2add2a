"""Rules about the address that an inference engine gives to its processes on other nodes."""

from __future__ import annotations

from ipaddress import ip_address
from shlex import quote
from typing import TYPE_CHECKING

from distcheck.facts.base import Missing
from distcheck.rules import Outcome, rule
from distcheck.rules.finding import Fault
from distcheck.rules.job.addresses import is_here
from distcheck.rules.job.engines import StartedEngine, each_engine, engines
from distcheck.rules.network.interface_choices import outside
from distcheck.rules.wording import found, grouped, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distcheck.facts.job import Job
    from distcheck.facts.network import Interface

_ANY = {"", "0.0.0.0", "::"}


def _interfaces(started: StartedEngine) -> list[Interface]:
    """Return the addresses of an engine's node, those that other nodes may reach first; empty if they are unknown."""
    known = started.node.interfaces
    return [] if isinstance(known, Missing) else sorted(known, key=lambda i: not outside(i))


def _flaw(address: str, own: list[str], *, several: bool) -> str:
    """Return why other nodes cannot reach an engine at an address; '' if they may."""
    try:
        known = {ip_address(each) for each in own}
        here = ip_address(address.strip("[]"))
    except ValueError:
        return "which is no IP address"
    if here.is_loopback:
        return "which on every node is the node itself" if several else ""
    return "" if here in known else "which is no address of this node"


@rule("environment", "vllm-host-ip", scope="rank", of=each_engine)
def engine_address_unusable(_: Job, started: StartedEngine) -> Fault | Missing | None:
    """The address that an inference engine gives to its processes on other nodes does not lead to it.

    Where a replica spans nodes, each of vLLM's nodes listens on an ephemeral port at VLLM_HOST_IP, else at the source
    address of its route to 8.8.8.8, and the others connect there: ``zmq.error.ZMQError: Cannot assign requested
    address``, or a start that waits without end. HOST_IP is ignored. SGLang does so on the first node of a
    tensor-parallel group that spans nodes, and for disaggregation, at SGLANG_HOST_IP, HOST_IP, the address of
    SGLANG_LOCAL_IP_NIC, or the route's. Without a route vLLM takes 0.0.0.0, where no other node finds it.

    Found on each node by the same steps, and compared with the addresses of its interfaces.

    Fix: Set it to the node's own address on each node; a value for all nodes cannot be right.

        export {variable|VLLM_HOST_IP}={address|10.0.0.1}  # on {node|node1}

    See: https://github.com/vllm-project/vllm/issues/7815
    """
    engine, several = started.engine, started.stated.nodes > 1
    if not engine.announces:
        return None
    if isinstance(started.node.interfaces, Missing):
        return started.node.interfaces
    own = _addresses(started)
    usable = next((i for i in _interfaces(started) if outside(i)), None)
    values = {"variable": (f"{engine.name.upper()}_HOST_IP",), "node": (quote(started.node.name),)}
    if engine.address in _ANY:  # the same on all nodes, with one fix for all
        own_of = f"$(ip -o -4 address show {quote(usable.name)} | awk '{{print $4}}' | cut -d/ -f1)" if usable else ""
        said = f"{engine.name} finds no address of its own by {engine.address_by}, and gives 0.0.0.0 to the other nodes"
        return Fault(said, values=values | {"address": (own_of,), "node": ("every node",)}) if several else None
    if not (flaw := _flaw(engine.address, own, several=several)):
        return None
    return Fault(
        f"{engine.name} listens for the other nodes at {engine.address} ({engine.address_by}), {flaw}",
        evidence={"addresses of the node": listed(own)},
        values=values | {"address": (usable.address if usable else "",)},
    )


@rule("environment", scope="rank")
def engine_address_duplicate(job: Job) -> Iterator[Outcome]:
    """Two nodes of an inference engine give the same address to the others.

    Each listens at it and finds itself there, so that one node waits for the other. It happens with bridges of
    containers and virtual machines, whose address is the same on every node. vLLM with Ray then ends with ``Every node
    should have a unique IP address``.

    Found by comparing the addresses that the engines of all nodes will choose. An address that a node does not have is
    engine-address-unusable's.

    Fix: Set the node's own address on each node.

        export {variable|VLLM_HOST_IP}={address|10.0.0.1}  # on {node|node1}

    See: https://github.com/vllm-project/vllm/pull/7756
    """
    given = [e for e in engines(job) if e.engine.announces and e.stated.nodes > 1 and e.engine.address in _addresses(e)]
    for address, several in grouped(given, lambda each: each.engine.address).items():
        nodes = list(dict.fromkeys(each.node.name for each in several))
        if len({each.node.key for each in several}) < 2 or is_here(address):
            continue
        name = several[0].engine.name
        other = next((each for each in _addresses(several[-1]) if each != address and not is_here(each)), "")
        yield found(
            job,
            [rank for each in several for rank in each.ranks],
            f"{listed(nodes)} give the other nodes of {name} the same address, {address} "
            f"({several[0].engine.address_by})",
            values={
                "variable": [f"{name.upper()}_HOST_IP"],
                "address": [other],
                "node": [quote(several[-1].node.name)],
            },
        )


def _addresses(started: StartedEngine) -> list[str]:
    return [i.address for i in _interfaces(started)]


@rule("environment", "vllm-nixl-localhost", scope="rank", of=each_engine)
def engine_side_channel(_: Job, started: StartedEngine) -> Fault | None:
    """The side channel of vLLM's NIXL connector is at an address that other nodes do not reach.

    VLLM_NIXL_SIDE_CHANNEL_HOST is localhost by default. The decoding instance gets it from the prefilling one and
    connects there: on another machine it finds itself, ``Remote NIXL agent engine ID mismatch`` or ``Handshake
    failed``, and computes the prompt again. An address of another node is an error: ``Cannot assign requested
    address``.

    Found by reading the variable where --kv-transfer-config names a NIXL connector. Localhost is a warning, and an info
    where the engine has one node, because both instances may be on it.

    Fix: Set it to the node's own address.

        export VLLM_NIXL_SIDE_CHANNEL_HOST={address|10.0.0.1}  # on {node|node1}

    See: https://github.com/vllm-project/vllm/issues/27083
    """
    host, own = started.engine.side_channel, _addresses(started)
    listens = any(port.option.startswith("VLLM_NIXL") for port in started.engine.ports)
    if host is None or not listens or not own:
        return None
    usable = next((address for address in own if not is_here(address)), "")
    values = {"address": (usable,), "node": (quote(started.node.name),)}
    if host == "localhost" or is_here(host):
        several = started.stated.nodes > 1
        said = f"NIXL's side channel is at {host}, where only this node's processes reach it"
        return Fault(said, severity="warning" if several else "info", values=values)
    flaw = _flaw(host, own, several=False)
    return Fault(f"NIXL's side channel is at {host}, {flaw}", values=values) if "no address of" in flaw else None
