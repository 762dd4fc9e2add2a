"""What a launch command states, or why it does not tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from distcheck.facts.launch_command import Stated

ReadFile = Callable[[str], str]


class Untold(NamedTuple):
    """A launch command that does not tell its ranks."""

    by: str
    reason: str
    """As the end of a sentence: its number of ranks is set in the script."""
    remedy: str = ""
    """The option of distcheck that would tell it."""


class Names(NamedTuple):
    """The options of a launcher, or its variables with = behind them."""

    master_addr: str
    master_port: str
    node_rank: str
    endpoint: str = ""
    """Of address and port together; '' if it has none."""
    nproc: str = ""
    """Of the number of ranks on each node; '' if that is none of its own options."""

    def set(self, stated: Stated, values: Mapping[str, object]) -> str:
        """Return the words that set MASTER_ADDR, MASTER_PORT or NODE_RANK to these values."""
        if self.endpoint and "NODE_RANK" not in values and (stated.rendezvous is not None or not self.master_addr):
            place = {"MASTER_ADDR": stated.master_addr, "MASTER_PORT": stated.master_port} | {**values}
            return f"{self.endpoint} {place['MASTER_ADDR']}:{place['MASTER_PORT']}"
        names = {"MASTER_ADDR": self.master_addr, "MASTER_PORT": self.master_port, "NODE_RANK": self.node_rank}
        given = [(names[name], value) for name, value in values.items()]
        return " ".join(f"{option}{'' if option.endswith('=') else ' '}{value}" for option, value in given)


class UnreadableError(ValueError):
    """What a launcher will make of its words is unknown."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy
        """The option of distcheck that would tell the placement."""


class RefusedError(ValueError):
    """The launcher will refuse its words, and start no ranks."""

    def __init__(self, reason: str, instead: str = "") -> None:
        super().__init__(reason)
        self.instead = instead
        """The options that it would take; '' if only the user knows."""


def number(name: str, text: str, least: int = 0) -> int:
    """Return the value of an option; raises RefusedError if it is no number, or smaller than `least`."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value < 1 << 31:
        raise RefusedError(f"{name} is {text!r}, expected a number from {least}")
    return value
