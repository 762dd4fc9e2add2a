"""Loads pickles of containers, text and numbers without Python's own unpickler.

No opcode here can name a class or a function, or hash more than a text or a number: Python's unpickler, even one that
refuses all names, can be made to allocate 64 GB by 10 bytes, or to hash a nested tuple for years.

Source: Lib/pickletools.py of CPython; torch/csrc/jit/serialization/pickler.cpp (torch writes protocol 2)
"""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from pickletools import OpcodeInfo, genops
from typing import Any, NoReturn

_VALUES_PER_BYTE = 64
"""Stack frames are shared by reference; a dump with more values than this per byte is built to exhaust memory."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict}
_VALUES = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
})  # fmt: skip
_GETS, _PUTS = frozenset({"BINGET", "LONG_BINGET"}), frozenset({"BINPUT", "LONG_BINPUT", "MEMOIZE"})
_TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2, "TUPLE": 0, "APPENDS": 0, "SETITEMS": 0}
"""How many values go into a container; 0: all since the mark."""
_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})


class _Binary(io.BytesIO):
    """A pickle without arguments in lines, which names and, in the first protocol, numbers of any length are."""

    def readline(self, _size: int | None = -1, /) -> NoReturn:
        raise ValueError("the pickle names a class or function; a dump has plain values only")


def unpickled(raw: bytes) -> Any:
    """Return what a pickle holds.

    Raises:
        ValueError: it is damaged, names a class or function, or has the same parts too often.
    """
    gc.disable()  # many small objects and no cycles: the collector only costs time
    try:
        value = _loaded(raw)
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"truncated or damaged pickle: {error}") from None
    finally:
        gc.enable()
    _check_size(value, _VALUES_PER_BYTE * len(raw))
    return value


def _loaded(raw: bytes) -> Any:
    """Return what is left on the stack of the machine that a pickle is a program of."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    steps: Iterator[tuple[OpcodeInfo, Any, int | None]] = genops(_Binary(raw))
    for opcode, value, _ in steps:
        name = opcode.name
        if name in _VALUES:
            odd = isinstance(value, str) and not value.isascii()  # it may hold surrogates, which no report can
            stack.append(value.encode("utf-8", "replace").decode() if odd else value)
        elif name in _GETS:
            stack.append(memo[value])
        elif name in _PUTS:
            memo[len(memo) if value is None else value] = stack[-1]
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _TAKES:
            start = len(stack) - _TAKES[name] if _TAKES[name] else marks.pop()
            if start < 0:
                raise IndexError("too few values for a container")
            items = stack[start:]
            del stack[start:]
            _put(stack, name, items)
        elif name not in _IGNORED:
            raise ValueError(f"the pickle names a class or function; a dump has plain values only ({name})")
    return stack.pop()


def _put(stack: list[Any], name: str, items: list[Any]) -> None:
    """Put values into a new tuple, or into the list or the dictionary that is last on the stack."""
    if name.startswith("TUPLE"):
        stack.append(tuple(items))
    elif name.startswith("APPEND") and isinstance(stack[-1], list):
        stack[-1].extend(items)
    elif isinstance(stack[-1], dict) and all(type(key) in {str, int} for key in items[::2]) and not len(items) % 2:
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    else:
        raise TypeError("values are added to what does not hold them, or a key is neither a text nor a number")


def _check_size(value: Any, most: int) -> None:
    """Raise ValueError if a value with all its parts, shared ones as often as they occur, has too many."""
    containers: list[Any] = [[value]]
    while containers:
        container = containers.pop()
        most -= len(container)
        if most < 0:
            raise ValueError("holds the same values too often; a dump does not")
        parts = container.values() if isinstance(container, dict) else container
        containers += [part for part in parts if isinstance(part, (dict, list, tuple))]
