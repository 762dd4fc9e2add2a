"""torchrun and python -m torch.distributed.run and .launch.

Source: torch/distributed/run.py (2.1 to 2.13), argparse_util.py (each option also as PET_<NAME>), and
elastic/rendezvous/c10d_rendezvous_backend.py (the endpoint's default port). Its own parser is only asked
about words that it may refuse: importing it imports torch, which takes longer than all that is read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from distcheck.facts.launch_command import REFUSED, Stated
from distcheck.selection.command import options_in, split
from distcheck.selection.launch_commands.stated import ReadFile, RefusedError, UnreadableError, Untold, number

_STATIC_PORT, _ENDPOINT_PORT = 29500, 29400
_DEVICES = frozenset({"xpu", "npu", "hpu", "mlu", "musa", "gcu", "maca", "sdaa", "privateuseone"})
"""The names of devices that it counts beside GPUs: of Intel, and of extensions of torch."""


def torchrun(words: tuple[str, ...], environ: Mapping[str, str], _: ReadFile, by: str = "torchrun") -> Stated | Untold:
    """Return the ranks that torchrun starts on this node, and where its nodes meet."""
    if unknown := next((option.name for option in options_in(words) if not option.known), ""):
        raise UnreadableError(f"option --{unknown} is unknown to distcheck", "--hosts and --nproc")
    found = of_options(split(words).options, environ, by)
    if isinstance(found, Stated) and found.nproc == "gpu":  # "Cuda is not available."
        return replace(found, few_gpus=(REFUSED,))
    return found


launch = partial(torchrun, by="torch.distributed.launch")


def of_options(options: Mapping[str, str], environ: Mapping[str, str], by: str) -> Stated | Untold:
    """Return the ranks by torchrun's options, without their dashes in front; raises RefusedError."""
    used: set[str] = set()

    def value(name: str, default: str) -> str:
        variable = f"PET_{name.upper().replace('-', '_')}"
        if name not in options and variable in environ:
            used.add(variable)
        return options.get(name, environ.get(variable, default))

    place = _place(value, standalone="standalone" in options or environ.get("PET_STANDALONE", "0") != "0")
    nproc = value("nproc-per-node", "1")
    if isinstance(place, str):
        return Untold(by, place, "--rank, --world-size and --nproc")
    if nproc in _DEVICES:
        return Untold(by, f"it counts devices of the type {nproc}", "--nproc")
    if nproc not in {"auto", "gpu", "cpu"}:
        nproc = str(number("--nproc-per-node", nproc, 1))
    return Stated(by=by, nproc=nproc, environment=bool(used), **place)


def _place(value: Callable[[str, str], str], *, standalone: bool) -> dict[str, Any] | str:
    """Return nodes, the number of this one and the meeting place; or why they are not known."""
    fewest, _, most = value("nnodes", "1:1").partition(":")
    least, nodes = number("--nnodes", fewest, 1), number("--nnodes", most or fewest, 1)
    if least > nodes:
        raise RefusedError(f"--nnodes is {least}:{nodes}, expected MIN:MAX")
    if standalone and least > 1:
        raise RefusedError(f"--standalone is for one node, and --nnodes is {fewest}: it would wait in vain")
    backend, endpoint, port = value("rdzv-backend", "static"), value("rdzv-endpoint", ""), value("master-port", "")
    if standalone or (backend == "static" and not endpoint and not port and nodes == 1):
        return {}
    if backend == "static":
        host, at = split_endpoint(endpoint, 0) if endpoint else (value("master-addr", "127.0.0.1"), 0)
        at = at or number("--master-port", port or str(_STATIC_PORT))
        if nodes > 1 and not at:
            return "its --master-port is 0: a port of its own on each node"
        own = number("--node-rank", value("node-rank", "0"))
        return {"nodes": nodes, "node_rank": own, "master_addr": host, "master_port": at}
    if backend != "c10d":
        return f"its nodes get their numbers from {backend}"
    host, at = split_endpoint(endpoint, _ENDPOINT_PORT)
    told = re.search(r"(?:^|,)\s*is_host\s*=\s*(\w+)", value("rdzv-conf", ""))
    return {
        "nodes": nodes,
        "fewest": least if least < nodes else 0,
        "node_rank": None if nodes > 1 else 0,
        "master_addr": host or "localhost",
        "master_port": at,
        "rendezvous": value("rdzv-id", "none"),
        "hosts_store": told[1].lower() in {"1", "true", "t", "yes", "y"} if told else None,
    }


def split_endpoint(endpoint: str, default: int) -> tuple[str, int]:
    """Return host and port of HOST[:PORT], with the brackets of an IPv6 address taken off; raises RefusedError."""
    host, colon, port = endpoint.strip().rpartition(":")
    if not colon or "]" in port:
        return endpoint.strip().strip("[]"), default
    return host.strip("[]"), number("--rdzv-endpoint", port)
