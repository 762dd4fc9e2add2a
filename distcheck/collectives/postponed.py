"""Postpones the part of torch's import that no collective needs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

META_KERNELS = "torch._meta_registrations"
_NEWEST = (2, 15)
"""The newest torch whose collectives are known to work without them."""
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA's GPUs, Tegra's, AMD's, and those of WSL."""
_POSTPONED = ("_meta_registrations.py", "_decomp/decompositions.py", "_prims/__init__.py", "_refs/__init__.py")
"""Of torch: what is not imported. If a file is missing, `import torch` fails in the job, and has to fail here."""
_VERSION = re.compile(r"^__version__ = '(\d+)\.(\d+)", re.MULTILINE)


class _Postponed(types.ModuleType):
    """Stands for a module, which is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _forget(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def without_meta_kernels() -> Iterator[None]:
    """Let the body import torch without the kernels for meta tensors, which are a third of the import.

    `import torch` ends with ``from torch import _meta_registrations``, since 2.0. That imports torch's decompositions,
    references and primitives, for compilers and for those who work out shapes without data. Collectives do neither.
    Whoever does imports `META_KERNELS` itself, as the training step. What was not tried is imported whole: a newer
    torch, and any torch on a machine with GPUs. Source: torch/__init__.py.
    """
    if META_KERNELS in sys.modules or not _tried():
        yield
        return
    stand_in = _Postponed(META_KERNELS)
    sys.modules[META_KERNELS] = stand_in
    try:
        yield
    finally:
        _forget(stand_in)


def _tried() -> bool:
    """Return whether such a torch was tried without these kernels on such a machine."""
    if any(map(os.path.exists, _GPU_DRIVERS)):
        return False
    with contextlib.suppress(OSError, ImportError, ValueError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin is not None:
            torch = Path(spec.origin).parent
            version = _VERSION.search((torch / "version.py").read_text())
            known = version is not None and (int(version[1]), int(version[2])) <= _NEWEST
            return known and all((torch / name).exists() for name in _POSTPONED)
    return False


def _forget(stand_in: types.ModuleType) -> None:
    """Let the next import find the module itself."""
    package, _, name = stand_in.__name__.rpartition(".")
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]
    if vars(sys.modules.get(package, types)).get(name) is stand_in:
        delattr(sys.modules[package], name)
