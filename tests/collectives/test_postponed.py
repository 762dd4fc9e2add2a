"""The part of torch's import that is postponed, in processes that have not imported torch yet."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.process


def said(program):
    """Return what a new process prints that runs this program."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_rank_imports_no_meta_kernels_until_it_takes_training_steps():
    assert said(
        """
        import sys, distcheck.collectives.worker, torch
        print("torch._meta_registrations" in sys.modules, hasattr(torch, "_meta_registrations"))
        import distcheck.collectives.training.steps
        print("torch._meta_registrations" in sys.modules, torch.Generator().manual_seed(1).device)
        """
    ) == ["False", "False", "True", "cpu"]


@pytest.mark.parametrize(
    ("version", "postponed"), [("2.1.0", True), ("2.15.1+cu130", True), ("2.16.0a0", False), ("3.0.0", False)]
)
def test_a_torch_that_is_newer_than_those_that_were_tried_is_imported_whole(tmp_path, version, postponed):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "version.py").write_text(f"__version__ = '{version}'\n")
    (package / "__init__.py").write_text("from torch import _meta_registrations\n")
    (package / "_meta_registrations.py").write_text("print('kernels')\n")
    printed = said(
        f"""
        import sys
        from distcheck.collectives.postponed import without_meta_kernels
        sys.path.insert(0, {str(tmp_path)!r})
        with without_meta_kernels():
            import torch
        """
    )
    assert printed == ([] if postponed else ["kernels"])


def test_a_module_that_is_used_while_torch_is_imported_is_imported_then(tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "version.py").write_text("__version__ = '2.13.0'\n")
    (package / "__init__.py").write_text("from torch import _meta_registrations\nfrom torch import user\n")
    (package / "user.py").write_text("from torch._meta_registrations import kernels\n")
    (package / "_meta_registrations.py").write_text("kernels = 3\n")
    assert said(
        f"""
        import sys
        from distcheck.collectives.postponed import without_meta_kernels
        sys.path.insert(0, {str(tmp_path)!r})
        with without_meta_kernels():
            import torch
        import torch._meta_registrations
        print(torch.user.kernels, torch._meta_registrations.kernels)
        """
    ) == ["3", "3"]


def test_a_torch_that_was_imported_before_stays_whole():
    assert said(
        """
        import torch
        from distcheck.collectives.postponed import without_meta_kernels
        with without_meta_kernels():
            import torch
        print(torch._meta_registrations.__name__)
        """
    ) == ["torch._meta_registrations"]
