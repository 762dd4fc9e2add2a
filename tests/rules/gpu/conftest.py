"""Jobs on machines as NVML describes them, and what is found there."""

from __future__ import annotations

import pytest
from made.nvml_jobs import machines, told


@pytest.fixture
def on(fake_nvml, job_of, change):
    """Build a job whose nodes the texts describe: see `machines`."""
    return machines(fake_nvml, job_of, change)


@pytest.fixture
def says(judge, ours):
    """Return what the families of a module find, as rule, severity, ranks, nodes; nothing remains unchecked."""
    return told(judge, *ours)
