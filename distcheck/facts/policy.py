"""A site's policy: what its files set, section by section, and what that makes of it on one node.

A later section changes what it names of an earlier one, and leaves the rest. Names in the files have dashes.
"""

from __future__ import annotations

import os
import re
from functools import cache, cached_property
from typing import Literal, TypeVar

from distcheck.facts.base import Amount, Count, Factor, Facts, Whole

Mode = Literal["observe", "enforce"]
Checker = Literal["env", "net", "gpu", "bandwidth", "isolate", "gate", "node"]
"""The commands that check."""
Value = bool | Whole | Factor | str | tuple[str, ...]
_S = TypeVar("_S", bound=Facts)
SITE = "/etc/distcheck"
"""The folder of the site's policy."""


def installed() -> bool:
    """Return whether the site has a policy, by the names in /etc: to look into a folder could wait for a server."""
    try:
        return os.path.basename(SITE) in os.listdir(os.path.dirname(SITE))  # noqa: PTH119, PTH120, PTH208 only text
    except OSError:
        return False


class RuleSetting(Facts, frozen=True, rename="kebab", omit_defaults=True):
    """What a policy makes of one rule."""

    mode: Mode | None = None
    severity: Literal["error", "warning", "info"] | None = None
    """Of its errors and warnings; info findings stay info."""
    ignore: str = ""
    """Why it is not applied; empty: it is."""
    until: str = ""
    """The last day on which it is ignored, as 2027-01-31; empty: no end."""

    def ended(self, day: str) -> bool:
        """Return whether it is to be ignored no more."""
        return bool(self.ignore and self.until and self.until < day)


class CommandSetting(Facts, frozen=True, rename="kebab", omit_defaults=True):
    """What a policy makes of one command."""

    mode: Mode | None = None
    options: dict[str, Value] = {}


class ExpectedNode(Facts, frozen=True, rename="kebab", omit_defaults=True):
    """The hardware and software that a node must have; texts are shell patterns."""

    gpus: Count | None = None
    gpu_model: str = ""
    adapters: Count | None = None
    """RDMA adapters."""
    driver: str | tuple[str, ...] = ()
    """NVIDIA's; each of several is accepted."""
    kernel: str | tuple[str, ...] = ()


class Thresholds(Facts, frozen=True, rename="kebab", omit_defaults=True):
    """Thresholds in place of the rules' own."""

    tmp_free_MiB: Count | None = None  # noqa: N815 the unit's own spelling
    """Below it the folder for temporary files is nearly full."""
    shm_free_MiB: Count | None = None  # noqa: N815
    """At it or below /dev/shm is too small."""
    gpu_celsius: Count | None = None
    """At it or above a GPU is too hot, even below its own slowdown threshold."""


class BusbwFloor(Facts, frozen=True, rename="kebab", omit_defaults=True):
    """The lowest accepted bus bandwidth; of several that fit, the last one counts."""

    GBps: Amount
    op: str = "*"
    gpu: str = "*"
    """A pattern of the model's name; with several models in a job, all must fit."""
    ranks: Count | None = None
    """None: any number."""


class DeviceFloor(Facts, frozen=True, rename="kebab", omit_defaults=True):
    """What a healthy GPU of a model reaches by itself, at least; None: as the rules know it."""

    matmul_TFLOPS: Amount | None = None  # noqa: N815
    memory_GBps: Amount | None = None  # noqa: N815
    host_GBps: Amount | None = None  # noqa: N815


class Section(Facts, frozen=True, rename="kebab", omit_defaults=True):
    """A part of a policy: a file, or what it sets for some nodes or partitions."""

    nodes: str = ""
    """A list of nodes, as gpu[001-128]; empty: all."""
    partitions: tuple[str, ...] = ()
    """Of Slurm; empty: all."""
    mode: Mode | None = None
    options: dict[str, Value] = {}
    """Defaults of options, by their names without dashes in front."""
    command: dict[Checker, CommandSetting] = {}
    rule: dict[str, RuleSetting] = {}
    expect: ExpectedNode = ExpectedNode()
    threshold: Thresholds = Thresholds()
    busbw: tuple[BusbwFloor, ...] = ()
    device: dict[str, DeviceFloor] = {}
    """By a pattern of the model's name; of several that fit, the last one counts."""
    required_paths: tuple[str, ...] = ()
    """Folders that every node must have."""

    def fits(self, node: str) -> bool:
        """Return whether it is about a node."""
        return not self.nodes or (bool(node) and named(self.nodes, node))


NOTHING = Section()


class Policy(Facts, frozen=True, dict=True, gc=True):
    """The policy of one process, as its files were when it started."""

    files: tuple[str, ...]
    digest: str
    """SHA-256 of their contents."""
    node: str = ""
    """The node of the process."""
    day: str = ""
    """The day, as 2027-01-31, on which ignored rules are judged."""
    problem: str = ""
    """Why the files are not used; empty if they are."""
    sections: tuple[Section, ...] = ()
    """In order; those of other partitions are left out."""

    @cached_property
    def _merged(self) -> dict[str, Section]:
        return {}

    def on(self, node: str = "") -> Section:
        """Return what is set on a node; without a name, on that of this process."""
        name = (node or self.node) if any(section.nodes for section in self.sections) else ""
        if name not in self._merged:
            found = NOTHING
            for section in self.sections:
                if section.fits(name):
                    found = merged(found, section)
            self._merged[name] = found
        return self._merged[name]


def merged(under: _S, over: _S) -> _S:
    """Return settings with those that `over` has in place of those of `under`."""
    fields = {}
    for name, default in zip(over.__struct_fields__, over.__struct_defaults__, strict=True):
        now, before = getattr(over, name), getattr(under, name)
        fields[name] = before if now == default else _one(before, now, name)
    return type(over)(**fields)


def _one(before: object, now: object, name: str) -> object:
    if isinstance(now, Facts) and isinstance(before, Facts):
        return merged(before, now)
    if isinstance(now, dict) and isinstance(before, dict):
        return before | {key: _one(before[key], value, "") if key in before else value for key, value in now.items()}
    if name in {"busbw", "required_paths"} and isinstance(before, tuple) and isinstance(now, tuple):
        return (*before, *now)
    return now


@cache
def named(nodes: str, name: str) -> bool:
    """Return whether a list of nodes names one, without making the list: n[1-999999999] is short."""
    return any(_matches(item, name) for item in items(nodes))


def items(nodes: str) -> list[str]:
    """Return the items of a list of nodes: gpu[001-128], login1."""
    return [item for item in re.split(r",(?![^\[]*\])|\s+", nodes) if item]


def _matches(item: str, name: str) -> bool:
    parts = re.split(r"\[([^\]]*)\]", item)
    pattern = "".join(r"(\d+)" if n % 2 else re.escape(part) for n, part in enumerate(parts))
    found = re.fullmatch(pattern, name, re.ASCII)
    return found is not None and all(map(_within, found.groups(), parts[1::2]))


def _within(number: str, ranges: str) -> bool:
    """Return whether a number is one of 1-4,7, or, with as many digits, of 001-128."""
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        high = high or low
        width = len(low) if low.startswith("0") else len(number.lstrip("0") or "0")
        numbers = low.isdecimal() and high.isdecimal()
        if numbers and len(number) == width and _value(low) <= _value(number) <= _value(high):
            return True
    return False


def _value(digits: str) -> tuple[int, str]:
    """Return what orders numbers of any length."""
    plain = digits.lstrip("0")
    return len(plain), plain


def matching(name: str, patterns: str | tuple[str, ...]) -> bool:
    """Return whether a name fits one of some shell patterns."""
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns))
