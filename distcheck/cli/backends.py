"""The names that ``--backend`` accepts: torch's own, and those that plugins register with torch."""

from __future__ import annotations

import re

OF_NCCL = ("nccl", "nccl2", "nccl-legacy", "nccl-lazy", "ncclx", "nccl4py", "rccl", "rcclx")
"""Backends that move the data of GPUs by NCCL or RCCL; rccl is torch's nccl on AMD GPUs."""
KNOWN = ("auto", *OF_NCCL, "gloo", "mpi", "ucc", "xccl", "hccl")
_FORM = re.compile(r"[a-z][\w.-]*|[a-z]+:[a-z][\w.-]*(,[a-z]+:[a-z][\w.-]*)*", re.ASCII)
_ALIKE = 0.8
"""How similar a name must be to a known one to be a typing error (difflib's ratio); plugins' mccl and cncl are not."""


def backend(text: str) -> str:
    """Return a backend as init_process_group takes it: a name, or one for each type of device.

    Raises:
        ValueError: it has another form, or is a known name with a typing error.
    """
    found = text.lower()
    if not _FORM.fullmatch(found) or any(map(_misspelt, (part.rpartition(":")[2] for part in found.split(",")))):
        raise ValueError(text)
    return found


def _misspelt(name: str) -> bool:
    from difflib import get_close_matches

    if name in KNOWN or not get_close_matches(name, KNOWN, 1, _ALIKE):
        return False
    from importlib.metadata import entry_points

    return not any(entry_points(group=group, name=name) for group in ("torch.backends", "torch.distributed.backends"))


def known() -> tuple[str, ...]:
    """Return the names that the command line proposes."""
    return KNOWN


def kind_of(name: str) -> str:
    """Return what moves the data that is measured, that of GPUs if there are any: nccl for all of `OF_NCCL`.

    A device map without a backend for CPUs, such as cuda:gloo, is a kind of its own.
    """
    pairs = [part.split(":") for part in name.split(",") if ":" in part]
    device, main = next((pair for pair in pairs if pair[0] != "cpu"), pairs[0] if pairs else ["cpu", name])
    return "nccl" if main in OF_NCCL else name if main == "gloo" and device != "cpu" else main
