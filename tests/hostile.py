"""Jobs that a stranger may have written: everything that the schema allows."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from msgspec import inspect

from distcheck.facts import Job, Look

HOSTILE = "<script>alert('x')</script>\x1b[31;1m\x07|`tick`{{ 7*7 }}\r\n## =cmd\u202e\u2028\"&amp;'"
_STRINGS = (HOSTILE, "", "x" * 5000, "0", "-1", "1" * 30, "[1-", "node[1-9999999]", "/dev/null", "::1", "127.0.0.1")
_NUMBERS = (0, -1, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1e308, -1e308, 0.0, 5e-324, True)
_OTHERS: tuple[Any, ...] = (
    None,
    [],
    {},
    [HOSTILE, HOSTILE],
    {HOSTILE: HOSTILE},
    {"fact": "missing", "reason": HOSTILE},
)


def full_job(turn: int) -> Job:
    """Return a job with every field of every fact there and every string of it hostile.

    Where a field may be one of several types, or is one of a list of words, `turn` chooses.
    """
    job: Job = msgspec.convert(_full(inspect.type_info(Job), turn), Job)
    asked = msgspec.structs.replace(job.asked, looks=get_args(Look), select=(), ignore=())
    return msgspec.structs.replace(job, asked=asked, skipped={})


def _full(kind: inspect.Type, turn: int) -> Any:
    match kind:
        case inspect.StructType():
            fields = {f.encode_name: _full(f.type, turn) for f in kind.fields}
            return {kind.tag_field: kind.tag, **fields} if kind.tag_field else fields
        case inspect.UnionType():
            return _full(kind.types[turn % len(kind.types)], turn)
        case inspect.LiteralType():
            return sorted(kind.values, key=str)[turn % len(kind.values)]
        case inspect.StrType():
            return HOSTILE
        case inspect.BoolType():
            return turn % 2 == 0
        case inspect.IntType():
            return 1
        case inspect.FloatType():
            return 0.5
        case inspect.NoneType():
            return None
        case inspect.VarTupleType() | inspect.ListType():
            return [_full(kind.item_type, turn)]
        case inspect.TupleType():
            return [_full(item, turn) for item in kind.item_types]
        case inspect.DictType():
            return {_full(kind.key_type, turn): _full(kind.value_type, turn)}
    raise NotImplementedError(kind)


def changed(job: Job, seed: int) -> Job:
    """Return a job in which a few values are others that the schema allows as well."""
    choose = random.Random(seed)
    raw = msgspec.json.decode(msgspec.json.encode(job))
    places = list(_places(raw))
    for _ in range(choose.randint(1, 6)):
        *way, last = choose.choice(places)
        at = raw
        try:
            for key in way:
                at = at[key]
            before = at[last]
        except (KeyError, IndexError, TypeError):  # an earlier change has taken it away
            continue
        at[last] = _another(before, choose, last)
        try:
            job = msgspec.json.decode(msgspec.json.encode(raw), type=Job)
        except msgspec.ValidationError:
            at[last] = before
    return job


def _another(value: Any, choose: random.Random, name: object) -> Any:
    if isinstance(value, list) and value and choose.random() < 0.5:
        return [*value, copy.deepcopy(choose.choice(value))] if choose.random() < 0.5 else value[:-1]
    if name == "world_size":  # a million ranks that are missing take seconds to be told one by one
        return choose.choice((0, -1, 1, 5000))
    return copy.deepcopy(choose.choice(choose.choice((_STRINGS, _NUMBERS, _OTHERS))))


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*way, key)
            yield from _places(item, (*way, key))
