"""The variables that NCCL, torch and other software read.

docs/build_variables.py writes variables.py and states its columns and sources.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from distcheck.rules.nccl.variables import ROWS
from distcheck.selection.nccl_settings import version

if TYPE_CHECKING:
    from distcheck.selection.nccl_settings import Version

_ALIKE = 0.85
"""How similar two names must be (difflib's ratio) for one to be a misspelling of the other."""
_HABITS = {
    "NCCL_IFNAME": "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_IFACE": "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_INTERFACE": "NCCL_SOCKET_IFNAME",
    "NCCL_DEBUG_LEVEL": "NCCL_DEBUG",
    "NCCL_LOG_LEVEL": "NCCL_DEBUG",
    "NCCL_GDR_LEVEL": "NCCL_NET_GDR_LEVEL",
    "NCCL_DISABLE_P2P": "NCCL_P2P_DISABLE",
    "NCCL_DISABLE_IB": "NCCL_IB_DISABLE",
    "NCCL_DISABLE_SHM": "NCCL_SHM_DISABLE",
    "NCCL_ALGORITHM": "NCCL_ALGO",
    "NCCL_PROTOCOL": "NCCL_PROTO",
    "NCCL_BUFFER_SIZE": "NCCL_BUFFSIZE",
}
"""Names that people write, and the variable that they mean."""


class Variable(NamedTuple):
    """A variable of NCCL or torch."""

    name: str
    kind: str
    """int, bool and float (torch), flag (text or number), level (a path such as PHB), text."""
    first: Version
    """The first and last release of NCCL or torch that read it."""
    last: Version
    default: str = ""
    """If it is a number."""
    successor: str = ""
    """The name that replaced it; for torch's the deprecated name."""


class Tables(NamedTuple):
    """All known variables."""

    nccl: dict[str, Variable]
    torch: dict[str, Variable]
    deprecated: dict[str, str]
    """Old names of torch's variables, and the new ones."""
    others: tuple[str, ...]
    """Names of other software."""
    prefixes: tuple[str, ...]
    """And how its names begin."""
    newest: Version
    """The newest release of NCCL in the table."""


@cache
def tables() -> Tables:
    """Return the tables, parsed once."""
    nccl: dict[str, Variable] = {}
    torch: dict[str, Variable] = {}
    others: list[str] = []
    for row in ROWS.splitlines():
        columns, *names = re.split(r" (?=[A-Z])", row)
        for text in names:
            named, _, successor = text.partition(">")
            name, _, default = named.partition("=")
            match columns.split():
                case "nccl" | "torch" as software, first, last, kind:
                    into = nccl if software == "nccl" else torch
                    into[name] = Variable(name, kind, version(first), version(last), default, successor)
                case _:
                    others.append(name)
    return Tables(
        nccl,
        torch,
        {variable.successor: variable.name for variable in torch.values() if variable.successor},
        tuple(name for name in others if not name.endswith("*")),
        tuple(name.removesuffix("*") for name in others if name.endswith("*")),
        max(variable.last for variable in nccl.values()),
    )


def known(name: str) -> bool:
    """Return whether NCCL, torch or other software reads a name, in any version."""
    t = tables()
    return name in t.nccl or name in t.torch or name in t.deprecated or name in t.others or name.startswith(t.prefixes)


def current(name: str) -> bool:
    """Return whether the newest NCCL in the table reads a name."""
    variable = tables().nccl.get(name)
    return variable is not None and variable.last == tables().newest


def suggestion(name: str) -> str:
    """Return the variable that a misspelt name means, '' if none is similar."""
    t = tables()
    upper = _HABITS.get(name.upper(), name.upper())
    pool = [n for n in t.nccl if current(n)] + list(t.torch) + [n for n in t.others if n.startswith("RCCL_")]
    return upper if upper in pool else next(iter(get_close_matches(upper, pool, 1, _ALIKE)), "")
