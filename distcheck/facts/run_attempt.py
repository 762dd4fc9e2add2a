"""An attempt of torchrun's agents to run a job."""

from __future__ import annotations

from distcheck.facts.base import Count, Facts


class RunAttempt(Facts, frozen=True):
    """The agents whose ranks met in an attempt; torchrun ends the ranks and starts them again in the next one."""

    number: Count
    """From 1, counting the attempts whose ranks all met in distcheck; 0 if there was none yet."""
    agents: dict[str, str] = {}
    """The name of each agent's node. An agent is the key of its node and its pid, joined by "|"."""
