"""The part of torch's import that is postponed, in processes that have not imported torch yet."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from distcheck.collectives.postponed import _POSTPONED

pytestmark = pytest.mark.process


def said(program):
    """Return what a new process prints that runs this program as on a machine without GPUs."""
    without_driver = "from distcheck.collectives import postponed; postponed._GPU_DRIVERS = ()\n"
    done = subprocess.run(
        [sys.executable, "-c", without_driver + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def imported(tmp_path):
    """Return what is printed when a made-up torch is imported, and then by more words."""

    def imported(version="2.13.0", lacks="", then="", **files):
        texts = dict.fromkeys(_POSTPONED, "") | {
            "version.py": f"__version__ = '{version}'\n",
            "__init__.py": "from torch import _meta_registrations\n",
            "_meta_registrations.py": "kernels = 3\nprint('kernels')\n",
            **{f"{name}.py": text for name, text in files.items()},
        }
        for name, text in texts.items():
            path = tmp_path / "torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name != lacks:
                path.write_text(text)
        return said(
            f"import sys\nfrom distcheck.collectives.postponed import without_meta_kernels\n"
            f"sys.path.insert(0, {str(tmp_path)!r})\nwith without_meta_kernels():\n    import torch\n{then}"
        )

    return imported


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
def test_a_torch_that_is_newer_than_those_that_were_tried_is_imported_whole(imported, version, postponed):
    assert imported(version) == ([] if postponed else ["kernels"])


def test_a_torch_that_lacks_a_file_is_imported_whole(imported):
    assert imported(lacks=_POSTPONED[-1]) == ["kernels"]


def test_a_module_that_is_used_while_torch_is_imported_is_imported_then(imported):
    torch = "from torch import _meta_registrations\nfrom torch import user\n"
    user = "from torch._meta_registrations import kernels\n"
    printed = imported(
        __init__=torch,
        user=user,
        then="import torch._meta_registrations; print(torch.user.kernels)",
    )
    assert printed == ["kernels", "3"]


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
