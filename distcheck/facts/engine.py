"""What an inference engine, in front of which the gate stands, will need on its node."""

from __future__ import annotations

from typing import Literal

from distcheck.facts.base import Count, Facts, Missing, Whole
from distcheck.facts.network import PortOwner


class FixedPort(Facts, frozen=True):
    """A port that an engine will listen on, or that must be free when it starts."""

    number: Whole
    """Valid or not."""
    option: str
    """What sets it: --port, VLLM_NIXL_SIDE_CHANNEL_PORT."""
    host: str = ""
    """The address at which it listens; '' at all."""
    distance: Whole = 0
    """By how much it is above the port that this option has."""
    meets: bool = False
    """Whether the nodes meet there: the roll call tries it as MASTER_PORT."""
    owner: PortOwner | Missing | None = None
    """The process that listens there now; None: none does."""
    free: Count | None = None
    """An unused port near it, where it is taken."""

    def __str__(self) -> str:
        """20003 (--dist-init-addr +3)."""
        return f"{self.number} ({self.option}{f' {self.distance:+}' * bool(self.distance)})"


class Engine(Facts, frozen=True):
    """An engine's own settings on its node, then what was found there."""

    name: Literal["vLLM", "SGLang"]
    program: str = ""
    """What is started, as COMMAND names it: the engine's program, or its Python."""
    ports: tuple[FixedPort, ...] = ()
    port_variable: str | None = None
    """VLLM_PORT or SGLANG_PORT, where its search for free ports begins; None: not set."""
    announces: bool = False
    """Whether its processes on other nodes connect to it at an address of its own choice."""
    address: str = ""
    """That address; '' if it finds none."""
    address_by: str = ""
    """What tells it: a variable, or the route."""
    side_channel: str | None = None
    """The address of NIXL's side channel; None: it uses no NIXL connector."""
    model: str = ""
    """The path of its model; '' if it is a name of Hugging Face, or unknown."""
    model_state: Literal["", "file", "folder", "absent", "unreadable", "silent"] = ""
    versions: dict[str, str] = {}
    """Of the packages in its Python that its processes on other nodes must share."""
