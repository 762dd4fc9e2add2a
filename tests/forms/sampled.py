"""A few cases of a matrix in every change, and all of them with --slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def sampled(cases: Iterable[Any], *kept: Any, ids: Iterable[str] = ()) -> list[Any]:
    """Return the parameters of a test; those that are not kept are marked slow.

    A tuple is a case of several arguments. `kept` holds cases; with `ids`, or of a mapping, it holds names of cases.
    """
    if isinstance(cases, Mapping):
        ids, cases = [str(name) for name in cases], cases.values()
    cases, ids = list(cases), list(ids)
    names = ids or cases
    assert all(name in names for name in kept), f"{kept} are not all among {names}"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=name if ids else None,
            marks=() if name in kept else pytest.mark.slow,
        )
        for name, case in zip(names, cases, strict=True)
    ]
