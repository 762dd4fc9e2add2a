"""Reads meshes as frameworks write them, and works out the sizes and the experts' own mesh as they do.

- torch (``init_device_mesh``): the dimensions outermost first, and their product is the world size.
- Megatron (megatron/core/parallel_state.py, initialize_model_parallel): an order innermost first, ``tp-cp-ep-dp-pp``.
  dp is what the others leave. ep is no factor of the world size: two rank generators number the same ranks, one with
  tp, cp, dp and pp, one for the experts with etp (tp, if not set), ep, edp and pp.
- torchtitan (torchtitan/distributed/parallel_dims.py): ep is no factor either. The experts' mesh has the same pp and
  dp_replicate; of the ranks further in, ep has the innermost, and efsdp the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from math import log2, prod

from distcheck.facts.errors import UsageError
from distcheck.facts.mesh import Mesh, placed, role

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_SIZE = re.compile(r"[1-9][0-9]{0,6}|-1")
_HSDP = re.compile(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})")
_MOST_DIMENSIONS = 8
_LARGEST = 1 << 20
_PLACES = ("rail", "node")
_HOW = "write NAME=SIZE, outermost dimension first, for example --mesh pp=2,dp=4,tp=8"


def parse(text: str, order: str = "") -> Mesh:
    """Return the mesh of --mesh and --mesh-order.

    Raises:
        UsageError: the text is no mesh, or the order does not name its dimensions.
    """
    sizes: dict[str, int] = {}
    for item in (part.strip() for part in text.split(",")):
        for name, size in _item(item, text):
            if name in sizes:
                raise UsageError(f"--mesh {text!r}: dimension {name} is given twice")
            sizes[name] = size
    if order:
        sizes = _ordered(sizes, text, order)
    if len(sizes) > _MOST_DIMENSIONS:
        raise UsageError(f"--mesh {text!r} has {len(sizes)} dimensions; distcheck knows at most {_MOST_DIMENSIONS}")
    if placed_by_node(Mesh(sizes)) and not sizes.keys() <= set(_PLACES):
        raise UsageError(f"--mesh {text!r}: node and rail make a mesh by themselves; leave out the other dimensions")
    if list(sizes.values()).count(0) > 1 and not sizes.keys() <= set(_PLACES):
        raise UsageError(f"--mesh {text!r}: only one size can be -1")
    if prod(size or 1 for size in sizes.values()) > _LARGEST:
        raise UsageError(f"--mesh {text!r} has more than {_LARGEST} ranks")
    return Mesh(sizes, order=order.lower())


def _item(item: str, text: str) -> Iterator[tuple[str, int]]:
    name, _, size = (part.strip() for part in item.partition("="))
    name = name.lower()
    both = _HSDP.fullmatch(size)
    if name in _PLACES and not size:
        yield name, 0
    elif name == "hsdp" and both:
        yield from (("replicate", int(both[1])), ("shard", int(both[2])))
    elif _NAME.fullmatch(name) and _SIZE.fullmatch(size) and name != "hsdp":
        yield name, max(int(size), 0)
    else:
        raise UsageError(f"--mesh {text!r}: {item!r} is not a dimension; {_HOW}")


def _ordered(sizes: dict[str, int], text: str, order: str) -> dict[str, int]:
    """Return the sizes outermost first: a size that is not given is 1, and that of dp what the others leave."""
    names = [name.strip().lower() for name in order.split("-")]
    if not all(map(_NAME.fullmatch, names)) or len(set(names)) != len(names):
        raise UsageError(
            f"--mesh-order {order!r} is not an order; write it innermost first, for example --mesh-order tp-cp-ep-dp-pp"
        )
    unknown = [name for name in sizes if name not in names and name != "etp"]
    if unknown:
        raise UsageError(f"--mesh {text!r} --mesh-order {order!r}: the order does not have {', '.join(unknown)}")
    found = {name: sizes[name] for name in reversed(names) if name in sizes}
    if "dp" in names and "dp" not in sizes and 0 not in sizes.values():
        found = {name: sizes.get(name, 0) for name in reversed(names) if name in sizes or name == "dp"}
    return found | {name: size for name, size in sizes.items() if name == "etp"}


def placed_by_node(mesh: Mesh) -> bool:
    """Return whether the mesh is that of nodes and rails, so that its sizes follow from where the ranks are."""
    return any(not mesh.sizes.get(name, 1) for name in _PLACES)


def resolved(mesh: Mesh, world_size: int, nodes: list[str]) -> Mesh | None:
    """Return the mesh with all sizes known, for this many ranks; None if it does not fit.

    `nodes` has each rank's node, in rank order; only the mesh of nodes and rails needs it.
    """
    if placed_by_node(mesh):
        return placed(nodes)
    beside = {name: size for name, size in mesh.sizes.items() if role(name) != "expert" and name != "etp"}
    plain = _filled(mesh.sizes, world_size)
    if mesh.order and len(beside) < len(mesh.sizes) and 0 in mesh.sizes.values():
        plain = None  # Megatron's dp is what the dimensions other than the experts' leave
    dense = _filled(beside, world_size) if len(beside) < len(mesh.sizes) else None
    experts = _experts_of(mesh, dense, world_size) if dense else None
    if dense and experts and (mesh.order or plain is None):
        return Mesh(dense, experts, mesh.order)
    return Mesh(plain, order=mesh.order) if plain else None


def _filled(sizes: dict[str, int], world_size: int) -> dict[str, int] | None:
    given = prod(size for size in sizes.values() if size)
    left, rest = divmod(world_size, given)
    if rest or not left or list(sizes.values()).count(0) > 1 or (left != 1 and 0 not in sizes.values()):
        return None
    return {name: size or left for name, size in sizes.items()}


def _experts_of(mesh: Mesh, sizes: dict[str, int], world_size: int) -> dict[str, int] | None:
    """Return the sizes of the experts' own mesh; None if they do not fit."""
    ep = next((name for name in mesh.sizes if role(name) == "expert"), "")
    if not ep:
        return None
    if mesh.order:
        etp = mesh.sizes.get("etp") or sizes.get("tp", 1)
        own = {"tp": ("etp", etp), "ep": (ep, mesh.sizes[ep]), "dp": ("edp", 0), "cp": ("", 1)}
        names = [name.strip().lower() for name in reversed(mesh.order.split("-"))]
        pairs = [own.get(name, (name, sizes.get(name, 1))) for name in names]
        found = _filled({name: size for name, size in pairs if name and (size != 1 or name in sizes)}, world_size)
        # As in Megatron, both must have the same pipelines.
        if found and "pp" in sizes and Mesh(found).step("pp") != Mesh(sizes).step("pp"):
            return None
        return found
    outer = {}
    for name, size in sizes.items():
        if role(name) not in {"pipeline", "replicate"}:
            break
        outer[name] = size
    inner = {ep: mesh.sizes[ep]} | {name: mesh.sizes[name] for name in ("etp",) if name in mesh.sizes}
    return _filled(outer | {"efsdp": 0} | inner, world_size)


def nearest(mesh: Mesh, world_size: int, most: int = 3) -> list[Mesh]:
    """Return meshes with the same dimensions that fit this many ranks, the most similar first.

    One size is changed, or two. Sizes of data parallelism are changed before those that depend on the model. In
    Megatron's order the experts' sizes stay.
    """
    old = {name: size or 1 for name, size in mesh.sizes.items()}
    factors = [name for name in old if not mesh.order or (role(name) != "expert" and name != "etp")]
    found: dict[str, tuple[float, Mesh]] = {}
    for names in (subset for number in (1, 2) for subset in combinations(factors, number)):
        left, rest = divmod(world_size, prod(old[name] for name in factors if name not in names))
        if rest:
            continue
        for first in divisors(left) if len(names) == 2 else (left,):
            new = old | dict(zip(names, (first, left // first), strict=False))
            fit = Mesh(new, order=mesh.order)
            if resolved(fit, world_size, []):
                cost = sum(_cost(name, old[name], new[name]) for name in names if mesh.sizes[name])
                found[str(fit)] = (cost, fit)
    if not found:
        only = min(factors, key=lambda name: _WEIGHTS.get(role(name), 2))
        return [Mesh(dict.fromkeys(old, 1) | {only: world_size}, order=mesh.order)]
    return [fit for _, fit in sorted(found.values(), key=lambda item: (item[0], str(item[1])))][:most]


_WEIGHTS = {"data": 1, "replicate": 1, "shard": 1, "context": 3, "pipeline": 3, "expert": 4, "tensor": 4}
"""How much a change of a dimension's size costs, as a multiple of its number of doublings."""


def _cost(name: str, old: int, new: int) -> float:
    change = abs(log2(new / old))
    return (change + (change > 0)) * _WEIGHTS.get(role(name), 2)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
