"""NVML's answers for tests of the probes."""

from __future__ import annotations

import asyncio

import pytest

from distcheck.probe import gpu


@pytest.fixture
def ask(fake_nvml, monkeypatch):
    """Ask NVML in a child, as distcheck does, on the machine that `text` describes."""

    def ask(text, timeout=30.0, **more):
        for name, value in fake_nvml.environ(text).items():
            monkeypatch.setenv(name, value)
        return asyncio.run(gpu.gpus(timeout, **more))

    return ask
