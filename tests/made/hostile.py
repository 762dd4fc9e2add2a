"""Jobs that a stranger may have written: everything that the schema allows."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from msgspec import inspect

from distcheck.facts.asked import Look
from distcheck.facts.job import Job

HOSTILE = "<script>alert('x')</script>\x1b[31;1m\x07|`tick`{{ 7*7 }}\r\n## =cmd\u202e\u2028\"&amp;'"


def full_job(turn: int) -> Job:
    """Return a job with every field of every fact there and every string of it hostile.

    Where a field may be one of several types, or is one of a list of words, `turn` chooses.
    """
    job: Job = msgspec.convert(full(inspect.type_info(Job), turn), Job)
    asked = msgspec.structs.replace(job.asked, looks=get_args(Look), select=(), ignore=())
    return msgspec.structs.replace(job, asked=asked, skipped={})


def full(kind: inspect.Type, turn: int) -> Any:
    """Return a value of a type, in built-in types."""
    match kind:
        case inspect.StructType():
            fields = {f.encode_name: full(f.type, turn) for f in kind.fields}
            return {kind.tag_field: kind.tag, **fields} if kind.tag_field else fields
        case inspect.UnionType():
            return full(kind.types[turn % len(kind.types)], turn)
        case inspect.LiteralType():
            return sorted(kind.values, key=str)[turn % len(kind.values)]
        case inspect.EnumType():
            return [member.value for member in kind.cls][turn % len(kind.cls)]
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
            return [full(kind.item_type, turn)]
        case inspect.TupleType():
            return [full(item, turn) for item in kind.item_types]
        case inspect.DictType():
            return {full(kind.key_type, turn): full(kind.value_type, turn)}
    raise NotImplementedError(kind)
