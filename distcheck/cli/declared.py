"""What the structs of options declare: names, variables, types and the values that each option accepts."""

from __future__ import annotations

import copy
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from typer.models import OptionInfo

from distcheck.cli.options import Checking

LARGEST = 10**9
"""The largest number that an option accepts, unless it has a maximum of its own."""


class Declared(NamedTuple):
    """What a struct declares of an option."""

    kind: Any
    """Its type, without None."""
    info: OptionInfo

    @property
    def typed(self) -> Any:
        """The annotation for typer, which knows Literal only since 0.19."""
        choices = get_args(self.kind) if get_origin(self.kind) is Literal else ()
        kind = Enum("Choice", {choice: choice for choice in choices}) if choices else self.kind
        return Annotated[kind, self.info]

    @property
    def expected(self) -> str:
        """Which values it accepts."""
        if self.info.autocompletion:
            return f"choose one of {', '.join(self.info.autocompletion())}, or the backend of a plugin"
        if get_origin(self.kind) is Literal:
            return f"choose one of {', '.join(get_args(self.kind))}"
        if self.kind is bool:
            return "must be 1 or 0"
        if self.kind in {str, Path}:
            return "must be text"
        number = "a whole number" if self.kind is int else "a number"
        return f"must be {number} from {self.least} to {self.largest}"

    @property
    def least(self) -> float:
        """The smallest number that it accepts."""
        return -LARGEST if self.info.min is None else self.info.min

    @property
    def largest(self) -> float:
        """The largest number that it accepts."""
        return LARGEST if self.info.max is None else self.info.max

    def converted(self, value: Any) -> Any:
        """Return words of a command line as the option takes them.

        Raises:
            msgspec.ValidationError, ValueError: it does not.
        """
        found = as_typed(value, self.kind)
        return self.info.parser(found) if self.info.parser else found

    def holds(self, number: float) -> bool:
        """Return whether it accepts a number; it never accepts nan."""
        return self.least <= number <= self.largest


@cache
def options_of(options: type[msgspec.Struct]) -> dict[str, Declared]:
    """Return the options of a struct by field; name and variable are made of the field's name.

    The commands that check have variables: one that names a report for them must not make another command overwrite it.
    """
    found = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        kind, info = get_args(hint)
        info = copy.copy(info)
        info.envvar, info.show_envvar = f"DISTCHECK_{name.upper()}" if issubclass(options, Checking) else None, False
        if not any(word.startswith("--") for word in info.param_decls):
            info.param_decls = (f"--{name.replace('_', '-')}", *info.param_decls)
        found[name] = Declared(kind_of(kind), info)
    return found


def kind_of(annotation: Any) -> Any:
    """Return a type without None."""
    parts = get_args(annotation)
    return next(part for part in parts if part is not NoneType) if NoneType in parts else annotation


def as_typed(value: Any, kind: Any) -> Any:
    """Return words of a command line as this type.

    Raises:
        msgspec.ValidationError: they are none.
    """
    if get_origin(kind) is list:
        return [as_typed(word, get_args(kind)[0]) for word in value]
    return Path(value) if kind is Path else msgspec.convert(value, kind, strict=False)
