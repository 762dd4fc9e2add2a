"""Long simulations run when the search or its tests have changed, and with --slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from forms import tested

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # tests/conftest.py skips what is slow
def pytest_collection_modifyitems(items):
    if tested.unchanged("isolation"):
        for item in items:
            if item.path.parent == _HERE and item.get_closest_marker("long"):
                item.add_marker(pytest.mark.slow)
