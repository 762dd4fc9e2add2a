"""Jobs with values at the edges of what their fields admit, read from the types: a new field is covered by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec
from made.hostile import HOSTILE, full, full_job
from made.jobs import healthy_job
from msgspec import inspect

from distcheck.facts.asked import Look
from distcheck.facts.errors import UsageError
from distcheck.facts.job import Collectives, Job, Measurement
from distcheck.facts.saved import consistent, load

Way = tuple[Any, ...]
"""Keys and positions that lead from a job to one of its values."""
JOB = inspect.type_info(Job)
_WHOLE = (0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 10**400)
_REAL = (0, 0.5, -1.0, 1e308, -1e308, 1e-320, 2**63)
_STRINGS = ("", HOSTILE, "x" * 20_000, "0", "-1", "1" * 30, "[1-", "node[1-9999999]", "/dev/null", "::1", "127.0.0.1")
_MOST_RANKS = 5000
"""A million ranks that are missing take seconds to be told one by one, in every format."""
_KINDS: dict[type, Any] = {
    type(None): inspect.NoneType,
    bool: inspect.BoolType,
    int: (inspect.IntType, inspect.FloatType),
    float: inspect.FloatType,
    str: (inspect.StrType, inspect.LiteralType, inspect.EnumType),
    list: (inspect.VarTupleType, inspect.TupleType),
    tuple: (inspect.VarTupleType, inspect.TupleType),
    dict: inspect.DictType,
}
"""What a value in JSON can be of."""


def places(value: Any, kind: inspect.Type = JOB, way: Way = ()) -> Iterator[tuple[Way, inspect.Type]]:
    """Yield the way to every value within a job as JSON has it, and its type."""
    if way:
        yield way, kind
    match _member(kind, value):
        case inspect.StructType(fields=fields):
            for field in fields:
                if field.encode_name in value:
                    yield from places(value[field.encode_name], field.type, (*way, field.encode_name))
        case inspect.VarTupleType(item_type=item):
            for n, inner in enumerate(value):
                yield from places(inner, item, (*way, n))
        case inspect.TupleType(item_types=items):
            for n, (item, inner) in enumerate(zip(items, value, strict=True)):
                yield from places(inner, item, (*way, n))
        case inspect.DictType(value_type=item):
            for key, inner in value.items():
                yield from places(inner, item, (*way, key))


def _member(kind: inspect.Type, value: Any) -> inspect.Type:
    """Return the member of a union that a value is of."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    if isinstance(value, dict) and "fact" in value:
        return next(m for m in kind.types if isinstance(m, inspect.StructType) and m.tag == value["fact"])
    return next(m for m in kind.types if isinstance(m, _KINDS[type(value)]))


def edges(kind: inspect.Type) -> Iterator[Any]:
    """Yield what a stranger might write where a value of this type stands, admitted or not."""
    match kind:
        case inspect.UnionType(types=members):
            for member in members:
                yield from edges(member)
        case inspect.StructType():
            yield from (full(kind, turn) for turn in range(3))
        case inspect.VarTupleType(item_type=item):
            yield []
            yield from ([edge, edge] for edge in edges(item))
        case inspect.TupleType(item_types=items):
            yield from (list(pair) for pair in zip(*map(edges, items), strict=False))
        case inspect.DictType(key_type=key, value_type=item):
            yield {}
            yield from ({edge: full(item, 0)} for edge in edges(key))
            yield from ({full(key, 0): edge} for edge in edges(item))
        case inspect.LiteralType(values=values):
            yield from values
        case inspect.EnumType(cls=members):
            yield from (member.value for member in members)
        case _:
            yield from _simple(kind)


def _simple(kind: inspect.Type) -> tuple[Any, ...]:
    simple: dict[type[inspect.Type], tuple[Any, ...]] = {
        inspect.IntType: _WHOLE,
        inspect.FloatType: _REAL,
        inspect.StrType: _STRINGS,
        inspect.BoolType: (True, False),
        inspect.NoneType: (None,),
    }
    return simple[type(kind)]


def replaced(raw: Any, way: Way, value: Any) -> Any:
    """Return a job as JSON has it with another value at one place; nothing of the old one is changed."""
    if not way:
        return value
    key, *rest = way
    copy = list(raw) if isinstance(raw, list | tuple) else dict(raw)
    copy[key] = replaced(raw[key], tuple(rest), value)
    return copy


def as_json(job: Job) -> Any:
    """Return a job as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(job))


def read(raw: Any, path: Path) -> Job:
    """Write what is to be a job to a file and load it."""
    path.write_bytes(msgspec.json.encode(raw))
    return load(path)


def changed(job: Job, choose: Random, path: Path, most: int = 12) -> Job:
    """Return a job in which a few values are at an edge of what their fields admit, out of a file."""
    raw = as_json(job)
    for _ in range(choose.randint(1, most)):
        way, kind = choose.choice(list(places(raw)))
        value = choose.choice(list(edges(kind)))
        if way[-1] == "world_size" and isinstance(value, int) and value > _MOST_RANKS:
            value = _MOST_RANKS
        odd = replaced(raw, way, value)
        if way == ("schema",):
            continue
        with suppress(UsageError, msgspec.ValidationError):
            consistent(msgspec.convert(odd, Job, str_keys=True), path)
            raw = odd
    return read(raw, path)


def filled(job: Job, turn: int) -> Job:
    """Return a job in which all is there that was not, each value with what `full` makes of its type."""
    raw = as_json(job)
    for way, kind in list(places(raw)):
        at = raw
        for key in way:
            at = at[key]
        if at in (None, [], {}, "") and way[0] not in {"asked", "skipped"}:
            members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
            there = [full(member, turn) for member in members if not isinstance(member, inspect.NoneType)]
            raw = replaced(raw, way, there[turn % len(there)])
    return msgspec.convert(raw, Job)


def measured(job: Job) -> Job:
    """Return a job whose ranks measured two operations at four sizes."""
    rows = tuple(
        Measurement(op, 1024 << 2 * n, "float32", 5, tuple(1e-3 + 1e-5 * r for r in range(len(job.ranks))), bursts=9,
                    uncertainty=0.01, at_least=0.98, ended="steady")
        for op in ("all_reduce", "broadcast")
        for n in range(4)
    )  # fmt: skip
    return msgspec.structs.replace(job, collectives=Collectives("nccl", "2.13.0", "2.27.3", rows))


def bases() -> list[Job]:
    """Return jobs to begin with: healthy ones, those with all facts there, and those of which all is hostile."""
    looks = get_args(Look)
    healthy = [healthy_job(*shape, gpus=2) for shape in ((1, 2, "torchrun"), (3, 2, "slurm"), (2, 2, "openmpi"))]
    asked = [msgspec.structs.replace(j, asked=msgspec.structs.replace(j.asked, looks=looks)) for j in healthy]
    ran = [measured(job) for job in asked]
    return [*asked, *ran, *(filled(job, turn) for turn, job in enumerate(ran)), *map(full_job, range(6))]
