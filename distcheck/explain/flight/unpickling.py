"""Loads pickles of containers, text and numbers without Python's own unpickler.

No opcode here can name a class or a function, or hash more than a text or a number: Python's unpickler, even one that
refuses all names, can be made to allocate 64 GB by 10 bytes, or to hash a nested tuple for years.

Source: Lib/pickletools.py of CPython; torch/csrc/jit/serialization/pickler.cpp (torch writes protocol 2)
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable
from typing import Any

_VALUES_PER_BYTE = 64
"""Stack frames are shared by reference; a dump with more values than this per byte is built to exhaust memory."""
_STOP = 0x2E
_NAMES = frozenset(b"cioR\x81\x92\x93bPQ\x82\x83\x84")
"""Opcodes that name or call something: GLOBAL, INST, OBJ, REDUCE, NEWOBJ, STACK_GLOBAL, BUILD, PERSID, EXT."""


def unpickled(raw: bytes) -> Any:
    """Return what a pickle holds.

    Raises:
        ValueError: it is damaged, names a class or function, or has the same parts too often.
    """
    gc.disable()  # many small objects and no cycles: the collector only costs time
    try:
        value = _Machine(raw).run()
    except (IndexError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"truncated or damaged pickle: {error}") from None
    finally:
        gc.enable()
    _check_size(value, _VALUES_PER_BYTE * len(raw))
    return value


class _Machine:
    """The stack machine that a pickle is a program of."""

    __slots__ = ("marks", "memo", "position", "raw", "stack")

    def __init__(self, raw: bytes) -> None:
        self.raw, self.position = raw, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        raw = self.raw
        while (code := raw[self.position]) != _STOP:
            self.position += 1
            operation = _OPERATIONS.get(code)
            if operation is None:
                what = "names a class or function" if code in _NAMES else f"has the opcode {code:#04x}"
                raise ValueError(f"the pickle {what}; a dump has plain values only")
            operation(self)
        return self.stack.pop()

    def take(self, length: int) -> bytes:
        piece = self.raw[self.position : self.position + length]
        if len(piece) < length:
            raise IndexError("it ends too early")
        self.position += length
        return piece

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.raw, self.position)
        self.position += struct.calcsize(form)
        return value

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def push_tuple(self, length: int) -> None:
        items = tuple(self.stack[-length:])
        if len(items) < length:
            raise IndexError("too few values for a tuple")
        self.stack[-length:] = [items]

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError("values are added to what is no list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        keys = items[::2]
        if not isinstance(self.stack[-1], dict) or not all(type(key) in {str, int} for key in keys):
            raise TypeError("a key is neither a text nor a number")
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]


def _pushes(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(make(machine))


def _number(form: str) -> Callable[[_Machine], None]:
    return _pushes(lambda machine: machine.number(form))


def _text(form: str) -> Callable[[_Machine], None]:
    return _pushes(lambda machine: machine.take(machine.number(form)).decode("utf-8", "replace"))


def _long(form: str) -> Callable[[_Machine], None]:
    return _pushes(lambda machine: int.from_bytes(machine.take(machine.number(form)), "little", signed=True))


def _pair(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.update([key, value])


_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: lambda m: m.number("<B"),  # PROTO
    0x95: lambda m: m.number("<Q"),  # FRAME
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("]"): _pushes(lambda _: []),
    ord("}"): _pushes(lambda _: {}),
    ord(")"): _pushes(lambda _: ()),
    ord("N"): _pushes(lambda _: None),
    0x88: _pushes(lambda _: True),
    0x89: _pushes(lambda _: False),
    ord("K"): _number("<B"),
    ord("M"): _number("<H"),
    ord("J"): _number("<i"),
    ord("G"): _number(">d"),
    0x8A: _long("<B"),
    0x8B: _long("<I"),
    0x8C: _text("<B"),
    ord("X"): _text("<I"),
    0x8D: _text("<Q"),
    ord("a"): lambda m: m.extend([m.stack.pop()]),
    ord("e"): lambda m: m.extend(m.since_mark()),
    ord("s"): _pair,
    ord("u"): lambda m: m.update(m.since_mark()),
    ord("t"): lambda m: m.stack.append(tuple(m.since_mark())),
    0x85: lambda m: m.push_tuple(1),
    0x86: lambda m: m.push_tuple(2),
    0x87: lambda m: m.push_tuple(3),
    ord("h"): _pushes(lambda m: m.memo[m.number("<B")]),
    ord("j"): _pushes(lambda m: m.memo[m.number("<I")]),
    ord("q"): lambda m: m.remember(m.number("<B")),
    ord("r"): lambda m: m.remember(m.number("<I")),
    0x94: lambda m: m.remember(len(m.memo)),  # MEMOIZE
}
"""By opcode; those that Python's and torch's picklers write for containers, text and numbers."""


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
