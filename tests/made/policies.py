"""Policies of a site, as they are after reading."""

from __future__ import annotations

from typing import Any

import msgspec

from distcheck.facts.policy import Policy, Section


def policy(*sections: dict[str, Any], node: str = "node1", day: str = "2026-12-01", problem: str = "") -> Policy:
    """Return a policy of these sections, as TOML has them."""
    parts = tuple(msgspec.convert(section, Section) for section in sections)
    return Policy(("/etc/distcheck/policy.toml",), "9f86d081884c7d65", node, day, problem, parts)
